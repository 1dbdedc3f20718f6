"""One segment: a ``.log`` file and its indexes. Matches Kafka's ``LogSegment``.

Files are opened when first touched: a log that only waits costs no descriptors. The owner
(``PartitionLog``) holds its lock around every call that changes a segment; reads run beside it.
"""

from __future__ import annotations

import errno
import struct
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple

from logstore.clock import Clock
from logstore.config import MAX_INT, LogConfig
from logstore.errors import CorruptBatchError, CorruptIndexError
from logstore.format import filenames
from logstore.gate import ReaderGate
from logstore.index import (
    AbortedTxn,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
    TimestampOffset,
    TransactionIndex,
)
from logstore.kernels import (
    SCAN_COLUMNS,
    SCAN_END,
    SCAN_FULL,
    SCAN_INCOMPLETE,
    SCAN_TAIL,
    SegmentState,
    scan_batches,
)
from logstore.storage.base import File, Storage

WINDOW = 8 << 20  # bytes mapped at a time while scanning: bounds memory, amortises the mapping
_CHUNK = 8 << 10  # bytes read at a time while walking a few headers
_V2 = struct.Struct(">qiibIhiqq")  # base offset … max timestamp
_V1_TIMESTAMP = struct.Struct(">q")
HEADER_MIN = 17  # bytes up to and with the magic (F-106)
SCAN_ROWS = 4096


