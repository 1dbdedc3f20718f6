# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""The hot state of one segment, and the append that works on it.

One object holds what every append reads and changes (size, offsets, timestamps, index counters),
so that an append is one native call: place offsets and epoch in the batch headers, hand the bytes
to the kernel, write the sparse index entries. ``tests/reference`` is its plain twin.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EINTR, errno
from logstore.kernels._common cimport *
from logstore.kernels._scan cimport WALKED_AT_ONCE, BatchAnalysis, View, view_of

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
    MAX_INT = 0x7FFFFFFF
    OVERTAKEN_MAX = 100

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


cdef class SegmentState


@cython.final
@cython.freelist(16)
@cython.no_gc  # it refers to segments, and no segment refers to it
cdef class LogSnapshot:
    """Everything a reader needs of a log at one moment; see the stub."""

    cdef SegmentState state  # of ``active``, for the next append
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


ctypedef struct Found:
    # Plain batches, as AppendState found them.
    int64_t count, record_count, size, first_offset, last_offset, max_timestamp, epoch


cdef enum:
    FROM_CLIENT, FROM_LEADER, FROM_OURSELVES, FETCHED


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
        return self._snapshot(sealed, active, log_start_offset, high_watermark,
                              first_unstable_offset, version)

    cdef LogSnapshot _snapshot(self, tuple sealed, active, int64_t log_start_offset,
                               int64_t high_watermark, int64_t first_unstable_offset,
                               int64_t version):
        cdef LogSnapshot made = LogSnapshot.__new__(LogSnapshot)
        made.sealed, made.active, made.state = sealed, active, self
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

    cdef int _append_one(self, const uint8_t* data, const Found* found, int64_t first_offset,
                         int64_t last_offset, int32_t leader_epoch) except -1:
        """As ``_append`` of one batch that was looked at and cannot change: nothing is read again.

        There is room for it, and the file has a descriptor.
        """
        cdef uint8_t placed[COPY_BELOW]
        if self.bytes_since_index_entry > self.index_interval_bytes:
            self._reserve(1, 1)
        if first_offset < 0:
            self._write_plain(data, found.size)
        elif found.size > COPY_BELOW:
            self._write_placed(<uint8_t*>data, found.size, first_offset, leader_epoch)
        else:
            memcpy(placed, data, found.size)
            ls_store64(placed, first_offset)
            ls_store32(placed + 12, leader_epoch)
            self._write_plain(placed, found.size)
        if not self._attached:
            raise ValueError("the segment is not open for appends")
        if found.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = found.max_timestamp, last_offset
        if self.bytes_since_index_entry > self.index_interval_bytes:
            self._add_entries(last_offset)
        self.bytes_since_index_entry += found.size
        self.size += found.size
        self.next_offset = last_offset + 1
        return 0

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

    cdef int _write_plain(self, const uint8_t* data, int64_t size) except -1:
        cdef iovec iov
        cdef int error, fd = self._fd
        cdef int64_t position = self.size
        iov.iov_base = <void*>data
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


cdef extern from "pythread.h" nogil:
    ctypedef void* PyThread_type_lock
    cdef enum:
        PY_LOCK_ACQUIRED, PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int signals)
    void PyThread_release_lock(PyThread_type_lock lock)

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1


