/* Reads records of an mmcached store in place, from C or C++, without a message for each look.
 *
 *     mmc_connect     (mmcached_connection.h) greets the service of a run directory; the answer names the ring
 *     mmc_attach      takes an entry of the ring and maps it
 *     mmc_register    (mmcached_connection.h) tells the service which entry
 *     mmc_get         looks a key up, takes a lease, checks the record: `lease.data`, `lease.record.nbytes`
 *     mmc_give_back   ends the lease; the bytes must not be read any more
 *     mmc_detach, mmc_disconnect
 *
 * Define MMCACHED_READER_IMPLEMENTATION in one source file, and include this file there before all others. Linux, GCC
 * or Clang, a 64-bit little-endian machine. Any thread may call any function. docs/protocol.md specifies what is done
 * here, and the format of a record's bytes.
 *
 * Fork: a child uses no reader and no connection of its parent: it calls `mmc_abandon` and `mmc_drop`. Views under
 * leases that were out at the fork stay valid in both processes if neither gives these leases back; then the child
 * calls `mmc_abandon` after its last read, and the parent calls it instead of `mmc_detach`.
 */
#ifndef MMCACHED_READER_H
#define MMCACHED_READER_H
#if defined(MMCACHED_READER_IMPLEMENTATION) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MMC_OK = 1,
    MMC_MISSING = 0,        /* no such record, or it has expired */
    MMC_DETACHED = -1,      /* this entry may take no leases: register it; if refused, connect and attach anew */
    MMC_DAMAGED = -2,       /* the bytes do not have the recorded checksum, or the ring's words contradict each other */
    MMC_UNREADABLE = -3,    /* the record cannot be mapped here: ask the service for it */
    MMC_NO_RING = -4,       /* the ring's objects are missing, or belong to another user */
    MMC_OTHER_VERSION = -5, /* the service has another layout or protocol */
    MMC_FULL = -6,          /* all entries of the ring are in use */
    MMC_NO_MEMORY = -7,
    MMC_NO_SERVICE = -8,     /* no answer: no service, or the connection is lost; connect anew */
    MMC_REFUSED = -9
};

#define MMC_LAYOUT_VERSION 9
#define MMC_MAX_NURSERIES 64

/* What the service says of its ring. */
typedef struct mmc_ring {
    char id[33];
    uint64_t uid, epoch, data_bytes, num_slots, max_readers, index_words;
} mmc_ring;

/* A place: bytes `offset` to `offset + nbytes` of a nursery, or, if `nursery` is 0, of the data object. */
typedef struct mmc_record {
    uint64_t slot, generation, offset, nbytes, nursery;
} mmc_record;

typedef struct mmc_lease {
    mmc_record record;
    const uint8_t *data;
    int nursery_place; /* -1: in the data object */
    int is_counted;
} mmc_lease;

typedef struct mmc_nursery {
    uint64_t id, num_leases, last_use;
    uint8_t *base;
    size_t nbytes;
    int fd;
} mmc_nursery;

typedef struct mmc_reader {
    mmc_ring ring;
    uint64_t reader_id, incarnation;
    int ctl_fd;
    uint8_t *data;
    size_t data_object_bytes, entry_bytes;
    const uint64_t *board, *slots, *index;
    uint64_t *entry;
    uint64_t num_uses;
    mmc_nursery nurseries[MMC_MAX_NURSERIES];
    pthread_mutex_t turn;
} mmc_reader;

int mmc_attach(mmc_reader *reader, const mmc_ring *ring);
void mmc_detach(mmc_reader *reader); /* all leases end */
void mmc_abandon(mmc_reader *reader); /* after a fork: the lock lasts until all processes have called it, or ended */

