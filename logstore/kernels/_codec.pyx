# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Native encoding and decoding of records: the fast twin of ``tests/reference``.

Encoding has three passes: take the pointers and sizes out of the Python objects, sum up the size,
write into one allocation. The second and third touch no Python object.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_Check, PyBytes_CheckExact, PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE)
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES
from cpython.object cimport PyTypeObject, Py_TYPE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_Check, PyLong_CheckExact
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_Check, PyUnicode_DecodeUTF8
cimport cython
from logstore.kernels._common cimport *
from logstore.kernels._scan cimport View, view_of

from array import array
from datetime import datetime

from logstore.common.errors import InvalidRecordError
from logstore.kernels._constants import (
    TIMESTAMPS_KIND, batch_error, lengths_differ, record_error, record_refused, records_lack_keys, take_sequence,
    timestamp_ms)
from logstore.common.types import Record

cdef extern from "record.h":
    ctypedef struct ls_shared_int:
        PyObject *object
        int64_t value

    int ls_adopt_record_type(PyTypeObject *type) except -1
    PyObject *ls_new_record(int64_t offset, int64_t timestamp, ls_shared_int *last,
                            const ls_record *r, PyObject *headers) except NULL
    int ls_append_record(object items, PyObject *record) except -1

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int PyList_SetSlice(object items, Py_ssize_t low, Py_ssize_t high, PyObject *new) except -1
    Py_ssize_t PyList_GET_SIZE(object items)
    void Py_INCREF(PyObject *)
    void Py_XDECREF(PyObject *)

cdef PyTypeObject *record_type = <PyTypeObject *> <PyObject *> Record
ls_adopt_record_type(record_type)
cdef tuple no_headers = ()
cdef int64_t INT32_LAST = 2147483647
cdef int64_t INT64_LAST = 0x7fffffffffffffff
cdef int64_t RECORDS_SIZE_LAST = INT32_LAST - LS_HEADER_SIZE

cdef enum:
    LOG_APPEND_TIME = 0x08
    # Work of a microsecond, for which it is not worth giving the GIL away.
    SMALL = 16384  # bytes
    FEW = 200  # records

cdef extern from "bounds.h" nogil:
    cdef enum:
        LS_DECODE_END, LS_DECODE_FULL, LS_DECODE_SPECIAL, LS_DECODE_LIMIT
        LS_DECODE_BAD_BATCH, LS_DECODE_BAD_RECORD, LS_TAKE, LS_PASS

    ctypedef struct ls_aborted:
        int64_t producer_id, first_offset, marker_offset

    ctypedef struct ls_bounds:
        int64_t from_offset, end_offset, start_timestamp, end_timestamp
        const ls_aborted *aborted
        int64_t aborted_count
        bint check_crc, include_control

    ls_bounds ls_bounds_none() noexcept nogil
    bint ls_is_timed(const ls_bounds *wanted) noexcept nogil
    bint ls_in_time(int64_t timestamp, int64_t start, int64_t end) noexcept nogil
    int ls_next_batch(const uint8_t *p, const uint8_t *end, ls_batch *b, const ls_bounds *wanted,
                      int *code) noexcept nogil


cdef extern from "column_builder.h" nogil:
    cdef enum:
        LS_KEYS, LS_VALUES, LS_TIMESTAMPS, LS_HEADER_COLUMNS, LS_RUNS

    ctypedef struct ls_string_column:
        Block offsets, data, valid
        int64_t nulls

    ctypedef struct ls_run:
        int64_t end_row, position

    ctypedef struct ls_builder:
        int columns
        int64_t rows
        Block offsets, timestamps, runs, header_lists
        ls_string_column keys, values, header_names, header_values

    void ls_builder_init(ls_builder *s, int columns, int64_t column_bytes_max) noexcept nogil
    int ls_builder_run(
        ls_builder *s, const uint8_t *data, int64_t n, int64_t *position, int64_t max_rows,
        int64_t max_bytes, const ls_bounds *wanted, int *code) noexcept nogil
    int ls_builder_section(
        ls_builder *s, const uint8_t *payload, int64_t n, const ls_batch *b, int64_t position,
        const ls_bounds *wanted, int64_t *bad_position, int *code) noexcept nogil
    bint ls_builder_finish(ls_builder *s) noexcept nogil
    Block ls_take(Block *block) noexcept nogil
    void ls_builder_discard(ls_builder *s) noexcept nogil


cdef extern from "count.h" nogil:
    cdef enum:
        LS_MIN_OFFSET, LS_MAX_OFFSET, LS_MIN_TIMESTAMP, LS_MAX_TIMESTAMP

    ctypedef struct ls_summary:
        int64_t rows, min_offset, max_offset, min_timestamp, max_timestamp

    ls_summary ls_summary_none() noexcept nogil
    int ls_count_section(const uint8_t *p, const uint8_t *end, const ls_batch *b,
                         const ls_bounds *wanted, ls_summary *s, const uint8_t **at) noexcept nogil
    int ls_count(
        const uint8_t *data, int64_t n, int64_t *position, const ls_bounds *wanted, int extremes,
        ls_summary *s, int *code) noexcept nogil


STATUSES = (LS_DECODE_END, LS_DECODE_FULL, LS_DECODE_SPECIAL, LS_DECODE_LIMIT)


# ---- encoding ----

@cython.final
cdef class Encoded:
    """A records section behind room for its batch header; see the stub."""

    cdef readonly object buffer
    cdef readonly int64_t base_timestamp, max_timestamp, offset_of_max, count


cdef inline int take_bytes(object data, str field, const uint8_t **bytes, int32_t *size,
                           list kept) except -1:
    """Point to the bytes of a field; copies of what may change under us go to ``kept``."""
    if likely(PyBytes_CheckExact(data) and PyBytes_GET_SIZE(data) <= INT32_LAST):
        bytes[0] = <const uint8_t *> PyBytes_AS_STRING(data)
        size[0] = <int32_t> PyBytes_GET_SIZE(data)
        return 0
    return take_any_bytes(data, field, bytes, size, kept)


