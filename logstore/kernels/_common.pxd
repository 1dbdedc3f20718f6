# cython: language_level=3
"""Declarations of batch_layout.h, and the buffers that the native kernels share."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset


cdef extern from "crc32c.h" nogil:
    ctypedef uint32_t (*crc_function "logstore_crc_function")(
        uint32_t value, const uint8_t *data, size_t size) noexcept nogil
    crc_function logstore_crc32c
    uint32_t logstore_crc32(uint32_t value, const uint8_t *data, size_t size) noexcept nogil
    crc_function logstore_crc32c_variant(int number) noexcept nogil


cdef extern from "memory.h" nogil:
    ctypedef struct Block "ls_block":
        uint8_t *data
        int64_t size, capacity

    bint reserve "ls_reserve"(Block *block, int64_t extra) noexcept nogil
    void discard "ls_discard"(Block *block) noexcept nogil


cdef extern from "batch_layout.h" nogil:
    int16_t ls_load16(const uint8_t *p) noexcept nogil
    int32_t ls_load32(const uint8_t *p) noexcept nogil
    int64_t ls_load64(const uint8_t *p) noexcept nogil
    void ls_store16(uint8_t *p, int16_t value) noexcept nogil
    void ls_store32(uint8_t *p, int32_t value) noexcept nogil
    void ls_store64(uint8_t *p, int64_t value) noexcept nogil
    int64_t ls_add64(int64_t a, int64_t b) noexcept nogil
    int64_t ls_sub64(int64_t a, int64_t b) noexcept nogil

    const uint8_t *ls_varint(const uint8_t *p, const uint8_t *end, int32_t *value) noexcept nogil
    const uint8_t *ls_varlong(const uint8_t *p, const uint8_t *end, int64_t *value) noexcept nogil
    int64_t ls_varint_size(int32_t n) noexcept nogil
    int64_t ls_varlong_size(int64_t n) noexcept nogil
    uint8_t *ls_put_varint(uint8_t *p, int32_t n) noexcept nogil
    uint8_t *ls_put_varlong(uint8_t *p, int64_t n) noexcept nogil
    void ls_copy(uint8_t *to, const uint8_t *source, int64_t size) noexcept nogil
    void ls_copy_slack(uint8_t *to, const uint8_t *source, int64_t size) noexcept nogil
    bint unlikely "LS_UNLIKELY"(bint condition) noexcept nogil
    bint likely "LS_LIKELY"(bint condition) noexcept nogil

    cdef enum:
        LS_END, LS_TAIL, LS_INCOMPLETE, LS_FULL, LS_BAD_SIZE, LS_BAD_CRC, LS_BAD_MAGIC
        LS_BAD_HEADER, LS_BAD_OFFSET, LS_OK
        LS_HEADER_SIZE, LS_RECORD_SIZE_MIN, LS_SLACK, LS_AHEAD_SIZE
        LS_RECORD_OK, LS_RECORD_LENGTH, LS_RECORD_FIELD, LS_RECORD_EXCESS, LS_RECORD_OFFSET
        LS_RECORD_COUNT, LS_RECORD_TRAILING, LS_RECORD_MEMORY

    ctypedef struct ls_batch:
        const uint8_t *data
        int64_t size, base_offset, last_offset, base_timestamp, max_timestamp, producer_id
        uint32_t crc
        int32_t leader_epoch, base_sequence, record_count, last_offset_delta
        int16_t producer_epoch, attributes
        int8_t magic

    ctypedef struct ls_ahead:
        uint32_t crc[4]
        int32_t size[4]
        int left

    ctypedef struct ls_record:
        const uint8_t *key
        const uint8_t *value
        const uint8_t *headers
        int64_t timestamp_delta
        int32_t offset_delta, key_size, value_size, header_count

    ctypedef struct ls_entry:
        const uint8_t *key
        const uint8_t *value
        int64_t timestamp, headers, headers_size, body
        int32_t key_size, value_size

    int ls_frame(const uint8_t *p, const uint8_t *end, ls_batch *b) noexcept nogil
    int ls_fields(ls_batch *b) noexcept nogil
    bint ls_crc_ok(const ls_batch *b) noexcept nogil
    int ls_values(const ls_batch *b) noexcept nogil
    bint ls_look_ahead(const uint8_t *p, const uint8_t *end, ls_ahead *ahead) noexcept nogil
    int ls_check(
        ls_batch *b, const uint8_t *end, bint check_crc, ls_ahead *ahead) noexcept nogil
    const uint8_t *ls_header(
        const uint8_t *p, const uint8_t *end, const uint8_t **name, int32_t *name_size,
        const uint8_t **value, int32_t *value_size) noexcept nogil
    int ls_read_record(const uint8_t **at, const uint8_t *end, ls_record *r) noexcept nogil
    int ls_skim_record(const uint8_t **at, const uint8_t *end, ls_record *r) noexcept nogil
    int64_t ls_body_size(
        const ls_entry *e, int64_t timestamp_delta, int32_t offset_delta) noexcept nogil
    uint8_t *ls_put_record(
        uint8_t *p, const ls_entry *e, int64_t timestamp_delta, int32_t offset_delta,
        const uint8_t *headers) noexcept nogil
