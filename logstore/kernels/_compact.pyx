# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Native kernels of the log cleaner; what each promises is written in the stub.

A run works through a window of a segment without the GIL and stops before a batch that must be
unpacked or whose transaction must be judged; such a batch comes as a section, one call each.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdlib cimport calloc
cimport cython
from logstore.kernels._common cimport *
from logstore.kernels._scan cimport View, view_of

from logstore.kernels._constants import batch_error, record_error

cdef extern from "murmur3.h" nogil:
    ctypedef struct ls_digest:
        uint64_t low, high
    ctypedef struct ls_slot:
        uint64_t low, high, next
    ls_digest ls_murmur3(const uint8_t *data, int64_t size) noexcept nogil
    uint64_t ls_home(ls_digest d, uint64_t slots) noexcept nogil
    ls_slot *ls_probe(ls_slot *table, uint64_t slots, ls_digest d) noexcept nogil
    void ls_prefetch(const void *p) noexcept nogil

cdef enum:
    FIRST_PART = 64  # of all slots has a map at first
    FIRST_SLOTS = 4096
    GROWTH = 8
    AT_ONCE = 16  # keys whose slots are fetched from memory at the same time
    RUN_END_ = 0
    RUN_SPECIAL_ = 1
    RUN_FULL_ = 2
    BATCH_ERROR_ = 16  # internal: the batch at the position is bad
    RECORD_ERROR_ = 17  # internal: so is the record there
    MEMORY_ = 18
    PLAIN_ = 19  # internal: the batch is worked on here
    SPECIAL_BITS = 0x37  # a codec, transactional or control: judged outside
    LOG_APPEND_BIT = 0x08
    HORIZON_BIT = 0x40
    KEPT_BITS = 0x38  # of an empty batch: time, transactional and control

STATUSES = (RUN_END_, RUN_SPECIAL_, RUN_FULL_)


ctypedef struct Fault:
    int status  # of the batch
    int code  # of the record
    int64_t position


cdef inline int read_records(const uint8_t **at, const uint8_t *end, int32_t *left, int32_t *last,
                             int32_t last_delta, ls_record *records, int *count) noexcept nogil:
    """Up to AT_ONCE records from ``at`` on, checked against each other and the header."""
    cdef int code
    cdef ls_record *r
    count[0] = 0
    while left[0] > 0 and count[0] < AT_ONCE:
        r = &records[count[0]]
        if unlikely(at[0] >= end):
            return LS_RECORD_COUNT
        code = ls_read_record(at, end, r)
        if unlikely(code != LS_RECORD_OK):
            return code
        if unlikely(r.offset_delta <= last[0] or r.offset_delta > last_delta):
            return LS_RECORD_OFFSET
        last[0] = r.offset_delta
        left[0] -= 1
        count[0] += 1
    if left[0] == 0 and unlikely(at[0] != end):
        return LS_RECORD_TRAILING
    return LS_RECORD_OK


cdef inline int next_plain(const uint8_t *p, const uint8_t *end, ls_batch *b, ls_ahead *ahead,
                           Fault *fault) noexcept nogil:
    """PLAIN_ and the batch at ``p``, its checksum checked; or what ends the run there."""
    cdef int status = ls_frame(p, end, b)
    if status == LS_END or status == LS_TAIL or status == LS_INCOMPLETE:
        return RUN_END_
    if status == LS_OK:
        status = ls_check(b, end, True, ahead)
    if unlikely(status != LS_OK):
        fault.status = status
        return BATCH_ERROR_
    return RUN_SPECIAL_ if b.magic != 2 or b.attributes & SPECIAL_BITS else PLAIN_


cdef const uint8_t *place(View view, int64_t position) except NULL:
    if not 0 <= position <= view.size:
        raise ValueError(f"position {position} is outside 0…{view.size}")
    return view.start + position


cdef int raise_fault(int status, const Fault *fault, data, int64_t position) except -1:
    if status == MEMORY_:
        raise MemoryError
    if status == BATCH_ERROR_:
        raise batch_error(fault.status, memoryview(data), position)
    if status == RECORD_ERROR_:
        raise record_error(fault.code, position)
    return 0


