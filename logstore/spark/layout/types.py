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
class SegmentFile:
    """A ``.log`` by its name, and the sizes in bytes of the files beside it when it was listed."""

    base_offset: int
    size: int
    index_size: int = MISSING
    time_index_size: int = MISSING
    txn_index_size: int = MISSING
    mtime_ms: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """A partition's directory as listed.

    ``log_start_offset`` is the checkpointed one or the first segment's, whichever is higher;
    ``high_watermark`` the checkpointed one, ``UNKNOWN`` without. ``snapshots`` are the offsets of
    its producer snapshots, ascending; ``topic_id`` is as ``identity.topic_id`` has it.
    """

    uri: str
    broker: str
    topic: str
    partition: int
    segments: tuple[SegmentFile, ...]
    log_start_offset: int
    high_watermark: int = UNKNOWN
    snapshots: tuple[int, ...] = ()
    rolled: tuple[SegmentFile, ...] = ()
    """Segments that wait for their names until what is before them is durable (``.log.swap``);
    ``positions.with_rolls`` tells which of them count."""
    topic_id: str = ""
    replaced: bool = False
    """Segments were being replaced by others, so that some may have no name of their own."""
    drop_malformed: bool = False
    """What is damaged is left out with a warning, while planning too."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def bounded(self) -> Iterator[tuple[SegmentFile, int]]:
        """Each segment with the offset where the next one begins, ``MAX_OFFSET`` for the last."""
        bases = [segment.base_offset for segment in self.segments]
        return zip(self.segments, [*bases[1:], MAX_OFFSET], strict=False)

    def path_of(self, base_offset: int, suffix: str = filenames.LOG_SUFFIX) -> str:
        return join_uri(self.uri, filenames.segment_file_name(base_offset, suffix))
