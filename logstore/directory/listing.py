"""A partition's directory as a listing shows it: names and sizes, and the id of its topic.

A listing does not show one moment: it reads names in parts and sizes one after the other, and may
miss both names of a file that is renamed. Segments that were rolled before the first listing ended
no longer change, so a listing of them is right once the next one agrees.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from checkpoints.errors import MalformedCheckpointError
from checkpoints.loggers import get_logger
from checkpoints.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadataFile,
    topic_id_to_text,
)
from checkpoints.types import TopicPartition
from logstore.common.errors import ResourceBusyError
from logstore.format import filenames
from logstore.format.filenames import roll_marks
from logstore.format.reader import MAX_OFFSET
from logstore.storage.base import File, FileInfo, Storage
from logstore.storage.uri import join_uri, open_storage, shown

logger = get_logger(__name__)

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
    whole_size: int = MISSING
    """Size of the ``.log`` where only its beginning counts, up to a batch that lies elsewhere."""

    max_timestamp: int = UNKNOWN
    """No record is later, in ms, or ``UNKNOWN``."""

    def is_before(self, timestamp: int) -> bool:
        """Whether every record is known to be earlier than ``timestamp``, in ms."""
        return UNKNOWN < self.max_timestamp < timestamp

    @property
    def file_size(self) -> int:
        """Size of the ``.log`` as it was listed."""
        return self.size if self.whole_size == MISSING else self.whole_size


@dataclass(frozen=True, slots=True)
class TierPart:
    """The part of a log that is read in a tier: its segments that begin below ``end``.

    ``prefer``: read there what both places have.
    """

    uri: str
    end: int
    epochs: tuple[tuple[int, int], ...] = ()
    """The leader epochs of that part, each with its first offset."""
    prefer: bool = False


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """A partition's directory as listed.

    ``log_start_offset`` is the higher of the checkpointed one and the first segment's.
    ``high_watermark`` is the checkpointed one, or ``UNKNOWN``. ``snapshots`` are the offsets of its
    producer snapshots, ascending. ``topic_id`` comes from ``topic_id``.
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
    checkpointed_start: int = UNKNOWN
    """The log start of ``log-start-offset-checkpoint``, or ``UNKNOWN``."""
    tier: TierPart | None = None
    """Where ``segments`` and ``snapshots`` below its end are; all are in ``uri`` without it."""
    storage: Storage | None = field(default=None, compare=False, repr=False)
    """Where ``uri`` is a path; without it ``uri`` says where it is."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def bounded(self) -> Iterator[tuple[ListedSegment, int]]:
        """Each segment with the offset where the next one begins, ``MAX_OFFSET`` for the last."""
        bases = [segment.base_offset for segment in self.segments]
        return zip(self.segments, [*bases[1:], MAX_OFFSET], strict=False)

    def path_of(
        self, base_offset: int, suffix: str = filenames.LOG_SUFFIX, transition: str = ""
    ) -> str:
        join = join_uri if self.storage is None else os.path.join
        name = filenames.segment_file_name(base_offset, suffix, transition)
        return join(self.place_of(base_offset), name)

    def place_of(self, base_offset: int) -> str:
        """The directory of the segment, or of the snapshot, that has this offset in its name."""
        if self.tier is not None and base_offset < self.tier.end:
            return self.tier.uri
        return self.uri

    def open(self, base_offset: int, suffix: str = filenames.LOG_SUFFIX) -> File:
        """Open a file of a segment, which may still wait for its final name."""
        path = self.path_of(base_offset, suffix)
        storage, path = open_storage(path) if self.storage is None else (self.storage, path)
        for transition in ("", filenames.SWAP_SUFFIX):
            with suppress(FileNotFoundError):
                return storage.open(path + transition, writable=False)
        return storage.open(path, writable=False)  # renamed between the two


def listed(
    uri: str, tp: TopicPartition, entries: Collection[FileInfo], storage: Storage | None = None
) -> PartitionLayout:
    """A partition's directory by the names and sizes in it alone."""
    files: dict[int, dict[str, FileInfo]] = defaultdict(dict)
    swaps: dict[int, FileInfo] = {}
    deleted: set[int] = set()
    for entry in entries:
        parsed = filenames.parse_segment_file(entry.name)
        if parsed is None:
            continue
        base, suffix, transition = parsed
        if not transition:
            files[base][suffix] = entry
        elif suffix == filenames.LOG_SUFFIX and transition == filenames.SWAP_SUFFIX:
            swaps[base] = entry
        elif suffix == filenames.LOG_SUFFIX and transition == filenames.DELETED_SUFFIX:
            deleted.add(base)
    marks = roll_marks((entry.name for entry in entries), 0) if swaps else []
    rolls = {base: swaps[base] for base in marks}
    logs = {
        base: found[filenames.LOG_SUFFIX]
        for base, found in files.items()
        if filenames.LOG_SUFFIX in found
    }

    def segment(base: int, log: FileInfo) -> ListedSegment:
        def size(suffix: str) -> int:
            found = files[base].get(suffix)
            return MISSING if found is None else found.size

        return ListedSegment(
            base,
            log.size,
            size(filenames.INDEX_SUFFIX),
            size(filenames.TIME_INDEX_SUFFIX),
            size(filenames.TXN_INDEX_SUFFIX),
            log.mtime_ms,
        )

    return PartitionLayout(
        uri,
        "",
        *tp,
        tuple(segment(*each) for each in sorted(logs.items())),
        min(logs, default=0),
        snapshots=tuple(sorted(b for b in files if filenames.SNAPSHOT_SUFFIX in files[b])),
        rolled=tuple(segment(*each) for each in sorted(rolls.items())),
        replaced=_replaced(logs.keys(), swaps.keys() - rolls.keys(), deleted),
        storage=storage,
    )