@cython.final
cdef class OffsetMap:
    """Digest of a key -> its newest offset; see the stub."""

    cdef ls_slot *table
    cdef int64_t grow_at  # keys that the table takes so far
    cdef readonly int64_t slots, limit, room, size, latest_offset

    def __cinit__(self, int64_t memory, double load_factor):
        if not 0 < load_factor <= 1:
            raise ValueError(f"load factor {load_factor} is outside 0…1")
        self.slots = memory // <int64_t> sizeof(ls_slot)
        if self.slots < 2:
            raise ValueError(f"{memory} bytes have no room for two keys")
        self.limit = min(<int64_t> (self.slots * load_factor), self.slots - 1)
        if self.limit < 1:
            raise ValueError(f"load factor {load_factor} leaves no key in {memory} bytes")
        self.room = min(self.slots, max(self.slots // FIRST_PART, FIRST_SLOTS))
        self.grow_at = self.keys_in(self.room)
        self.table = <ls_slot *> calloc(self.room, sizeof(ls_slot))
        if self.table == NULL:
            raise MemoryError(f"{memory} bytes for the keys of a pass")
        self.latest_offset = -1

    def __dealloc__(self):
        cdef ls_slot *table = self.table
        with nogil:
            free(table)  # up to 128 MiB, page by page: other threads run meanwhile

    def __len__(self):
        return self.size

    @property
    def full(self):
        return self.size >= self.limit

    def clear(self):
        """Forget all keys."""
        if self.size:
            with nogil:
                memset(self.table, 0, <size_t> self.room * sizeof(ls_slot))
        self.size = 0
        self.latest_offset = -1

    def put(self, const uint8_t[::1] key not None, int64_t offset):
        cdef const uint8_t *start = &key[0] if key.shape[0] else NULL
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        return self.enter(ls_murmur3(start, key.shape[0]), offset)

    def get(self, const uint8_t[::1] key not None):
        cdef const uint8_t *start = &key[0] if key.shape[0] else NULL
        return self.find(ls_murmur3(start, key.shape[0]))

    def update_latest_offset(self, int64_t offset):
        self.latest_offset = max(self.latest_offset, offset)

    cdef inline int64_t find(self, ls_digest digest) noexcept nogil:
        return <int64_t> ls_probe(self.table, self.room, digest).next - 1

    cdef int64_t keys_in(self, int64_t room) noexcept nogil:
        return self.limit if room == self.slots else min(self.limit, room // 4 * 3)

    cdef bint grow(self) noexcept nogil:
        """Take a larger table; False without memory, so that the pass ends where it is.

        Keys lie in no order, so nearly each comes to a page of its own: a table of the full size
        would cost a pass over few keys the clearing of as many pages.
        """
        cdef int64_t i, room = GROWTH * self.room
        cdef ls_slot *old = self.table
        cdef ls_slot *table
        cdef ls_digest digest
        if room > self.slots // 2:  # or else the last two would be there together
            room = self.slots
        table = <ls_slot *> calloc(room, sizeof(ls_slot))
        if table == NULL:
            return False
        for i in range(self.room):
            if old[i].next:
                digest.low = old[i].low
                digest.high = old[i].high
                ls_probe(table, room, digest)[0] = old[i]
        self.table = table
        self.room = room
        self.grow_at = self.keys_in(room)
        free(old)
        return True

    cdef inline bint enter(self, ls_digest digest, int64_t offset) noexcept nogil:
        """False where the map is full, and nothing was entered."""
        cdef ls_slot *slot
        if unlikely(self.size >= self.grow_at) and (self.size >= self.limit or not self.grow()):
            return False
        slot = ls_probe(self.table, self.room, digest)
        if slot.next == 0:
            slot.low = digest.low
            slot.high = digest.high
            self.size += 1
        slot.next = <uint64_t> offset + 1
        self.latest_offset = offset
        return True

    cdef int enter_records(self, const uint8_t *p, const uint8_t *end, int64_t base_offset,
                           int32_t last_delta, int32_t count, int64_t start_offset,
                           const uint8_t **at, int *code) noexcept nogil:
        cdef ls_record records[AT_ONCE]
        cdef ls_digest digests[AT_ONCE]
        cdef int n, i
        cdef int32_t last = -1
        at[0] = p
        if count == 0 and p != end:
            code[0] = LS_RECORD_TRAILING
            return RECORD_ERROR_
        while count > 0:
            code[0] = read_records(at, end, &count, &last, last_delta, records, &n)
            if unlikely(code[0] != LS_RECORD_OK):
                return RECORD_ERROR_
            for i in range(n):
                if records[i].key_size >= 0:
                    digests[i] = ls_murmur3(records[i].key, records[i].key_size)
                    ls_prefetch(&self.table[ls_home(digests[i], self.room)])
            for i in range(n):
                if records[i].key_size < 0 or base_offset + records[i].offset_delta < start_offset:
                    continue
                if unlikely(not self.enter(digests[i], base_offset + records[i].offset_delta)):
                    return RUN_FULL_
        return RUN_END_

    def add_section(self, payload, int64_t base_offset, int32_t last_offset_delta,
                    int32_t record_count, int64_t start_offset):
        """Enter the records of one unpacked batch; see the stub."""
        cdef View view = view_of(payload)
        cdef const uint8_t *at = NULL
        cdef int status = 0, code = 0
        check_range(base_offset, last_offset_delta, record_count)
        with nogil:
            status = self.enter_records(view.start, view.end, base_offset, last_offset_delta,
                                        record_count, start_offset, &at, &code)
        if status == RECORD_ERROR_:
            raise record_error(code, at - view.start)
        return status == RUN_FULL_

    cdef int run(self, const uint8_t *end, int64_t start_offset, const uint8_t **at,
                 int64_t *records, Fault *fault) noexcept nogil:
        cdef ls_batch b
        cdef ls_ahead ahead
        cdef const uint8_t *p = at[0]
        cdef int status
        ahead.left = 0
        while True:
            at[0] = p
            status = next_plain(p, end, &b, &ahead, fault)
            if status != PLAIN_:
                return status
            if b.last_offset >= start_offset:
                status = self.enter_records(
                    p + LS_HEADER_SIZE, p + b.size, b.base_offset, b.last_offset_delta,
                    b.record_count, start_offset, at, &fault.code)
                if unlikely(status != RUN_END_):
                    if status == RUN_FULL_:
                        at[0] = p
                    return status
                if b.last_offset > self.latest_offset:
                    self.latest_offset = b.last_offset
                records[0] += b.record_count
            p += b.size

    def add_run(self, data, int64_t position, int64_t start_offset):
        """Enter plain batches from ``position`` on: ``(next, status, records)``."""
        cdef View view = view_of(data)
        cdef const uint8_t *at = place(view, position)
        cdef int64_t records = 0
        cdef Fault fault
        cdef int status
        with nogil:
            status = self.run(view.end, start_offset, &at, &records, &fault)
        raise_fault(status, &fault, data, at - view.start)
        return at - view.start, status, records


cdef int check_range(int64_t base_offset, int32_t last_offset_delta, int32_t count) except -1:
    if base_offset < 0 or last_offset_delta < 0 or count < 0:
        raise ValueError("a batch has no negative offset, delta or count")
    if base_offset > 0x7fffffffffffffff - 1 - last_offset_delta:
        raise ValueError("the offsets of the batch leave the range of offsets")
    return 0


cdef struct Sifted:
    int64_t kept, tombstones, invalid, max_timestamp, first_timestamp


cdef inline bint needs_horizon(const ls_batch *b, const Sifted *found) noexcept nogil:
    return found.tombstones > 0 and not b.attributes & HORIZON_BIT


@cython.final
cdef class RecordSieve:
    """Which records of a pass stay, and the bytes that they become."""

    cdef OffsetMap map
    cdef Block out, section
    cdef int64_t *last_offsets
    cdef int64_t last_count
    cdef Py_ssize_t exports
    cdef readonly int64_t now_ms, delete_retention_ms, upper_bound
    cdef readonly int64_t batches_read, records_read, records_kept, records_without_key
    cdef readonly int64_t batches_kept, batches_copied, batches_emptied, tombstones_kept

    def __cinit__(self, OffsetMap offset_map not None, int64_t now_ms, int64_t delete_retention_ms,
                  int64_t upper_bound, last_offsets):
        self.map = offset_map
        self.now_ms = now_ms
        self.delete_retention_ms = delete_retention_ms
        self.upper_bound = upper_bound
        self.set_last_offsets(last_offsets)

    def __dealloc__(self):
        free(self.last_offsets)
        discard(&self.out)
        discard(&self.section)

    def set_last_offsets(self, offsets):
        """Last data offsets of the active producers, whose batches stay even when empty."""
        cdef list ascending = sorted(offsets)
        cdef int64_t *table = NULL
        cdef int64_t i
        cdef int64_t n = len(ascending)
        if n:
            table = <int64_t *> malloc(n * sizeof(int64_t))
            if table == NULL:
                raise MemoryError
            try:
                for i in range(n):
                    table[i] = ascending[i]
            except BaseException:
                free(table)
                raise
        free(self.last_offsets)
        self.last_offsets = table
        self.last_count = n

    cdef bint is_last(self, int64_t offset) noexcept nogil:
        cdef int64_t low = 0, high = self.last_count, middle
        while low < high:
            middle = (low + high) // 2
            if self.last_offsets[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low < self.last_count and self.last_offsets[low] == offset

    cdef inline bint stays(self, const ls_record *r, ls_digest digest, int64_t offset,
                           bint drop_tombstones) noexcept nogil:
        if offset > self.map.latest_offset:
            return True
        if r.key_size < 0 or offset < self.map.find(digest):
            return False
        return r.value_size >= 0 or not drop_tombstones

    cdef int sift(self, const uint8_t *p, const uint8_t *end, const ls_batch *b, Sifted *found,
                  const uint8_t **at, int *code) noexcept nogil:
        """Judge each record: a flag for each in ``section``, and what they are together."""
        cdef ls_record records[AT_ONCE]
        cdef ls_digest digests[AT_ONCE]
        cdef int n, i
        cdef int32_t last = -1, left = b.record_count
        cdef int64_t stamp
        cdef uint8_t *flag
        cdef bint drop = b.attributes & HORIZON_BIT and b.base_timestamp <= self.now_ms
        memset(found, 0, sizeof(Sifted))
        found.max_timestamp = -1
        at[0] = p
        self.section.size = 0
        if left == 0 and p != end:
            code[0] = LS_RECORD_TRAILING
            return RECORD_ERROR_
        if unlikely(left > (end - p) // LS_RECORD_SIZE_MIN):
            code[0] = LS_RECORD_COUNT
            return RECORD_ERROR_
        if unlikely(not reserve(&self.section, left)):
            return MEMORY_
        flag = self.section.data
        while left > 0:
            code[0] = read_records(at, end, &left, &last, b.last_offset_delta, records, &n)
            if unlikely(code[0] != LS_RECORD_OK):
                return RECORD_ERROR_
            for i in range(n):
                if records[i].key_size >= 0:
                    digests[i] = ls_murmur3(records[i].key, records[i].key_size)
                    ls_prefetch(&self.map.table[ls_home(digests[i], self.map.room)])
                else:
                    digests[i].low = digests[i].high = 0
                    found.invalid += 1
            for i in range(n):
                flag[0] = self.stays(&records[i], digests[i],
                                     b.base_offset + records[i].offset_delta, drop)
                if flag[0]:
                    stamp = ls_add64(b.base_timestamp, records[i].timestamp_delta)
                    if b.attributes & LOG_APPEND_BIT:
                        stamp = b.max_timestamp
                    if found.kept == 0:
                        found.first_timestamp = stamp
                    if stamp > found.max_timestamp:
                        found.max_timestamp = stamp
                    found.kept += 1
                    found.tombstones += records[i].value_size < 0
                flag += 1
        self.section.size = flag - self.section.data
        return RUN_END_

    cdef int rebuild(self, const uint8_t *p, const uint8_t *end, const ls_batch *b,
                     int64_t base_timestamp) noexcept nogil:
        """Write the records that stay behind ``out``, with deltas to another timestamp."""
        cdef const uint8_t *body
        cdef const uint8_t *rest
        cdef int64_t i, stamp, size
        cdef int32_t length = 0, offset_delta = 0
        cdef int64_t delta = 0
        cdef uint8_t *to
        for i in range(self.section.size):
            p = ls_varint(p, end, &length)
            if unlikely(p == NULL or length < 1 or length > end - p):
                return RECORD_ERROR_  # the bytes changed since they were judged
            body = p
            p += length
            if not self.section.data[i]:
                continue
            rest = ls_varlong(body + 1, p, &delta)
            if unlikely(rest == NULL):
                return RECORD_ERROR_
            rest = ls_varint(rest, p, &offset_delta)
            if unlikely(rest == NULL):
                return RECORD_ERROR_
            stamp = ls_add64(b.base_timestamp, delta)
            if b.attributes & LOG_APPEND_BIT:
                stamp = b.max_timestamp
            delta = ls_sub64(stamp, base_timestamp)
            size = 1 + ls_varlong_size(delta) + ls_varint_size(offset_delta) + (p - rest)
            if unlikely(size > 0x7fffffff):
                return RECORD_ERROR_
            if unlikely(not reserve(&self.out, size + 5)):
                return MEMORY_
            to = self.out.data + self.out.size
            to = ls_put_varint(to, <int32_t> size)
            to[0] = body[0]
            to = ls_put_varlong(to + 1, delta)
            to = ls_put_varint(to, offset_delta)
            memcpy(to, rest, p - rest)
            self.out.size = (to - self.out.data) + (p - rest)
        return RUN_END_

    cdef inline int64_t new_base(self, const ls_batch *b, const Sifted *found) noexcept nogil:
        """The base timestamp of what stays: the delete horizon, if it is or must be set."""
        cdef int64_t horizon
        if not needs_horizon(b, found):
            return b.base_timestamp if b.attributes & HORIZON_BIT else found.first_timestamp
        horizon = ls_add64(self.now_ms, self.delete_retention_ms)
        return horizon if horizon >= self.now_ms else 0x7fffffffffffffff

    cdef int write_batch(self, const ls_batch *b, Sifted *found) noexcept nogil:
        """Put what becomes of a plain batch behind ``out``."""
        cdef const uint8_t *p = b.data
        cdef int64_t start = self.out.size
        cdef int64_t base_timestamp, size
        cdef int16_t attributes = b.attributes
        cdef uint8_t *to
        cdef int status
        cdef bint horizon = needs_horizon(b, found)
        if found.kept == b.record_count and found.kept > 0 and not horizon:
            if unlikely(not reserve(&self.out, b.size)):
                return MEMORY_
            memcpy(self.out.data + start, p, b.size)
            self.out.size += b.size
            self.batches_copied += 1
            return RUN_END_
        if unlikely(not reserve(&self.out, LS_HEADER_SIZE)):
            return MEMORY_
        self.out.size += LS_HEADER_SIZE
        base_timestamp = -1
        if found.kept:
            base_timestamp = self.new_base(b, found)
            if horizon:
                attributes |= HORIZON_BIT
            status = self.rebuild(p + LS_HEADER_SIZE, p + b.size, b, base_timestamp)
            if unlikely(status != RUN_END_):
                self.out.size = start
                return status
        else:
            attributes &= KEPT_BITS
            self.batches_emptied += 1
        size = self.out.size - start
        if unlikely(size - 12 > 0x7fffffff):
            self.out.size = start
            return RECORD_ERROR_
        to = self.out.data + start
        memcpy(to, p, LS_HEADER_SIZE)
        ls_store32(to + 8, <int32_t> (size - 12))
        ls_store16(to + 21, attributes)
        ls_store64(to + 27, base_timestamp)
        if found.kept and not attributes & LOG_APPEND_BIT:
            ls_store64(to + 35, found.max_timestamp)
        ls_store32(to + 57, <int32_t> found.kept)
        ls_store32(to + 17, <int32_t> logstore_crc32c(0, to + 21, <size_t> (size - 21)))
        return RUN_END_

    cdef int run_plain(self, const uint8_t *end, int64_t limit, const uint8_t **at,
                       Fault *fault) noexcept nogil:
        cdef ls_batch b
        cdef ls_ahead ahead
        cdef const uint8_t *p = at[0]
        cdef int status
        cdef Sifted found
        ahead.left = 0
        while True:
            at[0] = p
            if self.out.size >= limit:
                return RUN_FULL_
            status = next_plain(p, end, &b, &ahead, fault)
            if status != PLAIN_:
                return status
            status = self.sift(p + LS_HEADER_SIZE, p + b.size, &b, &found, at, &fault.code)
            if unlikely(status != RUN_END_):
                return status
            if found.kept or b.last_offset + 1 == self.upper_bound or (
                    b.producer_id >= 0 and self.is_last(b.last_offset)):
                status = self.write_batch(&b, &found)
                if unlikely(status != RUN_END_):
                    at[0] = p
                    fault.code = LS_RECORD_FIELD
                    return status
                self.batches_kept += 1
            self.batches_read += 1
            self.count(&found, b.record_count)
            p += b.size

    cdef inline void count(self, Sifted *found, int64_t records) noexcept nogil:
        self.records_read += records
        self.records_kept += found.kept
        self.records_without_key += found.invalid
        self.tombstones_kept += found.tombstones

    def run(self, data, int64_t position, int64_t limit):
        """Sift plain batches from ``position`` on: ``(next, status)``."""
        cdef View view = view_of(data)
        cdef const uint8_t *at = place(view, position)
        cdef Fault fault
        cdef int status
        self.check_free()
        with nogil:
            status = self.run_plain(view.end, limit, &at, &fault)
        raise_fault(status, &fault, data, at - view.start)
        return at - view.start, status

    def sift_section(self, payload, int64_t base_offset, int32_t last_offset_delta,
                     int32_t record_count, int attributes, int64_t base_timestamp,
                     int64_t max_timestamp):
        """Judge one unpacked batch: ``(kept, tombstones, section, base, largest)``."""
        cdef View view = view_of(payload)
        cdef const uint8_t *at = NULL
        cdef int status
        cdef int64_t before = self.out.size, base = -1
        cdef Fault fault
        cdef Sifted found
        cdef ls_batch b
        self.check_free()
        check_range(base_offset, last_offset_delta, record_count)
        memset(&b, 0, sizeof(b))
        b.base_offset = base_offset
        b.last_offset_delta = last_offset_delta
        b.record_count = record_count
        b.attributes = <int16_t> attributes
        b.base_timestamp = base_timestamp
        b.max_timestamp = max_timestamp
        try:
            with nogil:
                status = self.sift(view.start, view.end, &b, &found, &at, &fault.code)
                if status == RUN_END_ and found.kept > 0 and (
                        found.kept < record_count or needs_horizon(&b, &found)):
                    base = self.new_base(&b, &found)
                    fault.code = LS_RECORD_FIELD
                    status = self.rebuild(view.start, view.end, &b, base)
            raise_fault(status, &fault, payload, at - view.start)
            section = self.out.data[before:self.out.size] if self.out.size > before else None
        finally:
            self.out.size = before
        self.count(&found, record_count)
        return found.kept, found.tombstones, section, base, found.max_timestamp

    def put(self, data):
        """Put a finished batch behind the output."""
        cdef View view = view_of(data)
        self.check_free()
        if not reserve(&self.out, view.size):
            raise MemoryError
        memcpy(self.out.data + self.out.size, view.start, view.size)
        self.out.size += view.size

    def view(self):
        """The output, without a copy; to be released before the next call."""
        return memoryview(self)

    @property
    def pending(self):
        """Bytes of output."""
        return self.out.size

    def reset(self):
        """Empty the output. No view of it may exist."""
        self.check_free()
        self.out.size = 0

    cdef int check_free(self) except -1:
        if self.exports:
            raise BufferError("the output is in use")
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.out.data == NULL and not reserve(&self.out, 1):
            raise MemoryError
        PyBuffer_FillInfo(view, self, self.out.data, self.out.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1
