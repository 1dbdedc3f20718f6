/* How many records are wanted, and the extremes of their offsets and timestamps, without columns.
 *
 * The number and the largest timestamp in a header are believed where all records of the batch are
 * wanted; else its records are walked, of each the length and the deltas. */
#ifndef LOGSTORE_COUNT_H
#define LOGSTORE_COUNT_H

#include "bounds.h"

/* The extremes that are asked for, besides the number of rows. */
enum {
    LS_MIN_OFFSET = 1,
    LS_MAX_OFFSET = 2,
    LS_MIN_TIMESTAMP = 4,
    LS_MAX_TIMESTAMP = 8
};

/* Extremes that were not asked for, or of no row, mean nothing. */
typedef struct {
    int64_t rows, min_offset, max_offset, min_timestamp, max_timestamp;
} ls_summary;

static inline ls_summary ls_summary_none(void)
{
    ls_summary s = {0, INT64_MAX, INT64_MIN, INT64_MAX, INT64_MIN};
    return s;
}

static inline void ls_include(ls_summary *s, int64_t rows, int64_t min_offset, int64_t max_offset,
                              int64_t min_timestamp, int64_t max_timestamp)
{
    s->rows += rows;
    s->min_offset = min_offset < s->min_offset ? min_offset : s->min_offset;
    s->max_offset = max_offset > s->max_offset ? max_offset : s->max_offset;
    s->min_timestamp = min_timestamp < s->min_timestamp ? min_timestamp : s->min_timestamp;
    s->max_timestamp = max_timestamp > s->max_timestamp ? max_timestamp : s->max_timestamp;
}

/* Whether the header of a wanted batch of magic 2 says all that is asked. */
static inline int ls_header_decides(const ls_batch *b, const ls_bounds *w, int extremes,
                                    const ls_summary *s)
{
    const int64_t span = (int64_t)b->last_offset_delta + 1;
    const int one_time = (b->attributes & LS_LOG_APPEND_TIME) != 0;
    if (b->record_count > span || b->base_offset < w->from_offset ||
        b->last_offset >= w->end_offset)
        return 0;
    if (!one_time && (w->start_timestamp != INT64_MIN ||
                      !ls_in_time(b->max_timestamp, INT64_MIN, w->end_timestamp)))
        return 0;
    if (b->record_count == 0)
        return 1;
    if (b->record_count < span && /* compaction may have taken the first and the last */
        (extremes & LS_MAX_OFFSET ||
         (extremes & LS_MIN_OFFSET && (s->rows == 0 || s->min_offset > b->base_offset))))
        return 0;
    return one_time || !(extremes & LS_MIN_TIMESTAMP);
}

/* Add the wanted records between p and end, unpacked, of a batch of magic 2, or none of them: an
 * LS_RECORD_ code, and where it shows.  Only the bounds of offset and time count. */
static int ls_count_section(const uint8_t *p, const uint8_t *end, const ls_batch *b,
                            const ls_bounds *w, ls_summary *s, const uint8_t **at)
{
    const int log_append = (b->attributes & LS_LOG_APPEND_TIME) != 0;
    const int64_t start = log_append ? INT64_MIN : w->start_timestamp;
    const int64_t stop = log_append ? INT64_MAX : w->end_timestamp;
    ls_summary found = *s;
    int32_t previous = -1;
    *at = p;
    if (b->record_count < 0 || b->record_count > (end - p) / LS_RECORD_SIZE_MIN)
        return LS_RECORD_COUNT;
    if (log_append && ls_out_of_time(b, w))
        return LS_RECORD_OK;
    for (int32_t i = 0; i < b->record_count; i++) {
        const uint8_t *deltas = p, *after;
        int64_t offset, timestamp;
        ls_record r;
        *at = p;
        after = ls_read_plain_deltas(&deltas, end, &r);
        if (LS_LIKELY(after != NULL) && LS_LIKELY(deltas <= after)) {
            p = after;
        } else {
            int code = ls_skim_record(&p, end, &r);
            if (LS_UNLIKELY(code != LS_RECORD_OK))
                return code;
        }
        /* Each record says where the next one is: without help every step waits for memory. */
        __builtin_prefetch(p + 2048);
        __builtin_prefetch(p + 2048 + 64);
        if (LS_UNLIKELY(r.offset_delta <= previous))
            return LS_RECORD_OFFSET;
        previous = r.offset_delta;
        offset = ls_add64(b->base_offset, r.offset_delta);
        timestamp = log_append ? b->max_timestamp : ls_add64(b->base_timestamp, r.timestamp_delta);
        if (offset >= w->from_offset && offset < w->end_offset && ls_in_time(timestamp, start, stop))
            ls_include(&found, 1, offset, offset, timestamp, timestamp);
    }
    *at = p;
    if (LS_UNLIKELY(p != end))
        return LS_RECORD_TRAILING;
    *s = found;
    return LS_RECORD_OK;
}

/* Add the wanted records of consecutive batches of data[*position … n) to a summary; as
 * ls_builder_run, but compressed batches whose headers decide are counted too, and it is never
 * full. */
static inline int ls_count(const uint8_t *data, int64_t n, int64_t *position, const ls_bounds *w,
                           int extremes, ls_summary *s, int *code)
{
    const uint8_t *p = data + *position, *end = data + n, *at;
    ls_ahead ahead;
    ls_batch b;
    ahead.left = 0;
    for (;;) {
        int step, decided;
        *position = p - data;
        step = ls_next_batch(p, end, &b, w, code);
        decided = (step == LS_TAKE || (step == LS_DECODE_SPECIAL && b.magic == 2)) &&
                  ls_header_decides(&b, w, extremes, s);
        if (step >= 0 && !decided)
            return step;
        if (step == LS_PASS || !w->check_crc) {
            ahead.left -= ahead.left > 0;
        } else if (LS_UNLIKELY(!ls_crc_ok_ahead(&b, end, &ahead))) {
            *code = LS_BAD_CRC;
            return LS_DECODE_BAD_BATCH;
        }
        if (decided && b.record_count > 0) {
            ls_include(s, b.record_count, b.base_offset, b.last_offset, b.max_timestamp,
                       b.max_timestamp);
        } else if (step == LS_TAKE && !decided) {
            *code = ls_count_section(p + LS_HEADER_SIZE, p + b.size, &b, w, s, &at);
            if (LS_UNLIKELY(*code != LS_RECORD_OK)) {
                *position = at - data;
                return LS_DECODE_BAD_RECORD;
            }
            if (b.last_offset >= w->end_offset)
                return LS_DECODE_LIMIT;
        }
        p += b.size;
        if ((decided || step == LS_TAKE) && b.last_offset + 1 == w->end_offset) {
            *position = p - data;
            return LS_DECODE_LIMIT;
        }
    }
}

#endif
