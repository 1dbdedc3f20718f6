"""From partitions and options to splits: the bytes that hold the wanted offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from checkpoints.loggers import get_logger
from logstore.common.errors import ConfigError
from logstore.format.reader import MAX_OFFSET
from logstore.spark.common.errors import DataLossError
from logstore.spark.common.options import EARLIEST, LATEST, SourceOptions
from logstore.spark.common.parallel import at_once
from logstore.spark.common.proof import FileProof
from logstore.spark.common.splits import AbortedRange, Split
from logstore.spark.layout.types import ListedSegment, PartitionLayout
from logstore.spark.segments.log_end import log_end_offset
from logstore.spark.segments.positions import (
    offset_for_timestamp,
    readable_end,
    with_rolls,
)
from logstore.spark.segments.segment_index import SegmentIndex
from logstore.spark.segments.transactions import aborted_transactions, overlapping

_OPEN_COST = 256 << 10  # the cost of opening a file and a window, in bytes read in that time

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What to read of a partition: offsets ``[start, end)`` without ``aborted`` transactions."""

    layout: PartitionLayout
    start: int
    end: int = MAX_OFFSET
    aborted: tuple[AbortedRange, ...] = ()


def resolve_all(layouts: Iterable[PartitionLayout], options: SourceOptions) -> list[OffsetRange]:
    """Run ``resolve`` for many partitions at a time."""
    return at_once(lambda layout: resolve(layout, options), list(layouts))


def resolve(layout: PartitionLayout, options: SourceOptions) -> OffsetRange:
    """The offsets that ``options`` mean in one partition.

    Raises:
        ConfigError: no record at a time, no high watermark, or an end before the start.
        DataLossError: offsets do not exist any more, or not yet.
        CorruptDataError: a file that had to be read is damaged.
        OSError: the medium refused.
    """
    layout = with_rolls(replace(layout, drop_malformed=options.drop_malformed))
    limit = readable_end(
        layout,
        read_committed=options.read_committed,
        up_to_high_watermark=options.up_to_high_watermark,
    )
    start = _start(layout, options, limit)
    end = _end(layout, options, limit)
    if start > end and all(_named_bounds(layout, options)):
        raise ConfigError(f"{layout.name}: it would start at {start} and end before that, at {end}")
    # Only now, so that it has everything that was aborted before the end was known.
    aborted = tuple(aborted_transactions(layout)) if options.read_committed else ()
    return OffsetRange(layout, start, end, aborted)


def _named_bounds(layout: PartitionLayout, options: SourceOptions) -> tuple[bool, bool]:
    """Whether the user named the start, and the end."""
    starting, ending = (
        bound.timestamp is None
        and not bound.timestamps
        and bound.offset_of(layout.topic, layout.partition) not in (EARLIEST, LATEST)
        for bound in (options.starting, options.ending)
    )
    return starting, ending


def _start(layout: PartitionLayout, options: SourceOptions, limit: int) -> int:
    bound = options.starting
    timestamp = bound.time_of(layout.topic, layout.partition)
    if timestamp is not None:
        offset = offset_for_timestamp(layout, timestamp)
        if offset is not None:
            return offset
        if options.start_latest_without_match:
            return min(limit, log_end_offset(layout))
        raise ConfigError(
            f"{layout.name} has no record at or after {timestamp} ms; "
            "startingOffsetsByTimestampStrategy=latest starts at its end"
        )
    offset = bound.offset_of(layout.topic, layout.partition)
    if offset == EARLIEST:
        return layout.log_start_offset
    if offset == LATEST:
        return min(limit, log_end_offset(layout))
    return _checked(layout, options, offset)


def _end(layout: PartitionLayout, options: SourceOptions, limit: int) -> int:
    bound = options.ending
    timestamp = bound.time_of(layout.topic, layout.partition)
    if timestamp is not None:
        offset = offset_for_timestamp(layout, timestamp)
        return limit if offset is None else min(offset, limit)
    offset = bound.offset_of(layout.topic, layout.partition)
    return limit if offset == LATEST else min(_checked(layout, options, offset), limit)


def _checked(layout: PartitionLayout, options: SourceOptions, offset: int) -> int:
    """An offset that the user named if it exists, or the nearest one if that is allowed."""
    start, end = layout.log_start_offset, log_end_offset(layout)
    if start <= offset <= end:
        return offset
    if offset < start:
        loss = DataLossError(layout.uri, offset, start, f"the log starts at {start}")
    else:
        loss = DataLossError(layout.uri, end, offset, f"the log ends at {end}")
    if options.fail_on_data_loss:
        raise loss
    logger.warning("%s", loss)
    return max(start, min(offset, end))