void mmc_key_digest(const char *tenant, const char *key, uint64_t digest[2]);
void mmc_digest(const char *tenant, uint64_t tenant_bytes, const char *key, uint64_t key_bytes, uint64_t digest[2]);
int mmc_find(const mmc_reader *reader, const uint64_t digest[2], mmc_record *found);
int mmc_get(mmc_reader *reader, const uint64_t digest[2], mmc_lease *lease);
/* The record of a token, `ring id.epoch.slot.generation`, of this ring: another process holds it under a lease. */
int mmc_find_held(const mmc_reader *reader, uint64_t slot, uint64_t generation, mmc_record *found);
int mmc_get_held(mmc_reader *reader, uint64_t slot, uint64_t generation, mmc_lease *lease);
void mmc_give_back(mmc_reader *reader, mmc_lease *lease);
int mmc_may_hold(const mmc_reader *reader); /* 0: too much is under lease; copy the bytes and give the lease back */

#ifdef __cplusplus
}
#endif
#endif

#if defined(MMCACHED_READER_IMPLEMENTATION) && !defined(MMCACHED_READER_IMPLEMENTED)
#define MMCACHED_READER_IMPLEMENTED
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A checker of the protocol may take the place of memory. */
#ifndef MMC_LOAD
#define MMC_LOAD(word) __atomic_load_n((word), __ATOMIC_RELAXED)
#define MMC_LOAD_WORDS(copy, words, num) \
    for (unsigned mmc_i = 0; mmc_i < (num); mmc_i++) (copy)[mmc_i] = MMC_LOAD((words) + mmc_i)
#define MMC_STORE(word, value) __atomic_store_n((word), (value), __ATOMIC_RELAXED)
#define MMC_STORE_RELEASE(word, value) __atomic_store_n((word), (value), __ATOMIC_RELEASE)
#define MMC_LOAD_FENCE() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define MMC_FULL_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif
#ifndef MMC_MAX_LOOKS
#define MMC_MAX_LOOKS 8
#endif

enum { MMC_PAGE = 4096, MMC_ALIGNMENT = 64, MMC_SLOT_WORDS = 8, MMC_SLOT_BITS = 20, MMC_HEADER_BYTES = 124 };
enum { MMC_INCARNATION, MMC_PID, MMC_TAKEN_BYTES, MMC_RETURNED_BYTES, MMC_HITS, MMC_MISSES, MMC_TOUCHES };
enum { MMC_FIRST_COUNT = 8, MMC_TOUCH_LOG = 256, MMC_LATENCY = 27, MMC_ATTACHED = 8 };
enum { MMC_READER_LIMIT = 1, MMC_FREE_BYTES = 2 };
enum { MMC_GENERATION, MMC_OFFSET, MMC_NBYTES, MMC_NOTE, MMC_FIRST_KEY, MMC_SECOND_KEY, MMC_CHECK, MMC_EXPIRY };
#define MMC_MAX_BYTES ((uint64_t)1 << 46)
#define MMC_MAX_COUNT ((uint64_t)1 << 62)
#define MMC_MAX_READERS 512
#define MMC_MAX_INDEX (1 << 22)
#define MMC_HAS_CRC32 ((uint64_t)1 << 32)
#define MMC_IS_SEALED ((uint64_t)1 << 63)

/* ---- digests */

