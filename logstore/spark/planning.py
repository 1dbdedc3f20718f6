"""From partitions and options to tasks: which offsets the options mean, and who reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from checkpoints.loggers import get_logger
from logstore.common.errors import ConfigError, CorruptDataError
from logstore.common.parallel import at_once
from logstore.directory.errors import DataLossError
from logstore.directory.listing import PartitionLayout
from logstore.directory.planning import OffsetRange, pack, plan_splits
from logstore.directory.positions import offset_for_timestamp, readable_end, with_rolls
from logstore.directory.segment_index import log_end_offset
from logstore.directory.split_reader import count_splits
from logstore.directory.splits import Split
from logstore.directory.transactions import aborted_transactions
from logstore.spark.options import EARLIEST, LATEST, SourceOptions

_TOP_MAX = 100_000
_TOP_LOGS = 4
_TOP_WIDER = (1, 8, 64)
_TOP_OFFSETS = 500_000
"""How far the planner looks for the rows of ``TopOffsets``: it is alone, and the tasks are many."""

logger = get_logger(__name__)


@dataclass
class ReadTask(InputPartition):
    """The work of one task: a part of a segment, or several small segments."""

    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class TopOffsets:
    """The ``count`` rows with the lowest offsets, or with the ``highest``, of all partitions."""

    count: int
    highest: bool


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


def narrowed(
    ranges: Sequence[OffsetRange], top: TopOffsets, options: SourceOptions
) -> list[OffsetRange]:
    """Leave out offsets that the ``top`` rows do not have.

    If one log has that many rows in a range of offsets, those beyond it are not among them. Such a
    range is looked for where the offsets of the logs begin, or end. Where it is not found soon, or
    cannot be read, nothing is left out: the tasks read all, and say what is wrong.

    Raises:
        ListingOutdatedError: a segment has changed since it was listed.
        OSError: the medium refused.
    """
    if not 0 < top.count <= _TOP_MAX or options.drop_malformed:
        return list(ranges)
    options = replace(options, fail_on_data_loss=True)  # so that it is told once, by a task
    try:
        known = at_once(_existing, ranges)
    except CorruptDataError:
        return list(ranges)
    sign = -1 if top.highest else 1
    bound: int | None = None
    for log in sorted(known, key=lambda each: sign * _outer(each, top))[:_TOP_LOGS]:
        found = _inner_bound(log, top, bound, options)
        bound = bound if found is None else found
    if bound is None:
        return list(ranges)
    pairs = zip(ranges, known, strict=True)
    if top.highest:
        return [replace(r, start=max(r.start, bound)) for r, real in pairs if real.end > bound]
    return [replace(r, end=min(r.end, bound)) for r, real in pairs if real.start < bound]


def _existing(wanted: OffsetRange) -> OffsetRange:
    start = max(wanted.start, wanted.layout.log_start_offset)
    return replace(wanted, start=start, end=min(wanted.end, log_end_offset(wanted.layout)))


def _outer(log: OffsetRange, top: TopOffsets) -> int:
    return log.end if top.highest else log.start


def _inner_bound(
    log: OffsetRange, top: TopOffsets, bound: int | None, options: SourceOptions
) -> int | None:
    """The other end of a range with enough rows; ``None`` if it is not better than ``bound``."""
    for width in (top.count * wider for wider in _TOP_WIDER):
        if top.highest:
            part = replace(log, start=max(log.start, log.end - width))
            inner, is_better = part.start, bound is None or part.start > bound
        else:
            part = replace(log, end=min(log.end, log.start + width))
            inner, is_better = part.end, bound is None or part.end < bound
        too_far = width > max(top.count, _TOP_OFFSETS)
        if part.start >= part.end or not is_better or too_far:
            return None
        try:
            splits = plan_splits([part], options.split_bytes, options.start_timestamp)
            rows = sum(count for _, count in count_splits(splits, options))
        except (CorruptDataError, DataLossError):
            return None
        if rows >= top.count:
            return inner
        if part == log:
            return None
    return None


def plan_tasks(
    ranges: Sequence[OffsetRange], options: SourceOptions, start_timestamp: int | None = None
) -> list[ReadTask]:
    """Plan splits and pack them into tasks, at least ``minPartitions`` if indexes allow.

    Raises:
        ListingOutdatedError: a segment has changed since it was listed.
        OSError: the medium refused.
    """
    split_bytes, least = options.split_bytes, options.min_partitions
    if options.max_records_per_partition:
        ranges = list(_divided(ranges, options.max_records_per_partition))
        planned = [plan_splits([each], split_bytes, start_timestamp) for each in ranges]
        return [ReadTask(each) for splits in planned for each in pack(splits, split_bytes)]
    splits = plan_splits(ranges, split_bytes, start_timestamp)
    tasks = pack(splits, split_bytes)
    if splits and len(tasks) < least:
        split_bytes = min(split_bytes, -(-sum(split.size for split in splits) // least))
        tasks = pack(plan_splits(ranges, split_bytes, start_timestamp), split_bytes)
    return list(map(ReadTask, tasks))


def _divided(ranges: Iterable[OffsetRange], most: int) -> Iterable[OffsetRange]:
    """Divide ranges into ranges of at most ``most`` offsets, which are not joined again."""
    for wanted in ranges:
        end = min(wanted.end, log_end_offset(wanted.layout))
        for low in range(wanted.start, end, most):
            yield replace(wanted, start=low, end=min(low + most, end))
