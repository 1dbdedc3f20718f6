"""A partition's directory as a listing shows it: names and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from logstore.format import filenames
from logstore.format.reader import MAX_OFFSET
from logstore.storage.uri import join_uri

UNKNOWN = -1
MISSING = -1
"""Size of a file that is not there."""


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A ``.log`` by its name, with the listed sizes in bytes of its files."""

    base_offset: int
    size: int
    index_size: int = MISSING
    time_index_size: int = MISSING
    txn_index_size: int = MISSING
    mtime_ms: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """A partition's directory as listed.

    ``log_start_offset`` is the higher of the checkpointed one and the first segment's.
    ``high_watermark`` is the checkpointed one, or ``UNKNOWN``. ``snapshots`` are the offsets of its
    producer snapshots, ascending. ``topic_id`` comes from `identity.topic_id`.
    """

    uri: str
    broker: str
    topic: str
    partition: int
    segments: tuple[ListedSegment, ...]
    log_start_offset: int
    high_watermark: int = UNKNOWN
    snapshots: tuple[int, ...] = ()
    rolled: tuple[ListedSegment, ...] = ()
    """Segments that wait as ``.log.swap`` until the segments before them are durable.

    ``positions.with_rolls`` decides which of them count.
    """
    topic_id: str = ""
    replaced: bool = False
    """Whether segments were being replaced, so that some may lack their final name."""
    drop_malformed: bool = False
    """Whether damage is left out with a warning, also while planning."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def bounded(self) -> Iterator[tuple[ListedSegment, int]]:
        """Each segment with the offset where the next one begins, ``MAX_OFFSET`` for the last."""
        bases = [segment.base_offset for segment in self.segments]
        return zip(self.segments, [*bases[1:], MAX_OFFSET], strict=False)

    def path_of(self, base_offset: int, suffix: str = filenames.LOG_SUFFIX) -> str:
        return join_uri(self.uri, filenames.segment_file_name(base_offset, suffix))
