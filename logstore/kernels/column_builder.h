/* Records as columns in Arrow's layout, without Python.
 *
 * ls_builder_run appends consecutive plain batches, ls_builder_section one that the caller has
 * unpacked, ls_builder_finish makes the blocks what Arrow takes: then the caller moves those that
 * it wants out of the builder (ls_take), and ls_builder_discard frees the rest.  A batch is
 * appended as a whole or not at all.  One thread at a time.
 */
#ifndef LOGSTORE_COLUMN_BUILDER_H
#define LOGSTORE_COLUMN_BUILDER_H

#include "bounds.h"
#include "columns.h"
#include "memory.h"

/* The columns that are wanted, besides the offsets. */
enum {
    LS_KEYS = 1,
    LS_VALUES = 2,
    LS_TIMESTAMPS = 4,
    LS_HEADER_COLUMNS = 8,
    LS_RUNS = 16 /* one ls_run for each batch that gave rows */
};

/* A column of binary values.  offsets has count + 1 int32; valid has a bit for each value, all set
 * ahead of use, so that only nulls cost anything. */
typedef struct {
    ls_block offsets, data, valid;
    int64_t count, nulls;
} ls_string_column;

/* Rows up to end_row, from the end of the run before it, come from one batch. */
typedef struct {
    int64_t end_row, position, base_offset, producer_id;
    int32_t leader_epoch, base_sequence;
    int16_t producer_epoch, attributes;
    int8_t magic;
} ls_run;

typedef struct {
    int columns;
    int64_t column_bytes_max; /* of each binary column, up to INT32_MAX */
    int64_t rows;
    int64_t origin;              /* position in the file of data[0] of the next run, for ls_run */
    ls_block offsets, timestamps; /* int64 */
    ls_block runs;               /* ls_run */
    ls_block header_lists;       /* int32: the headers of row i begin at header_lists[i] */
    ls_string_column keys, values, header_names, header_values;
} ls_builder;

static inline void ls_builder_init(ls_builder *s, int columns, int64_t column_bytes_max)
{
    memset(s, 0, sizeof *s);
    s->columns = columns;
    s->column_bytes_max = column_bytes_max;
}

/* ---- binary columns ---- */

static int ls_make_room(ls_string_column *s, int64_t count, int64_t size)
{
    int64_t valid = (s->count + count + 7) / 8 - s->valid.size;
    if (!ls_reserve(&s->offsets, 4 * count + 4) || !ls_reserve(&s->data, size + LS_SLACK))
        return 0;
    if (s->offsets.size == 0) {
        ((int32_t *)s->offsets.data)[0] = 0;
        s->offsets.size = 4;
    }
    if (valid > 0) {
        if (!ls_reserve(&s->valid, valid))
            return 0;
        memset(s->valid.data + s->valid.size, 0xff, (size_t)valid);
        s->valid.size += valid;
    }
    return 1;
}

static inline void ls_lend(const ls_string_column *s, ls_strings *to)
{
    to->offsets = (int32_t *)s->offsets.data;
    to->data = s->data.data;
    to->valid = s->valid.data;
    to->count = s->count;
    to->size = s->data.size;
    to->nulls = s->nulls;
}

static inline void ls_settle(ls_string_column *s, const ls_strings *lent)
{
    s->offsets.size += 4 * (lent->count - s->count);
    s->count = lent->count;
    s->data.size = lent->size;
    s->nulls = lent->nulls;
}

/* Append one value; ls_make_room came before, and `readable` ends the source. */
static inline void ls_append_string(ls_string_column *s, const uint8_t *bytes, int32_t size,
                                    const uint8_t *readable)
{
    ls_strings lent;
    ls_lend(s, &lent);
    ls_put_string(&lent, bytes, size, readable);
    ls_settle(s, &lent);
}

/* Back to an earlier state, of which `to` holds the numbers. */
static void ls_take_back(ls_string_column *s, const ls_string_column *to)
{
    for (int64_t i = to->count; i < s->count; i++)
        s->valid.data[i >> 3] |= (uint8_t)(1 << (i & 7));
    s->offsets.size -= 4 * (s->count - to->count);
    s->count = to->count;
    s->nulls = to->nulls;
    s->data.size = to->data.size;
}