static const uint64_t mmc__iv[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
static const uint8_t mmc__sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

typedef struct { uint64_t h[8], num_bytes; uint8_t block[128]; size_t num_held; } mmc__blake2b;

static void mmc__compress(mmc__blake2b *b, int is_last)
{
    uint64_t v[16], m[16];
    memcpy(v, b->h, 64);
    memcpy(v + 8, mmc__iv, 64);
    memcpy(m, b->block, 128);
    v[12] ^= b->num_bytes;
    if (is_last) v[14] = ~v[14];
#define MMC__ROTATE(x, n) ((x) >> (n) | (x) << (64 - (n)))
#define MMC__HALF(a, b, c, d, x, first, second) \
    v[a] += v[b] + x; v[d] = MMC__ROTATE(v[d] ^ v[a], first); v[c] += v[d]; v[b] = MMC__ROTATE(v[b] ^ v[c], second)
#define MMC__MIX(a, b, c, d, i) \
    MMC__HALF(a, b, c, d, m[s[2 * i]], 32, 24); MMC__HALF(a, b, c, d, m[s[2 * i + 1]], 16, 63)
    for (int round = 0; round < 12; round++) {
        const uint8_t *s = mmc__sigma[round % 10];
        MMC__MIX(0, 4, 8, 12, 0); MMC__MIX(1, 5, 9, 13, 1); MMC__MIX(2, 6, 10, 14, 2); MMC__MIX(3, 7, 11, 15, 3);
        MMC__MIX(0, 5, 10, 15, 4); MMC__MIX(1, 6, 11, 12, 5); MMC__MIX(2, 7, 8, 13, 6); MMC__MIX(3, 4, 9, 14, 7);
    }
    for (int i = 0; i < 8; i++) b->h[i] ^= v[i] ^ v[i + 8];
}

static void mmc__begin(mmc__blake2b *b, unsigned digest_bytes)
{
    memset(b, 0, sizeof *b);
    memcpy(b->h, mmc__iv, 64);
    b->h[0] ^= 0x01010000 ^ digest_bytes;
}

static void mmc__update(mmc__blake2b *b, const void *bytes, size_t num_bytes)
{
    const uint8_t *from = (const uint8_t *)bytes;
    while (num_bytes) {
        if (b->num_held == 128) { /* only once more bytes follow: the last block is compressed as such */
            b->num_bytes += 128;
            mmc__compress(b, 0);
            b->num_held = 0;
        }
        const size_t n = num_bytes < 128 - b->num_held ? num_bytes : 128 - b->num_held;
        memcpy(b->block + b->num_held, from, n);
        b->num_held += n, from += n, num_bytes -= n;
    }
}

static void mmc__end(mmc__blake2b *b)
{
    memset(b->block + b->num_held, 0, 128 - b->num_held);
    b->num_bytes += b->num_held;
    mmc__compress(b, 1);
}

void mmc_digest(const char *tenant, uint64_t tenant_bytes, const char *key, uint64_t key_bytes, uint64_t digest[2])
{
    mmc__blake2b b;
    char hex[64];
    mmc__begin(&b, 32);
    mmc__update(&b, &tenant_bytes, 8);
    mmc__update(&b, tenant, tenant_bytes);
    mmc__update(&b, &key_bytes, 8);
    mmc__update(&b, key, key_bytes);
    mmc__end(&b);
    for (int i = 0; i < 64; i++) hex[i] = "0123456789abcdef"[((const uint8_t *)b.h)[i / 2] >> (i % 2 ? 0 : 4) & 15];
    mmc__begin(&b, 16);
    mmc__update(&b, hex, 64);
    mmc__end(&b);
    digest[0] = b.h[0] | (uint64_t)1 << 63;
    digest[1] = b.h[1];
}

void mmc_key_digest(const char *tenant, const char *key, uint64_t digest[2])
{ mmc_digest(tenant, strlen(tenant), key, strlen(key), digest); }

static uint32_t mmc__crc32(const uint8_t *bytes, uint64_t num_bytes)
{
    uint32_t table[256], crc = 0xffffffff;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    for (uint64_t i = 0; i < num_bytes; i++) crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 255];
    return ~crc;
}

/* ---- the ring's two objects */

static uint64_t mmc__pages(uint64_t num_bytes) { return (num_bytes + MMC_PAGE - 1) / MMC_PAGE * MMC_PAGE; }

static uint64_t mmc__first_touch(const mmc_reader *r) { return MMC_FIRST_COUNT + 2 * r->ring.num_slots; }