class BatchSpan(NamedTuple):
    """What the header of one batch says: where it lies and what it covers."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    magic: int


class Slice(NamedTuple):
    """Bytes of one segment, from a batch boundary; the end may cut a batch (F-158)."""

    segment: Segment
    position: int
    size: int
    first_batch: BatchSpan


class Segment:
    """A segment and its state; ``state`` is the single home of sizes, offsets and counters."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        config: LogConfig,
        clock: Clock,
        sizes: Mapping[str, int] | None = None,
        gate: ReaderGate | None = None,
    ) -> None:
        """``sizes`` of the files on disk by suffix, from a listing; ``gate`` is the log's."""
        sizes = sizes or {}
        self._storage = storage
        self.directory = directory
        self.base_offset = base_offset
        self.config = config
        self._clock = clock
        self.suffix = ""
        self.file_size = sizes.get(filenames.LOG_SUFFIX, 0)
        self.state = state = SegmentState(base_offset)
        state.size = self.file_size
        state.index_interval_bytes = config.index_interval_bytes
        state.segment_bytes = config.segment_bytes
        state.max_segment_ms = config.max_segment_ms
        state.created_ms = clock.wall_ms()
        state.offset_entries = sizes.get(filenames.INDEX_SUFFIX, 0) // 8
        state.time_entries = sizes.get(filenames.TIME_INDEX_SUFFIX, 0) // 12
        self._txn_index_size = sizes.get(filenames.TXN_INDEX_SUFFIX, 0)
        self._log: File | None = None
        self._closed = False
        self._timestamp_loaded = self.file_size == 0
        self.name_durable = False  # the directory was synced since the files were created
        self._indexes_durable = not sizes
        self.index_suspect = False
        self._gate = gate or ReaderGate()

    # -- identity ------------------------------------------------------------------------------

    def path(self, suffix: str) -> str:
        name = filenames.segment_file_name(self.base_offset, suffix, self.suffix)
        return f"{self.directory}/{name}"

    @property
    def size(self) -> int:
        """Bytes of whole batches."""
        return self.state.size

    # Made when first asked for: most segments of most logs only wait.

    @cached_property
    def offset_index(self) -> OffsetIndex:
        return OffsetIndex(self._storage, self.path(filenames.INDEX_SUFFIX), self.base_offset)

    @cached_property
    def time_index(self) -> TimeIndex:
        return TimeIndex(self._storage, self.path(filenames.TIME_INDEX_SUFFIX), self.base_offset)

    @cached_property
    def txn_index(self) -> TransactionIndex:
        return TransactionIndex(
            self._storage,
            self.path(filenames.TXN_INDEX_SUFFIX),
            self.base_offset,
            self._txn_index_size,
        )

    @property
    def log_path(self) -> str:
        return self.path(filenames.LOG_SUFFIX)

    @property
    def log(self) -> File:
        log = self._log
        return self._open_log() if log is None else log

    def _open_log(self) -> File:
        with self._gate.opening:  # one file, however many readers come first
            if self._closed:
                raise OSError(errno.ESTALE, "the log was closed", self.log_path)
            if self._log is None:
                self._log = self._storage.open(self.log_path)
            return self._log

    def __repr__(self) -> str:
        return f"Segment({self.log_path}, size={self.size})"

    def create(self) -> None:
        """Make the empty ``.log``, ``.index`` and ``.timeindex``."""
        self._log = self._storage.open(self.log_path, create=True)
        self.offset_index.create()
        self.time_index.create()

    # -- active and inactive -------------------------------------------------------------------

    def activate(self) -> None:
        """Map the indexes at full size and open for appends (F-136, F-248)."""
        if self.state.attached:
            return
        self.load_timestamp()
        self.load_rolling_timestamp()
        if self.config.preallocate and self.file_size < self.config.segment_bytes:
            self.log.truncate(self.config.segment_bytes)
            self.file_size = self.config.segment_bytes
        limit = self.config.segment_index_bytes
        self.state.attach(
            self.log, self.offset_index.activate(limit), self.time_index.activate(limit)
        )
        self._indexes_durable = False

    def deactivate(self) -> None:
        """Last time-index entry, indexes and log cut to what they hold (F-135, F-137, F-139)."""
        if self.state.attached:
            if self.state.max_timestamp > self.state.last_time_entry:
                self.state.reserve()
            self.state.add_time_entry()
            self.state.detach()
            self.offset_index.trim(self.state.offset_entries)
            self.time_index.trim(self.state.time_entries)
        if self.file_size > self.size:
            self.log.truncate(self.size)
            self.file_size = self.size

    def append(self, data: bytes | bytearray | memoryview, size: int, first_offset: int,
               leader_epoch: int) -> int:  # fmt: skip
        """See ``SegmentState.append``; the segment must be active."""
        last = self.state.append(data, size, first_offset, leader_epoch)
        if self.state.size > self.file_size:
            self.file_size = self.state.size
        return last

    # -- timestamps ----------------------------------------------------------------------------

    def load_timestamp(self) -> None:
        """Seed the largest timestamp from the last time-index entry (F-148)."""
        if self._timestamp_loaded:
            return
        self._timestamp_loaded = True
        state = self.state
        if state.max_timestamp >= 0 or not self.size:
            return
        try:
            last = self._checked(self.time_index.last(state.time_entries))
        except CorruptIndexError:
            self.index_suspect = True  # the log rebuilds it under its lock
            last = TimestampOffset(-1, self.base_offset)
        state.last_time_entry = last.timestamp
        self._max_timestamp_from(last)  # an index that lost its end would hide what follows

    def _checked(self, entry: TimestampOffset) -> TimestampOffset:
        """A time-index entry, if its offset is of a batch with this largest timestamp (S-34)."""
        if entry == (-1, self.base_offset):  # there is none
            return entry
        span = self.find(entry.offset) if entry.offset >= self.base_offset else None
        if span is None or span.max_timestamp != entry.timestamp or span.base_offset > entry.offset:
            raise CorruptIndexError(self.time_index.path, 0, f"entry {tuple(entry)} is of no batch")
        return entry

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp, or the file's modification time when there is none (F-148)."""
        self.load_timestamp()
        if self.state.max_timestamp >= 0:
            return self.state.max_timestamp
        # Asked anew each time: of an active segment it moves.
        info = self._storage.info(self.log_path)
        return info.mtime_ms if info else self._clock.wall_ms()

    def load_rolling_timestamp(self) -> None:
        """After a reload "the first append" means the first batch (F-143)."""
        if self.state.rolling_timestamp < 0 and self.size > 0:
            first = next(self.walk(0), None)
            if first is not None:
                self.state.rolling_timestamp = first.max_timestamp

    # -- walking headers -----------------------------------------------------------------------

    def walk(self, position: int, end: int | None = None) -> Iterator[BatchSpan]:
        """Headers of whole batches from a batch boundary on; stops silently at a torn tail.

        Raises:
            CorruptBatchError: a size below the smallest batch (F-106).
        """
        limit = self.size if end is None else min(end, self.size)
        chunk, start, want = b"", position, _CHUNK
        while limit - position >= HEADER_MIN:
            at = position - start
            if len(chunk) - at < _V2.size:
                start, at = position, 0
                chunk = self.log.read_at(position, min(want, limit - position))
                if len(chunk) < HEADER_MIN:
                    return
            span = parse_span(chunk, at, position, self.log_path)
            if span is None or position + span.size > limit:
                return
            yield span
            position += span.size
            want = _CHUNK if span.size < _CHUNK else _V2.size  # large batches: headers alone

    def _floor(self, offset: int) -> int:
        """A batch boundary at or before ``offset``: the index's answer, checked (S-32, S-33)."""
        state = self.state
        if not state.offset_entries:
            return 0
        try:
            entry = self.offset_index.lookup(offset, state.offset_entries)
            if entry.position == 0 or self._leads_to_batch(entry):
                return entry.position
            raise CorruptIndexError(
                self.offset_index.path, 0, f"entry {tuple(entry)} does not lead to a batch"
            )
        except CorruptIndexError:
            self.index_suspect = True  # the log rebuilds it under its lock; a reader walks
            return 0

    def _leads_to_batch(self, entry: OffsetPosition) -> bool:
        if not 0 < entry.position <= self.size - HEADER_MIN:
            return False
        head = self.log.read_at(entry.position, 61)
        try:
            span = parse_span(head, 0, entry.position, self.log_path)
        except CorruptBatchError:
            return False
        return (
            span is not None
            and self.base_offset <= span.base_offset <= entry.offset
            and entry.position + span.size <= self.size
            and span.magic <= 2
        )

    def find(self, offset: int, start: int = 0) -> BatchSpan | None:
        """The first batch whose last offset is ``offset`` or more (F-111); None past the end."""
        for span in self.walk(max(self._floor(offset), start)):
            if span.last_offset >= offset:
                return span
        return None

    def read(
        self, start_offset: int, max_bytes: int, end_position: int, minimum_one: bool
    ) -> Slice | None:
        """Bytes from the batch that holds ``start_offset`` on (F-157, F-158); None past the end."""
        first = self.find(start_offset)
        if first is None:
            return None
        size = min(
            max(max_bytes, first.size if minimum_one else 0), max(end_position - first.position, 0)
        )
        return Slice(self, first.position, size, first)

    def find_timestamp(self, timestamp: int, start_offset: int) -> Iterator[BatchSpan]:
        """Batches that may hold the first record at or after ``timestamp`` (F-149)."""
        self.load_timestamp()
        try:
            floor = self._checked(self.time_index.lookup(timestamp, self.state.time_entries))
        except CorruptIndexError:
            self.index_suspect = True
            floor = TimestampOffset(-1, self.base_offset)
        position = self._floor(max(floor.offset, start_offset))
        return (
            span
            for span in self.walk(position)
            if span.max_timestamp >= timestamp and span.last_offset >= start_offset
        )

    def read_next_offset(self) -> tuple[int, int]:
        """``(next offset, end of the last whole batch)`` by a walk from the last entry (F-252)."""
        position = self._floor(MAX_INT + self.base_offset) if self.state.offset_entries else 0
        next_offset, end = self.base_offset, position
        for span in self.walk(position):
            next_offset, end = span.last_offset + 1, span.position + span.size
        return next_offset, end

    @contextmanager
    def view(self, position: int, size: int) -> Iterator[memoryview]:
        """A window on the bytes without a copy; the segment is not cut under it meanwhile."""
        with (
            self._gate.reading(self.base_offset),
            self.log.view(position, size) as window,
        ):
            yield window

    # -- rebuild and truncate ------------------------------------------------------------------

    def install_indexes(self, offset_index: bytes, time_index: bytes) -> None:
        """Replace the content of both indexes; an active segment stays active."""
        active = self.state.attached
        state = self.state
        state.detach()
        self.offset_index.replace(offset_index)
        self.time_index.replace(time_index)
        self.index_suspect = False
        state.offset_entries, state.time_entries = len(offset_index) // 8, len(time_index) // 12
        state.last_time_entry = (
            self.time_index.last(state.time_entries).timestamp if state.time_entries else -1
        )
        if active:
            limit = self.config.segment_index_bytes
            state.attach(
                self.log, self.offset_index.activate(limit), self.time_index.activate(limit)
            )

    def truncate_to(self, offset: int) -> int:
        """Remove every batch that reaches ``offset``; returns the bytes cut (F-235).

        A batch that merely contains ``offset`` goes whole.
        """
        state = self.state
        self.load_timestamp()
        span = self.find(offset)
        cut = span.position if span is not None else self.size
        dropped = self.size - cut
        for index, entries in (
            (self.offset_index, state.offset_entries),
            (self.time_index, state.time_entries),
        ):
            keep = index.count_below(offset, entries)
            if keep < entries:
                index.clear_from(keep, entries)
            if index is self.offset_index:
                state.offset_entries = keep
            else:
                state.time_entries = keep
        state.last_time_entry = self.time_index.last(state.time_entries).timestamp
        self.txn_index.truncate_to(offset)
        if dropped:
            self._cut_log(cut)
        state.size = cut
        state.bytes_since_index_entry = 0
        state.next_offset = min(state.next_offset, offset)
        if state.offset_of_max_timestamp >= offset:
            self._max_timestamp_from(self.time_index.last(state.time_entries))
        if cut == 0:
            state.rolling_timestamp = -1
            state.created_ms = self._clock.wall_ms()
        return dropped

    def _cut_log(self, size: int) -> None:
        target = self.config.segment_bytes if self.config.preallocate else size
        log = self.log
        with self._gate.cutting(self.base_offset) as windowed:
            if not windowed:
                log.truncate(size)
        if windowed:
            self._replace_log(size)
        if target > size and self.state.attached:
            self.log.truncate(target)
        self.file_size = target if self.state.attached else size

    def _replace_log(self, size: int) -> None:
        """Cut by copy: someone reads a window of the old file, which must not change under it."""
        limit = self.config.segment_index_bytes
        attached = self.state.attached
        cleaned = self.log_path + filenames.CLEANED_SUFFIX
        copy = self._storage.open(cleaned, create=True)
        copy.truncate(0)
        for position in range(0, size, WINDOW):
            copy.write_at(position, self.log.read_at(position, min(WINDOW, size - position)))
        copy.sync()
        self._storage.rename(cleaned, self.log_path)
        self._storage.sync_dir(self.directory)
        self.state.detach()
        old, self._log = self._log, None
        copy.close()
        if old is not None:
            self._gate.retire(old)
        if attached:
            self.state.attach(
                self.log, self.offset_index.activate(limit), self.time_index.activate(limit)
            )

    def _max_timestamp_from(self, last: TimestampOffset) -> None:
        """The largest timestamp in the segment: that entry's, or one in the headers after it."""
        state = self.state
        state.max_timestamp, state.offset_of_max_timestamp = last
        if last.timestamp < 0:
            state.offset_of_max_timestamp = -1
        start = self._floor(last.offset) if last.timestamp >= 0 else 0
        for rows, columns, capacity in self.scan(start, check_crc=False):
            stamps = columns[_MAX_TIMESTAMP * capacity : _MAX_TIMESTAMP * capacity + rows]
            best = max(stamps)
            if best > state.max_timestamp:
                at = _LAST_OFFSET * capacity + stamps.index(best)
                state.max_timestamp, state.offset_of_max_timestamp = best, columns[at]

    def scan(
        self, position: int, *, check_crc: bool, rows_max: int = SCAN_ROWS
    ) -> Iterator[tuple[int, array[int], int]]:
        """Batch tables over windows of the file: ``(rows, columns, capacity)`` (see the kernels).

        Positions in the table are relative to the window. Ends at the first batch that is torn
        or, with ``check_crc``, bad.
        """
        columns = array("q", bytes(8 * len(SCAN_COLUMNS) * rows_max))
        window = WINDOW
        while position < self.size:
            want = min(window, self.size - position)
            at_end = position + want == self.size
            with self.view(position, want) as view:
                rows, done, status = scan_batches(view, 0, columns, check_crc)
            if rows:
                yield rows, columns, rows_max
            position += done
            if status == SCAN_FULL:
                continue
            if at_end or status not in _WINDOW_ENDED:
                return
            window = WINDOW if done else window * 2  # a batch longer than the window

    # -- durability, names, end ----------------------------------------------------------------

    def flush(self, *, indexes: bool) -> None:
        """Sync the ``.log`` and then, with ``indexes``, the three indexes (F-220)."""
        self.log.sync()
        if indexes:
            self.flush_indexes()

    def flush_indexes(self) -> None:
        """Sync the indexes unless they are durable already."""
        if not self._indexes_durable:
            self.offset_index.sync()
            self.time_index.sync()
            self.txn_index.sync()
            self._indexes_durable = not self.state.attached

    def aborted(self, fetch_offset: int, upper_bound: int, into: list[AbortedTxn]) -> bool:
        return self.txn_index.collect(fetch_offset, upper_bound, into)

    def close(self) -> None:
        """Release files and maps without trimming or syncing. Idempotent."""
        self.state.detach()
        self.offset_index.close()
        self.time_index.close()
        with self._gate.opening:
            self._closed = True
            log, self._log = self._log, None
        if log is not None:
            self._gate.retire(log)

    def mark_deleted(self) -> list[str]:
        """Rename all files to ``.deleted`` (F-288); returns the new paths, for a later unlink.

        The ``.log`` stays open while a view of it lives.
        """
        self.state.detach()
        self.offset_index.close()
        self.time_index.close()
        renamed = []
        for suffix in filenames.SEGMENT_SUFFIXES:
            path = self.path(suffix)
            target = path + filenames.DELETED_SUFFIX
            try:
                self._storage.rename(path, target)
            except FileNotFoundError:
                continue
            renamed.append(target)
        self.close()
        self.suffix = filenames.DELETED_SUFFIX
        return renamed