/* As ls_builder_finish. */
static int ls_finish_strings(ls_string_column *s)
{
    if (!ls_make_room(s, 0, 0))
        return 0;
    if (s->nulls == 0) {
        ls_discard(&s->valid);
        return 1;
    }
    s->valid.size = (s->count + 7) / 8;
    if (s->count & 7)
        s->valid.data[s->count >> 3] &= (uint8_t)((1 << (s->count & 7)) - 1);
    return 1;
}

static void ls_discard_strings(ls_string_column *s)
{
    ls_discard(&s->offsets);
    ls_discard(&s->data);
    ls_discard(&s->valid);
    s->count = s->nulls = 0;
}

/* ---- appending ---- */

#define LS_CLOSER 8 /* records that are read one by one after one that is not plain */

/* Append the headers of a record that ends at `end`: an LS_RECORD_ code. */
static int ls_add_headers(ls_builder *s, const ls_record *r, const uint8_t *end,
                          const uint8_t *readable)
{
    const uint8_t *name, *value, *header = r->headers;
    int32_t name_size, value_size;
    if (r->header_count == 0)
        return LS_RECORD_OK;
    if (!ls_make_room(&s->header_names, r->header_count, end - header) ||
        !ls_make_room(&s->header_values, r->header_count, end - header))
        return LS_RECORD_MEMORY;
    for (int32_t i = 0; i < r->header_count; i++) {
        header = ls_header(header, end, &name, &name_size, &value, &value_size);
        if (LS_UNLIKELY(header == NULL)) /* the bytes changed since ls_read_record saw them */
            return LS_RECORD_FIELD;
        ls_append_string(&s->header_names, name, name_size, readable);
        ls_append_string(&s->header_values, value, value_size, readable);
    }
    return LS_RECORD_OK;
}

/* Room for a whole section, so that the loop has no capacity to check. */
static int ls_make_section_room(ls_builder *s, int64_t count, int64_t size)
{
    if (!ls_reserve(&s->offsets, 8 * count) ||
        (s->columns & LS_TIMESTAMPS && !ls_reserve(&s->timestamps, 8 * count)) ||
        (s->columns & LS_KEYS && !ls_make_room(&s->keys, count, size)) ||
        (s->columns & LS_VALUES && !ls_make_room(&s->values, count, size)) ||
        (s->columns & LS_RUNS && !ls_reserve(&s->runs, sizeof(ls_run))) ||
        (s->columns & LS_HEADER_COLUMNS && !ls_reserve(&s->header_lists, 4 * count + 4)))
        return 0;
    if (s->columns & LS_HEADER_COLUMNS && s->header_lists.size == 0) {
        ((int32_t *)s->header_lists.data)[0] = 0;
        s->header_lists.size = 4;
    }
    return 1;
}

/* Append the next records as long as they are plain; as ls_fill_columns. */
static inline int32_t ls_add_plain(ls_builder *s, const uint8_t **at, const uint8_t *end,
                                   const uint8_t *readable, int64_t rows, int32_t *left,
                                   int32_t *previous, const ls_section *section, int64_t ahead)
{
    ls_columns lent;
    int32_t done;
    lent.offsets = (int64_t *)s->offsets.data;
    lent.timestamps = (int64_t *)s->timestamps.data;
    lent.rows = rows;
    ls_lend(&s->keys, &lent.keys);
    ls_lend(&s->values, &lent.values);
    done = (section->timed ? ls_fill_timed_columns : ls_fill_columns)(
        &lent, at, end, readable, left, previous, section, ahead);
    ls_settle(&s->keys, &lent.keys);
    ls_settle(&s->values, &lent.values);
    if (s->columns & LS_HEADER_COLUMNS)
        for (int32_t i = 1; i <= done; i++)
            ((int32_t *)s->header_lists.data)[rows + i] = (int32_t)s->header_names.count;
    return done;
}

