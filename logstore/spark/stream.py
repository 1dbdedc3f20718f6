"""``spark.readStream.format("logstore")``: live log directories, micro-batch by micro-batch.

Each micro-batch is a range of offsets of each partition, which Spark writes to its checkpoint
before it reads them: the same range is read again after a failure, so a sink that is idempotent or
transactional gets every record exactly once. Where a range cannot be read again as it was, because
records were deleted or a log was cut, the query fails, or, with ``failOnDataLoss=false``, warns and
goes on where the log and what was read part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from checkpoints.loggers import get_logger
from logstore.clock import Clock, SystemClock
from logstore.errors import ConfigError
from logstore.spark.at_once import at_once
from logstore.spark.columns import check_schema
from logstore.spark.errors import DataLossError
from logstore.spark.layout import PartitionLayout, list_partitions
from logstore.spark.options import Options, ReadOptions
from logstore.spark.planning import OffsetRange, plan_tasks, resolve_all
from logstore.spark.segment_reader import read_task
from logstore.spark.splits import Task
from logstore.spark.stream_log import LogView
from logstore.spark.stream_offsets import Mark, Marks, from_json, share, to_json
from logstore.spark.transactions import aborted_transactions
from logstore.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

logger = get_logger(__name__)

Views: TypeAlias = Mapping[TopicPartition, LogView]
_T = TypeVar("_T")

_NOTHING = Mark(0)  # of a partition that is new
_LOOKS = 3  # retention and truncation delete files rarely, and not for long
_DURATION = re.compile(r"([0-9]+)\s*(ms|s|m|h)")
_NANOSECONDS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of reading, and of how much at a time; names as in Spark's Kafka source.

    ``max_offsets`` and ``min_offsets`` are per trigger, 0 for no limit; ``max_delay_ns`` is how
    long fewer than ``min_offsets`` may wait.
    """

    read: ReadOptions
    max_offsets: int
    min_offsets: int
    max_delay_ns: int

    @classmethod
    def from_spark(cls, given: Mapping[str, str]) -> StreamOptions:
        """
        Raises:
            ConfigError: an unknown option, a value that is none, or one that is for batches only.
        """
        options = Options(given)
        read = ReadOptions.parse(options, streaming=True)
        parsed = cls(
            read,
            options.integer("maxOffsetsPerTrigger", 0, 1),
            options.integer("minOffsetsPerTrigger", 0, 1),
            _duration(options, "maxTriggerDelay", "15m"),
        )
        options.refuse_unknown()
        if read.granularity != "record":
            raise ConfigError("granularity=batch is for batch queries: a stream counts records")
        if read.replicas:
            raise ConfigError(
                "replicas=all is for batch queries: a stream follows one broker's copy (broker)"
            )
        if 0 < parsed.max_offsets < parsed.min_offsets:
            raise ConfigError("minOffsetsPerTrigger is above maxOffsetsPerTrigger")
        return parsed


def _duration(options: Options, name: str, default: str) -> int:
    text = options.text(name, default).strip().lower()
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigError(f"option {name}: {text!r} is no duration, such as 500ms, 30s or 15m")
    return int(match[1]) * _NANOSECONDS[match[2]]


class LogstoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One lives in a Python process beside the driver as long as its query runs.

    Copies of it read in the executors; they use ``read`` alone.
    """

    def __init__(
        self, options: StreamOptions, schema: StructType, clock: Clock | None = None
    ) -> None:
        check_schema(options.read.granularity, schema)
        self._options = options
        self._schema: pyarrow.Schema = to_arrow_schema(schema, timezone="UTC")
        self._clock = clock or SystemClock()
        self._views: dict[PartitionLayout, LogView] = {}
        self._latest: dict[TopicPartition, int] = {}
        self._target: dict[TopicPartition, int] | None = None  # of a query that is to end
        self._waiting_since_ns: int | None = None
        self._last_look = True

    # -- what there is -------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Where ``startingOffsets`` says, by default the end; asked for once, without a checkpoint.

        Partitions that appear later are read from offset 0.
        """
        return self._looking(self._start)

    def _start(self, views: Views) -> dict[str, Any]:
        read = self._options.read
        read.check_named(views)
        ranges = resolve_all((view.layout for view in views.values()), read)
        starts = {tp: wanted.start for tp, wanted in zip(views, ranges, strict=True)}
        return to_json(_marks(views, starts))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends; ``start`` itself when there is nothing to read yet."""
        marks = from_json(start)
        return self._looking(lambda views: self._next(views, marks, limit) or start)

    def _next(self, views: Views, marks: Marks, limit: ReadLimit) -> dict[str, Any] | None:
        for tp in sorted(set(marks) - set(views)):
            self._lost(_gone(tp, marks[tp]))
        resumed = self._resume(views, marks)
        if self._target is not None:  # what appeared since is for the next run
            resumed = {tp: at for tp, at in resumed.items() if tp in marks or tp in self._target}
        ends = {tp: max(at, self._end(tp, views[tp])) for tp, at in resumed.items()}
        self._latest = ends
        available = {tp: ends[tp] - at for tp, at in resumed.items()}
        if self._too_few(sum(available.values())):
            return None
        if isinstance(limit, ReadMaxRows):
            available = share(available, limit.max_rows)
        offsets = {tp: at + available[tp] for tp, at in resumed.items()}
        kept = {
            tp: marks[tp]
            for tp, offset in offsets.items()
            if tp in marks and marks[tp].offset == resumed[tp] == offset
        }
        moved = {tp: offset for tp, offset in offsets.items() if tp not in kept}
        return to_json(kept | _marks(views, moved))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the query's progress: where the logs ended at the last look."""
        return to_json({tp: Mark(offset) for tp, offset in self._latest.items()})

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._looking(
            lambda views: {tp: view.readable_end for tp, view in views.items()}
        )

    def _looking(self, decide: Callable[[Views], _T]) -> _T:
        """What ``decide`` makes of the logs as they are; of another look where a file is gone that
        was there a moment ago, or records are: a listing may miss a segment that is being renamed.
        """
        self._last_look = False
        for _ in range(_LOOKS - 1):
            with suppress(FileNotFoundError, DataLossError):
                return decide(self._look())
        self._last_look = True
        return decide(self._look())

    def _look(self) -> dict[TopicPartition, LogView]:
        read = self._options.read
        layouts = list_partitions(read.paths, read.selection.takes, broker=read.broker)
        # A listing that did not change, sizes and all, is not looked into again: a log cut and
        # written anew to the same size is found out when it next grows.
        views = dict(zip(layouts, at_once(self._view, layouts), strict=True))
        self._views = {layout: view for layout, view in views.items() if view.settled}
        return {TopicPartition(v.layout.topic, v.layout.partition): v for v in views.values()}

    def _view(self, layout: PartitionLayout) -> LogView:
        return self._views.get(layout) or LogView.of(layout, self._options.read)

    def _end(self, tp: TopicPartition, view: LogView) -> int:
        if self._target is None:
            return view.readable_end
        return min(view.readable_end, self._target.get(tp, 0))

    def _too_few(self, available: int) -> bool:
        """Whether to wait for more (``minOffsetsPerTrigger``, ``maxTriggerDelay``)."""
        wanted = self._options.min_offsets
        if not wanted or self._target is not None:
            return False
        now_ns = self._clock.monotonic_ns()
        if self._waiting_since_ns is None:
            self._waiting_since_ns = now_ns
        waited_ns = now_ns - self._waiting_since_ns
        if 0 < available < wanted and waited_ns < self._options.max_delay_ns:
            return True
        self._waiting_since_ns = now_ns
        return False

    # -- what was lost -------------------------------------------------------------------------

    def _resume(self, views: Views, marks: Marks) -> dict[TopicPartition, int]:
        """Where each partition is to be read on; one that is new, from offset 0."""
        found = at_once(lambda item: item[1].resume(marks.get(item[0], _NOTHING)), views.items())
        for _, loss in found:
            if loss is not None:
                self._lost(loss)
        return {tp: offset for tp, (offset, _) in zip(views, found, strict=True)}

    def _lost(self, loss: DataLossError) -> None:
        if self._options.read.fail_on_data_loss or not self._last_look:
            raise loss
        logger.warning("%s", loss)

    # -- reading -------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch; after a failure of one that was planned before."""
        starts, ends = from_json(start), from_json(end)
        return self._looking(lambda views: self._planned(views, starts, ends))

    def _planned(self, views: Views, starts: Marks, ends: Marks) -> list[InputPartition]:
        for tp in sorted(set(ends) - set(views)):
            self._lost(_gone(tp, ends[tp]))
        resumed = self._resume({tp: view for tp, view in views.items() if tp in ends}, starts)
        unread = {tp: views[tp] for tp, at in sorted(resumed.items()) if at < ends[tp].offset}
        self._resume(unread, ends)  # tells of a log that was cut, or written anew, since then
        committed = self._options.read.read_committed
        ranges = [
            OffsetRange(
                view.layout,
                resumed[tp],
                ends[tp].offset,
                tuple(aborted_transactions(view.layout)) if committed else (),
            )
            for tp, view in unread.items()
        ]
        return [Task(splits) for splits in plan_tasks(ranges, self._options.read)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_task(partition, self._options.read.settings(), self._schema)


def _marks(views: Views, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Mark]:
    found = at_once(lambda item: views[item[0]].mark(item[1]), list(offsets.items()))
    return dict(zip(offsets, found, strict=True))


def _gone(tp: TopicPartition, mark: Mark) -> DataLossError:
    return DataLossError(str(tp), mark.offset, mark.offset, "the partition is not there any more")


def stream_reader(given: Mapping[str, str], schema: StructType) -> LogstoreStreamReader:
    """
    Raises:
        ConfigError: an option or a column that is not known.
    """
    return LogstoreStreamReader(StreamOptions.from_spark(given), schema)


__all__ = ["LogstoreStreamReader", "StreamOptions", "stream_reader"]
