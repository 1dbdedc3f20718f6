# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Native checksums, varints and walks over batch headers: the fast twin of ``tests/reference``.

All byte access goes through batch_layout.h, which checks every bound; the loops make no Python
object and run without the GIL. What each function promises is written in the stub.
"""

cimport cython
from logstore.kernels._common cimport *
from cpython.bytes cimport PyBytes_FromStringAndSize

from logstore.common.errors import CorruptBatchError
from logstore.kernels._constants import PRODUCER_ROWS_MAX as _PRODUCER_ROWS_MAX
from logstore.kernels._constants import SCAN_COLUMNS, batch_error, record_error

cdef int64_t PRODUCER_ROWS = _PRODUCER_ROWS_MAX
cdef int64_t COLUMNS = len(SCAN_COLUMNS)
cdef int64_t INT32_LAST = 2147483647

STATUSES = (
    LS_END, LS_TAIL, LS_INCOMPLETE, LS_FULL, LS_BAD_SIZE, LS_BAD_CRC, LS_BAD_MAGIC, LS_BAD_HEADER,
    LS_BAD_OFFSET,
)


# ---- buffers ----

@cython.final
@cython.freelist(8)
cdef class View:
    """The bytes of an object, held as long as this lives; made by ``view_of``."""

    def __dealloc__(self):
        PyBuffer_Release(&self.held)


cdef View view_of(data, int flags=PyBUF_SIMPLE):
    cdef View view = View.__new__(View)
    PyObject_GetBuffer(data, &view.held, flags)
    view.start = <const uint8_t *> view.held.buf
    view.size = view.held.len
    view.end = view.start + view.size
    return view


# ---- checksums ----

def crc32c(data, uint32_t value=0):
    """CRC-32C of ``data`` (F-53), continuing from ``value``."""
    cdef View view = view_of(data)
    if view.size < 8192:  # giving the GIL away costs more than the checksum
        return logstore_crc32c(value, view.start, view.size)
    with nogil:
        value = logstore_crc32c(value, view.start, view.size)
    return value


def crc32(data, uint32_t value=0):
    """CRC-32 (IEEE) of ``data``, as in magic 0 and 1 (F-98); the same as ``zlib.crc32``."""
    cdef View view = view_of(data)
    with nogil:
        value = logstore_crc32(value, view.start, view.size)
    return value


def crc32c_variant(int number, data, uint32_t value=0):
    """``crc32c`` by tables (0) or by hardware (1), for tests; None if this machine lacks it."""
    cdef crc_function function = logstore_crc32c_variant(number)
    cdef View view = view_of(data)
    return None if function == NULL else function(value, view.start, view.size)


def crc32c_chosen():
    """The number of the variant in use, for tests."""
    return int(logstore_crc32c != logstore_crc32c_variant(0))


# ---- varints ----

def encode_varint(int32_t n):
    """Zig-zag and base 128 of an i32 (F-72)."""
    cdef uint8_t room[10]
    return PyBytes_FromStringAndSize(<char *> room, ls_put_varint(room, n) - room)


def encode_varlong(int64_t n):
    """Zig-zag and base 128 of an i64 (F-72)."""
    cdef uint8_t room[10]
    return PyBytes_FromStringAndSize(<char *> room, ls_put_varlong(room, n) - room)


# ---- header scan ----

cdef int64_t scan(const uint8_t *data, int64_t n, int64_t *at, int64_t *columns, int64_t capacity,
                  bint check_crc, bint stop_on_bad, int *result) noexcept nogil:
    cdef const uint8_t *p = data + at[0]
    cdef const uint8_t *end = data + n
    cdef int64_t rows = 0
    cdef int64_t *row
    cdef ls_batch b
    cdef ls_ahead ahead
    cdef int status
    ahead.left = 0
    while True:
        if p == end:
            result[0] = LS_END
            break
        if rows == capacity:
            result[0] = LS_FULL
            break
        status = ls_frame(p, end, &b)
        if unlikely(status != LS_OK):
            result[0] = status
            break
        status = ls_check(&b, end, check_crc, &ahead)
        if unlikely(status != LS_OK) and stop_on_bad:
            result[0] = status
            break
        row = columns + rows
        row[0] = p - data
        row[capacity] = b.size
        row[2 * capacity] = b.base_offset
        row[3 * capacity] = b.last_offset
        row[4 * capacity] = b.base_timestamp
        row[5 * capacity] = b.max_timestamp
        row[6 * capacity] = b.leader_epoch
        row[7 * capacity] = b.producer_id
        row[8 * capacity] = b.producer_epoch
        row[9 * capacity] = b.base_sequence
        row[10 * capacity] = b.attributes
        row[11 * capacity] = b.record_count
        row[12 * capacity] = b.magic
        row[13 * capacity] = b.crc
        row[14 * capacity] = status == LS_OK
        rows += 1
        p += b.size
    at[0] = p - data
    return rows


def scan_batches(data, int64_t start, columns, bint check_crc=True, bint stop_on_bad=True):
    """Fill ``columns`` with one row per batch from ``start`` on: ``(rows, next, status)``."""
    cdef View view = view_of(data), table
    cdef int64_t rows, capacity
    cdef int status = LS_END
    if not 0 <= start <= view.size:
        raise ValueError(f"start {start} is outside 0…{view.size}")
    table = view_of(columns, PyBUF_WRITABLE)
    if table.size and <size_t> table.start % sizeof(int64_t):
        raise ValueError("columns must be aligned as int64")
    capacity = table.size // <int64_t> sizeof(int64_t) // COLUMNS
    with nogil:
        rows = scan(view.start, view.size, &start, <int64_t *> table.start, capacity, check_crc,
                    stop_on_bad, &status)
    return rows, start, status


# ---- recovery ----

ctypedef struct ProducerRow:
    int64_t producer_id, base_offset, max_timestamp, position, size
    int32_t base_sequence, last_offset_delta, record_count
    int16_t producer_epoch, attributes


ctypedef struct EpochRow:
    int64_t epoch, start_offset


@cython.final
cdef class RecoveryScan:
    """Recovery of one segment over consecutive windows (F-232, F-233)."""

    cdef readonly int64_t base_offset, index_interval_bytes, valid_bytes, next_offset
    cdef readonly int64_t max_timestamp, offset_of_max_timestamp, first_batch_max_timestamp
    cdef readonly int64_t batch_count, record_count, needed_bytes
    cdef readonly int64_t epoch_falls, first_fall_offset
    cdef readonly int status
    cdef readonly bint strict, contiguous
    cdef int64_t last_index_position, last_indexed_offset, last_indexed_timestamp
    cdef int64_t last_timed_offset
    cdef int64_t latest_epoch, epoch_before, expected
    cdef bint started, busy
    cdef Block offsets, times, producers, epoch_rows

    def __cinit__(self, int64_t base_offset, int64_t index_interval_bytes, *,
                  int64_t expected_offset=-1, int64_t last_epoch=-1, bint strict=True,
                  bint contiguous=False):
        if base_offset < 0:
            raise ValueError(f"base_offset {base_offset} is negative")
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.strict, self.contiguous = strict, contiguous
        self.expected = expected_offset
        self.next_offset = expected_offset if expected_offset >= 0 else base_offset
        self.latest_epoch = self.epoch_before = last_epoch
        self.first_fall_offset = -1
        self.status = LS_END
        self.max_timestamp = self.offset_of_max_timestamp = self.first_batch_max_timestamp = -1
        self.last_indexed_offset = self.last_indexed_timestamp = self.last_timed_offset = -1

    def __dealloc__(self):
        discard(&self.offsets)
        discard(&self.times)
        discard(&self.producers)
        discard(&self.epoch_rows)

    cdef inline int offsets_fit(self, const ls_batch *b) noexcept nogil:
        """What recovery asks of a batch (F-232); with ``strict`` also that offsets follow each
        other, which no crc covers (F-62)."""
        cdef int64_t first = b.base_offset
        if unlikely(b.last_offset < self.base_offset
                    or b.last_offset - self.base_offset > INT32_LAST):
            return LS_BAD_OFFSET
        if self.contiguous:
            # The first offset of a compressed legacy batch is not in its header (F-103).
            if b.magic == 2 or b.record_count == 1:
                if self.expected >= 0 and unlikely(first != self.expected):
                    return LS_BAD_OFFSET
            elif unlikely(b.last_offset < self.next_offset):
                return LS_BAD_OFFSET
        if self.strict and unlikely(first < self.next_offset):
            return LS_BAD_OFFSET
        return LS_OK

    cdef int add_index_entries(self, const ls_batch *b, int64_t position) noexcept nogil:
        """An entry for each interval (F-133), of times only where they grow (F-118)."""
        cdef uint8_t *entry
        if b.last_offset <= self.last_indexed_offset:
            return LS_BAD_OFFSET
        if self.max_timestamp > self.last_indexed_timestamp:
            if self.offset_of_max_timestamp < self.last_timed_offset:
                return LS_BAD_OFFSET
            if not reserve(&self.times, 12):
                return -1
            entry = self.times.data + self.times.size
            ls_store64(entry, self.max_timestamp)
            ls_store32(entry + 8, <int32_t> (self.offset_of_max_timestamp - self.base_offset))
            self.times.size += 12
            self.last_indexed_timestamp = self.max_timestamp
            self.last_timed_offset = self.offset_of_max_timestamp
        if not reserve(&self.offsets, 8):
            return -1
        entry = self.offsets.data + self.offsets.size
        ls_store32(entry, <int32_t> (b.last_offset - self.base_offset))
        ls_store32(entry + 4, <int32_t> position)
        self.offsets.size += 8
        self.last_indexed_offset = b.last_offset
        self.last_index_position = position
        return LS_OK

    cdef int add_producer_row(self, const ls_batch *b, int64_t position) noexcept nogil:
        cdef ProducerRow *row
        if not reserve(&self.producers, sizeof(ProducerRow)):
            return -1
        row = <ProducerRow *> (self.producers.data + self.producers.size)
        row.producer_id = b.producer_id
        row.producer_epoch = b.producer_epoch
        row.base_sequence = b.base_sequence
        row.last_offset_delta = b.last_offset_delta
        row.base_offset = b.base_offset
        row.max_timestamp = b.max_timestamp
        row.attributes = b.attributes
        row.position = position
        row.size = b.size
        row.record_count = b.record_count
        self.producers.size += sizeof(ProducerRow)
        return LS_OK

    cdef int add_epoch(self, const ls_batch *b) noexcept nogil:
        cdef EpochRow *row
        if not reserve(&self.epoch_rows, sizeof(EpochRow)):
            return -1
        row = <EpochRow *> (self.epoch_rows.data + self.epoch_rows.size)
        row.epoch = b.leader_epoch
        row.start_offset = b.base_offset
        self.epoch_rows.size += sizeof(EpochRow)
        self.latest_epoch = b.leader_epoch
        return LS_OK

    cdef const uint8_t *walk_small(self, const uint8_t *p, const uint8_t *end,
                                   int64_t position, ls_ahead *ahead) noexcept nogil:
        """Walk small batches with nothing special, four at a time; the result is where that ends.

        Whatever takes a closer look, a fault too, is left to ``walk``, which does the same in
        general; ``ahead`` has its checksum. The state is in local variables: with such batches the
        walk, not the checksum, sets the pace.
        """
        cdef ls_batch b
        cdef const uint8_t *start = p
        cdef int64_t size, first, last, stamp, at, delta, records
        cdef int64_t following = self.next_offset, interval = self.index_interval_bytes
        cdef int64_t max_timestamp = self.max_timestamp
        cdef int64_t offset_of_max = self.offset_of_max_timestamp
        cdef int64_t batches = 0, all_records = 0, base = self.base_offset
        cdef int64_t index_position = self.last_index_position, epoch = self.epoch_before
        cdef bint contiguous = self.contiguous
        cdef int i
        if not self.strict or self.batch_count == 0 or self.expected != following:
            return p
        while ls_look_ahead(p, end, ahead):
            for i in range(4):
                at = position + (p - start)
                size = ahead.size[i]  # read once: who maps a file sees what others write to it
                first = ls_load64(p)
                delta = ls_load32(p + 23)
                last = ls_add64(first, delta)
                stamp = ls_load64(p + 35)
                records = ls_load32(p + 57)
                if unlikely(ahead.crc[i] != <uint32_t> ls_load32(p + 17)
                            or ls_load32(p + 12) != epoch
                            or ls_load64(p + 43) >= 0  # a producer
                            or ls_load16(p + 21) & 0x20
                            or delta < 0
                            or records < 0
                            or first < following
                            or contiguous and first != following
                            or ls_add64(last, 1) < first  # there is none after the largest
                            or ls_sub64(last, base) > INT32_LAST
                            or at + size > INT32_LAST):
                    break
                if unlikely(at - index_position > interval):
                    b.last_offset = last
                    self.max_timestamp, self.offset_of_max_timestamp = max_timestamp, offset_of_max
                    if stamp > max_timestamp:
                        self.max_timestamp, self.offset_of_max_timestamp = stamp, last
                    if unlikely(self.add_index_entries(&b, at) != LS_OK):
                        break
                    index_position = at
                if stamp > max_timestamp:
                    max_timestamp, offset_of_max = stamp, last
                following = last + 1
                batches += 1
                all_records += records
                p += size
            else:
                continue
            ahead.left = 4 - i
            break
        self.next_offset = self.expected = following
        self.max_timestamp, self.offset_of_max_timestamp = max_timestamp, offset_of_max
        self.batch_count += batches
        self.record_count += all_records
        self.valid_bytes = position + (p - start)
        return p

    cdef int walk(self, const uint8_t *data, int64_t n, int64_t position, bint end_of_file,
                  const uint8_t **at) noexcept nogil:
        """The status at which the walk ends; ``at`` moves behind the last good batch."""
        cdef const uint8_t *p = data
        cdef const uint8_t *end = data + n
        cdef int status
        cdef ls_batch b
        cdef ls_ahead ahead
        cdef int64_t batch_position, old_max, old_offset_of_max
        cdef bint has_producer
        self.needed_bytes = 0
        ahead.left = 0
        while True:
            if ahead.left == 0 and end - p >= 17 and ls_load32(p + 8) < LS_AHEAD_SIZE:
                p = self.walk_small(p, end, position + (p - data), &ahead)
            at[0] = p
            status = ls_frame(p, end, &b)
            if unlikely(status != LS_OK):
                if status == LS_INCOMPLETE:
                    self.needed_bytes = <int64_t> ls_load32(p + 8) + 12
                elif status == LS_TAIL and not end_of_file:
                    self.needed_bytes = 17
                    status = LS_INCOMPLETE
                return status
            batch_position = position + (p - data)
            if unlikely(batch_position + b.size > INT32_LAST):
                return LS_BAD_SIZE  # no segment reaches there (F-110)
            status = ls_check(&b, end, True, &ahead)
            if likely(status == LS_OK):
                status = self.offsets_fit(&b)
            if unlikely(status != LS_OK):
                return status
            has_producer = b.magic == 2 and (b.producer_id >= 0 or b.attributes & 0x20)
            if unlikely(has_producer) and \
                    self.producers.size >= PRODUCER_ROWS * <int64_t> sizeof(ProducerRow):
                return LS_FULL
            old_max, old_offset_of_max = self.max_timestamp, self.offset_of_max_timestamp
            if b.max_timestamp > self.max_timestamp:
                self.max_timestamp = b.max_timestamp
                self.offset_of_max_timestamp = b.last_offset
            if unlikely(batch_position - self.last_index_position > self.index_interval_bytes):
                status = self.add_index_entries(&b, batch_position)
                if unlikely(status != LS_OK):
                    self.max_timestamp = old_max
                    self.offset_of_max_timestamp = old_offset_of_max
                    return status
            if b.magic == 2:
                if b.leader_epoch > self.latest_epoch and unlikely(self.add_epoch(&b) != LS_OK):
                    return -1
                if unlikely(0 <= b.leader_epoch < self.epoch_before):
                    if self.epoch_falls == 0:
                        self.first_fall_offset = b.base_offset
                    self.epoch_falls += 1
                self.epoch_before = b.leader_epoch
                if has_producer and unlikely(self.add_producer_row(&b, batch_position) != LS_OK):
                    return -1
            if self.batch_count == 0:
                self.first_batch_max_timestamp = b.max_timestamp
            self.batch_count += 1
            if likely(b.record_count > 0):
                self.record_count += b.record_count
            self.next_offset = self.expected = b.last_offset + 1
            p += b.size
            self.valid_bytes = position + (p - data)

    def feed(self, data, int64_t position, bint end_of_file):
        """Walk the whole batches of ``data``, which starts at ``position`` of the file."""
        cdef View view
        cdef const uint8_t *at = NULL
        cdef int status
        if self.busy:
            raise RuntimeError("feed is running in another thread")
        if self.started and position != self.valid_bytes:
            raise ValueError(f"position {position} does not follow {self.valid_bytes}")
        if position < 0:
            raise ValueError(f"position {position} is negative")
        view = view_of(data)
        if position > <int64_t> 0x7fffffffffffffff - view.size:
            raise ValueError(f"position {position} leaves no room for the window")
        self.busy = True
        try:
            self.started = True
            self.valid_bytes = position
            with nogil:
                status = self.walk(view.start, view.size, position, end_of_file, &at)
        finally:
            self.busy = False
        if status < 0:
            raise MemoryError
        self.status = status
        return at - view.start

    def final_time_entry(self):
        """The entry that closes the time index (F-135), or nothing if it is there already."""
        cdef uint8_t entry[12]
        if self.max_timestamp <= self.last_indexed_timestamp:
            return b""
        ls_store64(entry, self.max_timestamp)
        ls_store32(entry + 8, <int32_t> (self.offset_of_max_timestamp - self.base_offset))
        return PyBytes_FromStringAndSize(<char *> entry, 12)

    @property
    def offset_index(self):
        """Entries of the offset index, as in the file (F-112)."""
        self.check_idle()
        return PyBytes_FromStringAndSize(<char *> self.offsets.data, self.offsets.size)

    @property
    def time_index(self):
        """Entries of the time index, as in the file (F-116), without the closing one."""
        self.check_idle()
        return PyBytes_FromStringAndSize(<char *> self.times.data, self.times.size)

    @property
    def epochs(self):
        """``(epoch, start offset)`` of every leader epoch above those known before."""
        cdef const EpochRow *row
        self.check_idle()
        row = <const EpochRow *> self.epoch_rows.data
        return [(row[i].epoch, row[i].start_offset)
                for i in range(self.epoch_rows.size // <int64_t> sizeof(EpochRow))]

    def take_producer_batches(self):
        """Rows for the producer state since the last call."""
        cdef const ProducerRow *row
        cdef int64_t i
        cdef list rows = []
        self.check_idle()
        for i in range(self.producers.size // <int64_t> sizeof(ProducerRow)):
            row = <const ProducerRow *> self.producers.data + i
            rows.append((
                row.producer_id, row.producer_epoch, row.base_sequence, row.last_offset_delta,
                row.base_offset, row.max_timestamp, row.attributes, row.position, row.size,
                row.record_count,
            ))
        self.producers.size = 0
        return rows

    cdef int check_idle(self) except -1:
        if self.busy:
            raise RuntimeError("feed is running in another thread")
        return 0


# ---- appends ----

@cython.final
cdef class BatchAnalysis:
    """What an append has to know of its bytes; see the stub."""

    cdef void start(self) noexcept nogil:
        self.first_offset = self.last_offset = self.base_timestamp = self.max_timestamp = -1
        self.offset_of_max_timestamp = self.first_batch_max_timestamp = -1
        self.min_epoch = self.max_epoch = self.last_epoch = self.magic_min = self.magic_max = -1
        self.too_large_position = self.min_timestamp = self.record_max_timestamp = -1
        self.ascending = self.dense = self.all_base_zero = self.offsets_dense = True

    cdef void add(self, const ls_batch *b, int64_t position,
                  int64_t max_batch_size) noexcept nogil:
        if self.batch_count == 0:
            self.first_offset = b.base_offset
            self.base_timestamp = b.base_timestamp
            self.first_batch_max_timestamp = b.max_timestamp
            self.min_epoch = self.max_epoch = b.leader_epoch
            self.magic_min = self.magic_max = b.magic
            self.attributes_and = b.attributes
        else:
            if b.base_offset <= self.last_offset:
                self.ascending = False
            self.min_epoch = min(self.min_epoch, <int64_t> b.leader_epoch)
            self.max_epoch = max(self.max_epoch, <int64_t> b.leader_epoch)
            self.magic_min = min(self.magic_min, <int64_t> b.magic)
            self.magic_max = max(self.magic_max, <int64_t> b.magic)
            self.attributes_and &= b.attributes
        self.batch_count += 1
        self.attributes_or |= b.attributes
        self.codec_mask |= 1 << (b.attributes & 7)
        self.last_offset = b.last_offset
        self.last_epoch = b.leader_epoch
        if b.max_timestamp > self.max_timestamp:
            self.max_timestamp = b.max_timestamp
            self.offset_of_max_timestamp = b.last_offset
        if b.record_count < 0 or self.record_count < 0:
            self.record_count = -1
        else:
            self.record_count += b.record_count
        if b.size > self.largest_batch_size:
            self.largest_batch_size = b.size
        if b.size > max_batch_size and self.too_large_position < 0:
            self.too_large_position = position
        if b.magic == 2 and (b.record_count < 1
                             or <int64_t> b.last_offset_delta + 1 != b.record_count):
            self.dense = False
        if b.producer_id >= 0:
            self.has_producer = True
        if b.base_offset != 0:
            self.all_base_zero = False
        self.size = position + b.size

    cdef int walk_records(self, const ls_batch *b, const uint8_t **at) noexcept nogil:
        """Whether the records of an uncompressed section fill it as they say (F-73); ``at`` is where the violation starts."""
        cdef const uint8_t *p = b.data + LS_HEADER_SIZE
        cdef const uint8_t *end = b.data + b.size
        cdef ls_record r
        cdef int32_t i
        cdef int code
        cdef int64_t timestamp
        at[0] = p
        if b.record_count > (end - p) // LS_RECORD_SIZE_MIN:
            return LS_RECORD_COUNT
        for i in range(b.record_count):
            at[0] = p
            code = ls_read_record(&p, end, &r)
            if unlikely(code != LS_RECORD_OK):
                return code
            if r.offset_delta != i:
                self.offsets_dense = False
            if r.key_size < 0:
                self.has_null_key = True
            timestamp = b.max_timestamp if b.attributes & 8 else \
                ls_add64(b.base_timestamp, r.timestamp_delta)
            if not self.any_record:
                self.any_record = True
                self.min_timestamp = self.record_max_timestamp = timestamp
            elif timestamp < self.min_timestamp:
                self.min_timestamp = timestamp
            elif timestamp > self.record_max_timestamp:
                self.record_max_timestamp = timestamp
        at[0] = p
        return LS_RECORD_OK if p == end else LS_RECORD_TRAILING

    cdef int walk(self, const uint8_t *data, int64_t n, int64_t max_batch_size, bint check_crc,
                  bint deep, int64_t *position, int *record_code) noexcept nogil:
        cdef const uint8_t *p = data
        cdef const uint8_t *end = data + n
        cdef const uint8_t *at
        cdef ls_batch b
        cdef ls_ahead ahead
        cdef int status
        self.start()
        ahead.left = 0
        record_code[0] = LS_RECORD_OK
        while True:
            position[0] = p - data
            status = ls_frame(p, end, &b)
            if status != LS_OK:
                return status
            status = ls_check(&b, end, check_crc, &ahead)
            if unlikely(status != LS_OK):
                return status
            if deep and b.magic == 2 and b.attributes & 7 == 0:
                record_code[0] = self.walk_records(&b, &at)
                if unlikely(record_code[0] != LS_RECORD_OK):
                    position[0] = at - data
                    return LS_OK
            self.add(&b, p - data, max_batch_size)
            p += b.size


def analyse_batches(data, *, int64_t max_batch_size=2147483647, bint check_crc=True,
                    bint deep=False):
    """Check and summarise the whole batches in ``data`` (F-163)."""
    cdef View view = view_of(data)
    cdef BatchAnalysis result = BatchAnalysis.__new__(BatchAnalysis)
    cdef int64_t position = 0
    cdef int status, record_code
    if view.size < WALKED_AT_ONCE:
        status = result.walk(view.start, view.size, max_batch_size, check_crc, deep, &position,
                             &record_code)
    else:
        with nogil:
            status = result.walk(view.start, view.size, max_batch_size, check_crc, deep, &position,
                                 &record_code)
    if record_code != LS_RECORD_OK:
        raise record_error(record_code, position)
    if status >= LS_BAD_SIZE:
        raise batch_error(status, memoryview(data).cast("B"), position)
    return result