/* Append the record at *at, if it is wanted, and move *at behind it: an LS_RECORD_ code. */
__attribute__((always_inline)) static inline int ls_add_record(ls_builder *s, const uint8_t **at, const uint8_t *end,
                         const uint8_t *readable, int64_t *rows, int32_t *previous,
                         const ls_section *section)
{
    const uint8_t *after = *at;
    ls_record r;
    int64_t offset;
    int code;
    if (section->timed) {
        code = ls_skim_record(&after, end, &r);
        if (LS_UNLIKELY(code != LS_RECORD_OK))
            return code;
        if (!ls_in_time(ls_add64(section->base_timestamp, r.timestamp_delta),
                        section->start_timestamp, section->end_timestamp)) {
            if (LS_UNLIKELY(r.offset_delta <= *previous))
                return LS_RECORD_OFFSET;
            *previous = r.offset_delta;
            *at = after;
            return LS_RECORD_OK;
        }
        after = *at;
    }
    code = ls_read_record(&after, end, &r);
    if (LS_UNLIKELY(code != LS_RECORD_OK))
        return code;
    if (LS_UNLIKELY(r.offset_delta <= *previous))
        return LS_RECORD_OFFSET;
    *previous = r.offset_delta;
    *at = after;
    offset = ls_add64(section->base_offset, r.offset_delta);
    if (offset < section->from_offset || offset >= section->end_offset)
        return LS_RECORD_OK;
    ((int64_t *)s->offsets.data)[*rows] = offset;
    if (s->columns & LS_TIMESTAMPS)
        ((int64_t *)s->timestamps.data)[*rows] =
            section->log_append ? section->base_timestamp
                                : ls_add64(section->base_timestamp, r.timestamp_delta);
    if (s->columns & LS_KEYS)
        ls_append_string(&s->keys, r.key, r.key_size, readable);
    if (s->columns & LS_VALUES)
        ls_append_string(&s->values, r.value, r.value_size, readable);
    ++*rows;
    if (s->columns & LS_HEADER_COLUMNS) {
        code = ls_add_headers(s, &r, after, readable);
        ((int32_t *)s->header_lists.data)[*rows] = (int32_t)s->header_names.count;
    }
    return code;
}

static void ls_add_batch_run(ls_builder *s, const ls_batch *b, int64_t position)
{
    ls_run *run = (ls_run *)(s->runs.data + s->runs.size);
    memset(run, 0, sizeof *run);
    run->end_row = s->rows;
    run->position = position;
    run->base_offset = b->base_offset;
    run->producer_id = b->producer_id;
    run->leader_epoch = b->leader_epoch;
    run->base_sequence = b->base_sequence;
    run->producer_epoch = b->producer_epoch;
    run->attributes = b->attributes;
    run->magic = b->magic;
    s->runs.size += sizeof *run;
}

/* The wanted records of a section, or none: an LS_RECORD_ code, and where it shows.  `position` is
 * that of the batch in the file. */
