/* A reader of the store for tests: one command on each line of stdin, one answer on each line of stdout.
 *
 *     get KEY              outcome, number of the lease, the record's place, crc32 of its bytes
 *     hold SLOT GENERATION the same for a record that another process holds
 *     read LEASE           crc32 of the bytes, read again
 *     back LEASE | may     may: whether it may hold more
 *     digest KEY | ring    the digest of tenant t's key; the path of the ring's data object
 *     register | attach    attach: anew, over a new connection
 *     fork LEASE           pid of a child that, once this process is dead, reads the bytes for each byte of stdin
 *     threads KEY ROUNDS   4 threads hit; hits and leases that the entry then counts
 *     soak SECONDS NUM     looks at keys s0 … at random; every byte of a tensor must be the same: hits and misses
 */
#define MMCACHED_READER_IMPLEMENTATION
#include "mmcached_connection.h"

#include <signal.h>
#include <sys/prctl.h>

enum { MAX_LEASES = 256, HEAD_BYTES = 64, TIMEOUT_S = 60 };
static mmc_connection connection;
static mmc_reader reader;
static mmc_lease leases[MAX_LEASES];
static int num_leases;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int attach(const char *run_dir)
{
    mmc_ring ring;
    int outcome = mmc_connect(&connection, run_dir, "c-reader", TIMEOUT_S, &ring);
    if (outcome == MMC_OK) outcome = mmc_attach(&reader, &ring);
    return outcome == MMC_OK ? mmc_register(&connection, &reader) : outcome;
}

static int get(const char *key, mmc_lease *lease)
{
    uint64_t digest[2];
    mmc_key_digest("", key, digest);
    return mmc_get(&reader, digest, lease);
}

static uint32_t crc_of(const mmc_lease *lease) { return mmc__crc32(lease->data, lease->record.nbytes); }

static int is_torn(const mmc_lease *lease)
{
    for (uint64_t i = HEAD_BYTES + 1; i < lease->record.nbytes; i++)
        if (lease->data[i] != lease->data[HEAD_BYTES]) return 1;
    return memcmp(lease->data, "MMREC", 5) != 0;
}

static void soak(int seconds, int num_keys)
{
    const uint64_t end = now_ns() + (uint64_t)seconds * 1000000000u;
    uint64_t digests[64][2], state = reader.incarnation, hits = 0, misses = 0;
    mmc_lease held[8];
    memset(held, 0, sizeof held);
    for (int i = 0; i < num_keys && i < 64; i++) {
        char key[16];
        snprintf(key, sizeof key, "s%d", i);
        mmc_key_digest("", key, digests[i]);
    }
    for (uint64_t round = 0; now_ns() < end; round++) {
        mmc_lease *lease = held + round % 8; /* each is read again seven rounds later */
        if (lease->is_counted && is_torn(lease)) {
            printf("torn: a record of %llu bytes changed under its lease\n", (unsigned long long)lease->record.nbytes);
            return;
        }
        mmc_give_back(&reader, lease);
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int outcome = mmc_get(&reader, digests[(state >> 33) % (uint64_t)num_keys], lease);
        if (outcome != MMC_OK && outcome != MMC_MISSING) {
            printf("outcome %d\n", outcome);
            return;
        }
        outcome == MMC_OK ? hits++ : misses++;
        if (lease->is_counted && is_torn(lease)) {
            printf("torn: a record of %llu bytes\n", (unsigned long long)lease->record.nbytes);
            return;
        }
    }
    for (int i = 0; i < 8; i++) mmc_give_back(&reader, held + i);
    printf("hits %llu misses %llu\n", (unsigned long long)hits, (unsigned long long)misses);
}

static const char *shared_key;
static int num_rounds;

static void *hit_often(void *unused)
{
    mmc_lease lease;
    for (int i = 0; i < num_rounds; i++)
        if (get(shared_key, &lease) == MMC_OK) mmc_give_back(&reader, &lease);
    return unused;
}

