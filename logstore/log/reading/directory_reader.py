"""Follow a log that another process writes, ours or a Kafka broker, by its files alone.

No lock is taken and nothing is written. Files are opened for each read, so the next read sees what
the writer renames or replaces. Only whole batches with a right checksum count, so an unfinished
write is not visible. The high watermark is not in the files, so a broker's replica may be read
beyond it.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import AsyncIterator
from dataclasses import replace
from operator import ge
from typing import NamedTuple

from checkpoints.errors import CheckpointError
from checkpoints.offset_checkpoint import LOG_START, OffsetCheckpoint
from checkpoints.types import TopicPartition
from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import (
    CorruptBatchError,
    LogClosedError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from logstore.common.types import Record
from logstore.directory.listing import ListedSegment, PartitionLayout, listed
from logstore.directory.segment_index import SegmentIndex, segment_of, sound_end
from logstore.directory.windows import BatchTable
from logstore.format import filenames
from logstore.format.header import HEADER_SIZE
from logstore.format.large_batch import worth_reading
from logstore.format.reader import read_records
from logstore.kernels import (
    SCAN_BAD_CRC,
    SCAN_BAD_OFFSET,
    SCAN_END,
    SCAN_INCOMPLETE,
    SCAN_REASONS,
    SCAN_TAIL,
)
from logstore.log.core import medium_error
from logstore.log.listeners import TruncationWatch
from logstore.log.reading.following import FETCH_BYTES, FetchedRecords, Follower
from logstore.storage.base import File, Storage
from logstore.storage.local import LocalStorage
from logstore.storage.paths import absolute_path

POLL_SECONDS = 0.05
_ATTEMPTS = 5  # how often one read follows a directory that keeps changing
_ROWS = 1024
_HEAD = 17  # bytes of a batch up to its magic
_CUT_SHORT = (SCAN_END, SCAN_TAIL, SCAN_INCOMPLETE)


class _Scan(NamedTuple):
    """Whole batches in ``data``, which begins at ``start`` of the file: ``(position, last offset)``
    of each, the end of all, and why the scan ended."""

    start: int
    data: bytes
    rows: list[tuple[int, int]]
    end: int
    status: int

    def header(self, row: int) -> bytes:
        at = self.rows[row][0] - self.start
        return self.data[at : at + HEADER_SIZE]


class _BatchPlace(NamedTuple):
    """The place where the next batch begins or will begin."""

    base_offset: int  # of the segment
    position: int


class _Known(NamedTuple):
    """The last batch that was read. If another one lies there now, the log was cut."""

    place: _BatchPlace
    last_offset: int
    header: bytes


class DirectoryReader:
    """The log in a partition directory that another process may be writing.

    There may be any number of readers, in any process. It keeps no file open.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        storage: Storage | None = None,
        clock: Clock | None = None,
    ) -> None:
        """
        Raises:
            UnknownTopicOrPartitionError: the directory does not exist.
            InvalidTopicError: its name is not ``topic-partition``.
        """
        self.storage = storage or LocalStorage()
        self.directory = absolute_path(self.storage, directory)
        self.clock = clock or SystemClock()
        name = os.path.basename(os.path.normpath(self.directory))
        self.topic_partition: TopicPartition = filenames.parse_partition_dir(name).topic_partition
        self._nothing_listed = listed(self.directory, self.topic_partition, (), self.storage)
        if not self._is_there():
            raise UnknownTopicOrPartitionError(f"there is no directory {self.directory}")

    @property
    def name(self) -> str:
        return str(self.topic_partition)

    @property
    def log_start_offset(self) -> int:
        """The first offset of the first segment, or a higher log start on file."""
        return max([*self.bases()[:1], self._start_on_file()])

    @property
    def log_end_offset(self) -> int:
        """Offset after the last whole batch."""
        return max(self._start_on_file(), self.end_on_file())

    def _start_on_file(self) -> int:
        parent = os.path.dirname(os.path.normpath(self.directory))
        try:
            starts = OffsetCheckpoint(os.path.join(parent, LOG_START), self.storage).read()
        except CheckpointError:
            starts = {}
        return starts.get(self.topic_partition, 0)

    def end_on_file(self) -> int:
        """As ``log_end_offset``, without regard to the log start."""
        return _DirectorySource(self, POLL_SECONDS).end()

    def follow(
        self, start: int | None = None, *, timeout: float | None = None, poll: float = POLL_SECONDS
    ) -> Follower:
        """The records from ``start`` on (None or EARLIEST: the log start; LATEST: the log end), as
        they come. See ``PartitionLog.follow``.

        Args:
            timeout: end after so many seconds without a record.
            poll: seconds between two reads of the directory while there is nothing new.
        Raises:
            OffsetOutOfRangeError: here or while reading, if the next records were deleted.
            LogTruncatedError: records that were read were cut off.
            CorruptBatchError: a damaged batch with others after it.
            LogClosedError: the directory is gone.
        """
        return Follower(_DirectorySource(self, poll), start, timeout)

    def follow_async(
        self, start: int | None = None, *, timeout: float | None = None, poll: float = POLL_SECONDS
    ) -> AsyncIterator[Record]:
        """As ``follow``, in an event loop."""
        return self.follow(start, timeout=timeout, poll=poll).records_async()

    # -- files ---------------------------------------------------------------------------------

    def _is_there(self) -> bool:
        try:
            info = self.storage.info(self.directory)
        except OSError as error:
            raise medium_error(self.directory, "read", error) from error
        return info is not None and info.is_dir

    def _layout(self) -> PartitionLayout:
        """The files as they are now, with the segments that wait for their final names.

        Raises:
            LogClosedError: the directory is gone.
        """
        try:
            entries = [e for e in self.storage.scan_dir(self.directory) if not e.is_dir]
        except FileNotFoundError:
            raise LogClosedError(f"{self.directory} is gone") from None
        except OSError as error:
            raise medium_error(self.directory, "list", error) from error
        found = listed(self.directory, self.topic_partition, entries, self.storage)
        return replace(found, segments=found.segments + found.rolled, rolled=())

    def bases(self) -> list[int]:
        """Base offsets of the segments, ascending.

        Raises:
            LogClosedError: the directory is gone.
        """
        return [segment.base_offset for segment in self._layout().segments]

    def open(self, base_offset: int) -> File:
        """Open the ``.log`` of a segment. It has another name until its predecessor is durable."""
        return self._nothing_listed.open(base_offset)

    def log_path(self, base_offset: int, suffix: str = filenames.LOG_SUFFIX) -> str:
        return self._nothing_listed.path_of(base_offset, suffix)


