/* The byte layouts of docs/format.md for the native kernels: fixed-width fields, varints, batch
 * headers and records.  Nothing here reads outside [p, end), whatever the bytes say.
 */
#ifndef LOGSTORE_WIRE_H
#define LOGSTORE_WIRE_H

#include <stdint.h>
#include <string.h>

#include "crc32c.h"

/* ---- fixed width, big-endian ---- */

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define ls_be16(x) (x)
#define ls_be32(x) (x)
#define ls_be64(x) (x)
#else
#define ls_be16(x) __builtin_bswap16(x)
#define ls_be32(x) __builtin_bswap32(x)
#define ls_be64(x) __builtin_bswap64(x)
#endif

static inline int16_t ls_load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return (int16_t)ls_be16(v);
}

static inline int32_t ls_load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return (int32_t)ls_be32(v);
}

static inline int64_t ls_load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return (int64_t)ls_be64(v);
}

static inline void ls_store16(uint8_t *p, int16_t value)
{
    uint16_t v = ls_be16((uint16_t)value);
    memcpy(p, &v, 2);
}

static inline void ls_store32(uint8_t *p, int32_t value)
{
    uint32_t v = ls_be32((uint32_t)value);
    memcpy(p, &v, 4);
}

static inline void ls_store64(uint8_t *p, int64_t value)
{
    uint64_t v = ls_be64((uint64_t)value);
    memcpy(p, &v, 8);
}

