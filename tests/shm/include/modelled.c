/* The reader's half of the protocol, each of its accesses to shared words a call of the explorer. */
#define _GNU_SOURCE
#include <stdint.h>

typedef struct { uint64_t (*load)(uint64_t); void (*load_words)(uint64_t *, uint64_t, unsigned);
                 void (*store)(uint64_t, uint64_t); void (*store_release)(uint64_t, uint64_t);
                 void (*full_fence)(void); } model_hooks;
static model_hooks hooks;

#define MMC_LOAD(word) hooks.load((uint64_t)(word))
#define MMC_LOAD_WORDS(copy, words, num) hooks.load_words((copy), (uint64_t)(words), (num))
#define MMC_STORE(word, value) hooks.store((uint64_t)(word), (value))
#define MMC_STORE_RELEASE(word, value) hooks.store_release((uint64_t)(word), (value))
#define MMC_LOAD_FENCE() ((void)0) /* the model reads words in another order only within one `load_words` */
#define MMC_FULL_FENCE() hooks.full_fence()
#define MMC_MAX_LOOKS 1
#define MMCACHED_READER_IMPLEMENTATION
#include "mmcached_reader.h"

void model_begin(const model_hooks *with) { hooks = *with; }

/* Addresses without memory behind them: board, slots, index and entry. */
static mmc_reader model_reader(const uint64_t bases[4], uint64_t num_slots, uint64_t reader_id, uint64_t incarnation)
{
    mmc_reader r;
    memset(&r, 0, sizeof r);
    r.ring.num_slots = num_slots, r.ring.data_bytes = MMC_ALIGNMENT * num_slots, r.ring.index_words = 1;
    r.board = (const uint64_t *)bases[0], r.slots = (const uint64_t *)bases[1], r.index = (const uint64_t *)bases[2];
    r.entry = (uint64_t *)bases[3];
    r.reader_id = reader_id, r.incarnation = incarnation;
    return r;
}

int model_find(const uint64_t bases[4], uint64_t num_slots, const uint64_t digest[2], mmc_record *found)
{
    const mmc_reader r = model_reader(bases, num_slots, 0, 0);
    return mmc_find(&r, digest, found);
}

int model_find_held(const uint64_t bases[4], uint64_t num_slots, uint64_t slot, uint64_t generation, mmc_record *found)
{
    const mmc_reader r = model_reader(bases, num_slots, 0, 0);
    return mmc_find_held(&r, slot, generation, found);
}

int model_take(const uint64_t bases[4], uint64_t num_slots, uint64_t reader_id, uint64_t incarnation,
               const mmc_record *record, int is_held)
{
    mmc_reader r = model_reader(bases, num_slots, reader_id, incarnation);
    mmc_lease lease = {*record, NULL, -1, 0};
    return mmc__take(&r, &lease, is_held);
}

void model_end(const uint64_t bases[4], uint64_t num_slots, const mmc_record *record)
{
    mmc_reader r = model_reader(bases, num_slots, 0, 0);
    mmc_lease lease = {*record, NULL, -1, 1};
    mmc__end_lease(&r, &lease);
}

void model_end_former_life(const uint64_t bases[4], uint64_t num_slots)
{
    mmc__end_former_life((uint64_t *)bases[3], num_slots);
}
