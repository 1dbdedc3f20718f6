# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""The hot state of one segment, and the append that works on it.

One object holds what every append reads and changes (size, offsets, timestamps, index counters),
so that an append is one native call: place offsets and epoch in the batch headers, hand the bytes
to the kernel, write the sparse index entries. ``tests/reference`` is its plain twin.
"""

cimport cython
from libc.errno cimport EINTR, errno
from logstore.kernels._common cimport *
from logstore.kernels._scan cimport BatchAnalysis, View, analyse, view_of

cdef extern from "sys/types.h" nogil:
    ctypedef long ssize_t
    ctypedef long off_t

cdef extern from "sys/uio.h" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len
    ssize_t pwritev(int fd, const iovec* iov, int iovcnt, off_t offset)

cdef extern from "unistd.h" nogil:
    ssize_t pwrite(int fd, const void* buf, size_t count, off_t offset)

cdef enum:
    CHANGED = -1           # in place of an errno: the caller's bytes changed while they were read
    SCRATCH = 262144       # small batches are gathered here: stays in the L2 cache
    COPY_BELOW = 4096      # larger bodies are written from the caller's buffer
    MAX_IOV = 512          # below IOV_MAX (1024)
    PREFIX = 16            # base offset, length, leader epoch: all that an append changes
    RESERVE_STEP = 4096

BYTES_CHANGED = "the bytes changed while they were appended"


cdef int write_all(int fd, iovec* iov, int count, int64_t position) noexcept nogil:
    """0, or the errno. Short writes are continued, as a signal or a nearly full disk cause them."""
    cdef ssize_t done
    cdef int first = 0
    while first < count:
        if count - first == 1:
            done = pwrite(fd, iov[first].iov_base, iov[first].iov_len, position)
        else:
            done = pwritev(fd, iov + first, count - first, position)
        if done < 0:
            if errno == EINTR:
                continue
            return errno
        position += done
        while first < count and <size_t>done >= iov[first].iov_len:
            done -= <ssize_t>iov[first].iov_len
            first += 1
        if first < count and done > 0:
            iov[first].iov_base = <uint8_t*>iov[first].iov_base + done
            iov[first].iov_len -= <size_t>done
    return 0


cdef inline int64_t batch_last(const uint8_t* batch, int64_t placed_offset) noexcept nogil:
    """Last offset of a batch that keeps its base offset, or has it placed (≥ 0)."""
    if batch[16] < 2:
        return ls_load64(batch)
    return ls_add64(placed_offset if placed_offset >= 0 else ls_load64(batch),
                    ls_load32(batch + 23))


cdef inline int64_t batch_length(const uint8_t* batch, int64_t left) noexcept nogil:
    """Bytes of the batch at the start of ``left`` bytes; 0 where there is no whole one.

    Asked for at every step: the buffer is the caller's, whose other threads may write to it.
    """
    cdef int64_t length
    if left < 17:
        return 0
    length = 12 + <int64_t>ls_load32(batch + 8)
    return 0 if length > left or length < (61 if batch[16] >= 2 else 34 if batch[16] else 26) \
        else length


cdef inline int64_t batch_max_timestamp(const uint8_t* batch) noexcept nogil:
    if batch[16] >= 2:
        return ls_load64(batch + 35)
    return ls_load64(batch + 18) if batch[16] == 1 else -1


@cython.final
@cython.freelist(8)
cdef class AppendInfo:
    """What an append did.

    ``last_offset`` is inclusive; timestamps are in ms, −1 when there is none; ``size`` in bytes.
    A ``duplicate`` was appended before: the offsets are those of then, nothing was written.
    """

    cdef readonly int64_t first_offset, last_offset, max_timestamp, log_append_time
    cdef readonly int64_t log_start_offset, record_count, size
    cdef readonly bint duplicate

    def __init__(self, int64_t first_offset, int64_t last_offset, int64_t max_timestamp,
                 int64_t log_append_time, int64_t log_start_offset, int64_t record_count,
                 int64_t size, bint duplicate=False):
        self.first_offset, self.last_offset = first_offset, last_offset
        self.max_timestamp, self.log_append_time = max_timestamp, log_append_time
        self.log_start_offset, self.record_count = log_start_offset, record_count
        self.size, self.duplicate = size, duplicate

    cdef tuple fields(self):
        return (self.first_offset, self.last_offset, self.max_timestamp, self.log_append_time,
                self.log_start_offset, self.record_count, self.size, self.duplicate)

    def __eq__(self, other):
        return isinstance(other, AppendInfo) and self.fields() == (<AppendInfo> other).fields()

    def __hash__(self):
        return hash(self.fields())

    def __reduce__(self):
        return AppendInfo, self.fields()

    def __repr__(self):
        return (f"AppendInfo(first_offset={self.first_offset}, last_offset={self.last_offset}, "
                f"max_timestamp={self.max_timestamp}, log_append_time={self.log_append_time}, "
                f"log_start_offset={self.log_start_offset}, record_count={self.record_count}, "
                f"size={self.size}, duplicate={self.duplicate})")


@cython.final
@cython.freelist(16)
@cython.no_gc  # it refers to segments, and no segment refers to it
cdef class LogSnapshot:
    """Everything a reader needs of a log at one moment; see the stub."""

    cdef readonly tuple sealed
    cdef readonly object active
    cdef readonly int64_t size, offset_entries, time_entries
    cdef readonly int64_t max_timestamp, offset_of_max_timestamp
    cdef readonly int64_t log_start_offset, log_end_offset, high_watermark, last_stable_offset
    cdef readonly int64_t version

    def __repr__(self):
        return (f"LogSnapshot([{self.log_start_offset}, {self.log_end_offset}), high watermark "
                f"{self.high_watermark}, {len(self.sealed) + 1} segments, version {self.version})")


ctypedef struct Counters:
    # What an append changes of a segment, to be put back when it fails behind the write.
    int64_t size, max_timestamp, offset_of_max, since_entry, offset_entries, time_entries, last_time


@cython.no_gc  # else a collector could clear a map's view before the buffer taken of it: a crash
cdef class SegmentState:
    """Sizes, offsets, timestamps and index counters of one segment (F-131 … F-143).

    Attributes (all int): ``base_offset``; ``size`` in bytes of whole batches in the ``.log``;
    ``next_offset``; ``max_timestamp`` and ``offset_of_max_timestamp`` so far (−1 none);
    ``rolling_timestamp``: the largest timestamp of the first append (−1 unknown);
    ``index_interval_bytes``; ``bytes_since_index_entry``; ``offset_entries``, ``time_entries``;
    ``last_time_entry``: timestamp of the last time-index entry (−1 none).
    ``segment_bytes``, ``max_segment_ms``, ``offset_entries_max``, ``time_entries_max``: roll limits.
    ``cut_pending``: the log was cut and the cut is not durable; nothing may be written before it is.
    """

    cdef readonly int64_t base_offset
    cdef public int64_t size
    cdef public int64_t next_offset
    cdef public int64_t max_timestamp
    cdef public int64_t offset_of_max_timestamp
    cdef public int64_t rolling_timestamp
    cdef public int64_t created_ms
    cdef public int64_t index_interval_bytes
    cdef public int64_t bytes_since_index_entry
    cdef public int64_t offset_entries
    cdef public int64_t time_entries
    cdef public int64_t last_time_entry
    cdef public int64_t segment_bytes
    cdef public int64_t max_segment_ms
    cdef public int64_t offset_entries_max
    cdef public int64_t time_entries_max
    cdef public bint cut_pending
    cdef object _file
    cdef object _offset_map
    cdef object _time_map
    cdef View _offset_view
    cdef View _time_view
    cdef bint _attached
    cdef int _fd
    cdef int64_t _offset_reserved
    cdef int64_t _time_reserved

    def __init__(self, int64_t base_offset):
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.max_timestamp = -1
        self.offset_of_max_timestamp = -1
        self.rolling_timestamp = -1
        self.last_time_entry = -1
        self._fd = -1

    @property
    def attached(self):
        """The segment is open for appends."""
        return self._attached

    def attach(self, file, offset_map, time_map):
        """Open for appends to ``file``; the maps are ``storage.Mapping`` of the two indexes."""
        self.detach()
        cdef View offset_view = view_of(offset_map.buffer, PyBUF_WRITABLE)
        self._time_view = view_of(time_map.buffer, PyBUF_WRITABLE)
        self._offset_view = offset_view
        self._attached = True
        self._file, self._offset_map, self._time_map = file, offset_map, time_map
        self._fd = file.fileno()
        self._offset_reserved = self._time_reserved = 0
        self.offset_entries_max = self._offset_view.size // 8
        self.time_entries_max = self._time_view.size // 12

    def detach(self):
        """Let go of the file and the maps. Idempotent."""
        if self._attached:
            self._attached = False
            self._offset_view = self._time_view = None
            self._file = self._offset_map = self._time_map = None
            self._fd = -1

    def snapshot(self, tuple sealed not None, active, int64_t log_start_offset,
                 int64_t high_watermark, int64_t first_unstable_offset, int64_t version):
        """The log whose active segment this is, as its readers may see it from now on.

        ``high_watermark`` −1 follows the log end; ``first_unstable_offset`` −1 means none.
        """
        cdef LogSnapshot made = LogSnapshot.__new__(LogSnapshot)
        made.sealed, made.active = sealed, active
        made.size, made.offset_entries = self.size, self.offset_entries
        made.time_entries, made.max_timestamp = self.time_entries, self.max_timestamp
        made.offset_of_max_timestamp = self.offset_of_max_timestamp
        made.log_start_offset, made.log_end_offset = log_start_offset, self.next_offset
        made.high_watermark = self.next_offset if high_watermark < 0 else high_watermark
        made.last_stable_offset = made.high_watermark
        if 0 <= first_unstable_offset < made.high_watermark:
            made.last_stable_offset = first_unstable_offset
        made.version = version
        return made

    cpdef bint must_roll(self, int64_t size, int64_t last_offset, int64_t max_timestamp,
                         int64_t now_ms) except -1:
        """Whether the segment must roll before an append of ``size`` bytes (F-142, F-143)."""
        cdef int64_t waited
        if self.size > ls_sub64(self.segment_bytes, size):
            return True
        if not self.has_room_for(last_offset):
            return True
        if self.size > 0:
            if self.rolling_timestamp >= 0:
                waited = ls_sub64(max_timestamp, self.rolling_timestamp)
            else:
                waited = ls_sub64(now_ms, self.created_ms)
            if waited > self.max_segment_ms:
                return True
        return (self.offset_entries >= self.offset_entries_max
                or self.time_entries >= self.time_entries_max - 1)

    cdef inline bint has_room_for(self, int64_t offset) noexcept nogil:
        """Whether the offset fits the indexes, and one more may follow it."""
        return (offset >= self.base_offset and offset != <int64_t>0x7FFFFFFFFFFFFFFF
                and 0 <= ls_sub64(offset, self.base_offset) <= 0x7FFFFFFF)

    def append_plain(self, data, bint deep, int32_t leader_epoch, int64_t max_batch_size,
                     int64_t timestamp_limit, int64_t log_start_offset):
        """Analyse and append in one call, when nothing needs a second look.

        Returns an ``AppendInfo`` when the batches were appended: they are plain (see
        ``BatchAnalysis``), within ``max_batch_size`` and ``timestamp_limit``, their headers tell
        the truth about the largest timestamp, and the segment need not roll. Otherwise the
        ``BatchAnalysis``, and nothing was done.
        """
        cdef Py_buffer view  # no object: this is the path of every ordinary append
        cdef BatchAnalysis found
        cdef AppendInfo info
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            found = analyse(data, <uint8_t*>view.buf, view.len, max_batch_size, True, deep)
            if (not self._attached or self.cut_pending or self.rolling_timestamp < 0
                    or found.max_timestamp > timestamp_limit
                    or not found.is_plain() or found.too_large_position >= 0
                    or (deep and found.max_timestamp != found.record_max_timestamp)
                    or found.size > self.segment_bytes
                    or self.must_roll(found.size,
                                      ls_add64(self.next_offset, found.record_count - 1),
                                      found.max_timestamp, 0)):
                return found
            info = AppendInfo.__new__(AppendInfo)
            info.first_offset = self.next_offset
            info.last_offset = self._append(
                <uint8_t*>view.buf, found.size, self.next_offset, leader_epoch)
        finally:
            PyBuffer_Release(&view)
        info.max_timestamp = found.max_timestamp
        info.log_append_time = -1
        info.log_start_offset = log_start_offset
        info.record_count = found.record_count
        info.size = found.size
        return info

    cpdef int64_t append(self, data, int64_t size, int64_t first_offset,
                         int32_t leader_epoch) except -2:
        """Append ``size`` bytes of whole, analysed batches; returns the last offset.

        ``first_offset`` ≥ 0 places offsets from there on and ``leader_epoch`` in each header (both
        lie outside the checksum, F-62); −1 keeps the bytes as they are. State and indexes change
        only after the write succeeded.

        Raises:
            OSError: the medium refused; what it holds past ``size`` is unknown.
            ValueError: not whole batches, an offset does not fit the segment, the segment is not
                open for appends, or the bytes changed meanwhile: as with ``OSError``.
        """
        cdef View view
        if not self._attached or self.cut_pending:
            raise ValueError("the segment is not open for appends")
        view = view_of(data)
        if size <= 0 or size > view.size:
            raise ValueError("size is outside the buffer")
        return self._append(<uint8_t*>view.start, size, first_offset, leader_epoch)

    cdef int64_t _append(self, uint8_t* data, int64_t size, int64_t first_offset,
                         int32_t leader_epoch) except -2:
        cdef int64_t last_offset = -1, next_offset = first_offset, position = 0, length
        cdef int64_t first_max = -1, since = self.bytes_since_index_entry, due = 0
        cdef uint8_t* batch

        # What the append will mean, before anything is written.
        while position < size:
            batch = data + position
            length = batch_length(batch, size - position)
            if length == 0:
                raise ValueError("not whole batches")
            if batch[16] < 2 and first_offset >= 0:
                raise ValueError("offsets are placed in magic 2 batches only")
            last_offset = batch_last(batch, next_offset if first_offset >= 0 else -1)
            if not self.has_room_for(last_offset):
                raise ValueError("an offset does not fit the segment")
            next_offset = last_offset + 1
            first_max = max(first_max, batch_max_timestamp(batch))
            if since > self.index_interval_bytes:
                due += 1
                since = 0
            since += length
            position += length
        if due:
            self._reserve(due, due)

        if self._fd < 0:
            self._write_through_file(data, size, first_offset, leader_epoch)
        elif first_offset < 0:
            self._write_plain(data, size)
        else:
            self._write_placed(data, size, first_offset, leader_epoch)
        if not self._attached:
            raise ValueError("the segment is not open for appends")
        self._count(data, size, first_offset, last_offset)
        if self.rolling_timestamp < 0:
            self.rolling_timestamp = first_max
        self.next_offset = last_offset + 1
        return last_offset

    cdef int _count(self, uint8_t* data, int64_t size, int64_t first_offset,
                    int64_t last_offset) except -1:
        """Sizes, timestamps and index entries of what was written, which ends at ``last_offset``.

        Nothing changes when it raises: entries behind those that are counted mean nothing.
        """
        cdef int64_t position = 0, length, batch_max, last = -1, next_offset = first_offset
        cdef uint8_t* batch
        cdef Counters before
        before.size, before.since_entry = self.size, self.bytes_since_index_entry
        before.max_timestamp = self.max_timestamp
        before.offset_of_max = self.offset_of_max_timestamp
        before.offset_entries, before.time_entries = self.offset_entries, self.time_entries
        before.last_time = self.last_time_entry
        while position < size:
            batch = data + position
            length = batch_length(batch, size - position)
            if length == 0:
                break
            last = batch_last(batch, next_offset if first_offset >= 0 else -1)
            if not self.has_room_for(last):
                break
            next_offset = last + 1
            batch_max = batch_max_timestamp(batch)
            if batch_max > self.max_timestamp:
                self.max_timestamp, self.offset_of_max_timestamp = batch_max, last
            if self.bytes_since_index_entry > self.index_interval_bytes:
                self._add_entries(last)
            self.bytes_since_index_entry += length
            self.size += length
            position += length
        if position == size and last == last_offset:
            return 0
        self.size, self.bytes_since_index_entry = before.size, before.since_entry
        self.max_timestamp = before.max_timestamp
        self.offset_of_max_timestamp = before.offset_of_max
        self.offset_entries, self.time_entries = before.offset_entries, before.time_entries
        self.last_time_entry = before.last_time
        raise ValueError(BYTES_CHANGED)

    cdef int _add_entries(self, int64_t last_offset) except -1:
        """Entries for the batch that begins at ``size``; a full index goes without (it rolls next).

        One batch, not one call, is the unit, as in Kafka since 4.1: its dump tool expects an entry
        to name the batch at its position (F-133 rather than F-132).
        """
        cdef uint8_t* entry
        if 0 <= self.offset_entries < min(self.offset_entries_max, self._offset_view.size // 8):
            entry = <uint8_t*>self._offset_view.start + 8 * self.offset_entries
            ls_store32(entry, <int32_t>(last_offset - self.base_offset))
            ls_store32(entry + 4, <int32_t>self.size)
            self.offset_entries += 1
        if self.time_entries + 1 < self.time_entries_max:  # the last one is for the roll (F-119)
            self.add_time_entry()
        self.bytes_since_index_entry = 0
        return 0

    cdef int _reserve(self, int64_t offsets_due, int64_t times_due) except -1:
        # Held here: the disk may take its time, and another thread may detach meanwhile.
        cdef View offsets = self._offset_view, times = self._time_view
        cdef int64_t end
        if not self._attached:
            return 0
        end = min(8 * (self.offset_entries + offsets_due), offsets.size)
        if offsets_due and end > self._offset_reserved:
            end = min((end // RESERVE_STEP + 1) * RESERVE_STEP, offsets.size)
            self._offset_map.reserve(end)
            self._offset_reserved = end
        end = min(12 * (self.time_entries + times_due), times.size)
        if end > self._time_reserved:
            end = min((end // RESERVE_STEP + 1) * RESERVE_STEP, times.size)
            self._time_map.reserve(end)
            self._time_reserved = end
        return 0

    def reserve(self):
        """Have the disk promise room for the last time entry; ``OSError`` if it is full."""
        self._reserve(0, 1)

    cpdef bint add_time_entry(self) except -1:
        """Write (max timestamp so far, its offset) if it is above the last entry (F-118, F-135)."""
        cdef uint8_t* entry
        if not self._attached or self.max_timestamp <= self.last_time_entry:
            return False
        if self.time_entries >= self.time_entries_max or self.max_timestamp < 0:
            return False
        if not 0 <= self.time_entries < self._time_view.size // 12:
            return False
        entry = <uint8_t*>self._time_view.start + 12 * self.time_entries
        ls_store64(entry, self.max_timestamp)
        ls_store32(entry + 8, <int32_t>(self.offset_of_max_timestamp - self.base_offset))
        self.time_entries += 1
        self.last_time_entry = self.max_timestamp
        return True

    cdef int _write_plain(self, uint8_t* data, int64_t size) except -1:
        cdef iovec iov
        cdef int error, fd = self._fd
        cdef int64_t position = self.size
        iov.iov_base = data
        iov.iov_len = size
        with nogil:
            error = write_all(fd, &iov, 1, position)
        if error:
            raise OSError(error, "write to a segment failed", self._file.path)
        return 0

    cdef int _write_placed(self, uint8_t* data, int64_t size, int64_t next_offset,
                           int32_t leader_epoch) except -1:
        """Write with offsets and epoch placed, the caller's buffer untouched.

        Small batches are copied into a scratch block that stays in cache; of large ones only the
        16 changed bytes are copied and the body is gathered from the caller's buffer.
        """
        cdef uint8_t small[4096]
        cdef uint8_t* scratch = small
        cdef iovec iov[MAX_IOV]
        cdef int error = 0, count = 0, fd = self._fd
        cdef int64_t done = 0, length, copy, used = 0, start = self.size, pending = 0
        cdef int64_t room = 4096
        if size > 4096:
            room = SCRATCH
            scratch = <uint8_t*>malloc(SCRATCH)
            if scratch == NULL:
                raise MemoryError
        with nogil:
            while done < size:
                length = batch_length(data + done, size - done)
                if length < 61:
                    error = CHANGED
                    break
                copy = length if length <= COPY_BELOW else PREFIX
                if used + copy > room or count + 3 > MAX_IOV:
                    error = write_all(fd, iov, count, start)
                    if error:
                        break
                    start += pending
                    used = count = pending = 0
                memcpy(scratch + used, data + done, copy)
                ls_store64(scratch + used, next_offset)
                ls_store32(scratch + used + 12, leader_epoch)
                next_offset = ls_add64(next_offset, <int64_t>ls_load32(data + done + 23) + 1)
                if count and <uint8_t*>iov[count - 1].iov_base + iov[count - 1].iov_len == (
                        scratch + used):
                    iov[count - 1].iov_len += copy
                else:
                    iov[count].iov_base = scratch + used
                    iov[count].iov_len = copy
                    count += 1
                used += copy
                if copy < length:
                    iov[count].iov_base = data + done + copy
                    iov[count].iov_len = length - copy
                    count += 1
                pending += length
                done += length
            if not error:
                error = write_all(fd, iov, count, start)
        if scratch != small:
            free(scratch)
        if error == CHANGED:
            raise ValueError(BYTES_CHANGED)
        if error:
            raise OSError(error, "write to a segment failed", self._file.path)
        return 0

    cdef int _write_through_file(self, uint8_t* data, int64_t size, int64_t next_offset,
                                 int32_t leader_epoch) except -1:
        """For storages without a descriptor: one copy, through ``File.write_at``."""
        cdef bytearray copy = bytearray(data[:size])
        cdef uint8_t* placed = copy
        cdef int64_t done = 0, length
        if next_offset >= 0:
            while done < size:
                length = batch_length(placed + done, size - done)
                if length < 61:
                    raise ValueError(BYTES_CHANGED)
                ls_store64(placed + done, next_offset)
                ls_store32(placed + done + 12, leader_epoch)
                next_offset = ls_add64(next_offset, <int64_t>ls_load32(placed + done + 23) + 1)
                done += length
        self._file.write_at(self.size, copy)
        return 0