def follow_directory(
    path: str | os.PathLike[str],
    topic: str,
    partition: int,
    start: int | None = None,
    *,
    timeout: float | None = None,
    poll: float = POLL_SECONDS,
) -> Follower:
    """Follow a partition of the log directory ``path``, which another process writes; see
    ``DirectoryReader.follow``.

    Raises:
        UnknownTopicOrPartitionError: the partition does not exist.
    """
    name = filenames.partition_dir_name(TopicPartition(topic, partition))
    return DirectoryReader(os.path.join(path, name)).follow(start, timeout=timeout, poll=poll)


class _DirectorySource:
    """The `Source` of one follower. It remembers the place, and the last batch before it."""

    def __init__(self, reader: DirectoryReader, poll: float) -> None:
        self._reader = reader
        self._poll = max(poll, 0.001)
        self.watch = TruncationWatch()  # never notified
        self._at: _BatchPlace | None = None
        self._known: _Known | None = None
        self._expected = -1  # the offset of the next fetch, unless the follower seeks
        self._suspect: _BatchPlace | None = None  # a damaged batch, which may be only half written

    @property
    def clock(self) -> Clock:
        return self._reader.clock

    def range(self) -> tuple[int, int]:
        return self._reader.log_start_offset, self._reader.log_end_offset

    def end(self) -> int:
        for _ in range(_ATTEMPTS):
            layout = self._reader._layout()
            if not layout.segments:
                return 0
            last = layout.segments[-1].base_offset
            try:
                # That of the last segment with a batch, or the base of a later one.
                ends = (sound_end(layout, segment) for segment in reversed(layout.segments))
                return max(next((end for end in ends if end is not None), last), last)
            except FileNotFoundError:
                continue
            except (OSError, MemoryError) as error:
                raise medium_error(self._reader.directory, "read", error) from error
        return last

    def wait(self, offset: int, timeout: float | None) -> bool:
        pause = self._pause(timeout)
        threading.Event().wait(pause)
        return timeout is None or pause < timeout

    async def wait_async(self, offset: int, timeout: float | None) -> bool:
        import asyncio

        pause = self._pause(timeout)
        await asyncio.sleep(pause)
        return timeout is None or pause < timeout

    def _pause(self, timeout: float | None) -> float:
        return self._poll if timeout is None else min(self._poll, timeout)

    # -- reading -------------------------------------------------------------------------------

    def fetch(self, offset: int) -> FetchedRecords | None:
        if offset != self._expected:  # the follower has sought
            self._at = self._known = None
            self._expected = offset
        try:
            portion = self._fetch(offset)
        except (OSError, MemoryError) as error:
            raise medium_error(self._reader.directory, "read", error) from error
        if portion is not None:
            self._expected = portion.next_offset
        return portion

    def _fetch(self, offset: int) -> FetchedRecords | None:
        for _ in range(_ATTEMPTS):
            try:
                place = self._at = self._at or self._find(offset)
                if place is None:
                    return None
                portion = self._read(place, offset)
                if portion is not None:
                    return portion
                if not self._go_to_next_segment(place):
                    return None
            except FileNotFoundError:
                self._at = None  # deleted, cut off or renamed, so find it again
        return None  # the directory changes faster than it can be read

    def _read(self, place: _BatchPlace, offset: int) -> FetchedRecords | None:
        """Read at the place. None if there is no whole batch yet."""
        file = self._reader.open(place.base_offset)
        try:
            scan = _scan(file, place.position, self._last_offset())
            # After reading, because bytes that replaced others in between do not count.
            self._check_known(file, place, offset)
        finally:
            file.close()
        if not scan.rows:
            self._check_damage(place, scan)
            return None
        self._suspect = None
        records = read_records(
            scan.data[: scan.end - scan.start],
            from_offset=offset,
            check_crc=False,
            path=self._reader.log_path(place.base_offset),
            base_position=place.position,
        )
        position, last_offset = scan.rows[-1]
        self._known = _Known(_BatchPlace(place.base_offset, position), last_offset, scan.header(-1))
        self._at = _BatchPlace(place.base_offset, scan.end)
        return FetchedRecords(records, max(last_offset + 1, offset))

    def _last_offset(self) -> int:
        return -1 if self._known is None else self._known.last_offset

    def _check_known(self, file: File, place: _BatchPlace, offset: int) -> None:
        known = self._known
        if file.size() < place.position:
            raise self._truncated(offset)
        if known is None:
            return
        if known.place.base_offset == place.base_offset:
            found = file.read_at(known.place.position, HEADER_SIZE)
        else:
            try:
                before = self._reader.open(known.place.base_offset)
            except FileNotFoundError:
                return  # deleted by retention, since the next segment exists
            try:
                found = before.read_at(known.place.position, HEADER_SIZE)
            finally:
                before.close()
        if found != known.header:
            raise self._truncated(offset)

    def _truncated(self, offset: int) -> LogTruncatedError:
        reader = self._reader
        end = min(self.end(), offset - 1)
        return LogTruncatedError(reader.name, offset, reader.log_start_offset, end)

    def _check_damage(self, place: _BatchPlace, scan: _Scan) -> None:
        """Raise if the bytes at the place are certainly damaged: unchanged since the last read, and
        followed by others.
        """
        if scan.status in _CUT_SHORT or not any(scan.data[:_HEAD]):
            return
        if len(scan.data) > _batch_size(scan.data):
            self._raise_if_suspect(place, scan)
        self._suspect = place

    def _raise_if_suspect(self, place: _BatchPlace, scan: _Scan) -> None:
        if self._suspect == place:
            path = self._reader.log_path(place.base_offset)
            raise CorruptBatchError(path, place.position, SCAN_REASONS[scan.status])

    def _go_to_next_segment(self, place: _BatchPlace) -> bool:
        """Go to the next segment, if there is one and this one has no more."""
        bases = self._reader.bases()
        at = bisect_right(bases, place.base_offset)
        if at == len(bases):
            return False
        file = self._reader.open(place.base_offset)
        try:
            # Batches appended before the roll count first; a torn end is never finished.
            scan = _scan(file, place.position, self._last_offset())
        finally:
            file.close()
        if scan.data and not scan.rows:
            self._raise_if_suspect(place, scan)
            self._suspect = place
            return False
        if not scan.rows:
            self._at = _BatchPlace(bases[at], 0)
        return True

    # -- finding a place -----------------------------------------------------------------------

    def _find(self, offset: int) -> _BatchPlace | None:
        """Find the place after the last batch that was read, or the first batch that reaches
        ``offset``.
        """
        layout = self._reader._layout()
        segments = layout.segments
        if not segments:
            return None
        known, first = self._known, segments[0].base_offset
        if offset < first:
            raise OffsetOutOfRangeError(self._reader.name, offset, first, self.end())
        if known is not None and known.last_offset >= first:
            place = self._behind(known, layout)
            if place is None:
                raise self._truncated(offset)
            return place
        at = segment_of(segments, offset)
        place, end = self._reach(layout, segments[at], offset)
        for segment in reversed(segments[:at]):
            if end > segments[at].base_offset:
                break
            # A segment without a batch hides none that the one before it has.
            before, end = self._reach(layout, segment, offset)
            if end > offset:
                return before
            if end > segment.base_offset:
                break
        end = max(end, segments[at].base_offset)
        if offset > end and at == len(segments) - 1:
            raise OffsetOutOfRangeError(self._reader.name, offset, first, end)
        return place

    def _reach(
        self, layout: PartitionLayout, segment: ListedSegment, offset: int
    ) -> tuple[_BatchPlace, int]:
        """The first batch of a segment that reaches ``offset``, and its end; or the end of all."""
        base = segment.base_offset
        file = layout.open(base)
        try:
            position, end = SegmentIndex(layout, segment).floor(offset), base
            while (scan := _scan(file, position)).rows:
                for at, last_offset in scan.rows:
                    if last_offset >= offset:
                        return _BatchPlace(base, at), last_offset + 1
                position, end = scan.end, scan.rows[-1][1] + 1
        finally:
            file.close()
        return _BatchPlace(base, position), end

    def _behind(self, known: _Known, layout: PartitionLayout) -> _BatchPlace | None:
        """The place after a batch; None if the batch is no longer in the log."""
        segment = layout.segments[segment_of(layout.segments, known.last_offset)]
        base = segment.base_offset
        file = layout.open(base)
        try:
            position = SegmentIndex(layout, segment).floor(known.last_offset)
            while (scan := _scan(file, position)).rows:
                for row, (at, last_offset) in enumerate(scan.rows):
                    if last_offset >= known.last_offset:
                        same = scan.header(row) == known.header
                        return _BatchPlace(base, at + _batch_size(known.header)) if same else None
                position = scan.end
        finally:
            file.close()
        return None


