/* Which records of a log are wanted, and what a walk does with each batch. */
#ifndef LOGSTORE_BOUNDS_H
#define LOGSTORE_BOUNDS_H

#include "batch_layout.h"

/* An aborted transaction: batches of the producer from its first offset up to its marker. */
typedef struct {
    int64_t producer_id, first_offset, marker_offset;
} ls_aborted;

/* Records with an offset in [from_offset, end_offset), and a timestamp in ms in [start_timestamp,
 * end_timestamp), of which INT64_MIN and INT64_MAX are none.  The header's largest timestamp is
 * believed: a batch below start_timestamp is passed over. */
typedef struct {
    int64_t from_offset, end_offset;
    int64_t start_timestamp, end_timestamp;
    const ls_aborted *aborted; /* by producer_id and first_offset; lives as long as the bounds */
    int64_t aborted_count;
    int check_crc, include_control;
} ls_bounds;

static inline ls_bounds ls_bounds_none(void)
{
    ls_bounds b = {0, INT64_MAX, INT64_MIN, INT64_MAX, NULL, 0, 1, 0};
    return b;
}

enum {
    LS_CODEC_MASK = 0x07,
    LS_LOG_APPEND_TIME = 0x08,
    LS_TRANSACTIONAL = 0x10,
    LS_CONTROL = 0x20
};

/* How a walk ends. */
enum {
    LS_DECODE_END = 0,     /* no whole batch is left */
    LS_DECODE_FULL = 1,    /* as much as was asked for, at a batch boundary */
    LS_DECODE_SPECIAL = 2, /* the batch at the position must be unpacked, or has an older format */
    LS_DECODE_LIMIT = 3,   /* end_offset is reached */
    LS_DECODE_BAD_BATCH = 16, /* the batch at the position is bad: the code is that of ls_frame … */
    LS_DECODE_BAD_RECORD = 17 /* so is the record there, or memory ran out: LS_RECORD_… */
};

/* What a walk does with a batch, besides ending there. */
enum { LS_TAKE = -1, LS_PASS = -2, LS_PASS_CHECKED = -3 };

static inline int ls_is_timed(const ls_bounds *w)
{
    return w->start_timestamp != INT64_MIN || w->end_timestamp != INT64_MAX;
}

/* Whether a timestamp is in [start, end); an end of INT64_MAX is none. */
static inline int ls_in_time(int64_t timestamp, int64_t start, int64_t end)
{
    return timestamp >= start && (timestamp < end || end == INT64_MAX);
}

/* Whether a batch of magic 2 has no record that is in time, as far as its header says. */
static inline int ls_out_of_time(const ls_batch *b, const ls_bounds *w)
{
    return b->max_timestamp < w->start_timestamp ||
           (b->attributes & LS_LOG_APPEND_TIME &&
            !ls_in_time(b->max_timestamp, w->start_timestamp, w->end_timestamp));
}

static inline int ls_is_aborted(const ls_batch *b, const ls_bounds *w)
{
    int64_t low = 0, high = w->aborted_count; /* those before `low` begin at the batch or before */
    if (LS_LIKELY(high == 0) || (b->attributes & (LS_TRANSACTIONAL | LS_CONTROL)) != LS_TRANSACTIONAL)
        return 0;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const ls_aborted *a = &w->aborted[middle];
        if (a->producer_id < b->producer_id ||
            (a->producer_id == b->producer_id && a->first_offset <= b->base_offset))
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && w->aborted[low - 1].producer_id == b->producer_id &&
           b->base_offset < w->aborted[low - 1].marker_offset;
}

/* Walk the headers of the whole batches of data[0 … n), each of which must begin above the one
 * before and end below `below`: where the last one ends, and its last offset in *last, which says
 * what is before the first.  -1 where they do not ascend, or the first one is bad; a bad one behind
 * it ends the walk. */
static inline int64_t ls_walk_order(const uint8_t *data, int64_t n, int64_t below, int64_t *last)
{
    const uint8_t *p = data, *end = data + n;
    ls_batch b;
    for (;;) {
        int status = ls_frame(p, end, &b);
        if (status == LS_END || status == LS_TAIL || status == LS_INCOMPLETE)
            return p - data;
        if (status != LS_OK || ls_fields(&b) != LS_OK || ls_values(&b) != LS_OK)
            return p == data ? -1 : p - data;
        if (b.base_offset <= *last || b.last_offset >= below)
            return -1;
        *last = b.last_offset;
        p += b.size;
    }
}

/* What to do at p: LS_TAKE for a plain batch, LS_PASS, LS_PASS_CHECKED for one whose checksum is
 * still checked, or the status that ends the walk, with its code. */
static inline int ls_next_batch(const uint8_t *p, const uint8_t *end, ls_batch *b,
                                const ls_bounds *w, int *code)
{
    int status = ls_frame(p, end, b);
    if (LS_LIKELY(status == LS_OK))
        status = ls_fields(b);
    if (LS_LIKELY(status == LS_OK))
        status = ls_values(b);
    if (LS_UNLIKELY(status != LS_OK)) {
        if (status == LS_END || status == LS_TAIL || status == LS_INCOMPLETE)
            return LS_DECODE_END;
        *code = status;
        return LS_DECODE_BAD_BATCH;
    }
    if (b->last_offset < w->from_offset)
        return LS_PASS;
    if (b->base_offset >= w->end_offset)
        return LS_DECODE_LIMIT;
    if (LS_UNLIKELY(b->magic != 2))
        return LS_DECODE_SPECIAL;
    if (LS_UNLIKELY(ls_out_of_time(b, w)))
        return LS_PASS;
    if (LS_UNLIKELY((b->attributes & LS_CONTROL && !w->include_control) || ls_is_aborted(b, w)))
        return LS_PASS_CHECKED;
    return LS_LIKELY(!(b->attributes & LS_CODEC_MASK)) ? LS_TAKE : LS_DECODE_SPECIAL;
}

#endif