static int mmc__open(const mmc_ring *ring, const char *what, uint64_t nursery, int flags)
{
    char path[96], number[24] = "";
    struct stat status;
    if (nursery) snprintf(number, sizeof number, "%llu", (unsigned long long)nursery);
    snprintf(path, sizeof path, "/dev/shm/mmc.%llu.%s.%s%s", (unsigned long long)ring->uid, ring->id, what, number);
    const int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && (fstat(fd, &status) || !S_ISREG(status.st_mode) || status.st_uid != geteuid())) {
        close(fd);
        return -1;
    }
    return fd;
}

static uint64_t mmc__size(int fd)
{
    struct stat status;
    return fstat(fd, &status) ? 0 : (uint64_t)status.st_size;
}

static int mmc__lock(int fd, int64_t byte, int type)
{
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = (short)type;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = type == F_UNLCK ? 0 : 1;
    return fcntl(fd, F_OFD_SETLK, &lock);
}

static int mmc__check_header(mmc_reader *r)
{
    uint8_t page[MMC_PAGE];
    const mmc_ring *ring = &r->ring;
    uint32_t u32[5], entries[2];
    uint64_t epoch, data_bytes, entries_at[2], index_words;
    char id[33];
    if (pread(r->ctl_fd, page, MMC_PAGE, 0) != MMC_PAGE || memcmp(page, "MMCRING", 8)) return MMC_DAMAGED;
    memcpy(u32, page + 8, 8);
    if (u32[0] != MMC_LAYOUT_VERSION || u32[1] != MMC_HEADER_BYTES) return MMC_OTHER_VERSION;
    memcpy(u32, page + 120, 4);
    if (mmc__crc32(page + 8, 112) != u32[0]) return MMC_DAMAGED;
    for (int i = 0; i < 16; i++) snprintf(id + 2 * i, 3, "%02x", page[16 + i]);
    memcpy(&epoch, page + 32, 8);
    memcpy(&data_bytes, page + 72, 8);
    memcpy(entries, page + 80, 8);
    memcpy(entries_at, page + 88, 16);
    memcpy(u32, page + 104, 8);
    memcpy(&index_words, page + 112, 8);
    r->entry_bytes = mmc__pages(8 * (mmc__first_touch(r) + MMC_TOUCH_LOG + MMC_LATENCY));
    const int is_announced = !strcmp(id, ring->id) && epoch == ring->epoch && data_bytes == ring->data_bytes &&
                             entries[0] == ring->num_slots && entries[1] == ring->max_readers &&
                             index_words == ring->index_words;
    const int is_consistent = entries_at[0] == MMC_PAGE && entries_at[1] == r->entry_bytes && u32[0] == MMC_ALIGNMENT &&
                              !u32[1] && mmc__size(r->ctl_fd) == MMC_PAGE + ring->max_readers * r->entry_bytes;
    return is_announced && is_consistent ? MMC_OK : MMC_DAMAGED;
}

static void mmc__end_former_life(uint64_t *entry, uint64_t num_slots)
{
    const uint64_t first_touch = MMC_FIRST_COUNT + 2 * num_slots, latency = first_touch + MMC_TOUCH_LOG;
    for (uint64_t word = MMC_TAKEN_BYTES; word < latency + MMC_LATENCY; word++) {
        const int is_count = word < first_touch || word >= latency;
        if (is_count && MMC_LOAD(entry + word) > MMC_MAX_COUNT) MMC_STORE(entry + word, 0); /* a stray write's */
    }
    MMC_STORE(entry + MMC_RETURNED_BYTES, MMC_LOAD(entry + MMC_TAKEN_BYTES));
    for (uint64_t word = MMC_FIRST_COUNT; word < first_touch; word += 2) { /* no count falls */
        const uint64_t returned = MMC_LOAD(entry + word), taken = MMC_LOAD(entry + word + 1);
        if (returned < taken) MMC_STORE(entry + word, taken);
        if (taken < returned) MMC_STORE(entry + word + 1, returned);
    }
}

