"""The segments of one log in order of their base offset. Matches Kafka's ``LogSegments``."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from logstore.common.errors import InvariantError
from logstore.segments.segment import Segment


class Segments:
    """The segments of a log. Never empty once the log is open; the last one is active.

    Readers use the immutable tuple that ``snapshot`` returns. A writer replaces the whole tuple, so
    there is always an active segment (KAFKA-12875).
    """

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments: tuple[Segment, ...] = ()
        self._bases: tuple[int, ...] = ()
        self.active: Segment  # a plain attribute: every append reads it
        self.replace_all(segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, index: int) -> Segment:
        return self._segments[index]

    @property
    def bases(self) -> list[int]:
        return list(self._bases)

    def snapshot(self) -> tuple[Segment, ...]:
        return self._segments

    def add(self, segment: Segment) -> None:
        if self._bases and segment.base_offset <= self._bases[-1]:
            raise InvariantError(
                f"{segment.log_path}: base offset is not above the active segment's "
                f"{self._bases[-1]}"
            )
        self._segments = (*self._segments, segment)
        self._bases = (*self._bases, segment.base_offset)
        self.active = segment

    def replace_all(self, segments: Iterable[Segment]) -> None:
        self._segments = tuple(sorted(segments, key=lambda s: s.base_offset))
        self._bases = tuple(s.base_offset for s in self._segments)
        self.active = self._segments[-1]

    def floor_index(self, offset: int) -> int:
        """Index of the segment that would hold ``offset``; −1 if it lies below the first."""
        return bisect_right(self._bases, offset) - 1

    def between(self, start: int, end: int) -> tuple[Segment, ...]:
        """Segments that overlap ``[start, end)``."""
        return self._segments[max(self.floor_index(start), 0) : bisect_left(self._bases, end)]