def plan_splits(
    ranges: Iterable[OffsetRange], split_bytes: int, start_timestamp: int | None = None
) -> list[Split]:
    """The splits with all batches of ``ranges``, in the order of offsets within a partition.

    Each is ``split_bytes`` long or a little more, depending on index entries. A segment without a
    usable index is one split. Segments whose time index shows no record from ``start_timestamp``
    (ms) on are left out.

    Raises:
        ListingOutdatedError: a segment has changed since it was listed.
        OSError: the medium refused.
    """
    jobs = [_SegmentJob(r, *job) for r in ranges for job in _segments(r)]
    found = at_once(lambda job: job.splits(split_bytes, start_timestamp), jobs)
    return list(chain.from_iterable(found))


def _segments(wanted: OffsetRange) -> Iterable[tuple[ListedSegment, int]]:
    """The segments that overlap a range, each with the base offset of the next."""
    for segment, next_base in wanted.layout.bounded():
        if segment.size and segment.base_offset < wanted.end and next_base > wanted.start:
            yield segment, next_base


@dataclass(frozen=True, slots=True)
class _SegmentJob:
    wanted: OffsetRange
    segment: ListedSegment
    next_base: int

    def splits(self, split_bytes: int, start_timestamp: int | None) -> list[Split]:
        index = SegmentIndex(self.wanted.layout, self.segment)
        first = max(self.wanted.start, self.segment.base_offset)
        if start_timestamp is not None:
            first = max(first, index.first_offset_from(start_timestamp))
        if first >= self.next_base:
            return []
        start = index.floor(first) if first > self.segment.base_offset else 0
        end = self.segment.size
        if self.wanted.end < self.next_base:
            end = index.ceiling(self.wanted.end)
        cuts = [start, *index.boundaries(start, end, split_bytes), end]
        is_last = self.next_base == MAX_OFFSET
        marks = self._marks(index, cuts) if is_last else []
        proof = index.proof(marks, may_grow=is_last)
        return [
            self._split(low, high, first, is_last and high == self.segment.size, proof)
            for low, high in pairwise(cuts)
        ]

    def _marks(self, index: SegmentIndex, cuts: list[int]) -> list[int]:
        """Starts of batches that show whether a growing segment was cut and written again."""
        *starts, end = cuts
        last = index.last_batch() if end == self.segment.size else end
        return sorted({starts[0], end if last is None else last} - {self.segment.size})

    def _split(
        self, position: int, end_position: int, first: int, open_end: bool, proof: FileProof
    ) -> Split:
        layout, wanted = self.wanted.layout, self.wanted
        end = min(wanted.end, self.next_base)
        return Split(
            layout.uri,
            layout.broker,
            layout.topic,
            layout.partition,
            self.segment.base_offset,
            position,
            end_position,
            first,
            end,
            open_end,
            overlapping(wanted.aborted, first, end),
            layout.topic_id,
            proof,
        )


def plan_tasks(
    ranges: Sequence[OffsetRange], options: SourceOptions, start_timestamp: int | None = None
) -> list[tuple[Split, ...]]:
    """Plan splits and pack them into tasks, at least ``minPartitions`` if indexes allow.

    Raises:
        ListingOutdatedError: a segment has changed since it was listed.
        OSError: the medium refused.
    """
    split_bytes, least = options.split_bytes, options.min_partitions
    if options.max_records_per_partition:
        ranges = list(_divided(ranges, options.max_records_per_partition))
        planned = [plan_splits([each], split_bytes, start_timestamp) for each in ranges]
        return [task for splits in planned for task in pack(splits, split_bytes)]
    splits = plan_splits(ranges, split_bytes, start_timestamp)
    tasks = pack(splits, split_bytes)
    if splits and len(tasks) < least:
        split_bytes = min(split_bytes, -(-sum(split.size for split in splits) // least))
        tasks = pack(plan_splits(ranges, split_bytes, start_timestamp), split_bytes)
    return tasks


def _divided(ranges: Iterable[OffsetRange], most: int) -> Iterable[OffsetRange]:
    """Divide ranges into ranges of at most ``most`` offsets, which are not joined again."""
    for wanted in ranges:
        end = min(wanted.end, log_end_offset(wanted.layout))
        for low in range(wanted.start, end, most):
            yield replace(wanted, start=low, end=min(low + most, end))


def pack(splits: Sequence[Split], split_bytes: int) -> list[tuple[Split, ...]]:
    """Join neighbours into tasks of up to ``split_bytes``, so that small segments share one."""
    tasks: list[tuple[Split, ...]] = []
    current: list[Split] = []
    total = 0
    for split in splits:
        if current and total + split.size + _OPEN_COST > split_bytes:
            tasks.append(tuple(current))
            current, total = [], 0
        current.append(split)
        total += split.size + _OPEN_COST
    if current:
        tasks.append(tuple(current))
    return tasks
