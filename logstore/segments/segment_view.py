"""One segment as readers see it: fixed numbers, and reads of its file.

A ``SegmentView`` says how much of the file counts. It never uses anything that a writer changes, so
any number of threads can read while one appends. If the segment is cut or removed during a read,
the read fails or returns other bytes; the reader then finds that the version of the log's snapshot
has changed.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from logstore.common.config import MAX_INT
from logstore.common.errors import CorruptBatchError, CorruptIndexError
from logstore.kernels import (
    SCAN_COLUMNS,
    SCAN_END,
    SCAN_FULL,
    SCAN_INCOMPLETE,
    SCAN_TAIL,
    scan_batches,
)
from logstore.segments.index import OffsetPosition, TimestampOffset

if TYPE_CHECKING:
    from logstore.segments.open_files import LogFile
    from logstore.segments.segment import Segment
    from logstore.storage.base import File, Storage
    from logstore.storage.file_slice import FileSlice

WINDOW = 2 << 20  # bytes read at a time while scanning: the processor still has them in its cache
_CHUNK = 8 << 10  # bytes read at a time while walking a few headers
_V2 = struct.Struct(">qiibIhiqq")  # base offset … max timestamp
_V1_TIMESTAMP = struct.Struct(">q")
HEADER_MIN = 17  # bytes up to and with the magic (F-106)
SCAN_ROWS = 4096


class BatchSpan(NamedTuple):
    """The header of one batch: where it lies and what it covers."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    magic: int


NO_LARGEST = TimestampOffset(-1, -1)


