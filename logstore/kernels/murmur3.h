/* MurmurHash3 of 128 bits for x64, seed 0: what the package mmh3 calls hash128(x64arch=True).
 *
 * A log may be hostile: this is no keyed hash, and a writer who chooses keys can make two that
 * collide.  Kafka trusts MD5 in the same place, and such pairs are known for it too.
 */
#ifndef LOGSTORE_MURMUR3_H
#define LOGSTORE_MURMUR3_H

#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t low, high;
} ls_digest;

static inline uint64_t ls_rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static inline uint64_t ls_little64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline uint64_t ls_avalanche(uint64_t k)
{
    k = (k ^ k >> 33) * UINT64_C(0xff51afd7ed558ccd);
    k = (k ^ k >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return k ^ k >> 33;
}

#define LS_MURMUR_1 UINT64_C(0x87c37b91114253d5)
#define LS_MURMUR_2 UINT64_C(0x4cf5ad432745937f)

static inline uint64_t ls_mix_low(uint64_t k)
{
    return ls_rotate(k * LS_MURMUR_1, 31) * LS_MURMUR_2;
}

static inline uint64_t ls_mix_high(uint64_t k)
{
    return ls_rotate(k * LS_MURMUR_2, 33) * LS_MURMUR_1;
}

static inline ls_digest ls_murmur3(const uint8_t *data, int64_t size)
{
    uint64_t low = 0, high = 0;
    int64_t left = size;
    uint8_t tail[16] = {0};
    ls_digest digest;
    for (; left >= 16; left -= 16, data += 16) {
        low = (ls_rotate(low ^ ls_mix_low(ls_little64(data)), 27) + high) * 5 + 0x52dce729;
        high = (ls_rotate(high ^ ls_mix_high(ls_little64(data + 8)), 31) + low) * 5 + 0x38495ab5;
    }
    if (left > 0) { /* zero bytes mix to zero, so a padded block is the tail of the definition */
        memcpy(tail, data, (size_t)left);
        low ^= ls_mix_low(ls_little64(tail));
        high ^= ls_mix_high(ls_little64(tail + 8));
    }
    low ^= (uint64_t)size;
    high ^= (uint64_t)size;
    low += high;
    high += low;
    low = ls_avalanche(low);
    high = ls_avalanche(high);
    low += high;
    high += low;
    digest.low = low;
    digest.high = high;
    return digest;
}

/* ---- the table of an offset map: linear probing, never full ---- */

typedef struct {
    uint64_t low, high;
    uint64_t next; /* offset + 1; 0: free */
} ls_slot;

static inline uint64_t ls_home(ls_digest d, uint64_t slots)
{
    return (uint64_t)((unsigned __int128)d.low * slots >> 64); /* uniform without a division */
}

/* The slot of the digest, or the free one where it belongs; at least one must be free. */
static inline ls_slot *ls_probe(ls_slot *table, uint64_t slots, ls_digest d)
{
    uint64_t at = ls_home(d, slots);
    while (table[at].next != 0 && (table[at].low != d.low || table[at].high != d.high))
        if (++at == slots)
            at = 0;
    return &table[at];
}

#define ls_prefetch(p) __builtin_prefetch(p, 1)

#endif