static int ls_add_section(ls_builder *s, const uint8_t *p, const uint8_t *end,
                          const uint8_t *readable, const ls_batch *b, int64_t position,
                          const ls_bounds *w, const uint8_t **at)
{
    const int log_append = (b->attributes & LS_LOG_APPEND_TIME) != 0; /* then all are in time */
    const ls_section section = {b->base_offset,
                                log_append ? b->max_timestamp : b->base_timestamp,
                                w->from_offset,
                                w->end_offset,
                                w->start_timestamp,
                                w->end_timestamp,
                                log_append,
                                !log_append && ls_is_timed(w)};
    const ls_string_column keys = s->keys, values = s->values;
    const ls_string_column names = s->header_names, header_values = s->header_values;
    const int64_t size = end - p;
    const int needed = LS_KEYS | LS_VALUES | LS_TIMESTAMPS;
    /* No difference of offsets overflows; sections of unknown origin may have a base below 0. */
    const int fast = (s->columns & needed) == needed && b->base_offset >= 0 &&
                     w->from_offset >= 0 && w->end_offset >= 0;
    int64_t rows = s->rows;
    int32_t left = b->record_count, previous = -1, closer = 0;
    int code = LS_RECORD_OK;
    *at = p;
    if (left < 0 || left > size / LS_RECORD_SIZE_MIN)
        return LS_RECORD_COUNT;
    if (!ls_make_section_room(s, left, size))
        return LS_RECORD_MEMORY;
    for (;;) {
        if (fast && closer-- <= 0) {
            const int32_t before = left;
            rows += ls_add_plain(s, &p, end, readable, rows, &left, &previous, &section,
                                 size + LS_HEADER_SIZE);
            if (left == before)
                closer = LS_CLOSER;
        }
        *at = p;
        if (left == 0)
            break;
        code = ls_add_record(s, &p, end, readable, &rows, &previous, &section);
        if (LS_UNLIKELY(code != LS_RECORD_OK))
            break;
        left--;
    }
    if (code == LS_RECORD_OK && LS_UNLIKELY(p != end))
        code = LS_RECORD_TRAILING;
    if (LS_UNLIKELY(code != LS_RECORD_OK)) {
        ls_take_back(&s->keys, &keys);
        ls_take_back(&s->values, &values);
        ls_take_back(&s->header_names, &names);
        ls_take_back(&s->header_values, &header_values);
        return code;
    }
    if (s->columns & LS_RUNS && rows > s->rows) {
        s->rows = rows;
        ls_add_batch_run(s, b, position);
    }
    s->rows = rows;
    s->offsets.size = 8 * rows;
    if (s->columns & LS_TIMESTAMPS)
        s->timestamps.size = 8 * rows;
    if (s->columns & LS_HEADER_COLUMNS)
        s->header_lists.size = 4 * rows + 4;
    return LS_RECORD_OK;
}

/* Whether a section of `size` bytes leaves every offset in range. */
static inline int ls_builder_fits(const ls_builder *s, int64_t size)
{
    const int64_t room = s->column_bytes_max - size;
    return s->keys.data.size <= room && s->values.data.size <= room &&
           s->header_names.data.size <= room && s->header_values.data.size <= room &&
           s->header_names.count <= room;
}

/* Reserve for the whole run, judged by its first batch, so that little is moved later.
 *
 * Only addresses are spent when the guess is too high; failing to reserve is no error. */
static void ls_builder_expect(ls_builder *s, const ls_batch *b, int64_t left, int64_t max_rows,
                              int64_t max_bytes)
{
    const int64_t section = b->size - LS_HEADER_SIZE;
    int64_t rows, size;
    if (b->record_count < 1 || b->record_count > section / LS_RECORD_SIZE_MIN)
        return;
    rows = b->record_count * (left / b->size);
    rows = rows < max_rows - s->rows ? rows : max_rows - s->rows;
    size = rows / b->record_count * b->size;
    size = size < max_bytes ? size : max_bytes;
    if (rows < 1000 || s->rows > 0)
        return;
    (void)ls_reserve(&s->offsets, 8 * rows);
    if (s->columns & LS_TIMESTAMPS)
        (void)ls_reserve(&s->timestamps, 8 * rows);
    if (s->columns & LS_KEYS) {
        (void)ls_reserve(&s->keys.offsets, 4 * rows + 4);
        (void)ls_reserve(&s->keys.data, size + section + LS_SLACK);
    }
    if (s->columns & LS_VALUES) {
        (void)ls_reserve(&s->values.offsets, 4 * rows + 4);
        (void)ls_reserve(&s->values.data, size + section + LS_SLACK);
    }
}

/* Append the wanted records of consecutive plain batches of data[*position … n), and move *position
 * to the first batch that is not appended, or to the bad record: the status, and the code of a bad
 * one.  LS_DECODE_FULL when the builder holds at least max_rows rows or max_bytes bytes of keys and
 * values, and before an int32 offset could overflow. */