cdef int take_any_bytes(object data, str field, const uint8_t **bytes, int32_t *size,
                        list kept) except -1:
    cdef Py_ssize_t n
    if data is None:
        bytes[0] = NULL
        size[0] = -1
        return 0
    if not PyBytes_Check(data):
        if not isinstance(data, (bytearray, memoryview)):
            raise TypeError(f"{field} must be bytes or None, not {type(data).__name__}")
        data = data.tobytes() if isinstance(data, memoryview) else PyBytes_FromStringAndSize(
            PyByteArray_AS_STRING(data), PyByteArray_GET_SIZE(data))  # no subclass's len()
        kept.append(data)
    n = PyBytes_GET_SIZE(data)
    if n > INT32_LAST:
        raise ValueError(f"{field} has {n} bytes: a field holds at most {INT32_LAST}")
    bytes[0] = <const uint8_t *> PyBytes_AS_STRING(data)
    size[0] = <int32_t> n
    return 0


cdef int64_t take_timestamp(object timestamp, int64_t default) except? -2:
    cdef int overflow = 0
    cdef long long value
    if timestamp is None:
        return default
    if not PyLong_CheckExact(timestamp):
        timestamp = timestamp_ms(timestamp)
    value = PyLong_AsLongLongAndOverflow(timestamp, &overflow)
    if overflow or value < -1:
        raise ValueError(f"timestamp {timestamp} is outside -1…2^63-1")
    return value


cdef int64_t take_default(object timestamp) except? -2:
    """The timestamp of records without one."""
    try:
        return take_timestamp(timestamp, -1)
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(str(error)) from None


cdef bint put_header(Block *block, const uint8_t *name, int32_t name_size, const uint8_t *value,
                     int32_t value_size) noexcept nogil:
    """False when memory ran out."""
    cdef uint8_t *p
    if unlikely(not reserve(block, <int64_t> 10 + name_size + max(value_size, 0))):
        return False
    p = ls_put_varint(block.data + block.size, name_size)
    if name_size > 0:  # else there may be no data at all
        memcpy(p, name, name_size)
    p = ls_put_varint(p + name_size, value_size)
    if value_size > 0:
        memcpy(p, value, value_size)
        p += value_size
    block.size = p - block.data
    return True


cdef int take_headers(object headers, ls_entry *entry, Block *block) except -1:
    """Encode the header section into ``block``: its size is then known, and few records have one."""
    cdef const uint8_t *bytes = NULL
    cdef int32_t size = 0
    cdef Py_ssize_t name_size = 0
    cdef const char *name
    cdef list kept
    entry.headers = entry.headers_size = 0
    if headers is None or headers is no_headers:
        return 0
    if not isinstance(headers, (tuple, list)):
        raise TypeError(f"headers must be a tuple or list, not {type(headers).__name__}")
    items = tuple(headers)
    if not items:
        return 0
    entry.headers = block.size
    if not reserve(block, 5):
        raise MemoryError
    block.size = ls_put_varint(block.data + block.size, <int32_t> len(items)) - block.data
    for item in items:
        if not isinstance(item, (tuple, list)):
            raise TypeError(f"a header must be a pair, not {type(item).__name__}")
        if len(item) != 2:
            raise ValueError(f"a header must be a pair, not {len(item)} items")
        key, value = item
        if not PyUnicode_Check(key):
            raise TypeError(f"a header key must be str, not {type(key).__name__}")
        name = PyUnicode_AsUTF8AndSize(key, &name_size)
        kept = []
        take_bytes(value, "a header value", &bytes, &size, kept)
        if name_size > INT32_LAST:
            raise ValueError("header key is too long")
        if not put_header(block, <const uint8_t *> name, <int32_t> name_size, bytes, size):
            raise MemoryError
    entry.headers_size = block.size - entry.headers
    return 0


cdef int64_t measure(ls_entry *entries, int64_t n, int64_t *latest) noexcept nogil:
    """Bytes of the records section, or -1 when it or one record is too large for an i32.

    ``latest`` becomes the first entry with the largest timestamp.
    """
    cdef int64_t total = 0
    cdef int64_t i, body
    cdef int64_t best = 0
    cdef int64_t first_time = entries[0].timestamp
    for i in range(n):
        body = ls_body_size(&entries[i], ls_sub64(entries[i].timestamp, first_time), <int32_t> i)
        entries[i].body = body
        if unlikely(body > INT32_LAST):
            return -1
        total += body + ls_varint_size(<int32_t> body)
        if unlikely(total > RECORDS_SIZE_LAST):
            return -1
        if unlikely(entries[i].timestamp > entries[best].timestamp):
            best = i
    latest[0] = best
    return total


cdef void write(const ls_entry *entries, int64_t n, const uint8_t *headers,
                uint8_t *p) noexcept nogil:
    cdef int64_t i
    cdef int64_t first_time = entries[0].timestamp
    for i in range(n):
        p = ls_put_record(p, &entries[i], ls_sub64(entries[i].timestamp, first_time),
                          <int32_t> i, headers)


cdef Encoded encode(ls_entry *entries, int64_t n, const uint8_t *headers):
    cdef Encoded result = Encoded.__new__(Encoded)
    cdef int64_t total = 0
    cdef int64_t latest = 0
    cdef uint8_t *start
    if n > FEW:
        with nogil:
            total = measure(entries, n, &latest)
    elif n > 0:
        total = measure(entries, n, &latest)
    if total < 0:
        raise InvalidRecordError(f"the records need more than {RECORDS_SIZE_LAST} bytes")
    result.buffer = PyByteArray_FromStringAndSize(NULL, LS_HEADER_SIZE + total)
    start = <uint8_t *> PyByteArray_AS_STRING(result.buffer)
    memset(start, 0, LS_HEADER_SIZE)
    result.count = n
    result.base_timestamp = result.max_timestamp = result.offset_of_max = -1
    if n > 0:
        if total < SMALL:
            write(entries, n, headers, start + LS_HEADER_SIZE)
        else:
            with nogil:
                write(entries, n, headers, start + LS_HEADER_SIZE)
        result.base_timestamp = entries[0].timestamp
        result.max_timestamp = entries[latest].timestamp
        result.offset_of_max = latest
    return result