static void in_threads(const char *key, int rounds)
{
    pthread_t threads[4];
    const uint64_t before = reader.entry[MMC_HITS];
    shared_key = key, num_rounds = rounds;
    for (int i = 0; i < 4; i++)
        if (pthread_create(threads + i, NULL, hit_often, NULL)) exit(7);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    uint64_t num_out = 0;
    for (uint64_t slot = 0; slot < reader.ring.num_slots; slot++) {
        const uint64_t *counts = reader.entry + MMC_FIRST_COUNT + 2 * slot;
        num_out += counts[1] - counts[0];
    }
    printf("hits %llu leases %llu\n", (unsigned long long)(reader.entry[MMC_HITS] - before), (unsigned long long)num_out);
}

/* The child outlives this process, and reads on under the lease that both hold. */
static void fork_with(const mmc_lease *lease)
{
    const uint32_t crc = crc_of(lease);
    int ends[2], is_same = 1;
    char byte;
    if (pipe(ends)) exit(4);
    const pid_t pid = fork();
    if (pid > 0) {
        close(ends[0]); /* the other end stays open for this process's life */
        printf("pid %d\n", (int)pid);
        return;
    }
    close(ends[1]);
    mmc_drop(&connection);
    if (read(ends[0], &byte, 1)) _exit(5);
    printf("alone\n");
    while (read(0, &byte, 1) == 1) {
        is_same = is_same && crc_of(lease) == crc;
        printf("same %d\n", is_same);
    }
    mmc_abandon(&reader);
    _exit(0);
}

int main(int argc, char **argv)
{
    char line[512], word[32], key[300];
    int number;
    if (argc != 2) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("outcome %d reader %llu\n", attach(argv[1]), (unsigned long long)reader.reader_id);
    while (fgets(line, sizeof line, stdin)) {
        word[0] = key[0] = 0;
        number = 0;
        sscanf(line, "%31s %299s %d", word, key, &number);
        mmc_lease *lease = leases + atoi(key) % MAX_LEASES;
        if (!strcmp(word, "get") || !strcmp(word, "hold")) {
            lease = leases + num_leases % MAX_LEASES;
            const int is_key = !strcmp(word, "get");
            const int outcome = is_key ? get(key, lease) : mmc_get_held(&reader, strtoull(key, NULL, 10), number, lease);
            if (outcome == MMC_OK)
                printf("outcome 1 lease %d slot %llu offset %llu nbytes %llu nursery %llu crc %u\n", num_leases++,
                       (unsigned long long)lease->record.slot, (unsigned long long)lease->record.offset,
                       (unsigned long long)lease->record.nbytes,
                       (unsigned long long)lease->record.nursery, crc_of(lease));
            else
                printf("outcome %d\n", outcome);
        } else if (!strcmp(word, "read")) {
            printf("crc %u\n", crc_of(lease));
        } else if (!strcmp(word, "back")) {
            mmc_give_back(&reader, lease);
            printf("outcome 1\n");
        } else if (!strcmp(word, "may")) {
            printf("outcome %d\n", mmc_may_hold(&reader));
        } else if (!strcmp(word, "register")) {
            printf("outcome %d\n", mmc_register(&connection, &reader));
        } else if (!strcmp(word, "attach")) {
            mmc_disconnect(&connection);
            mmc_detach(&reader);
            printf("outcome %d\n", attach(argv[1]));
        } else if (!strcmp(word, "fork")) {
            fork_with(lease);
        } else if (!strcmp(word, "soak")) {
            soak(atoi(key), number);
        } else if (!strcmp(word, "threads")) {
            in_threads(key, number);
        } else if (!strcmp(word, "ring")) {
            printf("/dev/shm/mmc.%llu.%s.data\n", (unsigned long long)reader.ring.uid, reader.ring.id);
        } else if (!strcmp(word, "digest")) {
            uint64_t digest[2];
            mmc_key_digest("t", key, digest);
            printf("first %llu second %llu\n", (unsigned long long)digest[0], (unsigned long long)digest[1]);
        } else {
            return 2;
        }
    }
    mmc_disconnect(&connection);
    mmc_detach(&reader);
    return 0;
}
