/* Measures hits of the reader in C: for each line of stdin, ns of a look, lease and give back, of three kinds.
 *
 *     native_hits RUN_DIR KEY NUM_KEYS      of KEY; of KEY with its digest; of the keys `KEY 0`, `KEY 1` … in turns
 */
#define MMCACHED_READER_IMPLEMENTATION
#include "mmcached_connection.h"

enum { ROUNDS = 20000, TIMEOUT_S = 60 };
static mmc_reader reader;

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void hit(const uint64_t digest[2])
{
    static volatile uint8_t last; /* so that the byte is read */
    mmc_lease lease;
    if (mmc_get(&reader, digest, &lease) != MMC_OK) exit(3);
    last = lease.data[lease.record.nbytes - 1];
    (void)last;
    mmc_give_back(&reader, &lease);
}

int main(int argc, char **argv)
{
    mmc_connection connection;
    mmc_ring ring;
    char line[16];
    if (argc != 4 || mmc_connect(&connection, argv[1], "c-reader", TIMEOUT_S, &ring) != MMC_OK) return 2;
    if (mmc_attach(&reader, &ring) != MMC_OK || mmc_register(&connection, &reader) != MMC_OK) return 2;
    const int num_keys = atoi(argv[3]);
    uint64_t one[2], (*many)[2] = (uint64_t (*)[2])malloc((size_t)num_keys * sizeof *many);
    mmc_key_digest("", argv[2], one);
    for (int i = 0; many && i < num_keys; i++) {
        char key[64];
        snprintf(key, sizeof key, "%.40s %d", argv[2], i);
        mmc_key_digest("", key, many[i]);
        hit(many[i]);
    }
    while (many && fgets(line, sizeof line, stdin)) {
        double at[4];
        at[0] = now_ns();
        for (int i = 0; i < ROUNDS; i++) hit(one);
        at[1] = now_ns();
        for (int i = 0; i < ROUNDS; i++) {
            uint64_t digest[2];
            mmc_key_digest("", argv[2], digest);
            hit(digest);
        }
        at[2] = now_ns();
        for (int i = 0, next = 0; i < ROUNDS; i++) hit(many[next = (next + 1597) % num_keys]);
        at[3] = now_ns();
        printf("%.1f %.1f %.1f\n", (at[1] - at[0]) / ROUNDS, (at[2] - at[1]) / ROUNDS, (at[3] - at[2]) / ROUNDS);
        fflush(stdout);
    }
    mmc_disconnect(&connection);
    mmc_detach(&reader);
    free(many);
    return 0;
}
