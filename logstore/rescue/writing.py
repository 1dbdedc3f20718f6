"""The new log: segments with nothing but batches. Recovery builds the indexes and the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from logstore.format import filenames
from logstore.format.header import HEADER_SIZE
from logstore.rescue.merging import MergedRange
from logstore.rescue.patchy import PatchyFile
from logstore.rescue.ranges import mended_head
from logstore.storage.base import File, Storage

_PIECE = 1 << 20
_RELATIVE_MAX = 2**31 - 1


class RescueWriter:
    """Writes batches of one partition into new segments.

    Args:
        bases: where segments of the sources begin; new ones begin there too.
        segment_bytes: the largest size of a segment that holds more than one stretch.
    """

    def __init__(
        self, storage: Storage, directory: str, bases: Sequence[int], segment_bytes: int
    ) -> None:
        self._storage, self._directory = storage, directory
        self._bases, self._segment_bytes = sorted(bases), segment_bytes
        self._file: File | None = None
        self._base = self._size = 0
        self._aside: dict[str, int] = {}

    def add(self, stretch: MergedRange, file: PatchyFile) -> None:
        """Append the batches of ``stretch``, which lie in ``file``."""
        if self._file is None or self._is_full(stretch):
            self._roll(stretch.first)
        assert self._file is not None
        for data in bytes_of(stretch, file):
            self._file.write_at(self._size, data)
            self._size += len(data)

    def _is_full(self, stretch: MergedRange) -> bool:
        return (
            self._size + stretch.end - stretch.start > self._segment_bytes
            or stretch.next - 1 - self._base > _RELATIVE_MAX
            or (bool(self._bases) and self._bases[0] <= stretch.first)
        )

    def _roll(self, base: int) -> None:
        self.finish()
        name = filenames.segment_file_name(base, filenames.LOG_SUFFIX)
        self._file = self._storage.open(os.path.join(self._directory, name), create=True)
        self._base, self._size = base, 0
        while self._bases and self._bases[0] <= base:
            self._bases.pop(0)

    def start_empty(self, base: int) -> None:
        """Begin a log without batches that continues at ``base``."""
        self._roll(base)

    def finish(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None

    def keep_aside(self, name: str, stretch: MergedRange, file: PatchyFile) -> None:
        """Append to a file that is not part of the log."""
        aside = self._storage.open(os.path.join(self._directory, name), create=True)
        try:
            position = self._aside.get(name, 0)
            for data in bytes_of(stretch, file):
                aside.write_at(position, data)
                position += len(data)
            self._aside[name] = position
            aside.sync()
        finally:
            aside.close()


def bytes_of(stretch: MergedRange, file: PatchyFile) -> Iterator[bytes]:
    """The bytes of a stretch in pieces. A mended batch has its right header."""
    start = stretch.start
    if stretch.source.piece.mended:
        head = file.read_at(start, min(HEADER_SIZE, stretch.end - start))
        yield mended_head(stretch.source.piece, head)
        start += len(head)
    for at in range(start, stretch.end, _PIECE):
        yield file.read_at(at, min(_PIECE, stretch.end - at))
