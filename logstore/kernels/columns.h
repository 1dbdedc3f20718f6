/* The inner loop of decoding to Arrow columns: plain records, a few dozen instructions for each. */
#ifndef LOGSTORE_COLUMNS_H
#define LOGSTORE_COLUMNS_H

#include "bounds.h"

/* Where the next value of a binary column goes; the caller has made room for all of them. */
typedef struct {
    int32_t *offsets; /* all of them: offsets[count] is where value `count` begins */
    uint8_t *data;    /* followed by LS_SLACK bytes that may be overwritten */
    uint8_t *valid;   /* a bit for each value, set ahead of use */
    int64_t count, size, nulls;
} ls_strings;

typedef struct {
    int64_t *offsets, *timestamps;
    int64_t rows;
    ls_strings keys, values;
} ls_columns;

__attribute__((always_inline)) static inline void
ls_put_string(ls_strings *s, const uint8_t *bytes, int32_t size, const uint8_t *readable)
{
    if (LS_LIKELY(size >= 0)) {
        if (LS_LIKELY(readable - bytes >= LS_SLACK))
            ls_copy_slack(s->data + s->size, bytes, size);
        else
            ls_copy(s->data + s->size, bytes, size);
        s->size += size;
    } else {
        s->valid[s->count >> 3] &= (uint8_t) ~(1 << (s->count & 7));
        s->nulls++;
    }
    s->offsets[++s->count] = (int32_t)s->size;
}

#define LS_BATCH_AHEAD (256 << 10) /* two of them and their columns fit a second-level cache */

/* The records part of one batch, and what is wanted of it.  With log_append all its records have
 * the timestamp base_timestamp. */
typedef struct {
    int64_t base_offset, base_timestamp;
    int64_t from_offset, end_offset;
    int64_t start_timestamp, end_timestamp; /* looked at only if timed */
    int log_append, timed;
} ls_section;

/* Append the wanted records of up to *left from *at on; count *left down and move *at behind them.
 * The result is how many were appended.  Ends early, before the record, at one that is not plain,
 * whose offset delta is not above *previous, whose offset is outside [from_offset, end_offset), or
 * which lies at the end of what is readable: the caller looks closer.  Keys, values and timestamps
 * must be wanted.  If `timed`, which is a constant, records outside the bounds of time are passed
 * by: of those, only the length and the deltas are looked at.
 *
 * `ahead` is the distance to the next batch, which is fetched into the cache meanwhile: decoding
 * leaves the memory idle, and the checksum of that batch would wait for it.  0 fetches nothing. */
__attribute__((always_inline)) static inline int32_t
ls_fill_any_columns(ls_columns *c, const uint8_t **at, const uint8_t *end, const uint8_t *readable,
                    int32_t *left, int32_t *previous, const ls_section *section, int64_t ahead,
                    const int timed)
{
    /* All in registers, for a store to a byte could change anything in memory. */
    int64_t *offsets = c->offsets + c->rows, *timestamps = c->timestamps + c->rows;
    int32_t *key_ends = c->keys.offsets + c->keys.count + 1;
    int32_t *value_ends = c->values.offsets + c->values.count + 1;
    uint8_t *key_data = c->keys.data, *value_data = c->values.data;
    int64_t key_size = c->keys.size, value_size = c->values.size;
    const uint8_t *p = *at;
    const int64_t base_offset = section->base_offset, base_timestamp = section->base_timestamp;
    const int64_t start_timestamp = section->start_timestamp;
    const int64_t end_timestamp = section->end_timestamp;
    const int64_t low = ls_sub64(section->from_offset, base_offset);
    const int64_t high = ls_sub64(section->end_offset, base_offset);
    const int64_t limit = high > INT32_MAX ? INT32_MAX : high;
    const int64_t add_deltas = section->log_append ? 0 : -1;
    int64_t last = *previous >= low ? *previous : low - 1;
    const int32_t count = *left;
    int32_t seen, done = 0; /* the same, unless timed */
    if (ahead > LS_BATCH_AHEAD)
        ahead = 0;
    for (seen = 0; seen < count; seen++) {
        ls_record r;
        const uint8_t *fields = p;
        const uint8_t *after = ls_read_plain_deltas(&fields, end, &r);
        if (timed) {
            if (LS_UNLIKELY(after == NULL) || LS_UNLIKELY(fields > after) ||
                LS_UNLIKELY(r.offset_delta <= last) || LS_UNLIKELY(r.offset_delta >= limit))
                break;
            if (!ls_in_time(ls_add64(base_timestamp, r.timestamp_delta & add_deltas),
                            start_timestamp, end_timestamp)) {
                __builtin_prefetch(after + 512);
                last = r.offset_delta;
                p = after;
                continue;
            }
        }
        if (LS_LIKELY(after != NULL))
            after = ls_read_plain_fields(fields, after, &r);
        if (LS_UNLIKELY(after == NULL) || LS_UNLIKELY(r.offset_delta <= last) ||
            LS_UNLIKELY(r.offset_delta >= limit) || LS_UNLIKELY(readable - r.value < LS_SLACK))
            break;
        if (ahead) {
            __builtin_prefetch(p + ahead, 0, 2);
            __builtin_prefetch(p + ahead + 64, 0, 2);
        }
        last = r.offset_delta;
        p = after;
        offsets[done] = ls_add64(base_offset, last);
        timestamps[done] = ls_add64(base_timestamp, r.timestamp_delta & add_deltas);
        if (LS_LIKELY(r.key_size >= 0)) {
            ls_copy_slack(key_data + key_size, r.key, r.key_size);
            key_size += r.key_size;
        } else {
            int64_t row = c->keys.count + done;
            c->keys.valid[row >> 3] &= (uint8_t) ~(1 << (row & 7));
            c->keys.nulls++;
        }
        if (LS_LIKELY(r.value_size >= 0)) {
            ls_copy_slack(value_data + value_size, r.value, r.value_size);
            value_size += r.value_size;
        } else {
            int64_t row = c->values.count + done;
            c->values.valid[row >> 3] &= (uint8_t) ~(1 << (row & 7));
            c->values.nulls++;
        }
        key_ends[done] = (int32_t)key_size;
        value_ends[done] = (int32_t)value_size;
        done++;
    }
    if (seen) {
        c->rows += done;
        c->keys.count += done;
        c->values.count += done;
        c->keys.size = key_size;
        c->values.size = value_size;
        *at = p;
        *left -= seen;
        *previous = (int32_t)last;
    }
    return done;
}

static inline int32_t ls_fill_columns(ls_columns *c, const uint8_t **at, const uint8_t *end,
                                      const uint8_t *readable, int32_t *left, int32_t *previous,
                                      const ls_section *section, int64_t ahead)
{
    return ls_fill_any_columns(c, at, end, readable, left, previous, section, ahead, 0);
}

__attribute__((noinline)) static int32_t
ls_fill_timed_columns(ls_columns *c, const uint8_t **at, const uint8_t *end,
                      const uint8_t *readable, int32_t *left, int32_t *previous,
                      const ls_section *section, int64_t ahead)
{
    return ls_fill_any_columns(c, at, end, readable, left, previous, section, ahead, 1);
}

#endif