static int ls_builder_run(ls_builder *s, const uint8_t *data, int64_t n, int64_t *position,
                          int64_t max_rows, int64_t max_bytes, const ls_bounds *w, int *code)
{
    const uint8_t *p = data + *position, *end = data + n, *at;
    int first = 1;
    ls_batch b;
    for (;;) {
        int step;
        *position = p - data;
        if (s->rows >= max_rows || s->keys.data.size + s->values.data.size >= max_bytes)
            return LS_DECODE_FULL;
        step = ls_next_batch(p, end, &b, w, code);
        if (step >= 0)
            return step;
        if (step != LS_PASS && w->check_crc && LS_UNLIKELY(!ls_crc_ok(&b))) {
            *code = LS_BAD_CRC;
            return LS_DECODE_BAD_BATCH;
        }
        if (LS_UNLIKELY(step != LS_TAKE)) {
            p += b.size;
            continue;
        }
        if (LS_UNLIKELY(!ls_builder_fits(s, b.size)))
            return LS_DECODE_FULL;
        if (first && !ls_is_timed(w))
            ls_builder_expect(s, &b, end - p, max_rows, max_bytes);
        first = 0;
        *code = ls_add_section(s, p + LS_HEADER_SIZE, p + b.size, end, &b, s->origin + (p - data),
                               w, &at);
        if (LS_UNLIKELY(*code != LS_RECORD_OK)) {
            *position = at - data;
            return LS_DECODE_BAD_RECORD;
        }
        if (b.last_offset >= w->end_offset)
            return LS_DECODE_LIMIT;
        p += b.size;
        if (b.last_offset + 1 == w->end_offset) {
            *position = p - data;
            return LS_DECODE_LIMIT;
        }
    }
}

/* Append the wanted records of one unpacked section of a batch of magic 2, which lies at `position`
 * of the file: LS_DECODE_END; LS_DECODE_FULL when it does not fit, and nothing was appended; or
 * LS_DECODE_BAD_RECORD with a code, and where in the payload.  Whether the batch is wanted, and its
 * checksum, is the caller's matter; only times and offsets are looked at. */
static inline int ls_builder_section(ls_builder *s, const uint8_t *payload, int64_t n,
                                     const ls_batch *b, int64_t position, const ls_bounds *w,
                                     int64_t *bad_position, int *code)
{
    const uint8_t *at;
    if (LS_UNLIKELY(ls_out_of_time(b, w)))
        return LS_DECODE_END;
    if (LS_UNLIKELY(!ls_builder_fits(s, n)))
        return LS_DECODE_FULL;
    *code = ls_add_section(s, payload, payload + n, payload + n, b, position, w, &at);
    if (LS_LIKELY(*code == LS_RECORD_OK))
        return LS_DECODE_END;
    *bad_position = at - payload;
    return LS_DECODE_BAD_RECORD;
}

/* ---- the end ---- */

/* Make every wanted block what Arrow takes: none has a null address, each column of offsets begins
 * with 0, and a validity bitmap is as long as its column, or discarded when nothing is null.  False
 * when memory ran out; then only ls_builder_discard is left. */
static inline int ls_builder_finish(ls_builder *s)
{
    if (!ls_make_section_room(s, 0, 0) || !ls_reserve(&s->offsets, 1) ||
        (s->columns & LS_TIMESTAMPS && !ls_reserve(&s->timestamps, 1)) ||
        (s->columns & LS_KEYS && !ls_finish_strings(&s->keys)) ||
        (s->columns & LS_VALUES && !ls_finish_strings(&s->values)))
        return 0;
    return !(s->columns & LS_HEADER_COLUMNS) ||
           (ls_finish_strings(&s->header_names) && ls_finish_strings(&s->header_values));
}

/* Move a block out of its builder: the caller discards it. */
static inline ls_block ls_take(ls_block *block)
{
    ls_block taken = *block;
    memset(block, 0, sizeof *block);
    return taken;
}

/* Free what was not moved out; the builder is empty, and may be used again. */
static inline void ls_builder_discard(ls_builder *s)
{
    ls_discard(&s->offsets);
    ls_discard(&s->timestamps);
    ls_discard(&s->runs);
    ls_discard(&s->header_lists);
    ls_discard_strings(&s->keys);
    ls_discard_strings(&s->values);
    ls_discard_strings(&s->header_names);
    ls_discard_strings(&s->header_values);
    s->rows = 0;
}

#endif