@cython.final
cdef class WriteLock:
    """A lock as of ``threading``, without a system call where nobody waits; see the stub.

    The interpreter's lock guards its fields. Waiters sleep on ``_wake``, which has one token for
    them at most. A waiter that was overtaken ``OVERTAKEN_MAX`` times is handed the lock.
    """

    cdef PyThread_type_lock _wake
    cdef bint _locked, _token, _handed
    cdef readonly int waiting
    cdef int _overtaken
    cdef object __weakref__

    def __cinit__(self):
        self._renew()

    def __dealloc__(self):
        if self._wake != NULL:
            PyThread_free_lock(self._wake)

    cdef int _renew(self) except -1:
        self._wake = PyThread_allocate_lock()
        if self._wake == NULL:
            raise MemoryError
        PyThread_acquire_lock_timed(self._wake, -1, 0)
        self._locked = self._token = self._handed = False
        self.waiting = self._overtaken = 0
        return 0

    def _at_fork_reinit(self):
        """Be free in a child; what it was in the parent leaks, as others may sleep on it there."""
        self._renew()

    cdef inline int take(self) except -1:
        if self._locked:
            return self._wait()
        self._locked = True
        if self.waiting:
            self._overtaken += 1
        return 0

    cdef int _wait(self) except -1:
        cdef int got
        self.waiting += 1
        try:
            while True:
                with nogil:
                    got = PyThread_acquire_lock_timed(self._wake, -1, 1)
                if got == PY_LOCK_ACQUIRED:
                    self._token = False
                    if self._handed:
                        self._handed = False
                        return 0
                    if not self._locked:
                        self._locked = True
                        return 0
                else:
                    PyErr_CheckSignals()
        except:
            if self._handed and self.waiting == 1:  # to the one that gives up
                self._handed = self._locked = False
            raise
        finally:
            self._overtaken = 0
            self.waiting -= 1

    cdef inline int give(self) except -1:
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        if self.waiting:
            self._wake_one()
        else:
            self._locked = False
        return 0

    cdef void _wake_one(self) noexcept:
        if self._overtaken >= OVERTAKEN_MAX:
            self._handed = True  # and stays locked
        else:
            self._locked = False
        if not self._token:
            self._token = True
            PyThread_release_lock(self._wake)

    def acquire(self, bint blocking=True, timeout=-1):
        """Take it; False if it is taken, and ``blocking`` is false."""
        if timeout != -1:
            raise ValueError("it waits for as long as it takes")
        if not blocking and self._locked:
            return False
        self.take()
        return True

    def release(self):
        self.give()

    def locked(self):
        return self._locked

    def __enter__(self):
        self.take()
        return True

    def __exit__(self, kind, error, trace):
        self.give()


cdef class ListenerCell:
    """The base of ``ChangeListeners``: who is called at the next change."""

    cdef public tuple waiting


cdef class EpochCell:
    """The base of ``LeaderEpochCache``: the latest leader epoch, −1 none."""

    cdef public int64_t latest_epoch


cdef class LogCell:
    """The base of ``LogCore``: the present ``snapshot``, and why the log refuses work (None)."""

    cdef public LogSnapshot snapshot
    cdef public object failure


cdef bytes own_if_plain(data, bint leads):
    """Bytes that nobody can change; None where the first header says that a copy is not worth it."""
    cdef View view
    if type(data) is bytes:
        return data
    try:
        view = view_of(data)
    except (BufferError, ValueError):  # its bytes do not lie together, which ``bytes`` mends
        return None
    if (view.size < LS_HEADER_SIZE or view.start[16] != 2 or ls_load64(view.start + 43) >= 0
            or (leads and ls_load16(view.start + 21) != 0)):
        return None
    return PyBytes_FromStringAndSize(<char*>view.start, view.size)