@cython.final
@cython.freelist(4)
cdef class _Room:
    """Memory for one encoding: what each record consists of, and encoded header sections."""

    cdef Block block, headers

    def __dealloc__(self):
        discard(&self.block)
        discard(&self.headers)

    cdef ls_entry *entries(self, int64_t n) except NULL:
        """Room for ``n`` entries; a large one is kept for the next batch, see memory.h."""
        if n > INT32_LAST:
            raise InvalidRecordError(f"{n} records do not fit one batch")
        if not reserve(&self.block, (n + 1) * sizeof(ls_entry)):
            raise MemoryError
        return <ls_entry *> self.block.data


cdef int take_row(object row, ls_entry *entry, int64_t default, Block *headers,
                  list kept) except -1:
    """The fields of a Record or a tuple, which outlives ``entry``."""
    cdef Py_ssize_t size
    cdef Py_ssize_t first = 0
    entry.headers_size = 0
    if Py_TYPE(row) == record_type:
        first = 2
        size = PyTuple_GET_SIZE(row)
        if size != 5:
            raise ValueError("a Record has five fields")
    else:
        if not PyTuple_Check(row):
            raise TypeError("a record must be a tuple (key, value, timestamp, headers) or a "
                            f"Record, not {type(row).__name__}")
        size = PyTuple_GET_SIZE(row)
        if size < 2 or size > 4:
            raise ValueError(f"a record has two to four fields, not {size}")
    take_bytes(<object> PyTuple_GET_ITEM(row, first), "a key", &entry.key, &entry.key_size, kept)
    take_bytes(<object> PyTuple_GET_ITEM(row, first + 1), "a value", &entry.value,
               &entry.value_size, kept)
    entry.timestamp = default
    if first:
        entry.timestamp = take_timestamp(<object> PyTuple_GET_ITEM(row, 1), default)
        return take_headers(<object> PyTuple_GET_ITEM(row, 4), entry, headers)
    if size > 2:
        entry.timestamp = take_timestamp(<object> PyTuple_GET_ITEM(row, 2), default)
        if size > 3:
            return take_headers(<object> PyTuple_GET_ITEM(row, 3), entry, headers)
    return 0


cdef int check_keys(const ls_entry *entries, int64_t n) except -1:
    cdef int64_t i
    for i in range(n):
        if unlikely(entries[i].key_size < 0):
            raise records_lack_keys([j for j in range(n) if entries[j].key_size < 0])
    return 0


def encode_records(records, default_timestamp=-1, *, bint keys_required=False):
    """Encode tuples or Records; see the stub."""
    # Rows are tuples and hold immutable bytes, so the pointers stay valid while `rows` lives.
    cdef tuple rows = take_sequence(records, "records")
    cdef int64_t default = take_default(default_timestamp)
    cdef int64_t n = PyTuple_GET_SIZE(rows)
    cdef int64_t i = 0
    cdef list kept = []
    cdef _Room room = _Room.__new__(_Room)
    cdef ls_entry *entries = room.entries(n)
    try:
        while i < n:
            take_row(<object> PyTuple_GET_ITEM(rows, i), &entries[i], default, &room.headers, kept)
            i += 1
    except (TypeError, ValueError) as error:
        raise record_refused(i, error) from None
    if keys_required:
        check_keys(entries, n)
    return encode(entries, n, room.headers.data)


def encode_lists(keys, values, timestamps=None, headers=None, default_timestamp=-1, *,
                 bint keys_required=False):
    """Encode parallel lists; see the stub."""
    cdef tuple value_row = take_sequence(values, "values")
    cdef tuple key_row = None if keys is None else take_sequence(keys, "keys")
    cdef tuple header_row = None if headers is None else take_sequence(headers, "headers")
    cdef tuple time_row = None
    cdef int64_t default = take_default(default_timestamp)
    cdef int64_t n = PyTuple_GET_SIZE(value_row)
    cdef int64_t i = 0
    cdef int64_t key_count, header_count, time_count = n
    cdef list kept = []
    cdef View times = None
    cdef _Room room = _Room.__new__(_Room)
    cdef ls_entry *entries
    cdef ls_entry *entry
    if isinstance(timestamps, (list, tuple)):
        time_row = tuple(timestamps)
        time_count = PyTuple_GET_SIZE(time_row)
    elif is_one_time(timestamps):
        default = take_default(timestamps)
    elif timestamps is not None:
        times = int64_view(timestamps)
        time_count = times.size // 8
    key_count = n if key_row is None else PyTuple_GET_SIZE(key_row)
    header_count = n if header_row is None else PyTuple_GET_SIZE(header_row)
    if not key_count == header_count == time_count == n:
        raise lengths_differ(key_count, n, time_count, header_count)
    entries = room.entries(n)
    try:
        while i < n:
            entry = &entries[i]
            entry.headers_size = 0
            entry.key = NULL
            entry.key_size = -1
            if key_row is not None:
                take_bytes(<object> PyTuple_GET_ITEM(key_row, i), "a key", &entry.key,
                           &entry.key_size, kept)
            take_bytes(<object> PyTuple_GET_ITEM(value_row, i), "a value", &entry.value,
                       &entry.value_size, kept)
            entry.timestamp = default
            if time_row is not None:
                entry.timestamp = take_timestamp(<object> PyTuple_GET_ITEM(time_row, i), default)
            elif times is not None:
                memcpy(&entry.timestamp, times.start + 8 * i, 8)
                if entry.timestamp < -1:
                    raise ValueError(f"timestamp {entry.timestamp} is outside -1…2^63-1")
            if header_row is not None:
                take_headers(<object> PyTuple_GET_ITEM(header_row, i), entry, &room.headers)
            i += 1
    except (TypeError, ValueError) as error:
        raise record_refused(i, error) from None
    if keys_required:
        check_keys(entries, n)
    return encode(entries, n, room.headers.data)