/* Two's complement sums that may wrap, as Java's do. */
static inline int64_t ls_add64(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static inline int64_t ls_sub64(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

/* ---- varints, F-72 ---- */

#define LS_LIKELY(x) __builtin_expect(!!(x), 1)
#define LS_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Position after an unsigned base-128 number of at most `groups` bytes, or NULL. */
static inline const uint8_t *ls_groups(const uint8_t *p, const uint8_t *end, int groups,
                                       uint64_t *value)
{
    uint64_t v = 0;
    int shift = 0;
    while (p < end && groups-- > 0) {
        uint64_t byte = *p++;
        v |= (byte & 0x7f) << shift; /* the tenth group has one bit that counts: Java drops the rest */
        if (byte < 0x80) {
            *value = v;
            return p;
        }
        shift += 7;
    }
    return NULL;
}

static inline const uint8_t *ls_varint(const uint8_t *p, const uint8_t *end, int32_t *value)
{
    uint64_t v;
    if (LS_LIKELY(end - p >= 2)) {
        if (LS_LIKELY(p[0] < 0x80)) {
            v = p[0];
            p += 1;
        } else if (LS_LIKELY(p[1] < 0x80)) {
            v = (p[0] & 0x7f) | (uint32_t)p[1] << 7;
            p += 2;
        } else {
            p = ls_groups(p, end, 5, &v);
            if (p == NULL)
                return NULL;
        }
    } else {
        p = ls_groups(p, end, 5, &v);
        if (p == NULL)
            return NULL;
    }
    *value = (int32_t)(((uint32_t)v >> 1) ^ -((uint32_t)v & 1));
    return p;
}

static inline const uint8_t *ls_varlong(const uint8_t *p, const uint8_t *end, int64_t *value)
{
    uint64_t v;
    if (LS_LIKELY(p < end && p[0] < 0x80)) {
        v = *p++;
    } else {
        p = ls_groups(p, end, 10, &v);
        if (p == NULL)
            return NULL;
    }
    *value = (int64_t)((v >> 1) ^ -(v & 1));
    return p;
}

static inline uint64_t ls_zigzag64(int64_t n)
{
    return ((uint64_t)n << 1) ^ (uint64_t)(n >> 63);
}

static inline uint64_t ls_zigzag32(int32_t n)
{
    return (uint32_t)(((uint32_t)n << 1) ^ (uint32_t)(n >> 31));
}

/* Bytes that a zig-zagged number takes: one per 7 significant bits, and one for 0. */
static inline int64_t ls_groups_size(uint64_t zigzag)
{
    if (LS_LIKELY(zigzag < 0x80))
        return 1;
    return LS_LIKELY(zigzag < 0x4000) ? 2 : (70 - __builtin_clzll(zigzag)) / 7;
}

static inline int64_t ls_varint_size(int32_t n)
{
    return ls_groups_size(ls_zigzag32(n));
}

static inline int64_t ls_varlong_size(int64_t n)
{
    return ls_groups_size(ls_zigzag64(n));
}

static inline uint8_t *ls_put_groups(uint8_t *p, uint64_t v)
{
    if (LS_LIKELY(v < 0x80)) {
        *p = (uint8_t)v;
        return p + 1;
    }
    if (LS_LIKELY(v < 0x4000)) {
        p[0] = (uint8_t)(v | 0x80);
        p[1] = (uint8_t)(v >> 7);
        return p + 2;
    }
    while (v >= 0x80) {
        *p++ = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    *p++ = (uint8_t)v;
    return p;
}

static inline uint8_t *ls_put_varint(uint8_t *p, int32_t n)
{
    return ls_put_groups(p, ls_zigzag32(n));
}

static inline uint8_t *ls_put_varlong(uint8_t *p, int64_t n)
{
    return ls_put_groups(p, ls_zigzag64(n));
}

/* ---- copies ---- */

static inline void ls_copy16(uint8_t *to, const uint8_t *from, int64_t at)
{
    memcpy(to + at, from + at, 16);
}

/* memcpy without a call for small sizes: moves of a fixed size that overlap cover exactly
 * [0, size). */
static inline void ls_copy(uint8_t *to, const uint8_t *from, int64_t size)
{
    if (LS_LIKELY(size >= 16)) {
        if (LS_UNLIKELY(size > 128)) {
            memcpy(to, from, (size_t)size);
            return;
        }
        if (size > 64) {
            ls_copy16(to, from, 32);
            ls_copy16(to, from, 48);
            ls_copy16(to, from, size - 64);
            ls_copy16(to, from, size - 48);
        }
        if (size > 32) {
            ls_copy16(to, from, 16);
            ls_copy16(to, from, size - 32);
        }
        ls_copy16(to, from, 0);
        ls_copy16(to, from, size - 16);
    } else if (size >= 8) {
        memcpy(to, from, 8);
        memcpy(to + size - 8, from + size - 8, 8);
    } else if (size >= 4) {
        memcpy(to, from, 4);
        memcpy(to + size - 4, from + size - 4, 4);
    } else {
        for (int64_t i = 0; i < size; i++)
            to[i] = from[i];
    }
}

/* The same for values that are mostly short, with LS_SLACK bytes more on either side: next to nothing
 * for up to 128 bytes. */
enum { LS_SLACK = 160 };

__attribute__((always_inline)) static inline void ls_copy_slack(uint8_t *to, const uint8_t *from,
                                                                int64_t size)
{
    if (LS_LIKELY(size <= 32)) {
        memcpy(to, from, 32);
    } else if (LS_LIKELY(size <= 128)) {
        memcpy(to, from, 64);
        memcpy(to + 64, from + 64, 64);
    } else {
        memcpy(to, from, (size_t)size);
    }
}

/* ---- batch headers: sections 3.1 and 4 ---- */

enum {
    LS_END = 0,        /* the data ends at a batch boundary */
    LS_TAIL = 1,       /* 1 to 16 bytes remain: no header */
    LS_INCOMPLETE = 2, /* the framed size runs past the data */
    LS_FULL = 3,       /* the caller's capacity is used up */
    LS_BAD_SIZE = 4,
    LS_BAD_CRC = 5,
    LS_BAD_MAGIC = 6,
    LS_BAD_HEADER = 7,
    LS_BAD_OFFSET = 8,
    LS_OK = 100
};

enum { LS_HEADER_SIZE = 61, LS_RECORD_SIZE_MIN = 7 };

typedef struct {
    const uint8_t *data; /* first byte of the batch */
    int64_t size;        /* whole batch, from baseOffset on */
    int64_t base_offset, last_offset;
    int64_t base_timestamp, max_timestamp;
    int64_t producer_id;
    uint32_t crc;
    int32_t leader_epoch, base_sequence, record_count, last_offset_delta;
    int16_t producer_epoch, attributes;
    int8_t magic;
} ls_batch;

/* Whether there is a whole batch at p (F-106).  LS_OK fills data, size, base_offset and magic. */
static inline int ls_frame(const uint8_t *p, const uint8_t *end, ls_batch *b)
{
    int64_t left = end - p, size;
    if (LS_UNLIKELY(left < 17))
        return left == 0 ? LS_END : LS_TAIL;
    size = ls_load32(p + 8);
    if (LS_UNLIKELY(size < 14))
        return LS_BAD_SIZE;
    if (LS_UNLIKELY(size + 12 > left))
        return LS_INCOMPLETE;
    b->data = p;
    b->size = size + 12;
    b->base_offset = ls_load64(p);
    b->magic = (int8_t)p[16];
    return LS_OK;
}

/* Fill the other fields of a framed batch; those that its format lacks become -1. */
static inline int ls_fields(ls_batch *b)
{
    const uint8_t *p = b->data;
    if (LS_LIKELY(b->magic == 2 && b->size >= LS_HEADER_SIZE)) {
        b->leader_epoch = ls_load32(p + 12);
        b->crc = (uint32_t)ls_load32(p + 17);
        b->attributes = ls_load16(p + 21);
        b->last_offset_delta = ls_load32(p + 23);
        b->base_timestamp = ls_load64(p + 27);
        b->max_timestamp = ls_load64(p + 35);
        b->producer_id = ls_load64(p + 43);
        b->producer_epoch = ls_load16(p + 51);
        b->base_sequence = ls_load32(p + 53);
        b->record_count = ls_load32(p + 57);
        b->last_offset = ls_add64(b->base_offset, b->last_offset_delta);
        return LS_OK;
    }
    b->leader_epoch = -1;
    b->crc = 0;
    b->attributes = -1;
    b->last_offset_delta = 0;
    b->base_timestamp = b->max_timestamp = -1;
    b->producer_id = -1;
    b->producer_epoch = -1;
    b->base_sequence = -1;
    b->record_count = -1;
    b->last_offset = b->base_offset; /* what a legacy entry is known by (F-103) */
    if (b->magic < 0 || b->magic > 2)
        return LS_BAD_MAGIC; /* no crc covers it; stricter than F-108 */
    if (b->magic == 2 || b->size < (b->magic ? 34 : 26))
        return LS_BAD_HEADER; /* below the least size (F-99, F-109) */
    b->crc = (uint32_t)ls_load32(p + 12);
    b->attributes = (int8_t)p[17];
    if (b->magic == 1)
        b->base_timestamp = b->max_timestamp = ls_load64(p + 18);
    b->record_count = b->attributes & 7 ? -1 : 1;
    return LS_OK;
}

static inline int ls_crc_ok(const ls_batch *b)
{
    if (LS_LIKELY(b->magic == 2))
        return logstore_crc32c(0, b->data + 21, (size_t)(b->size - 21)) == b->crc;
    return logstore_crc32(0, b->data + 16, (size_t)(b->size - 16)) == b->crc;
}

/* Values that no writer makes, checked after the crc so that damage is called damage. */
static inline int ls_values(const ls_batch *b)
{
    if (LS_UNLIKELY(b->magic == 2 && (b->record_count < 0 || b->last_offset_delta < 0)))
        return LS_BAD_HEADER;
    if (LS_UNLIKELY(b->base_offset < 0 ||
                    b->base_offset > INT64_MAX - 1 - b->last_offset_delta))
        return LS_BAD_OFFSET;
    return LS_OK;
}


/* Checksums of the next batches, computed ahead of the walk over them. */
typedef struct {
    uint32_t crc[4];
    int32_t size[4]; /* of the whole batches, as they were when their bounds were checked */
    int left;        /* of them, from the end */
} ls_ahead;

enum { LS_AHEAD_SIZE = 512 }; /* larger batches keep the processor busy one by one */

/* Compute the checksums of the four batches from p on; false where not all of them are whole, small
 * and of magic 2. */
static inline int ls_look_ahead(const uint8_t *p, const uint8_t *end, ls_ahead *ahead)
{
    const uint8_t *data[4];
    size_t sizes[4];
    for (int i = 0; i < 4; i++) {
        int64_t size;
        if (LS_UNLIKELY(end - p < LS_HEADER_SIZE) || LS_UNLIKELY(p[16] != 2))
            return 0;
        size = (int64_t)ls_load32(p + 8) + 12;
        if (size < LS_HEADER_SIZE || size > LS_AHEAD_SIZE || LS_UNLIKELY(size > end - p))
            return 0;
        data[i] = p + 21;
        sizes[i] = (size_t)size - 21;
        ahead->size[i] = (int32_t)size;
        p += size;
    }
    logstore_crc32c_four(data, sizes, ahead->crc);
    return 1;
}

/* Whether b's checksum is right, as ls_crc_ok says.  A walk asks for batch after batch, with one
 * ls_ahead whose `left` begins as 0. */
static inline int ls_crc_ok_ahead(const ls_batch *b, const uint8_t *end, ls_ahead *ahead)
{
    if (ahead->left == 0) {
        if (!ls_look_ahead(b->data, end, ahead))
            return ls_crc_ok(b);
        ahead->left = 4;
    }
    return ahead->crc[4 - ahead->left--] == b->crc;
}

/* The batch at b->data, which ls_frame found; `end` is that of the data. */
static inline int ls_check(ls_batch *b, const uint8_t *end, int check_crc, ls_ahead *ahead)
{
    int status = ls_fields(b);
    if (LS_UNLIKELY(status != LS_OK)) {
        ahead->left = 0; /* a walk may go on behind it all the same */
        return status;
    }
    if (check_crc && LS_UNLIKELY(!ls_crc_ok_ahead(b, end, ahead)))
        return LS_BAD_CRC;
    return ls_values(b);
}

/* ---- records (F-71 to F-73) ---- */

enum {
    LS_RECORD_OK = 0,
    LS_RECORD_LENGTH,   /* the length is malformed, negative, or runs past the section */
    LS_RECORD_FIELD,    /* a field is malformed or runs past the record */
    LS_RECORD_EXCESS,   /* bytes remain inside the record */
    LS_RECORD_OFFSET,   /* offset deltas do not ascend */
    LS_RECORD_COUNT,    /* the section is too short for that many records */
    LS_RECORD_TRAILING, /* bytes remain after the last record */
    LS_RECORD_MEMORY
};

typedef struct {
    const uint8_t *key, *value;
    const uint8_t *headers; /* first header; sound, unless the bytes changed since */
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_size, value_size; /* -1 = null */
    int32_t header_count;
} ls_record;

/* A length and its bytes: a negative length is null, as for Kafka. */
static inline const uint8_t *ls_bytes(const uint8_t *p, const uint8_t *end, const uint8_t **bytes,
                                      int32_t *size)
{
    int32_t n;
    p = ls_varint(p, end, &n);
    if (LS_UNLIKELY(p == NULL))
        return NULL;
    *bytes = p;
    if (n < 0) {
        *size = -1;
        return p;
    }
    if (LS_UNLIKELY(n > end - p))
        return NULL;
    *size = n;
    return p + n;
}

static inline const uint8_t *ls_header(const uint8_t *p, const uint8_t *end, const uint8_t **name,
                                       int32_t *name_size, const uint8_t **value,
                                       int32_t *value_size)
{
    p = ls_bytes(p, end, name, name_size);
    if (LS_UNLIKELY(p == NULL || *name_size < 0))
        return NULL;
    return ls_bytes(p, end, value, value_size);
}

/* Read the record at *at and move *at behind it; F-73. */
__attribute__((noinline)) static int ls_read_any_record(const uint8_t **at, const uint8_t *end,
                                                        ls_record *r)
{
    const uint8_t *p = *at, *record_end, *name, *value;
    int32_t length, name_size, value_size;
    p = ls_varint(p, end, &length);
    if (LS_UNLIKELY(p == NULL || length < 0 || length > end - p))
        return LS_RECORD_LENGTH;
    record_end = p + length;
    if (LS_UNLIKELY(p == record_end))
        return LS_RECORD_FIELD;
    p++; /* attributes: unused */
    p = ls_varlong(p, record_end, &r->timestamp_delta);
    if (LS_UNLIKELY(p == NULL))
        return LS_RECORD_FIELD;
    p = ls_varint(p, record_end, &r->offset_delta);
    if (LS_UNLIKELY(p == NULL))
        return LS_RECORD_FIELD;
    p = ls_bytes(p, record_end, &r->key, &r->key_size);
    if (LS_UNLIKELY(p == NULL))
        return LS_RECORD_FIELD;
    p = ls_bytes(p, record_end, &r->value, &r->value_size);
    if (LS_UNLIKELY(p == NULL))
        return LS_RECORD_FIELD;
    p = ls_varint(p, record_end, &r->header_count);
    if (LS_UNLIKELY(p == NULL || r->header_count < 0))
        return LS_RECORD_FIELD;
    r->headers = p;
    for (int32_t i = 0; i < r->header_count; i++) {
        p = ls_header(p, record_end, &name, &name_size, &value, &value_size);
        if (LS_UNLIKELY(p == NULL))
            return LS_RECORD_FIELD;
    }
    if (LS_UNLIKELY(p != record_end))
        return LS_RECORD_EXCESS;
    *at = record_end;
    return LS_RECORD_OK;
}

/* A zig-zagged number of one to three bytes at p, where three bytes can be read; false when it
 * is longer. */
__attribute__((always_inline)) static inline int ls_short(const uint8_t **p, uint32_t *zigzag)
{
    const uint8_t *q = *p;
    uint32_t v = q[0];
    if (LS_LIKELY(v < 0x80)) {
        *p = q + 1;
    } else if (LS_LIKELY(q[1] < 0x80)) {
        v = (v & 0x7f) | (uint32_t)q[1] << 7;
        *p = q + 2;
    } else if (q[2] < 0x80) {
        v = (v & 0x7f) | (uint32_t)(q[1] & 0x7f) << 7 | (uint32_t)q[2] << 14;
        *p = q + 3;
    } else {
        return 0;
    }
    *zigzag = v;
    return 1;
}

static inline int32_t ls_unzigzag(uint32_t v)
{
    return (int32_t)((v >> 1) ^ -(v & 1));
}

/* Where the record at *p ends, or NULL where it takes a closer look; moves *p behind its deltas. */
__attribute__((always_inline)) static inline const uint8_t *
ls_read_plain_deltas(const uint8_t **at, const uint8_t *end, ls_record *r)
{
    const uint8_t *p = *at, *record_end;
    uint32_t length, time, offset;
    if (LS_UNLIKELY(end - p < 16)) /* length, attributes and three numbers: 13 bytes at most */
        return NULL;
    if (LS_UNLIKELY(!ls_short(&p, &length)) || LS_UNLIKELY(length & 1))
        return NULL;
    length >>= 1;
    if (LS_UNLIKELY((int64_t)length > end - p))
        return NULL;
    record_end = p + length;
    p++; /* attributes: unused */
    if (LS_UNLIKELY(!ls_short(&p, &time)) || LS_UNLIKELY(!ls_short(&p, &offset)))
        return NULL;
    r->timestamp_delta = ls_unzigzag(time);
    r->offset_delta = ls_unzigzag(offset);
    *at = p;
    return record_end;
}

/* The rest of the record behind its deltas, whose key size may lie behind `record_end`, but before
 * the end of what ls_read_plain_deltas looked at.  As ls_read_plain_record. */
__attribute__((always_inline)) static inline const uint8_t *
ls_read_plain_fields(const uint8_t *p, const uint8_t *record_end, ls_record *r)
{
    uint32_t key, value;
    int64_t size;
    if (LS_UNLIKELY(!ls_short(&p, &key)))
        return NULL;
    r->key = p;
    r->key_size = key & 1 ? -1 : (int32_t)(key >> 1);
    size = key & 1 ? 0 : key >> 1;
    /* The value's length and the number of headers: two bytes at least, and if the first of them
     * is not the last byte of its number, the record goes on. */
    if (LS_UNLIKELY(record_end - p < size + 2))
        return NULL;
    p += size;
    value = p[0];
    if (LS_LIKELY(value < 0x80)) {
        p += 1;
    } else if (LS_LIKELY(p[1] < 0x80)) {
        value = (value & 0x7f) | (uint32_t)p[1] << 7;
        p += 2;
    } else if (record_end - p > 2 && p[2] < 0x80) {
        value = (value & 0x7f) | (uint32_t)(p[1] & 0x7f) << 7 | (uint32_t)p[2] << 14;
        p += 3;
    } else {
        return NULL;
    }
    r->value = p;
    r->value_size = value & 1 ? -1 : (int32_t)(value >> 1);
    size = value & 1 ? 0 : value >> 1;
    if (LS_UNLIKELY(record_end - p != size + 1) || LS_UNLIKELY(p[size] != 0))
        return NULL;
    r->headers = record_end;
    r->header_count = 0;
    return record_end; /* known early: the next record need not wait for this one's fields */
}

/* The record at p, or NULL where it takes a closer look: one with headers, numbers of more than
 * three bytes, the end of the section near, or a fault.  It has the fewest branches that still
 * check every bound. */
__attribute__((always_inline)) static inline const uint8_t *
ls_read_plain_record(const uint8_t *p, const uint8_t *end, ls_record *r)
{
    const uint8_t *record_end = ls_read_plain_deltas(&p, end, r);
    return LS_UNLIKELY(record_end == NULL) ? NULL : ls_read_plain_fields(p, record_end, r);
}

/* Read only the deltas of the record at *at and move *at behind all of it.  What it holds besides
 * is not checked. */
static inline int ls_skim_record(const uint8_t **at, const uint8_t *end, ls_record *r)
{
    const uint8_t *p = *at, *record_end;
    int32_t length;
    p = ls_varint(p, end, &length);
    if (LS_UNLIKELY(p == NULL || length < 0 || length > end - p))
        return LS_RECORD_LENGTH;
    record_end = p + length;
    if (LS_UNLIKELY(p == record_end))
        return LS_RECORD_FIELD;
    p = ls_varlong(p + 1, record_end, &r->timestamp_delta); /* behind the attributes */
    if (LS_UNLIKELY(p == NULL) || LS_UNLIKELY(ls_varint(p, record_end, &r->offset_delta) == NULL))
        return LS_RECORD_FIELD;
    *at = record_end;
    return LS_RECORD_OK;
}

/* As ls_read_any_record. */
__attribute__((always_inline)) static inline int
ls_read_record(const uint8_t **at, const uint8_t *end, ls_record *r)
{
    const uint8_t *after = ls_read_plain_record(*at, end, r);
    ls_record other; /* its address is given away; r can live in registers */
    int code;
    if (LS_LIKELY(after != NULL)) {
        *at = after;
        return LS_RECORD_OK;
    }
    after = *at;
    code = ls_read_any_record(&after, end, &other);
    if (LS_UNLIKELY(code != LS_RECORD_OK))
        return code;
    *at = after;
    *r = other;
    return LS_RECORD_OK;
}

/* What one record to be written consists of.  `headers` is NULL, or the encoded header section with
 * its count. */
typedef struct {
    const uint8_t *key, *value;
    int64_t timestamp;
    int64_t headers, headers_size; /* place in the block of encoded headers; size 0 = none */
    int64_t body;                  /* the record's length field */
    int32_t key_size, value_size;  /* -1 = null */
} ls_entry;

/* The length field, F-71; 64 bits because the caller still has to refuse sums above 2^31 - 1. */
static inline int64_t ls_body_size(const ls_entry *e, int64_t timestamp_delta, int32_t offset_delta)
{
    return 1 + ls_varlong_size(timestamp_delta) + ls_varint_size(offset_delta) +
           ls_varint_size(e->key_size) + (e->key_size > 0 ? e->key_size : 0) +
           ls_varint_size(e->value_size) + (e->value_size > 0 ? e->value_size : 0) +
           (e->headers_size ? e->headers_size : 1);
}

/* Needs body + 5 bytes at p. */
static inline uint8_t *ls_put_record(uint8_t *p, const ls_entry *e, int64_t timestamp_delta,
                                     int32_t offset_delta, const uint8_t *headers)
{
    p = ls_put_varint(p, (int32_t)e->body);
    *p++ = 0;
    p = ls_put_varlong(p, timestamp_delta);
    p = ls_put_varint(p, offset_delta);
    p = ls_put_varint(p, e->key_size);
    if (e->key_size > 0) {
        ls_copy(p, e->key, e->key_size);
        p += e->key_size;
    }
    p = ls_put_varint(p, e->value_size);
    if (e->value_size > 0) {
        ls_copy(p, e->value, e->value_size);
        p += e->value_size;
    }
    if (LS_LIKELY(e->headers_size == 0)) {
        *p++ = 0;
    } else {
        memcpy(p, headers + e->headers, (size_t)e->headers_size);
        p += e->headers_size;
    }
    return p;
}

#endif