cdef class AppendState:
    """The base of ``LogState``: what an append reads and changes besides its segment; see the stub.

    ``append_plain_…`` do under the WRITE lock, in one call, what ``LogWriter`` does for batches that
    nothing else has to look at: check, write, publish. Their result is None when that is not so.
    Then nothing was changed, and ``LogWriter``, which knows all cases, does the append or refuses.
    """

    cdef readonly LogCell core
    cdef readonly object lock
    cdef public EpochCell epochs
    cdef public object truncation, led_epoch, followed_epoch, recent
    cdef public tuple sealed
    cdef public int64_t log_start_offset, high_watermark, first_unstable, version
    cdef public int64_t timestamp_limit, flush_at, max_batch_size
    cdef public bint replicated, is_plain, keys_required, largest_decides, upkeep_due, epochs_due
    cdef ListenerCell _listeners
    cdef WriteLock _lock  # ``lock``, if it is of this kind; tests have others
    cdef BatchAnalysis _records  # of a batch, for the append that has the lock

    def __init__(self, LogCell core not None, ListenerCell listeners not None, lock not None):
        self.core, self._listeners, self.lock = core, listeners, lock
        self._lock = lock if type(lock) is WriteLock else None
        self.sealed = ()
        self.first_unstable = -1
        self._records = BatchAnalysis.__new__(BatchAnalysis)

    cdef inline int _enter(self) except -1:
        if self._lock is not None:
            return self._lock.take()
        self.lock.acquire()
        return 0

    cdef inline int _leave(self) except -1:
        if self._lock is not None:
            return self._lock.give()
        self.lock.release()
        return 0

    def append_plain_as_leader(self, data, int64_t leader_epoch, bint deep):
        """Append as ``LogWriter.append_as_leader``; ``deep`` looks at every record."""
        cdef bytes held = own_if_plain(data, True)
        if held is None:
            return None
        self._enter()
        try:
            if not self.is_plain or not (self.led_epoch is None or self.led_epoch == leader_epoch):
                return None
            return self._lead(held, <uint8_t*><char*>held, len(held), leader_epoch,
                              FROM_CLIENT if deep else FROM_LEADER)
        finally:
            self._leave()

    def append_plain_own(self, data, leader_epoch):
        """Append as ``LogWriter.append_own``; nobody else may have ``data``."""
        cdef View view = view_of(data)
        self._enter()
        try:
            if not self.largest_decides or self.epochs is None:
                return None
            return self._lead(
                data, view.start, view.size,
                max(self.epochs.latest_epoch, 0) if leader_epoch is None else leader_epoch,
                FROM_OURSELVES)
        finally:
            self._leave()

    def append_plain_as_follower(self, leader_epoch, data):
        """Append as ``LogWriter.append_as_follower``."""
        cdef bytes held = own_if_plain(data, False)
        if held is None:
            return None
        self._enter()
        try:
            if (leader_epoch is not None and self.followed_epoch is not None
                    and self.followed_epoch != leader_epoch):
                return None
            return self._follow(held, MAX_INT if leader_epoch is None else leader_epoch)
        finally:
            self._leave()

    cdef SegmentState _open_segment(self):
        """The active segment, if the log accepts appends and none has left anything to do."""
        cdef LogSnapshot shown = self.core.snapshot
        if (self.core.failure is not None or self.epochs is None or self.truncation or self.epochs_due or self.upkeep_due
                or shown is None):
            return None
        return shown.state

    cdef bint _look(self, const uint8_t* data, int64_t size, int kind, Found* found) noexcept:
        """Whether the batches are plain and sound; ``found`` says then what they are."""
        if size < WALKED_AT_ONCE:
            return self._walk(data, size, kind, found)
        with nogil:
            return self._walk(data, size, kind, found)

    cdef bint _walk(self, const uint8_t* data, int64_t size, int kind,
                    Found* found) noexcept nogil:
        cdef const uint8_t* p = data
        cdef const uint8_t* end = data + size
        cdef int64_t largest = MAX_INT if kind == FETCHED else self.max_batch_size
        cdef ls_batch b
        cdef ls_ahead ahead
        cdef int status
        ahead.left = 0
        memset(found, 0, sizeof(Found))
        found.max_timestamp = -1
        while True:
            status = ls_frame(p, end, &b)
            if status != LS_OK:
                break
            # First what says that it is another's, before its bytes are gone through.
            if b.magic != 2 or b.size < LS_HEADER_SIZE or b.size > largest or ls_load64(p + 43) >= 0:
                return False
            if kind <= FROM_LEADER and (ls_load16(p + 21) != 0 or b.base_offset != 0):
                return False
            if ls_check(&b, end, kind != FROM_OURSELVES, &ahead) != LS_OK:
                return False
            if kind == FETCHED:
                if found.count == 0:
                    found.first_offset, found.epoch = b.base_offset, b.leader_epoch
                elif b.base_offset <= found.last_offset or b.leader_epoch != found.epoch:
                    return False
                found.last_offset = b.last_offset
            elif b.record_count < 1 or <int64_t>b.last_offset_delta + 1 != b.record_count:
                return False
            if kind == FROM_CLIENT and not self._has_true_records(&b):
                return False
            found.count += 1
            found.record_count += b.record_count
            found.max_timestamp = max(found.max_timestamp, b.max_timestamp)
            p += b.size
        found.size = p - data
        return status < LS_BAD_SIZE and found.count > 0

    cdef bint _has_true_records(self, const ls_batch* b) noexcept nogil:
        """Whether the records are what the header says, with the keys that the topic asks for.

        A negative timestamp is left to the long way, which knows the smallest allowed one.
        """
        cdef const uint8_t* at
        self._records.any_record = self._records.has_null_key = False
        self._records.offsets_dense = True
        return (self._records.walk_records(b, &at) == LS_RECORD_OK and self._records.offsets_dense
                and self._records.record_max_timestamp == b.max_timestamp
                and self._records.min_timestamp >= -1
                and not (self.keys_required and self._records.has_null_key))

    cdef inline bint _fits(self, SegmentState segment, const Found* found,
                           int64_t last_offset) except -1:
        """Whether the open segment takes what was found, and no sync is due after it."""
        return (segment._attached and not segment.cut_pending and segment.rolling_timestamp >= 0
                and last_offset < self.flush_at
                and not segment.must_roll(found.size, last_offset, found.max_timestamp, 0))

    cdef AppendInfo _lead(self, data, const uint8_t* start, int64_t size, int64_t leader_epoch,
                          int kind):
        cdef SegmentState segment = self._open_segment()
        cdef Found found
        cdef int64_t last
        if (segment is None or leader_epoch != self.epochs.latest_epoch
                or not 0 <= leader_epoch <= MAX_INT or not self._look(start, size, kind, &found)):
            return None
        found.first_offset = segment.next_offset
        last = ls_add64(found.first_offset, found.record_count - 1)
        if (found.max_timestamp > self.timestamp_limit or found.size > segment.segment_bytes
                or not self._fits(segment, &found, last)):
            return None
        return self._place(segment, data, start, &found, last, leader_epoch)

    cdef AppendInfo _follow(self, bytes data, int64_t above):
        cdef SegmentState segment = self._open_segment()
        cdef const uint8_t* start = <const uint8_t*><char*>data
        cdef Found found
        if segment is None or not self._look(start, len(data), FETCHED, &found):
            return None
        if (found.first_offset < segment.next_offset
                or ls_sub64(found.last_offset, segment.next_offset) > MAX_INT
                or not 0 <= found.epoch <= above or found.epoch != self.epochs.latest_epoch
                or found.size > MAX_INT or not self._fits(segment, &found, found.last_offset)):
            return None
        return self._place(segment, data, start, &found, found.last_offset, -1)

    cdef AppendInfo _place(self, SegmentState segment, data, const uint8_t* start,
                           const Found* found, int64_t last, int64_t leader_epoch):
        """Write what was found, and publish it. ``leader_epoch`` −1 keeps offsets and epochs."""
        cdef AppendInfo info = AppendInfo.__new__(AppendInfo)
        cdef object active = self.core.snapshot.active
        cdef int64_t first = -1 if leader_epoch < 0 else found.first_offset
        info.first_offset, info.last_offset = found.first_offset, last
        info.max_timestamp, info.log_append_time = found.max_timestamp, -1
        info.log_start_offset, info.record_count = self.log_start_offset, found.record_count
        info.size = found.size
        try:
            if found.count == 1 and segment._fd >= 0:
                segment._append_one(start, found, first, last, <int32_t>leader_epoch)
            else:
                segment._append(<uint8_t*>start, found.size, first, <int32_t>leader_epoch)
        except OSError as error:
            raise (<object>self.core).fail("append", error) from error
        # From here to the new snapshot nothing runs that could be interrupted.
        self.core.snapshot = segment._snapshot(
            self.sealed, active, self.log_start_offset,
            self.high_watermark if self.replicated else -1, self.first_unstable, self.version)
        try:
            if leader_epoch >= 0 and self.recent is not None:
                self.recent.add(data, found.size, first, last + 1, leader_epoch,
                                segment.base_offset)
        except BaseException:
            (<object>self).forget_recent_locked()
            raise
        finally:
            if self._listeners.waiting:
                (<object>self._listeners).wake_all()
        return info