def _replaced(logs: Set[int], swaps: Set[int], deleted: Set[int]) -> bool:
    """Whether a new segment waits for its name, and a segment it replaces has lost its own."""
    return any(
        base not in logs or any(base <= other and other not in logs for other in deleted)
        for base in swaps
    )


def topic_id(uri: str) -> str:
    """The id that ``partition.metadata`` names, as text; "" where it is missing or malformed.

    Raises:
        OSError: the medium refused.
    """
    storage, path = open_storage(join_uri(uri, PARTITION_METADATA))
    try:
        found = PartitionMetadataFile(path, storage).read()
    except MalformedCheckpointError as error:
        logger.warning("taken as missing: %s", error)
        return ""
    return "" if found is None else topic_id_to_text(found.topic_id)


_LOOKS = 8
_PAUSE_S = 0.002  # doubled each time: a rename takes microseconds, a replacement of many files more

_T = TypeVar("_T")


def settled_layout(look: Callable[[], PartitionLayout]) -> PartitionLayout:
    """The log as one of the listings showed it, up to the last segment of the first two.

    A listing that lacks that segment, as one may while it is renamed, agrees with no other. Later
    segments are left for the next look, so that a log which rolls all the time settles, too.

    Raises:
        ResourceBusyError: no two consecutive listings agreed.
        OSError: the medium refused.
    """
    before = look()
    newest = _newest(before)
    last: int | None = None  # of the first two listings

    def again() -> PartitionLayout | None:
        nonlocal before, newest, last
        now = look()
        if last is None:
            last = max(newest, _newest(now))
        shown_last = min(last, _newest(now))
        agreed = shown_last == newest and not now.replaced and _agree(before, now, newest)
        before, newest = now, shown_last
        return _up_to(now, newest) if agreed else None

    return until(again, before.uri, "segments")


def until(attempt: Callable[[], _T | None], uri: str, what: str) -> _T:
    """Repeat ``attempt`` until it returns a value."""
    for number in range(_LOOKS):
        found = attempt()
        if found is not None:
            return found
        threading.Event().wait(_PAUSE_S * 2**number)
    reason = (
        f"its {what} change faster than they can be listed, or a replacement of some was cut short"
    )
    raise ResourceBusyError(shown(uri), "list", reason)


def _logs(layout: PartitionLayout) -> dict[int, ListedSegment]:
    return {segment.base_offset: segment for segment in (*layout.segments, *layout.rolled)}


def _newest(layout: PartitionLayout) -> int:
    return max(_logs(layout), default=-1)


def _agree(before: PartitionLayout, now: PartitionLayout, newest: int) -> bool:
    """Whether two listings agree on ``newest`` and every segment below it that retention left."""
    if before.topic_id != now.topic_id:
        return False
    old, new = _logs(before), _logs(now)
    first = min(new, default=newest)
    return (newest in old.keys() & new.keys() or not old) and all(
        _same(old.get(base), new.get(base)) for base in {*old, *new} if first <= base < newest
    )


def _same(one: ListedSegment | None, other: ListedSegment | None) -> bool:
    if one is None or other is None:
        return False
    return (one.size, one.mtime_ms) == (other.size, other.mtime_ms)


def _up_to(layout: PartitionLayout, newest: int) -> PartitionLayout:
    return replace(
        layout,
        segments=tuple(s for s in layout.segments if s.base_offset <= newest),
        rolled=tuple(s for s in layout.rolled if s.base_offset <= newest),
    )
