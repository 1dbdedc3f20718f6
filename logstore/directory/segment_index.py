"""Find where the batches of a segment start, from its indexes.

An index is a hint without a checksum. So an entry counts only if it points to a sound batch, and
that batch alone decides where reading may begin or end. If an entry points nowhere, the whole index
counts as missing: reading then starts earlier, and the segment is not split. Entries of batches
that were written after the listing are skipped.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

from checkpoints.files import UnusableFileError
from checkpoints.loggers import get_logger
from logstore.common.errors import CorruptBatchError
from logstore.directory.errors import ListingOutdatedError
from logstore.directory.listing import ListedSegment, PartitionLayout
from logstore.directory.splits import FileProof, prove
from logstore.directory.windows import BatchTable, Windows
from logstore.format import filenames
from logstore.format.index_entry import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    used_offset_entries,
    used_time_entries,
)
from logstore.format.reader import MAX_OFFSET
from logstore.storage.base import File
from logstore.storage.identity import FileIdentity
from logstore.storage.local import LocalStorage
from logstore.storage.uri import open_storage, shown, shown_file

_INDEX_SIZE_MAX = 64 << 20  # Kafka's own limit is 10 MiB
_BATCH_SIZE_MAX = 16 << 20  # the entry of a larger batch does not count
_ENTRIES_TRIED = 3
_INDEX_STEP = 64 << 10  # doubled for each further read
_FIRST_READ = 32 << 10  # holds most batches: one request to an object store

logger = get_logger(__name__)


def _entry(layout: struct.Struct, data: bytes, number: int) -> tuple[int, int]:
    """The two fields of an entry of an index file."""
    first, second = layout.unpack_from(data, number * layout.size)
    return first, second


class IndexedBatch(NamedTuple):
    """A sound batch at a position of the ``.log``, with the fields that an index has."""

    position: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class SegmentIndex:
    """The offset and the time index of one segment, each read when it is first needed."""

    def __init__(self, layout: PartitionLayout, segment: ListedSegment) -> None:
        self.layout, self.segment = layout, segment
        self.path = layout.path_of(segment.base_offset)
        self._files: dict[str, bytes] = {}
        self.starts: dict[int, int] = {}
        """Base offsets of batches that entries led to, by position."""

    @contextmanager
    def windows(
        self,
        offset: int = 0,
        end_position: int | None = None,
        *,
        position: int | None = None,
        open_end: bool,
    ) -> Iterator[Windows]:
        """Open the ``.log`` from ``position`` on, or from a batch at or below ``offset``.

        ``end_position`` is the listed size unless given. It and ``open_end`` are as in `Windows`.
        """
        end = self.segment.size if end_position is None else end_position
        with closing(self.layout.open(self.segment.base_offset)) as file:
            yield Windows(
                file,
                self.path,
                self.floor(offset) if position is None else position,
                end,
                open_end=open_end,
                drop_malformed=self.layout.drop_malformed,
            )

    def proof(self, positions: Sequence[int], *, may_grow: bool) -> FileProof:
        """The proof of the file as it was listed. ``positions`` are starts of batches.

        Raises:
            ListingOutdatedError: the file was replaced or changed since.
            OSError: the medium refused.
        """
        listed = FileIdentity(-1, self.segment.file_size, self.segment.mtime_ms)
        is_shown = bool(shown_file(self.path))
        storage, _ = open_storage(shown_file(self.path) or self.path)
        if not isinstance(storage, LocalStorage):
            return FileProof(listed, may_grow=False)  # an object does not grow
        with closing(self.layout.open(self.segment.base_offset)) as file:
            proof = prove(file, storage, tuple(positions), may_grow)
        now = proof.file
        if is_shown:  # with another time than the file's
            listed = listed._replace(mtime_ms=now.mtime_ms)
        if now.size < listed.size or (not may_grow and now[1:] != listed[1:]):
            raise ListingOutdatedError(self.path)
        return replace(proof, file=now._replace(size=listed.size))

    def last_batch(self) -> int | None:
        """The position of the last whole batch; ``None`` if it is not known."""
        last = None
        with suppress(CorruptBatchError), self.windows(MAX_OFFSET, open_end=True) as windows:
            for _, position, table in windows.tables(BatchTable):
                last = position + table.cells("position")[-1]
        return last

    # -- offsets and positions -----------------------------------------------------------------

    def floor(self, offset: int) -> int:
        """The position of a batch that begins at or below ``offset``; 0 if none is known."""
        batch = self._batch_of(
            bisect_right(self._entries, self._relative(offset), key=self._offset_of) - 1
        )
        return 0 if batch is None else batch.position

    def ceiling(self, offset: int) -> int:
        """The position of a batch that begins at or above ``offset``, or the file's size."""
        # The batch after one that reaches ``offset`` begins at or above it. The entry of an append
        # has the last offset, and the append may begin with batches that end below.
        entry = bisect_left(self._entries, self._relative(offset), key=self._offset_of)
        batch = self._batch_of(entry)
        for _ in range(_ENTRIES_TRIED):
            entry += 1
            following = self._batch_of(entry)
            if batch is None or following is None or following.position <= batch.position:
                break
            if batch.last_offset >= offset - 1:
                return following.position
            batch = following
        return self.segment.size

    def boundaries(self, start: int, end: int, step: int) -> Iterator[int]:
        """Starts of batches inside ``(start, end)``, at least ``step`` bytes apart.

        The distance is larger only where the index has no entry in between.
        """
        while start + step < end:
            batch = self._batch_of(bisect_left(self._entries, start + step, key=self._position_of))
            if batch is None or not start < batch.position < end:
                return
            start = batch.position
            yield start

    @property
    def _entries(self) -> range:
        return range(len(self._read(filenames.INDEX_SUFFIX)) // OFFSET_ENTRY.size)

    def _offset_of(self, entry: int) -> int:
        return _entry(OFFSET_ENTRY, self._read(filenames.INDEX_SUFFIX), entry)[0]

    def _position_of(self, entry: int) -> int:
        return _entry(OFFSET_ENTRY, self._read(filenames.INDEX_SUFFIX), entry)[1]

    def _relative(self, offset: int) -> int:
        return offset - self.segment.base_offset

    def _batch_of(self, entry: int) -> IndexedBatch | None:
        """The batch that an entry of the offset index points to; ``None`` if there is none."""
        if entry not in self._entries:
            return None
        offset, position = self._offset_of(entry), self._position_of(entry)
        batch = self._batch_at(position)
        before = self._offset_of(entry - 1) if entry else -1
        if batch is None or not before < self._relative(batch.base_offset) <= offset:
            self._distrust(filenames.INDEX_SUFFIX, f"entry {entry} leads to no batch")
            return None
        self.starts[position] = batch.base_offset
        return batch

    def _batch_at(self, position: int) -> IndexedBatch | None:
        if not 0 <= position < self.segment.size:
            return None
        with closing(self.layout.open(self.segment.base_offset)) as file:
            data = file.read_at(position, _FIRST_READ)
            size = 12 + int.from_bytes(data[8:12], "big", signed=True)
            if len(data) < size <= _BATCH_SIZE_MAX:
                data = file.read_at(position, size)
        table = BatchTable(data[:size], check_crc=True)
        if table.rows != 1:
            return None
        names = ("base_offset", "last_offset", "max_timestamp")
        return IndexedBatch(position, *(table.cells(name)[0] for name in names))

    # -- timestamps ----------------------------------------------------------------------------

    def first_offset_from(self, timestamp: int) -> int:
        """An offset below which every record of the segment is earlier than ``timestamp``, in ms.

        It is the segment's base offset if nothing better is known.
        """
        times = self._read(filenames.TIME_INDEX_SUFFIX)
        entries = range(len(times) // TIME_ENTRY.size)
        newest = bisect_left(entries, timestamp, key=lambda n: _entry(TIME_ENTRY, times, n)[0]) - 1
        for entry in range(newest, max(newest - _ENTRIES_TRIED, -1), -1):
            latest, relative = _entry(TIME_ENTRY, times, entry)
            offset = self.segment.base_offset + relative
            batch = self._batch_with(offset)
            if batch is None:
                continue  # written since the segment was listed, or nowhere
            if batch.max_timestamp == latest:
                return offset + 1
            self._distrust(filenames.TIME_INDEX_SUFFIX, f"entry {entry} does not fit its batch")
            break
        return self.segment.base_offset

    def _batch_with(self, offset: int) -> IndexedBatch | None:
        with self.windows(offset, open_end=True) as windows:
            for _, position, table in windows.tables(BatchTable):
                lasts = table.cells("last_offset")
                row = bisect_left(lasts, offset)
                if row < len(lasts):
                    return self._batch_at(position + table.cells("position")[row])
        return None

    # -- files ---------------------------------------------------------------------------------

    def _read(self, suffix: str) -> bytes:
        """The whole used entries of an index; none where it is missing."""
        if suffix not in self._files:
            self._files[suffix] = self._load(suffix)
        return self._files[suffix]

    def _load(self, suffix: str) -> bytes:
        is_time = suffix == filenames.TIME_INDEX_SUFFIX
        size = self.segment.time_index_size if is_time else self.segment.index_size
        if not 0 < size <= _INDEX_SIZE_MAX:
            return b""
        try:
            with closing(self.layout.open(self.segment.base_offset, suffix)) as file:
                data = _up_to_zeros(file, size)
        except (FileNotFoundError, UnusableFileError):
            return b""
        if is_time:
            return data[: used_time_entries(data) * TIME_ENTRY.size]
        used = used_offset_entries(data)
        while used and _entry(OFFSET_ENTRY, data, used - 1)[1] >= self.segment.size:
            used -= 1  # entries written since the segment was listed
        return data[: used * OFFSET_ENTRY.size]

    def _distrust(self, suffix: str, reason: str) -> None:
        self._files[suffix] = b""
        path = shown(self.layout.path_of(self.segment.base_offset, suffix))
        logger.warning("%s: %s: the index is not used", path, reason)


def _up_to_zeros(file: File, size: int) -> bytes:
    """The file without the preallocated space of an active index (F-140), most of it perhaps."""
    parts: list[bytes] = []
    position, step = 0, _INDEX_STEP
    while position < size:
        parts.append(file.read_at(position, min(step, size - position)))
        if parts[-1].count(0) == len(parts[-1]):
            break
        position, step = position + step, 2 * step
    return b"".join(parts)


def log_end_offset(layout: PartitionLayout) -> int:
    """One past the last record of the log as it was listed.

    Walks the headers after the last index entry of the last segment.

    Raises:
        CorruptBatchError: a header that makes no sense.
        OSError: the medium refused.
    """
    end = layout.log_start_offset
    if not layout.segments:
        return end
    segment = layout.segments[-1]
    index = SegmentIndex(layout, segment)
    with index.windows(MAX_OFFSET, open_end=True) as windows:
        end = max(end, segment.base_offset)
        for _, _, table in windows.tables(BatchTable):
            end = max(end, table.cells("last_offset")[-1] + 1)
    return end


def sound_end(layout: PartitionLayout, segment: ListedSegment) -> int | None:
    """One past the last record before the first batch, from the last index entry on, that has a
    wrong checksum or goes back in offsets; ``None`` if there is no record.
    """
    end: int | None = None
    index = SegmentIndex(layout, segment)
    # Whatever is no batch ends it: the zeros of a sparse file are not read to their end.
    with suppress(CorruptBatchError), index.windows(MAX_OFFSET, open_end=False) as windows:
        for _, _, table in windows.tables(BatchTable, check_crc=True):
            for last in table.cells("last_offset"):
                if end is not None and last < end:
                    return end
                end = last + 1
    return end


def segment_of(segments: Sequence[ListedSegment], offset: int) -> int:
    """The number of the segment in which ``offset`` lies, or would; −1 below all."""
    return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