cdef bint is_one_time(timestamps):
    return PyLong_Check(timestamps) or isinstance(timestamps, datetime)


cdef View int64_view(data):
    """A buffer of int64; plain bytes, as pyarrow's buffers are, are taken as such."""
    cdef View view
    cdef const char *format
    try:
        view = view_of(data, PyBUF_FORMAT | PyBUF_ND)
    except (BufferError, TypeError):
        raise InvalidRecordError(TIMESTAMPS_KIND % type(data).__name__) from None
    format = view.held.format
    if format != NULL and format[0] in b"@=<":
        format += 1
    if view.size % 8 or not (
            (view.held.itemsize == 8 and format != NULL and format[0] in b"ql")
            or (view.held.itemsize == 1 and (format == NULL or format[0] in b"bBc"))):
        raise InvalidRecordError(TIMESTAMPS_KIND % type(data).__name__)
    return view


@cython.final
@cython.no_gc
cdef class _Strings:
    """One Arrow column of binary values to encode from."""

    cdef View offsets, data, validity  # None where there is none
    cdef int width

    def __cinit__(self, offsets, data, validity, int width, int64_t start, int64_t stop):
        if offsets is None:
            return
        self.offsets = view_of(offsets, PyBUF_ND | PyBUF_FORMAT)
        self.width = width
        if self.offsets.held.itemsize in (4, 8):
            self.width = <int> self.offsets.held.itemsize
        if self.width != 4 and self.width != 8:
            raise ValueError(f"offsets of {width} bytes: 4 or 8 are possible")
        if stop > start and self.offsets.size // self.width <= stop:
            raise ValueError("the offsets end before stop")
        if data is not None:
            self.data = view_of(data)
        if validity is not None:
            self.validity = view_of(validity)
            if stop > 0 and self.validity.size <= (stop - 1) // 8:
                raise ValueError("the validity bitmap ends before stop")

    cdef inline int64_t offset(self, int64_t i) noexcept nogil:
        cdef int64_t wide
        cdef int32_t narrow
        if self.width == 4:
            memcpy(&narrow, self.offsets.start + 4 * i, 4)
            return narrow
        memcpy(&wide, self.offsets.start + 8 * i, 8)
        return wide

    cdef inline bint is_null(self, int64_t i) noexcept nogil:
        return self.validity is not None and not self.validity.start[i >> 3] >> (i & 7) & 1

    cdef inline bint take(self, int64_t i, const uint8_t **bytes, int32_t *size) noexcept nogil:
        cdef int64_t low, high
        bytes[0] = NULL
        size[0] = -1
        if self.offsets is None or self.is_null(i):
            return True
        low, high = self.offset(i), self.offset(i + 1)
        if unlikely(low < 0 or high < low or high - low > INT32_LAST
                    or high > (self.data.size if self.data is not None else 0)):
            return False
        bytes[0] = self.data.start + low if self.data is not None else NULL
        size[0] = <int32_t> (high - low)
        return True


cdef enum:
    HEADERS_OK
    HEADERS_RANGE
    HEADERS_NULL_KEY
    HEADERS_MEMORY


@cython.final
cdef class _HeaderLists:
    """An Arrow list<struct<key, value>> to encode header sections from."""

    cdef _Strings lists, names, values
    cdef int64_t count

    def __cinit__(self, headers, int64_t start, int64_t stop):
        (list_offsets, list_validity, count, name_offsets, name_data, name_validity,
         value_offsets, value_data, value_validity) = headers
        if list_offsets is None:
            raise TypeError("a column of headers has no offsets")
        self.count = count
        self.lists = _Strings(list_offsets, None, list_validity, 4, start, stop)
        self.names = _Strings(name_offsets, name_data, name_validity, 4, 0, self.count)
        self.values = _Strings(value_offsets, value_data, value_validity, 4, 0, self.count)

    cdef int take(self, int64_t row, ls_entry *entry, Block *block) noexcept nogil:
        """Write the header section of a row into ``block``."""
        cdef int64_t i, first, end
        cdef const uint8_t *name = NULL
        cdef const uint8_t *value = NULL
        cdef int32_t name_size = 0, value_size = 0
        entry.headers = entry.headers_size = 0
        if self.lists.is_null(row):
            return HEADERS_OK
        first, end = self.lists.offset(row), self.lists.offset(row + 1)
        if unlikely(first < 0 or end < first or end > self.count):
            return HEADERS_RANGE
        if first == end:
            return HEADERS_OK
        entry.headers = block.size
        if unlikely(not reserve(block, 5)):
            return HEADERS_MEMORY
        block.size = ls_put_varint(block.data + block.size, <int32_t> (end - first)) - block.data
        for i in range(first, end):
            if unlikely(not self.names.take(i, &name, &name_size)
                        or not self.values.take(i, &value, &value_size)):
                return HEADERS_RANGE
            if unlikely(name_size < 0):
                return HEADERS_NULL_KEY
            if unlikely(not put_header(block, name, name_size, value, value_size)):
                return HEADERS_MEMORY
        entry.headers_size = block.size - entry.headers
        return HEADERS_OK