static int mmc__take_entry(mmc_reader *r)
{
    for (uint64_t id = 0; id < r->ring.max_readers; id++) {
        if (mmc__lock(r->ctl_fd, 1 + (int64_t)id, F_WRLCK)) continue;
        const off_t offset = (off_t)(MMC_PAGE + id * r->entry_bytes);
        if (posix_fallocate(r->ctl_fd, offset, (off_t)r->entry_bytes)) return MMC_NO_MEMORY;
        void *entry = mmap(NULL, r->entry_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->ctl_fd, offset);
        if (entry == MAP_FAILED) return MMC_NO_MEMORY;
        r->entry = (uint64_t *)entry;
        r->reader_id = id;
        while (!r->incarnation) {
            if (getrandom(&r->incarnation, 8, 0) != 8) return MMC_NO_MEMORY;
            r->incarnation >>= 1;
        }
        mmc__end_former_life(r->entry, r->ring.num_slots);
        MMC_STORE(r->entry + MMC_PID, (uint64_t)getpid());
        MMC_STORE_RELEASE(r->entry + MMC_INCARNATION, r->incarnation);
        return MMC_OK;
    }
    return MMC_FULL;
}

static int mmc__map_data(mmc_reader *r)
{
    const mmc_ring *ring = &r->ring;
    const uint64_t board = mmc__pages(ring->data_bytes);
    const uint64_t slots = board + mmc__pages(8 * (MMC_ATTACHED + ring->max_readers));
    const uint64_t index = slots + 8 * MMC_SLOT_WORDS * ring->num_slots;
    const int fd = mmc__open(ring, "data", 0, O_RDONLY);
    if (fd < 0) return MMC_NO_RING;
    r->data_object_bytes = mmc__pages(index + 8 * ring->index_words);
    const int is_whole = mmc__size(fd) == r->data_object_bytes;
    void *data = is_whole ? mmap(NULL, r->data_object_bytes, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    close(fd);
    if (data == MAP_FAILED) return MMC_NO_MEMORY;
    if (!data) return MMC_DAMAGED;
    r->data = (uint8_t *)data;
    r->board = (const uint64_t *)(const void *)(r->data + board);
    r->slots = (const uint64_t *)(const void *)(r->data + slots);
    r->index = (const uint64_t *)(const void *)(r->data + index);
    return MMC_OK;
}

int mmc_attach(mmc_reader *r, const mmc_ring *ring)
{
    memset(r, 0, sizeof *r);
    r->ring = *ring;
    pthread_mutex_init(&r->turn, NULL);
    const int is_possible = ring->num_slots && ring->num_slots <= 1 << MMC_SLOT_BITS && ring->max_readers &&
                            ring->max_readers <= MMC_MAX_READERS && ring->data_bytes <= MMC_MAX_BYTES &&
                            ring->index_words <= MMC_MAX_INDEX && !(ring->index_words & (ring->index_words - 1));
    r->ctl_fd = is_possible ? mmc__open(ring, "ctl", 0, O_RDWR) : -1;
    int outcome = r->ctl_fd < 0 ? MMC_NO_RING : mmc__check_header(r);
    if (outcome == MMC_OK) outcome = mmc__map_data(r);
    if (outcome == MMC_OK) outcome = mmc__take_entry(r);
    if (outcome != MMC_OK) mmc_detach(r);
    return outcome;
}

static void mmc__leave(mmc_reader *r, int unlocks)
{
    if (r->entry) munmap(r->entry, r->entry_bytes);
    if (r->data) munmap(r->data, r->data_object_bytes);
    for (int i = 0; i < MMC_MAX_NURSERIES; i++)
        if (r->nurseries[i].id) munmap(r->nurseries[i].base, r->nurseries[i].nbytes), close(r->nurseries[i].fd);
    memset(r->nurseries, 0, sizeof r->nurseries);
    if (r->ctl_fd >= 0) { /* last: a free byte says that nothing reads any more */
        if (unlocks) mmc__lock(r->ctl_fd, 0, F_UNLCK);
        close(r->ctl_fd);
    }
    r->entry = NULL, r->data = NULL, r->ctl_fd = -1;
}

void mmc_detach(mmc_reader *r) { mmc__leave(r, 1); }
void mmc_abandon(mmc_reader *r) { mmc__leave(r, 0); }

/* ---- look, lease, view */

static int mmc__has_expired(uint64_t expires_at)
{
    struct timespec now;
    if (!expires_at) return 0;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return expires_at <= (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Load a slot's words, and fill in the place that they name; 0: it is no place in the ring. */
static int mmc__read_slot(const mmc_reader *r, uint64_t slot, uint64_t copy[MMC_SLOT_WORDS], mmc_record *found)
{
    const uint64_t *words = r->slots + MMC_SLOT_WORDS * slot;
    MMC_LOAD_WORDS(copy, words, 1);
    MMC_LOAD_FENCE(); /* against `publish`: words 1 to 7 are not older than word 0 */
    MMC_LOAD_WORDS(copy + 1, words + 1, MMC_SLOT_WORDS - 1);
    const uint64_t nursery = copy[MMC_NOTE] >> 32, end = nursery ? MMC_MAX_BYTES : r->ring.data_bytes;
    const uint64_t offset = copy[MMC_OFFSET], nbytes = copy[MMC_NBYTES];
    found->slot = slot, found->generation = (copy[MMC_GENERATION] & ~MMC_IS_SEALED) >> 1, found->nursery = nursery;
    found->offset = offset, found->nbytes = nbytes;
    return !(offset % MMC_ALIGNMENT || offset > end || !nbytes || nbytes > end - offset);
}

/* Look into one slot: MMC_OK, MMC_MISSING (expired), or MMC_DETACHED: it does not hold the key now. */
static int mmc__look(const mmc_reader *r, uint64_t slot, const uint64_t digest[2], mmc_record *found)
{
    uint64_t copy[MMC_SLOT_WORDS];
    const int is_inside = mmc__read_slot(r, slot, copy, found);
    if (!(copy[MMC_GENERATION] & 1)) return MMC_DETACHED;
    if (copy[MMC_FIRST_KEY] != digest[0] || copy[MMC_SECOND_KEY] != digest[1]) return MMC_DETACHED;
    if (mmc__has_expired(copy[MMC_EXPIRY])) return MMC_MISSING;
    return is_inside ? MMC_OK : MMC_DETACHED;
}

int mmc_find_held(const mmc_reader *r, uint64_t slot, uint64_t generation, mmc_record *found)
{
    uint64_t copy[MMC_SLOT_WORDS];
    if (slot >= r->ring.num_slots || !mmc__read_slot(r, slot, copy, found)) return MMC_MISSING;
    return found->generation == generation ? MMC_OK : MMC_MISSING;
}

int mmc_find(const mmc_reader *r, const uint64_t digest[2], mmc_record *found)
{
    const uint64_t bits = digest[0] >> MMC_SLOT_BITS, mask = r->ring.index_words - 1;
    for (int num_looks = 0; r->ring.index_words && num_looks < MMC_MAX_LOOKS; num_looks++) {
        int is_shown = 0;
        for (uint64_t step = 0; step <= mask; step++) {
            const uint64_t word = MMC_LOAD(r->index + ((bits + step) & mask)), slot = word & ((1 << MMC_SLOT_BITS) - 1);
            if (!word) break;
            if (word >> MMC_SLOT_BITS != bits || slot >= r->ring.num_slots) continue;
            is_shown = 1;
            const int outcome = mmc__look(r, slot, digest, found);
            if (outcome != MMC_DETACHED) return outcome;
        }
        if (!is_shown) break;
        MMC_LOAD_FENCE(); /* against a replacement: the index shows the new record before the old one is retired */
    }
    return MMC_MISSING;
}

static int mmc__is_attached(const mmc_reader *r)
{ return MMC_LOAD(r->board + MMC_ATTACHED + r->reader_id) == r->incarnation; }

static void mmc__add(uint64_t *word, uint64_t more) { MMC_STORE(word, MMC_LOAD(word) + more); }

static void mmc__end_lease(mmc_reader *r, mmc_lease *lease)
{
    uint64_t *returned = r->entry + MMC_FIRST_COUNT + 2 * lease->record.slot;
    MMC_STORE_RELEASE(returned, MMC_LOAD(returned) + 1); /* all reads of the bytes are done */
    mmc__add(r->entry + MMC_RETURNED_BYTES, lease->record.nbytes);
    lease->is_counted = 0;
}

/* Count a lease, then check that the record is still there; a lease that does not hold is given back. With `is_held`,
 * for a record under another process's lease, it also holds if the record is retired. */
static int mmc__take(mmc_reader *r, mmc_lease *lease, int is_held)
{
    const mmc_record *record = &lease->record;
    mmc__add(r->entry + MMC_FIRST_COUNT + 2 * record->slot + 1, 1);
    mmc__add(r->entry + MMC_TAKEN_BYTES, record->nbytes);
    lease->is_counted = 1;
    MMC_FULL_FENCE(); /* against the writer: it retires the slot, fences, and reads the counts */
    const uint64_t mark = MMC_LOAD(r->slots + MMC_SLOT_WORDS * record->slot);
    const int holds = (mark | (is_held ? 1 : 0)) == (record->generation << 1 | 1);
    const int outcome = !mmc__is_attached(r) ? MMC_DETACHED : holds ? MMC_OK : MMC_MISSING;
    if (outcome != MMC_OK) mmc__end_lease(r, lease);
    return outcome;
}

static void mmc__unmap_nursery(mmc_nursery *known)
{ munmap(known->base, known->nbytes), close(known->fd), memset(known, 0, sizeof *known); }

static int mmc__nursery_place(mmc_reader *r, uint64_t id)
{
    int best = -1;
    for (int i = 0; i < MMC_MAX_NURSERIES; i++) {
        mmc_nursery *known = r->nurseries + i;
        struct stat status;
        if (known->id == id) return i;
        const int is_idle = known->id && !known->num_leases;
        if (is_idle && !fstat(known->fd, &status) && !status.st_nlink) mmc__unmap_nursery(known);
        if (!known->num_leases && (best < 0 || known->last_use < r->nurseries[best].last_use)) best = i;
    }
    if (best < 0) return -1;
    mmc_nursery *place = r->nurseries + best;
    if (place->id) mmc__unmap_nursery(place);
    const int fd = mmc__open(&r->ring, "nursery", id, O_RDONLY);
    const size_t nbytes = fd < 0 ? 0 : mmc__size(fd);
    void *base = nbytes ? mmap(NULL, nbytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        if (fd >= 0) close(fd);
        return -1;
    }
    place->id = id, place->base = (uint8_t *)base, place->nbytes = nbytes, place->fd = fd;
    return best;
}

/* Set where a record can be read; 0 if it cannot be mapped. */
static int mmc__locate(mmc_reader *r, mmc_lease *lease)
{
    const mmc_record *record = &lease->record;
    lease->nursery_place = -1;
    lease->data = r->data + record->offset;
    if (!record->nursery) return 1;
    lease->nursery_place = mmc__nursery_place(r, record->nursery);
    if (lease->nursery_place < 0) return 0;
    mmc_nursery *nursery = r->nurseries + lease->nursery_place;
    const uint64_t end = record->offset + record->nbytes; /* a file that was cut short would raise SIGBUS */
    if (nursery->nbytes < end || mmc__size(nursery->fd) < end) return 0;
    nursery->last_use = ++r->num_uses;
    lease->data = nursery->base + record->offset;
    return 1;
}

static void mmc__touch(mmc_reader *r, const mmc_record *record) /* keeps the record longer */
{
    const uint64_t num_touches = MMC_LOAD(r->entry + MMC_TOUCHES);
    MMC_STORE(r->entry + mmc__first_touch(r) + num_touches % MMC_TOUCH_LOG,
              record->generation << MMC_SLOT_BITS | record->slot);
    MMC_STORE_RELEASE(r->entry + MMC_TOUCHES, num_touches + 1);
}

/* Look a key up, or, without a digest, use the place in the lease, which another process holds. */
static int mmc__get(mmc_reader *r, const uint64_t *digest, mmc_lease *lease)
{
    int outcome = mmc__is_attached(r) ? MMC_UNREADABLE : MMC_DETACHED;
    for (int num_looks = 0; outcome == MMC_UNREADABLE && num_looks < MMC_MAX_LOOKS; num_looks++) {
        if (digest && mmc_find(r, digest, &lease->record) != MMC_OK) return MMC_MISSING;
        if (!mmc__locate(r, lease)) continue;
        outcome = mmc__take(r, lease, !digest);
        if (digest && outcome == MMC_MISSING) outcome = MMC_UNREADABLE; /* replaced meanwhile: look again */
    }
    if (outcome != MMC_OK) return outcome;
    const uint64_t check = MMC_LOAD(r->slots + MMC_SLOT_WORDS * lease->record.slot + MMC_CHECK);
    if (check && mmc__crc32(lease->data, lease->record.nbytes) != check - MMC_HAS_CRC32) {
        mmc__end_lease(r, lease);
        return MMC_DAMAGED;
    }
    if (lease->nursery_place >= 0) r->nurseries[lease->nursery_place].num_leases++;
    mmc__touch(r, &lease->record);
    return MMC_OK;
}

static int mmc__get_and_count(mmc_reader *r, const uint64_t *digest, mmc_lease *lease)
{
    if (!r->entry) return MMC_DETACHED;
    pthread_mutex_lock(&r->turn);
    const int outcome = mmc__get(r, digest, lease);
    if (outcome == MMC_OK) mmc__add(r->entry + MMC_HITS, 1);
    if (outcome == MMC_MISSING) mmc__add(r->entry + MMC_MISSES, 1);
    pthread_mutex_unlock(&r->turn);
    if (outcome != MMC_OK) lease->data = NULL;
    return outcome;
}

int mmc_get(mmc_reader *r, const uint64_t digest[2], mmc_lease *lease)
{
    memset(lease, 0, sizeof *lease);
    return mmc__get_and_count(r, digest, lease);
}

int mmc_get_held(mmc_reader *r, uint64_t slot, uint64_t generation, mmc_lease *lease)
{
    memset(lease, 0, sizeof *lease);
    if (r->entry && mmc_find_held(r, slot, generation, &lease->record) != MMC_OK) return MMC_MISSING;
    return mmc__get_and_count(r, NULL, lease);
}

void mmc_give_back(mmc_reader *r, mmc_lease *lease)
{
    if (!r->entry || !lease->is_counted) return;
    pthread_mutex_lock(&r->turn);
    mmc__end_lease(r, lease);
    if (lease->nursery_place >= 0) r->nurseries[lease->nursery_place].num_leases--;
    pthread_mutex_unlock(&r->turn);
    lease->data = NULL;
}

int mmc_may_hold(const mmc_reader *r)
{
    const uint64_t held = MMC_LOAD(r->entry + MMC_TAKEN_BYTES) - MMC_LOAD(r->entry + MMC_RETURNED_BYTES);
    return held <= MMC_LOAD(r->board + MMC_READER_LIMIT) && held <= MMC_LOAD(r->board + MMC_FREE_BYTES);
}
#endif