def _scan(file: File, position: int, last_offset: int = -1) -> _Scan:
    """The whole batches with a right checksum from ``position`` on, about a MiB of them.

    Ends at the first batch whose offsets go back. ``last_offset`` is the offset before the first.
    """
    want = FETCH_BYTES
    while True:
        data = file.read_at(position, want)
        table = BatchTable(data, check_crc=True, rows=_ROWS)
        end, status, first_size = table.end, table.status, _batch_size(data)
        if table.rows or status != SCAN_INCOMPLETE or len(data) < want or first_size <= want:
            break
        if first_size > file.size() - position:
            break
        if not worth_reading(file, position, first_size):
            status = SCAN_BAD_CRC
            break
        want = first_size  # a batch longer than what was read
    positions, last_offsets = table.cells("position").tolist(), table.cells("last_offset").tolist()
    before = [last_offset, *last_offsets]
    if any(map(ge, before, last_offsets)):
        found = next(row for row, last in enumerate(last_offsets) if before[row] >= last)
        end, status, last_offsets = positions[found], SCAN_BAD_OFFSET, last_offsets[:found]
    batches = [(position + at, last) for at, last in zip(positions, last_offsets, strict=False)]
    return _Scan(position, data, batches, position + end, status)


def _batch_size(data: bytes) -> int:
    """The size of the batch that begins here according to its header; 0 if it is incomplete."""
    size = int.from_bytes(data[8:12], "big", signed=True)
    return size + 12 if len(data) >= 12 and size > 0 else 0