def encode_columns(int64_t start, int64_t stop, key_offsets, key_data, key_validity,
                   value_offsets, value_data, value_validity, timestamps=None,
                   default_timestamp=-1, *, headers=None, int key_offset_size=4,
                   int value_offset_size=4):
    """Encode rows of Arrow columns; see the stub."""
    cdef int64_t default = take_default(default_timestamp)
    cdef View times = None
    cdef int64_t i, bad = -1, bad_timestamp = -1, bad_header = -1
    cdef int code
    cdef _Room room = _Room.__new__(_Room)
    cdef _HeaderLists lists = None
    cdef _Strings keys, values
    cdef ls_entry *entries
    cdef ls_entry *entry
    if not 0 <= start <= stop:
        raise ValueError(f"rows {start}…{stop} are no range")
    keys = _Strings(key_offsets, key_data, key_validity, key_offset_size, start, stop)
    values = _Strings(value_offsets, value_data, value_validity, value_offset_size, start, stop)
    if headers is not None:
        lists = _HeaderLists(headers, start, stop)
    if is_one_time(timestamps):
        default = take_default(timestamps)
    elif timestamps is not None:
        times = int64_view(timestamps)
        if times.size // 8 < stop:
            raise ValueError("the timestamps end before stop")
    entries = room.entries(stop - start)
    with nogil:
        for i in range(start, stop):
            entry = &entries[i - start]
            entry.headers_size = 0
            entry.timestamp = default
            if times is not None:
                memcpy(&entry.timestamp, times.start + 8 * i, 8)
            if unlikely(entry.timestamp < -1):
                bad, bad_timestamp = i, entry.timestamp
                break
            if unlikely(not keys.take(i, &entry.key, &entry.key_size)
                        or not values.take(i, &entry.value, &entry.value_size)):
                bad = i
                break
            if lists is not None:
                code = lists.take(i, entry, &room.headers)
                if unlikely(code != HEADERS_OK):
                    bad_header = i
                    break
    if bad_timestamp < -1:
        raise ValueError(f"timestamp {bad_timestamp} is outside -1…2^63-1")
    if bad >= 0:
        raise ValueError(f"offsets of row {bad} descend or run past the data")
    if bad_header >= 0:
        if code == HEADERS_MEMORY:
            raise MemoryError
        raise ValueError(
            f"row {bad_header} has a header without a key" if code == HEADERS_NULL_KEY
            else f"header offsets of row {bad_header} descend or run past the data")
    return encode(entries, stop - start, room.headers.data)


def seal_batch(buffer, *, int64_t base_offset, int32_t leader_epoch, int16_t attributes,
               int32_t last_offset_delta, int64_t base_timestamp, int64_t max_timestamp,
               int64_t producer_id=-1, int16_t producer_epoch=-1, int32_t base_sequence=-1,
               int32_t record_count):
    """Write the header over the first 61 bytes; see the stub."""
    cdef View view = view_of(buffer, PyBUF_WRITABLE)
    cdef uint8_t *p = <uint8_t *> view.start
    if view.size < LS_HEADER_SIZE:
        raise ValueError(f"{view.size} bytes have no room for a batch header")
    if view.size - 12 > INT32_LAST:
        raise ValueError(f"{view.size} bytes are too many for one batch")
    ls_store64(p, base_offset)
    ls_store32(p + 8, <int32_t> (view.size - 12))
    ls_store32(p + 12, leader_epoch)
    p[16] = 2
    ls_store16(p + 21, attributes)
    ls_store32(p + 23, last_offset_delta)
    ls_store64(p + 27, base_timestamp)
    ls_store64(p + 35, max_timestamp)
    ls_store64(p + 43, producer_id)
    ls_store16(p + 51, producer_epoch)
    ls_store32(p + 53, base_sequence)
    ls_store32(p + 57, record_count)
    if view.size < SMALL:
        ls_store32(p + 17, <int32_t> logstore_crc32c(0, p + 21, view.size - 21))
    else:
        with nogil:
            ls_store32(p + 17, <int32_t> logstore_crc32c(0, p + 21, view.size - 21))


# ---- partitions ----

cdef inline uint32_t load_little(const uint8_t *p) noexcept nogil:
    return p[0] | <uint32_t> p[1] << 8 | <uint32_t> p[2] << 16 | <uint32_t> p[3] << 24


cdef inline uint32_t murmur2(const uint8_t *p, int32_t size) noexcept nogil:
    """Kafka's ``Utils.murmur2``."""
    cdef uint32_t k, h = 0x9747B28Cu ^ <uint32_t> size
    cdef int32_t i, whole = size & ~3, left = size & 3
    for i in range(0, whole, 4):
        k = load_little(p + i) * 0x5BD1E995u
        h = (h * 0x5BD1E995u) ^ ((k ^ k >> 24) * 0x5BD1E995u)
    if left:
        if left == 3:
            h ^= <uint32_t> p[whole + 2] << 16
        if left >= 2:
            h ^= <uint32_t> p[whole + 1] << 8
        h = (h ^ p[whole]) * 0x5BD1E995u
    h = (h ^ h >> 13) * 0x5BD1E995u
    return h ^ h >> 15


cdef inline uint32_t rotate(uint32_t x, int bits) noexcept nogil:
    return x << bits | x >> (32 - bits)


cdef inline uint32_t murmur3(const uint8_t *p, int32_t size) noexcept nogil:
    """MurmurHash3, x86, 32 bit, seed 0."""
    cdef uint32_t k, h = 0
    cdef int32_t i, whole = size & ~3, left = size & 3
    for i in range(0, whole, 4):
        k = rotate(load_little(p + i) * 0xCC9E2D51u, 15) * 0x1B873593u
        h = rotate(h ^ k, 13) * 5 + 0xE6546B64u
    if left:
        k = p[whole]
        if left >= 2:
            k |= <uint32_t> p[whole + 1] << 8
        if left == 3:
            k |= <uint32_t> p[whole + 2] << 16
        h ^= rotate(k * 0xCC9E2D51u, 15) * 0x1B873593u
    h ^= <uint32_t> size
    h = (h ^ h >> 16) * 0x85EBCA6Bu
    h = (h ^ h >> 13) * 0xC2B2AE35u
    return h ^ h >> 16


