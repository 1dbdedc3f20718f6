# cython: language_level=3
"""What other kernels share of the scan kernel."""

from logstore.kernels._common cimport *

cdef enum:
    # An append of so many bytes is checked in 3 to 20 µs, and is the work of a thread that goes on
    # with it. Others that wait for the GIL would take it in between, and give it back a change of
    # threads later, which takes longer.
    WALKED_AT_ONCE = 131072


cdef class View:
    cdef Py_buffer held
    cdef const uint8_t *start
    cdef const uint8_t *end
    cdef int64_t size


cdef View view_of(data, int flags=*)


cdef class BatchAnalysis:
    cdef readonly int64_t batch_count, record_count, size, first_offset, last_offset
    cdef readonly int64_t base_timestamp, max_timestamp, offset_of_max_timestamp
    cdef readonly int64_t first_batch_max_timestamp, min_epoch, max_epoch, last_epoch
    cdef readonly int64_t magic_min, magic_max, largest_batch_size, too_large_position
    cdef readonly int64_t attributes_or, attributes_and, codec_mask
    cdef readonly int64_t min_timestamp, record_max_timestamp
    cdef readonly bint ascending, dense, has_producer, all_base_zero, offsets_dense, has_null_key
    cdef bint any_record

    cdef void start(self) noexcept nogil
    cdef void add(self, const ls_batch *b, int64_t position,
                  int64_t max_batch_size) noexcept nogil
    cdef int walk_records(self, const ls_batch *b, const uint8_t **at) noexcept nogil
    cdef int walk(self, const uint8_t *data, int64_t n, int64_t max_batch_size, bint check_crc,
                  bint deep, int64_t *position, int *record_code) noexcept nogil