_WINDOW_ENDED = (SCAN_END, SCAN_TAIL, SCAN_INCOMPLETE)
_MAX_TIMESTAMP = SCAN_COLUMNS.index("max_timestamp")
_LAST_OFFSET = SCAN_COLUMNS.index("last_offset")


def parse_span(data: bytes, at: int, position: int, path: str) -> BatchSpan | None:
    """The header at ``data[at]``, which lies at ``position`` of ``path``; None if it is cut short.

    Raises:
        CorruptBatchError: the size field is below the smallest batch.
    """
    available = len(data) - at
    if available < HEADER_MIN:
        return None
    size = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    if size < 14:
        raise CorruptBatchError(path, position, f"batch size {size} is below the minimum 14")
    magic = data[at + 16]
    base = int.from_bytes(data[at : at + 8], "big", signed=True)
    if magic < 2:
        stamp = -1
        if magic == 1 and available >= 26:
            (stamp,) = _V1_TIMESTAMP.unpack_from(data, at + 18)
        return BatchSpan(position, size + 12, base, base, stamp, -1, magic)
    if available < _V2.size:
        return None
    base, _, epoch, _, _, _, delta, _, maximum = _V2.unpack_from(data, at)
    if size < 49 or delta < 0:
        raise CorruptBatchError(path, position, f"batch size {size}, last offset delta {delta}")
    return BatchSpan(position, size + 12, base, base + delta, maximum, epoch, magic)