def partition_column(str partitioner not None, int32_t partition_count, int64_t stop,
                     offsets not None, data, validity):
    """Partitions of Arrow keys; see the stub."""
    cdef _Strings keys
    cdef const uint8_t *bytes = NULL
    cdef int64_t i, bad = -1
    cdef int32_t size = 0, partition
    cdef bint kafka = partitioner == "murmur2"
    cdef uint32_t h
    cdef uint8_t *out
    if partitioner not in ("murmur2", "murmur3"):
        raise ValueError(f"unknown partitioner {partitioner!r}")
    if partition_count < 1 or stop < 0:
        raise ValueError(f"{stop} rows on {partition_count} partitions")
    keys = _Strings(offsets, data, validity, 4, 0, stop)
    result = PyByteArray_FromStringAndSize(NULL, 4 * stop)
    out = <uint8_t *> PyByteArray_AS_STRING(result)
    with nogil:
        for i in range(stop):
            partition = -1
            if unlikely(not keys.take(i, &bytes, &size)):
                bad = i
                break
            if size >= 0:
                h = murmur2(bytes, size) if kafka else murmur3(bytes, size)
                partition = <int32_t> (h & 0x7FFFFFFFu) % partition_count
            memcpy(out + 4 * i, &partition, 4)
    if bad >= 0:
        raise ValueError(f"offsets of row {bad} descend or run past the data")
    return result


# ---- decoding to Records ----

cdef object make_headers(const ls_record *r, const uint8_t *end):
    """A tuple of pairs; None where the bytes changed since ``ls_read_record`` saw them."""
    cdef const uint8_t *p = r.headers
    cdef const uint8_t *name = NULL
    cdef const uint8_t *value = NULL
    cdef int32_t name_size = 0, value_size = 0
    cdef list items = []
    for _ in range(r.header_count):
        p = ls_header(p, end, &name, &name_size, &value, &value_size)
        if unlikely(p == NULL):
            return None
        # Kafka's reader replaces what is not UTF-8 instead of refusing the record.
        items.append((
            PyUnicode_DecodeUTF8(<char *> name, name_size, "replace"),
            PyBytes_FromStringAndSize(<char *> value, value_size) if value_size >= 0 else None,
        ))
    return tuple(items)


@cython.final
cdef class ReadBounds:
    """Which records are wanted; see the stub."""

    cdef ls_bounds value
    cdef Block ranges
    cdef readonly tuple aborted

    def __cinit__(self, int64_t from_offset=0, int64_t end_offset=INT64_LAST, bint check_crc=True,
                  bint include_control=False, aborted=(), start_timestamp=None,
                  end_timestamp=None):
        cdef ls_aborted *place
        self.value = ls_bounds_none()
        self.value.from_offset, self.value.end_offset = from_offset, end_offset
        self.value.check_crc, self.value.include_control = check_crc, include_control
        if start_timestamp is not None:
            self.value.start_timestamp = start_timestamp
        if end_timestamp is not None:
            self.value.end_timestamp = end_timestamp
        self.aborted = tuple(sorted(aborted))
        if not reserve(&self.ranges, len(self.aborted) * <int64_t> sizeof(ls_aborted) + 1):
            raise MemoryError
        place = <ls_aborted *> self.ranges.data
        for producer_id, first_offset, marker_offset in self.aborted:
            place[self.value.aborted_count] = ls_aborted(producer_id, first_offset, marker_offset)
            self.value.aborted_count += 1
        self.value.aborted = place

    def __dealloc__(self):
        discard(&self.ranges)

    @property
    def from_offset(self):
        return self.value.from_offset

    @property
    def end_offset(self):
        return self.value.end_offset

    @property
    def start_timestamp(self):
        return self.value.start_timestamp

    @property
    def end_timestamp(self):
        return self.value.end_timestamp

    @property
    def check_crc(self):
        return self.value.check_crc

    @property
    def include_control(self):
        return self.value.include_control

    def is_in_time(self, int64_t timestamp):
        return ls_in_time(timestamp, self.value.start_timestamp, self.value.end_timestamp)


cdef int decode_section(list out, const uint8_t *p, const uint8_t *end, int64_t base_offset,
                        int64_t base_timestamp, int32_t record_count, bint log_append,
                        int64_t log_append_time, const ls_bounds *wanted,
                        const uint8_t **at) except -1:
    """Append the records of one section; the result is an LS_RECORD_ code, ``at`` its place."""
    cdef ls_record r
    cdef ls_shared_int last = ls_shared_int(NULL, 0)
    cdef int32_t i
    cdef int32_t previous = -1
    cdef int64_t offset
    cdef int64_t timestamp = log_append_time
    cdef int code
    cdef bint in_time = True, timed = not log_append and ls_is_timed(wanted)
    cdef object made
    cdef PyObject *headers
    at[0] = p
    if record_count < 0 or record_count > (end - p) // LS_RECORD_SIZE_MIN:
        return LS_RECORD_COUNT
    try:
        for i in range(record_count):
            at[0] = p
            if timed:
                code = ls_skim_record(&p, end, &r)
                in_time = code == LS_RECORD_OK and ls_in_time(
                    ls_add64(base_timestamp, r.timestamp_delta), wanted.start_timestamp,
                    wanted.end_timestamp)
                if in_time:
                    p = at[0]
            if in_time:
                code = ls_read_record(&p, end, &r)
            if unlikely(code != LS_RECORD_OK):
                return code
            if unlikely(r.offset_delta <= previous):
                return LS_RECORD_OFFSET
            previous = r.offset_delta
            offset = ls_add64(base_offset, r.offset_delta)
            if not in_time or offset < wanted.from_offset or offset >= wanted.end_offset:
                continue
            if not log_append:
                timestamp = ls_add64(base_timestamp, r.timestamp_delta)
            headers = NULL
            if unlikely(r.header_count != 0):
                made = make_headers(&r, p)
                if made is None:
                    return LS_RECORD_FIELD
                headers = <PyObject *> made
                Py_INCREF(headers)
            ls_append_record(out, ls_new_record(offset, timestamp, &last, &r, headers))
        at[0] = p
        return LS_RECORD_OK if p == end else LS_RECORD_TRAILING
    finally:
        Py_XDECREF(last.object)


