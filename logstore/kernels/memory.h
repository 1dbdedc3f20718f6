/* Memory for buffers that grow: malloc for small ones, whole mappings for large ones.
 *
 * A column that is filled once spends most of its time in page faults: malloc gets its pages one
 * by one and gives them back when the column dies.  So large blocks are mapped, from a few
 * megabytes on with huge pages, grow without a copy, and some of them wait for the next user: who
 * reads a log as record batches of Arrow has two of them at a time, each of a dozen blocks.
 */
#ifndef LOGSTORE_MEMORY_H
#define LOGSTORE_MEMORY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
/* Small blocks are exactly what was asked for, from malloc: the sanitizer sees a byte too far. */
enum { LS_EXACT_BELOW = 65536, LS_BLOCK_MIN = 1 };
#else
enum { LS_EXACT_BELOW = 0, LS_BLOCK_MIN = 256 };
#endif

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
#include <sys/mman.h>

#define LS_LARGE (INT64_C(1) << 16)
#define LS_HUGE (INT64_C(2) << 20)
#define LS_SPARES 32
#define LS_SPARE_BYTES (INT64_C(64) << 20) /* all spares together */

static struct {
    struct {
        uint8_t *data;
        int64_t capacity;
    } blocks[LS_SPARES];
    int64_t bytes;
    char busy;
} ls_spares;

/* Never waits: a thread that finds it busy does without, also in the child of a fork.  */
static inline int ls_spares_enter(void)
{
    return !__atomic_test_and_set(&ls_spares.busy, __ATOMIC_ACQUIRE);
}

static inline void ls_spares_leave(void)
{
    __atomic_clear(&ls_spares.busy, __ATOMIC_RELEASE);
}

static inline uint8_t *ls_map(int64_t *capacity)
{
    uint8_t *data = NULL;
    if (ls_spares_enter()) {
        int best = -1;
        for (int i = 0; i < LS_SPARES; i++)
            if (ls_spares.blocks[i].capacity >= *capacity &&
                ls_spares.blocks[i].capacity / 4 <= *capacity && /* a larger one is for others */
                (best < 0 || ls_spares.blocks[i].capacity < ls_spares.blocks[best].capacity))
                best = i;
        if (best >= 0) {
            data = ls_spares.blocks[best].data;
            *capacity = ls_spares.blocks[best].capacity;
            ls_spares.bytes -= *capacity;
            ls_spares.blocks[best].data = NULL;
            ls_spares.blocks[best].capacity = 0;
        }
        ls_spares_leave();
    }
    if (data != NULL)
        return data;
    data = mmap(NULL, (size_t)*capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                0);
    if (data == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    if (*capacity >= LS_HUGE)
        (void)madvise(data, (size_t)*capacity, MADV_HUGEPAGE); /* only faster: may be refused */
#endif
    return data;
}

static inline void ls_unmap(uint8_t *data, int64_t capacity)
{
    int kept = 0;
    if (ls_spares_enter()) {
        for (int i = 0; i < LS_SPARES && !kept; i++)
            if (ls_spares.blocks[i].data == NULL && ls_spares.bytes + capacity <= LS_SPARE_BYTES) {
                ls_spares.blocks[i].data = data;
                ls_spares.blocks[i].capacity = capacity;
                ls_spares.bytes += capacity;
                kept = 1;
            }
        ls_spares_leave();
    }
    if (!kept)
        (void)munmap(data, (size_t)capacity);
}

static inline void ls_free(uint8_t *data, int64_t capacity)
{
    if (capacity >= LS_LARGE)
        ls_unmap(data, capacity);
    else
        free(data);
}

/* Grow a block with `used` bytes that matter to at least *capacity. Without memory the old one
 * stays. */
static inline uint8_t *ls_grow(uint8_t *data, int64_t used, int64_t old, int64_t *capacity)
{
    uint8_t *moved;
    int64_t piece;
    if (*capacity < LS_LARGE)
        return realloc(data, (size_t)*capacity);
    if (*capacity > INT64_MAX - LS_HUGE)
        return NULL;
    piece = *capacity >= LS_HUGE ? LS_HUGE : LS_LARGE;
    *capacity = (*capacity + piece - 1) / piece * piece;
    if (old >= LS_LARGE) {
        moved = mremap(data, (size_t)old, (size_t)*capacity, MREMAP_MAYMOVE);
        return moved == MAP_FAILED ? NULL : moved;
    }
    moved = ls_map(capacity);
    if (moved != NULL) {
        if (used > 0)
            memcpy(moved, data, (size_t)used);
        free(data);
    }
    return moved;
}

#else

static inline void ls_free(uint8_t *data, int64_t capacity)
{
    (void)capacity;
    free(data);
}

static inline uint8_t *ls_grow(uint8_t *data, int64_t used, int64_t old, int64_t *capacity)
{
    (void)used;
    (void)old;
    return realloc(data, (size_t)*capacity);
}

#endif

/* A buffer that grows; `size` bytes of it are in use.  Freed with ls_discard alone. */
typedef struct {
    uint8_t *data;
    int64_t size, capacity;
} ls_block;

__attribute__((noinline, unused)) static int ls_reserve_more(ls_block *block, int64_t extra)
{
    int64_t capacity;
    uint8_t *moved;
    if (extra > INT64_MAX - block->size)
        return 0;
    capacity = block->size + extra;
    if (block->capacity >= LS_EXACT_BELOW && capacity / 2 < block->capacity)
        capacity = 2 * block->capacity; /* amortised O(1); untouched pages cost nothing */
    if (capacity < LS_BLOCK_MIN)
        capacity = LS_BLOCK_MIN;
    moved = ls_grow(block->data, block->size, block->capacity, &capacity);
    if (moved == NULL)
        return 0;
    block->data = moved;
    block->capacity = capacity;
    return 1;
}

/* Make room for `extra` bytes behind those in use; false when memory ran out. */
static inline int ls_reserve(ls_block *block, int64_t extra)
{
    return __builtin_expect(block->capacity - block->size >= extra, 1) ||
           ls_reserve_more(block, extra);
}

static inline void ls_discard(ls_block *block)
{
    ls_free(block->data, block->capacity);
    block->data = NULL;
    block->size = block->capacity = 0;
}

#endif
