"""From partitions and options to tasks: which offsets the options mean, and who reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from checkpoints.loggers import get_logger
from logstore.common.errors import ConfigError
from logstore.common.parallel import at_once
from logstore.directory.errors import DataLossError
from logstore.directory.listing import PartitionLayout
from logstore.directory.planning import OffsetRange, pack, plan_splits
from logstore.directory.positions import offset_for_timestamp, readable_end, with_rolls
from logstore.directory.segment_index import log_end_offset
from logstore.directory.splits import Split
from logstore.directory.transactions import aborted_transactions
from logstore.spark.options import EARLIEST, LATEST, SourceOptions

logger = get_logger(__name__)


@dataclass
class ReadTask(InputPartition):
    """The work of one task: a part of a segment, or several small segments."""

    splits: tuple[Split, ...]


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