class SegmentView:
    """A segment as it was at one moment.

    ``size`` counts bytes of whole batches, ``offset_entries`` and ``time_entries`` entries of the
    indexes. ``index_suspect`` is set if an index entry pointed nowhere and the answer came from a
    walk.
    """

    __slots__ = ("_largest", "index_suspect", "offset_entries", "segment", "size", "time_entries")

    def __init__(
        self,
        segment: Segment,
        size: int,
        offset_entries: int,
        time_entries: int,
        largest: TimestampOffset | None = None,
    ) -> None:
        """``largest``: the largest timestamp and its offset where known; (−1, −1) if none."""
        self.segment = segment
        self.size = size
        self.offset_entries = offset_entries
        self.time_entries = time_entries
        self.index_suspect = False
        self._largest = largest

    def __repr__(self) -> str:
        return f"SegmentView({self.segment.log_path}, size={self.size})"

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def log_path(self) -> str:
        return self.segment.log_path

    def _hold(self) -> tuple[LogFile, File]:
        """The open file, and the `LogFile` to release it to. A cut by copying replaces the file."""
        while True:
            log_file = self.segment.file
            try:
                return log_file, log_file.hold()
            except OSError:
                if log_file is self.segment.file:
                    raise

    @contextmanager
    def window(self, position: int, size: int) -> Iterator[memoryview]:
        """Bytes of the file, mapped if they are many. They do not change inside the block."""
        log_file, _ = self._hold()
        try:
            with log_file.window(position, size) as view:
                yield view
        finally:
            log_file.release()

    def read_at(self, position: int, size: int) -> bytes:
        log_file, file = self._hold()
        try:
            return file.read_at(position, size)
        finally:
            log_file.release()

    def slice_at(self, position: int, size: int) -> FileSlice | None:
        """See ``LogFile.slice``."""
        log_file, _ = self._hold()
        try:
            return log_file.slice(position, size)
        finally:
            log_file.release()

    # -- timestamps ----------------------------------------------------------------------------

    @property
    def largest(self) -> TimestampOffset:
        """The largest record timestamp and an offset at or after its record; (−1, −1): none
        (F-148).

        It comes from the last time-index entry and the headers after it, because an index may have
        lost its end.
        """
        if self._largest is None:
            self._largest = self._find_largest()
        return self._largest

    def _find_largest(self) -> TimestampOffset:
        if not self.size:
            return NO_LARGEST
        return self.largest_from(self.last_time_entry())

    def last_time_entry(self) -> TimestampOffset:
        try:
            return self._checked(self.segment.time_index.last(self.time_entries))
        except CorruptIndexError:
            self.index_suspect = True
            return TimestampOffset(-1, self.base_offset)

    def largest_from(self, entry: TimestampOffset) -> TimestampOffset:
        """The timestamp of this entry, or a larger one of the headers from its batch on."""
        best = entry if entry.timestamp >= 0 else NO_LARGEST
        start = self.floor(entry.offset) if entry.timestamp >= 0 else 0
        for rows, columns, capacity in self.scan(start, check_crc=False):
            stamps = columns[_MAX_TIMESTAMP * capacity : _MAX_TIMESTAMP * capacity + rows]
            largest = max(stamps)
            if largest > best.timestamp:
                at = _LAST_OFFSET * capacity + stamps.index(largest)
                best = TimestampOffset(largest, columns[at])
        return best

    @property
    def largest_timestamp(self) -> int:
        """The largest record timestamp, or else the file's modification time (F-148)."""
        largest = self.largest.timestamp
        return largest if largest >= 0 else self.segment.modified_ms()

    def _checked(self, entry: TimestampOffset) -> TimestampOffset:
        """A time-index entry, if the batch of its offset has this largest timestamp (S-34)."""
        if entry == (-1, self.base_offset):  # there is none
            return entry
        span = self.find(entry.offset) if entry.offset >= self.base_offset else None
        if span is None or span.max_timestamp != entry.timestamp or span.base_offset > entry.offset:
            path = self.segment.time_index.path
            raise CorruptIndexError(path, 0, f"entry {tuple(entry)} is of no batch")
        return entry

    # -- walking headers -----------------------------------------------------------------------

    def walk(self, position: int, end: int | None = None) -> Iterator[BatchSpan]:
        """The headers of whole batches from a batch boundary on, up to a torn tail.

        Raises:
            CorruptBatchError: a size below the smallest batch (F-106).
        """
        limit = self.size if end is None else min(end, self.size)
        chunk, start, want = b"", position, _CHUNK
        while limit - position >= HEADER_MIN:
            at = position - start
            if len(chunk) - at < _V2.size:
                start, at = position, 0
                chunk = self.read_at(position, min(want, limit - position))
                if len(chunk) < HEADER_MIN:
                    return
            span = parse_span(chunk, at, position, self.log_path)
            if span is None or position + span.size > limit:
                return
            yield span
            position += span.size
            want = _CHUNK if span.size < _CHUNK else _V2.size  # large batches: headers alone

    def _walk_all(self, position: int) -> Iterator[BatchSpan]:
        """As ``walk``, to the end of the segment.

        It has only whole batches, so anything else is damage and not an end.
        """
        for span in self.walk(position):
            yield span
            position = span.position + span.size
        if position < self.size:
            raise no_whole_batch(self.log_path, position, self.size)

    def floor(self, offset: int) -> int:
        """A batch boundary at or before ``offset``, from the index and checked (S-32, S-33)."""
        if not self.offset_entries:
            return 0
        index = self.segment.offset_index
        try:
            entry = index.lookup(offset, self.offset_entries)
            if entry.position == 0 or self._leads_to_batch(entry):
                return entry.position
            raise CorruptIndexError(index.path, 0, f"entry {tuple(entry)} leads to no batch")
        except CorruptIndexError:
            self.index_suspect = True  # the log rebuilds it later; this reader walks
            return 0

    def floor_before_last(self) -> int:
        """A batch boundary with at least two batches after it, or 0: the last but one entry of the
        index, checked.
        """
        if self.offset_entries < 2:
            return 0
        index = self.segment.offset_index
        try:
            entry, last = index.last_two(self.offset_entries)
        except CorruptIndexError:
            return 0
        leads = entry.position < last.position and self._leads_to_batch(entry)
        return entry.position if leads else 0

    def offset_behind(self, position: int) -> int | None:
        """An offset above all batches that begin below ``position``: the answer of the index,
        checked. None if the index has none.
        """
        index = self.segment.offset_index
        try:
            entry = index.upper_bound(position, self.offset_entries)
            if entry is None or (entry.position >= position and self._leads_to_batch(entry)):
                return None if entry is None else entry.offset
            raise CorruptIndexError(index.path, 0, f"entry {tuple(entry)} leads to no batch")
        except CorruptIndexError:
            self.index_suspect = True
            return None

    def _leads_to_batch(self, entry: OffsetPosition) -> bool:
        if not 0 < entry.position <= self.size - HEADER_MIN:
            return False
        head = self.read_at(entry.position, 61)
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
        """The first batch whose last offset is ``offset`` or more (F-111); None past the end.

        Raises:
            CorruptBatchError: the search meets bytes that are no whole batch.
        """
        for span in self._walk_all(max(self.floor(offset), start)):
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
        """The batches that may hold the first record at or after ``timestamp`` (F-149)."""
        floor = TimestampOffset(-1, self.base_offset)
        if self.time_entries:  # otherwise there may be no file yet
            try:
                floor = self._checked(self.segment.time_index.lookup(timestamp, self.time_entries))
            except CorruptIndexError:
                self.index_suspect = True
        position = self.floor(max(floor.offset, start_offset))
        return (
            span
            for span in self._walk_all(position)
            if span.max_timestamp >= timestamp and span.last_offset >= start_offset
        )

    def read_next_offset(self) -> tuple[int, int]:
        """``(next offset, end of the last whole batch)``, by a walk from the last entry (F-252)."""
        position = self.floor(MAX_INT + self.base_offset) if self.offset_entries else 0
        next_offset, end = self.base_offset, position
        for span in self.walk(position):
            next_offset, end = span.last_offset + 1, span.position + span.size
        return next_offset, end

    def scan(self, position: int, *, check_crc: bool) -> Iterator[tuple[int, array[int], int]]:
        """Batch tables over windows of the file: ``(rows, columns, capacity)`` (see the kernels).

        Positions in the table are relative to the window. Ends at the first batch that is torn or,
        with ``check_crc``, has a bad checksum.
        """
        rows_max = min(SCAN_ROWS, max(self.size - position, 0) // HEADER_MIN + 1)
        columns = array("q", [0]) * (len(SCAN_COLUMNS) * rows_max)
        window = WINDOW
        while position < self.size:
            want = min(window, self.size - position)
            at_end = position + want == self.size
            with self.window(position, want) as view:
                rows, done, status = scan_batches(view, 0, columns, check_crc)
            if rows:
                yield rows, columns, rows_max
            position += done
            if status == SCAN_FULL:
                continue
            if at_end or status not in _WINDOW_ENDED:
                return
            window = WINDOW if done else window * 2  # a batch longer than the window


class Slice(NamedTuple):
    """Bytes of one segment, from a batch boundary; the end may cut a batch (F-158)."""

    view: SegmentView
    position: int
    size: int
    first_batch: BatchSpan


_WINDOW_ENDED = (SCAN_END, SCAN_TAIL, SCAN_INCOMPLETE)
_MAX_TIMESTAMP = SCAN_COLUMNS.index("max_timestamp")
_LAST_OFFSET = SCAN_COLUMNS.index("last_offset")


def no_whole_batch(path: str, position: int, size: int) -> CorruptBatchError:
    reason = f"{size - position} bytes to the end of the segment, which are no whole batch"
    return CorruptBatchError(path, position, reason)


def copy_range(
    source: File, start: int, end: int, storage: Storage, path: str, *, sync: bool = True
) -> None:
    """Write a part of a file to ``path``, where nothing else stays."""
    with closing(storage.open(path, create=True)) as copy:
        copy.truncate(0)
        for at in range(start, end, WINDOW):
            copy.write_at(at - start, source.read_at(at, min(WINDOW, end - at)))
        if sync:
            copy.sync()


def parse_span(data: bytes, at: int, position: int, path: str) -> BatchSpan | None:
    """The header at ``data[at]``, read from ``position`` of ``path``; None if it is incomplete.

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