def decode_records(payload, int64_t base_offset, int64_t base_timestamp, int32_t record_count,
                   log_append_time=None, int64_t from_offset=0):
    """Records of one uncompressed section; see the stub."""
    cdef View view = view_of(payload)
    cdef const uint8_t *at = NULL
    cdef list out = []
    cdef bint log_append = log_append_time is not None
    cdef int64_t time = log_append_time if log_append else -1
    cdef ls_bounds wanted = ls_bounds_none()
    cdef int code
    wanted.from_offset = from_offset
    code = decode_section(out, view.start, view.end, base_offset, base_timestamp, record_count,
                          log_append, time, &wanted, &at)
    if code != LS_RECORD_OK:
        raise record_error(code, at - view.start)
    return out


cdef int check_status(int status, int code, object data, int64_t position) except -1:
    """Raise the error that a status says there is at ``position`` of ``data``."""
    if status == LS_DECODE_BAD_BATCH:
        raise batch_error(code, memoryview(data).cast("B"), position)
    if status == LS_DECODE_BAD_RECORD:
        if code == LS_RECORD_MEMORY:
            raise MemoryError
        raise record_error(code, position)
    return 0


def decode_run(data, int64_t position, list out not None, int64_t max_records,
               ReadBounds bounds not None):
    """Records of consecutive plain batches; see the stub."""
    cdef View view = view_of(data)
    cdef const uint8_t *p
    cdef const uint8_t *at = NULL
    cdef ls_batch b
    cdef int step, status = LS_DECODE_END, code = 0
    cdef const ls_bounds *wanted = &bounds.value
    cdef bint crc_ok
    cdef Py_ssize_t before
    cdef Py_ssize_t first = PyList_GET_SIZE(out)
    if not 0 <= position <= view.size:
        raise ValueError(f"position {position} is outside 0…{view.size}")
    p = view.start + position
    while True:
        if PyList_GET_SIZE(out) - first >= max_records:
            status = LS_DECODE_FULL
            break
        step = ls_next_batch(p, view.end, &b, wanted, &code)
        if step == LS_PASS:
            p += b.size
            continue
        if step >= 0:
            status = step
            break
        if wanted.check_crc:
            if b.size < 65536:
                crc_ok = ls_crc_ok(&b)
            else:
                with nogil:
                    crc_ok = ls_crc_ok(&b)
            if unlikely(not crc_ok):
                status, code = LS_DECODE_BAD_BATCH, LS_BAD_CRC
                break
        if step != LS_TAKE:
            p += b.size
            continue
        before = PyList_GET_SIZE(out)
        code = decode_section(
            out, p + LS_HEADER_SIZE, p + b.size, b.base_offset, b.base_timestamp,
            b.record_count, b.attributes & LOG_APPEND_TIME != 0, b.max_timestamp, wanted, &at)
        if unlikely(code != LS_RECORD_OK):
            PyList_SetSlice(out, before, PyList_GET_SIZE(out), NULL)
            status = LS_DECODE_BAD_RECORD
            p = at
            break
        if b.last_offset >= wanted.end_offset:
            status = LS_DECODE_LIMIT
            break
        p += b.size
        if b.last_offset + 1 == wanted.end_offset:
            status = LS_DECODE_LIMIT
            break
    position = p - view.start
    check_status(status, code, data, position)
    return position, status


# ---- decoding to columns ----

@cython.final
cdef class NativeBuffer:
    """Memory of a finished column, handed out through the buffer protocol without a copy."""

    cdef Block block
    cdef Py_ssize_t shape[1]
    cdef Py_ssize_t strides[1]
    cdef const char *format

    def __dealloc__(self):
        discard(&self.block)

    def __len__(self):
        return self.shape[0]

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("a finished column is read-only")
        view.buf = self.block.data
        view.obj = self
        view.len = self.block.size
        view.readonly = 1
        view.itemsize = self.strides[0]
        view.format = <char *> self.format if flags & PyBUF_FORMAT else NULL
        view.ndim = 1
        view.shape = self.shape if flags & PyBUF_ND else NULL
        view.strides = self.strides if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL

    def __releasebuffer__(self, Py_buffer *view):
        pass


cdef object hand_out(Block *block, int width):
    """Move ``block`` of a finished builder into an object of its own."""
    cdef NativeBuffer result = NativeBuffer.__new__(NativeBuffer)
    result.block = ls_take(block)
    result.strides[0] = width
    result.shape[0] = result.block.size // width
    result.format = b"q" if width == 8 else b"i" if width == 4 else b"B"
    return result


cdef int hand_out_strings(ls_string_column *s, dict result, str name) except -1:
    result[name + "_offsets"] = hand_out(&s.offsets, 4)
    result[name + "_data"] = hand_out(&s.data, 1)
    result[name + "_validity"] = hand_out(&s.valid, 1) if s.nulls else None
    return 0


cdef int describe(ls_batch *b, int64_t base_offset, int64_t base_timestamp, int32_t record_count,
                  log_append_time) except -1:
    """The header of a section of which no more is known."""
    memset(b, 0, sizeof(b[0]))
    b.base_offset, b.base_timestamp, b.record_count = base_offset, base_timestamp, record_count
    b.max_timestamp = INT64_LAST
    if log_append_time is not None:
        b.attributes, b.max_timestamp = LOG_APPEND_TIME, log_append_time
    return 0


