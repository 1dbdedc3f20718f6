"""The batches of one partition as they lie in its files, from an offset on, across segments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer
from logstore.directory.layout import LogDirFiles, list_partition
from logstore.directory.listing import ListedSegment, PartitionLayout
from logstore.directory.positions import with_rolls
from logstore.directory.segment_index import SegmentIndex, log_end_offset, segment_of
from logstore.directory.windows import BatchTable
from logstore.format.batch_search import find_batch
from logstore.format.filenames import SWAP_SUFFIX
from logstore.storage.base import File
from logstore.storage.uri import open_storage
from logstore.verify.replicas.range_diff import RangeStart


@dataclass(frozen=True, slots=True)
class LocalExtent:
    """The offsets that the files of a partition have, as they were listed."""

    layout: PartitionLayout
    start: int
    end: int


def local_extent(directory: str, beside: LogDirFiles) -> LocalExtent:
    """List a partition's directory, and find its end.

    Raises:
        CorruptBatchError: the last segment has a header that makes no sense.
        NotALogDirectoryError, ResourceBusyError, OSError: as ``list_partition``.
    """
    return extent_of(list_partition(directory, beside))


def extent_of(layout: PartitionLayout) -> LocalExtent:
    """As ``local_extent``, of a directory that is listed."""
    # What a roll left waiting that does not follow is no part of the log: `verify` says so.
    whole = with_rolls(layout, note=lambda text: None)
    return LocalExtent(layout, layout.log_start_offset, log_end_offset(whole))


class LocalBatches:
    """A position in the files of a partition. Not thread-safe."""

    def __init__(self, extent: LocalExtent) -> None:
        layout = extent.layout
        self._waiting = {each.base_offset for each in layout.rolled}
        self._layout = with_rolls(layout, note=lambda text: None)
        self._number, self._position = 0, 0
        self._file: File | None = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    @property
    def _segments(self) -> tuple[ListedSegment, ...]:
        return self._layout.segments

    def seek(self, offset: int) -> None:
        """Go to the first batch that ends at or above ``offset``; behind damage, to the next whole
        one.

        Raises:
            OSError: the medium refused; FileNotFoundError: the segment was deleted since.
        """
        self.close()
        self._number = max(0, segment_of(self._segments, offset))
        self._position = 0
        if self._number < len(self._segments):
            self._position = self._place_in(self._segments[self._number], offset)

    def _place_in(self, segment: ListedSegment, offset: int) -> int:
        index = SegmentIndex(self._layout, segment)
        try:
            with index.windows(offset, open_end=True) as windows:
                for _, position, table in windows.tables(BatchTable):
                    lasts = table.cells("last_offset")
                    for row, last in enumerate(lasts):
                        if last >= offset:
                            return position + table.cells("position")[row]
        except CorruptBatchError as error:
            with closing(self._layout.open(segment.base_offset)) as file:
                found = find_batch(file, error.position, segment.size, offset)
            if found is not None:
                return found[0]
        return segment.size

    def read(self, size: int) -> bytes:
        """The next bytes from here on, at most ``size``: fewer only at the end of the log."""
        parts: list[bytes] = []
        number, position = self._number, self._position
        while size and number < len(self._segments):
            wanted = min(size, self._segments[number].size - position)
            parts.append(self._read_in(number, position, wanted))
            size -= len(parts[-1])
            if len(parts[-1]) < wanted:
                break  # cut since
            number, position = number + 1, 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_in(self, number: int, position: int, size: int) -> bytes:
        """Only the file of the position here stays open."""
        if size <= 0:
            return b""
        base = self._segments[number].base_offset
        if number != self._number:
            with closing(self._layout.open(base)) as file:
                return file.read_at(position, size)
        if self._file is None:
            self._file = self._layout.open(base)
        return self._file.read_at(position, size)

    def skip(self, size: int) -> None:
        """Go on by so many bytes, which ``read`` has returned."""
        self._position += size
        while (
            self._number < len(self._segments)
            and self._position >= self._segments[self._number].size
        ):
            self._position -= self._segments[self._number].size
            self._number += 1
            self.close()

    def range_starts(self, offset: int, end: int) -> list[RangeStart]:
        """Where the batches from ``offset`` on begin, in each segment that is below ``end``."""
        self.seek(offset)
        found: list[RangeStart] = []
        for segment in self._segments[self._number :]:
            if segment.base_offset < end:
                transition = SWAP_SUFFIX if segment.base_offset in self._waiting else ""
                path = self._layout.path_of(segment.base_offset, transition=transition)
                storage = self._layout.storage
                place = open_storage(path) if storage is None else (storage, path)
                found.append(RangeStart(*place, 0 if found else self._position))
        return found

    def batches(self, offset: int, end: int) -> Iterator[Buffer]:
        """The bytes of each whole batch of ``[offset, end)``, until the next one is asked for.

        Raises:
            CorruptBatchError: there is none where one should be.
            OSError: the medium refused.
        """
        self.seek(offset)
        first = self._position
        for segment in self._segments[self._number :]:
            if segment.base_offset >= end:
                return
            index = SegmentIndex(self._layout, segment)
            with index.windows(position=first, open_end=True) as windows:
                for window, _, table in windows.tables(BatchTable):
                    for row, base in enumerate(table.cells("base_offset")):
                        if base >= end:
                            return
                        yield window[table.span(row, row + 1)]
            first = 0
