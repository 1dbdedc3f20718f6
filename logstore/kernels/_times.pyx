# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Times of records without decoding them; ``tests/reference`` is its plain twin."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from logstore.kernels._common cimport *

from logstore.kernels._constants import SCAN_COLUMNS

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *address) noexcept nogil

cdef enum:
    LOG_APPEND_TIME_ = 0x08
    CODEC_ = 0x07
    AHEAD_ = 2048

cdef int COLUMNS = len(SCAN_COLUMNS)
cdef int POSITION = SCAN_COLUMNS.index("position")
cdef int SIZE = SCAN_COLUMNS.index("size")
cdef int BASE_TIMESTAMP = SCAN_COLUMNS.index("base_timestamp")
cdef int MAX_TIMESTAMP = SCAN_COLUMNS.index("max_timestamp")
cdef int ATTRIBUTES = SCAN_COLUMNS.index("attributes")
cdef int RECORD_COUNT = SCAN_COLUMNS.index("record_count")
cdef int MAGIC = SCAN_COLUMNS.index("magic")


cdef bint records_are_late(const uint8_t *p, const uint8_t *end, int64_t count,
                           int64_t base_timestamp, int64_t timestamp) noexcept nogil:
    """Whether ``count`` whole records, none of them earlier, lie between ``p`` and ``end``."""
    cdef const uint8_t *after
    cdef int32_t length = 0
    cdef int64_t i, delta = 0
    for i in range(count):
        after = ls_varint(p, end, &length)
        if unlikely(after == NULL) or unlikely(length < 2) or unlikely(length > end - after):
            return False
        p = after + length
        # Each record says where the next one is: without help every step waits for memory.
        prefetch(p + AHEAD_)
        prefetch(p + AHEAD_ + 64)
        after = ls_varlong(after + 1, p, &delta)  # behind the attributes
        if unlikely(after == NULL) or unlikely(ls_add64(base_timestamp, delta) < timestamp):
            return False
    return p == end


def batches_entirely_after(data, columns, int64_t rows, int64_t timestamp):
    """See the stub."""
    cdef Py_buffer view, table
    cdef const uint8_t *start
    cdef const int64_t *cells
    cdef const uint8_t *batch
    cdef int64_t capacity, row, position, size
    cdef uint8_t *late
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(columns, &table, PyBUF_SIMPLE)
    except BaseException:
        PyBuffer_Release(&view)
        raise
    try:
        capacity = table.len // 8 // COLUMNS
        if not 0 <= rows <= capacity or <size_t> table.buf % sizeof(int64_t):
            raise ValueError(f"{rows} rows in a table of {capacity}, aligned as int64")
        out = bytearray(rows)
        late = <uint8_t *> PyByteArray_AS_STRING(out)
        start = <const uint8_t *> view.buf
        cells = <const int64_t *> table.buf
        with nogil:
            for row in range(rows):
                position = cells[POSITION * capacity + row]
                size = cells[SIZE * capacity + row]
                if (cells[MAX_TIMESTAMP * capacity + row] < timestamp
                        or cells[MAGIC * capacity + row] != 2
                        or position < 0 or size < LS_HEADER_SIZE or size > view.len - position):
                    continue
                if cells[ATTRIBUTES * capacity + row] & LOG_APPEND_TIME_:
                    late[row] = 1
                elif not cells[ATTRIBUTES * capacity + row] & CODEC_:
                    batch = start + position
                    late[row] = records_are_late(
                        batch + LS_HEADER_SIZE, batch + size,
                        cells[RECORD_COUNT * capacity + row],
                        cells[BASE_TIMESTAMP * capacity + row], timestamp)
    finally:
        PyBuffer_Release(&table)
        PyBuffer_Release(&view)
    return out