@cython.final
cdef class ColumnBuilder:
    """Records as Arrow columns; see the stub."""

    cdef ls_builder builder
    cdef bint busy

    def __cinit__(self, bint keys=True, bint values=True, bint timestamps=True,
                  bint headers=False, int64_t column_bytes_max=INT32_LAST, bint runs=False):
        if not 0 <= column_bytes_max <= INT32_LAST:
            raise ValueError(f"columns of {column_bytes_max} bytes: up to {INT32_LAST} are possible")
        ls_builder_init(
            &self.builder, (LS_KEYS if keys else 0) | (LS_VALUES if values else 0)
            | (LS_TIMESTAMPS if timestamps else 0) | (LS_HEADER_COLUMNS if headers else 0)
            | (LS_RUNS if runs else 0), column_bytes_max)

    def __dealloc__(self):
        ls_builder_discard(&self.builder)

    @property
    def rows(self):
        return self.builder.rows

    def add_run(self, data, int64_t position, int64_t max_rows, int64_t max_bytes,
                ReadBounds bounds not None):
        """Append the records of consecutive plain batches: ``(next position, status)``."""
        cdef View view
        cdef int status, code = 0
        self.enter()
        try:
            view = view_of(data)
            if not 0 <= position <= view.size:
                raise ValueError(f"position {position} is outside 0…{view.size}")
            with nogil:
                status = ls_builder_run(&self.builder, view.start, view.size, &position, max_rows,
                                        max_bytes, &bounds.value, &code)
        finally:
            self.busy = False
        check_status(status, code, data, position)
        return position, status

    def add_payload(self, payload, int64_t base_offset, int64_t base_timestamp,
                    int32_t record_count, log_append_time, ReadBounds bounds not None,
                    int64_t batch_position=0):
        """Append one unpacked section: DECODE_END, or DECODE_FULL when it does not fit."""
        cdef View view
        cdef ls_batch b
        cdef int64_t position = 0
        cdef int status, code = 0
        describe(&b, base_offset, base_timestamp, record_count, log_append_time)
        self.enter()
        try:
            view = view_of(payload)
            if view.size > INT32_LAST:
                raise ValueError(f"{view.size} bytes are too many for one section")
            with nogil:
                status = ls_builder_section(&self.builder, view.start, view.size, &b,
                                            batch_position, &bounds.value, &position, &code)
        finally:
            self.busy = False
        check_status(status, code, payload, position)
        return status

    def runs(self):
        """Where the rows come from; see the stub."""
        cdef int64_t i, n
        cdef const ls_run *run
        self.enter()
        try:
            n = self.builder.runs.size // <int64_t> sizeof(ls_run)
            run = <const ls_run *> self.builder.runs.data
            return (array("q", [run[i].end_row for i in range(n)]),
                    array("q", [run[i].position for i in range(n)]))
        finally:
            self.busy = False

    def finish(self):
        """The columns as buffers; the builder is empty afterwards."""
        cdef dict result = {}
        cdef ls_builder *s = &self.builder
        self.enter()
        try:
            if not ls_builder_finish(s):
                raise MemoryError
            result["offsets"] = hand_out(&s.offsets, 8)
            if s.columns & LS_TIMESTAMPS:
                result["timestamps"] = hand_out(&s.timestamps, 8)
            if s.columns & LS_KEYS:
                hand_out_strings(&s.keys, result, "key")
            if s.columns & LS_VALUES:
                hand_out_strings(&s.values, result, "value")
            if s.columns & LS_HEADER_COLUMNS:
                result["header_list_offsets"] = hand_out(&s.header_lists, 4)
                hand_out_strings(&s.header_names, result, "header_name")
                hand_out_strings(&s.header_values, result, "header_value")
                del result["header_name_validity"]
        finally:
            ls_builder_discard(s)
            self.busy = False
        return result

    cdef int enter(self) except -1:
        if self.busy:
            raise RuntimeError("the builder is at work in another thread")
        self.busy = True
        return 0


# ---- counting ----

@cython.final
cdef class RecordCount:
    """How many records, and their extremes; see the stub."""

    cdef ls_summary summary
    cdef int extremes

    def __cinit__(self, bint min_offset=False, bint max_offset=False, bint min_timestamp=False,
                  bint max_timestamp=False):
        self.summary = ls_summary_none()
        self.extremes = (
            (LS_MIN_OFFSET if min_offset else 0) | (LS_MAX_OFFSET if max_offset else 0)
            | (LS_MIN_TIMESTAMP if min_timestamp else 0)
            | (LS_MAX_TIMESTAMP if max_timestamp else 0))

    @property
    def rows(self):
        return self.summary.rows

    @property
    def min_offset(self):
        return self.summary.min_offset if self.knows(LS_MIN_OFFSET) else None

    @property
    def max_offset(self):
        return self.summary.max_offset if self.knows(LS_MAX_OFFSET) else None

    @property
    def min_timestamp(self):
        return self.summary.min_timestamp if self.knows(LS_MIN_TIMESTAMP) else None

    @property
    def max_timestamp(self):
        return self.summary.max_timestamp if self.knows(LS_MAX_TIMESTAMP) else None

    cdef bint knows(self, int extreme):
        return self.summary.rows > 0 and self.extremes & extreme

    def add_run(self, data, int64_t position, ReadBounds bounds not None):
        """Add the records of consecutive batches: ``(next position, status)``."""
        cdef View view = view_of(data)
        cdef ls_summary summary = self.summary
        cdef int status, code = 0
        if not 0 <= position <= view.size:
            raise ValueError(f"position {position} is outside 0…{view.size}")
        with nogil:
            status = ls_count(view.start, view.size, &position, &bounds.value, self.extremes,
                              &summary, &code)
        self.summary = summary
        check_status(status, code, data, position)
        return position, status

    def add_payload(self, payload, int64_t base_offset, int64_t base_timestamp,
                    int32_t record_count, log_append_time, ReadBounds bounds not None,
                    int64_t batch_position=0):
        """Add one unpacked section: DECODE_END."""
        cdef View view = view_of(payload)
        cdef const uint8_t *at = NULL
        cdef ls_summary summary = self.summary
        cdef ls_batch b
        cdef int code
        describe(&b, base_offset, base_timestamp, record_count, log_append_time)
        with nogil:
            code = ls_count_section(view.start, view.end, &b, &bounds.value, &summary, &at)
        if code != LS_RECORD_OK:
            raise record_error(code, at - view.start)
        self.summary = summary
        return LS_DECODE_END
