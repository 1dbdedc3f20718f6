"""``spark.readStream.format("logstore")``: live log directories, micro-batch by micro-batch.

Each micro-batch is a range of offsets of each partition, which Spark writes to its checkpoint
before it reads them. After a failure the same range is read again, so an idempotent or
transactional sink gets every record exactly once. If a range cannot be read again as it was,
because records were deleted or a log was cut, the query fails. With ``failOnDataLoss=false`` it
warns instead, and continues where the log diverges from what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import ConfigError
from logstore.common.parallel import at_once
from logstore.common.types import TopicPartition
from logstore.directory.errors import DataLossError, ListingOutdatedError, TierRefusedError
from logstore.directory.layout import list_partitions
from logstore.directory.listing import PartitionLayout
from logstore.directory.planning import OffsetRange
from logstore.directory.split_reader import read_splits
from logstore.directory.splits import ReadSettings
from logstore.directory.tiered import joined
from logstore.directory.transactions import aborted_transactions, last_stable_offset
from logstore.spark.columns import check_schema
from logstore.spark.options import Options, SourceOptions
from logstore.spark.planning import ReadTask, plan_tasks, resolve_all
from logstore.spark.stream.stream_log import Resumption, StreamLogView
from logstore.spark.stream.stream_offsets import (
    Marks,
    StreamMark,
    began_from,
    behind,
    from_json,
    is_first,
    share,
    to_json,
)
from logstore.storage.uri import shown

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

logger = get_logger(__name__)

Views: TypeAlias = Mapping[TopicPartition, StreamLogView]
_T = TypeVar("_T")

_NOTHING = StreamMark(0)  # for a partition that is new
_TRIES = 3  # retention and truncation delete files rarely, and not for long


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of reading, and of how much to read at a time, named as in Spark's Kafka source.

    ``max_offsets`` and ``min_offsets`` are per trigger, 0 for no limit; ``max_delay_ns`` is how
    long fewer than ``min_offsets`` may wait.
    """

    read: SourceOptions
    max_offsets: int
    min_offsets: int
    max_delay_ns: int

    @classmethod
    def from_spark(cls, given: Mapping[str, str]) -> StreamOptions:
        """
        Raises:
            ConfigError: an unknown option, an invalid value, or an option for batches only.
        """
        options = Options(given)
        read = SourceOptions.parse(options, streaming=True)
        parsed = cls(
            read,
            options.integer("maxOffsetsPerTrigger", 0, 1),
            options.integer("minOffsetsPerTrigger", 0, 1),
            options.duration_ns("maxTriggerDelay", "15m"),
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


class LogstoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a query, in a Python process beside the driver.

    Executors have copies of it, and call only ``read``.
    """

    def __init__(
        self, options: StreamOptions, schema: StructType, clock: Clock | None = None
    ) -> None:
        check_schema(options.read.granularity, schema)
        self._options = options
        self.schema: pyarrow.Schema = to_arrow_schema(schema, timezone="UTC")
        self._clock = clock or SystemClock()
        self._views: dict[tuple[PartitionLayout, str], StreamLogView] = {}
        self._listed: Views = {}
        self._tier: list[PartitionLayout] = []
        self._decided: dict[str, Any] = {}  # where the micro-batch ends that ``_listed`` gave
        self._latest: dict[TopicPartition, int] = {}
        self._target: dict[TopicPartition, int] | None = None  # for a query that is to end
        self._waiting_since_ns: int | None = None
        self._last_try = True

    @property
    def settings(self) -> ReadSettings:
        """What tasks need of the options."""
        return self._options.read

    # -- what can be read -------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where ``startingOffsets`` says; by default the end.

        Spark does not store it, and asks again after a restart until a micro-batch was committed.
        So the first micro-batch is planned at once, even an empty one, and its end records where it
        began. Partitions that appear later are read from offset 0.
        """
        return self._looking(self._start)

    def _start(self, views: Views) -> dict[str, Any]:
        read = self._options.read
        read.check_named(views)
        ranges = resolve_all((view.layout for view in views.values()), read)
        starts = {tp: wanted.start for tp, wanted in zip(views, ranges, strict=True)}
        return to_json(_marks(views, starts), first=True)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` itself if there is nothing yet."""
        marks = from_json(start)
        ends = self._looking(lambda views: self._next(views, marks, limit))
        if is_first(start):
            self._decided = to_json(marks if ends is None else ends, began=marks)
        else:
            self._decided = start if ends is None or ends == marks else to_json(ends)
        return self._decided

    def _next(self, views: Views, marks: Marks, limit: ReadLimit) -> Marks | None:
        """The marks of all partitions at the end of the next micro-batch; ``None`` to wait."""
        unselected = {tp: mark for tp, mark in marks.items() if not self._selected(tp)}
        for tp in sorted(set(marks) - set(views) - set(unselected)):
            self._lost(_gone(tp, marks[tp]))
        resumed = {tp: found.offset for tp, found in self._resume(views, marks).items()}
        if self._target is not None:  # partitions that appeared since are for the next run
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
            if tp in marks
            and marks[tp].offset == resumed[tp] == offset
            and views[tp].is_of(marks[tp])
        }
        moved = {tp: offset for tp, offset in offsets.items() if tp not in kept}
        return unselected | kept | _marks(views, moved, resumed, marks)

    def _selected(self, tp: TopicPartition) -> bool:
        """Whether the options of this run select it. Otherwise its mark is kept for another run."""
        return self._options.read.selection.takes(*tp, True)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return where the logs ended at the last listing, for the query's progress."""
        return to_json({tp: StreamMark(offset) for tp, offset in self._latest.items()})

    def behind_latest(self, consumed: dict[str, Any]) -> dict[str, str]:
        """Return how far ``consumed`` is behind the last listing, for the query's progress."""
        return behind(from_json(consumed), self._latest)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._looking(
            lambda views: {tp: view.readable_end for tp, view in views.items()}
        )

    def _looking(self, decide: Callable[[Views], _T]) -> _T:
        """Run ``decide`` on the listed logs.

        It runs again on a new listing if a file or records have gone, because a listing may miss a
        segment that is being renamed.
        """
        self._last_try = False
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError, DataLossError, ListingOutdatedError):
                return decide(self._list_logs())
        self._last_try = True
        return decide(self._list_logs())

    def _list_logs(self) -> Views:
        read = self._options.read
        layouts = list_partitions(read.paths, read.selection.takes, broker=read.broker)
        if read.tier:
            layouts = self._with_tier(layouts)
        # If a listing did not change, not even in sizes, its files are not read again. A log that
        # was cut and written again to the same size is noticed when it next grows.
        views = at_once(self._view, layouts)
        self._views = {
            (layout, view.topic_id): view
            for layout, view in zip(layouts, views, strict=True)
            if view.settled
        }
        self._listed = {TopicPartition(v.layout.topic, v.layout.partition): v for v in views}
        return self._listed

    def _with_tier(self, layouts: list[PartitionLayout]) -> list[PartitionLayout]:
        """The logs with what a tier has of them.

        It is listed again only when retention took what the listing before does not have.
        """
        read = self._options.read
        if self._tier:
            with suppress(TierRefusedError):
                return joined(layouts, self._tier, prefer_tier=read.prefer_tier)
        self._tier = list_partitions([read.tier], read.selection.takes)
        return joined(layouts, self._tier, prefer_tier=read.prefer_tier)

    def _view(self, layout: PartitionLayout) -> StreamLogView:
        found = layout.topic_id
        view = self._views.get((layout, found))
        return view or StreamLogView.of(layout, found, self._options.read)

    def _end(self, tp: TopicPartition, view: StreamLogView) -> int:
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

    def _resume(self, views: Views, marks: Marks) -> dict[TopicPartition, Resumption]:
        """Find where to continue in each partition; a new one begins at offset 0."""
        resumed = at_once(lambda item: item[1].resume(marks.get(item[0], _NOTHING)), views.items())
        for found in resumed:
            if found.loss is not None:
                self._lost(found.loss)
        return dict(zip(views, resumed, strict=True))

    def _lost(self, loss: DataLossError) -> None:
        if self._options.read.fail_on_data_loss or not self._last_try:
            raise loss
        logger.warning("%s", loss)

    # -- reading -------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        """The tasks of a micro-batch. After a failure it was planned by an earlier run."""
        starts, ends = began_from(start, end), from_json(end)
        if end == self._decided:  # just now: the same listing will do, if nothing is lost by it
            self._last_try = False
            with suppress(FileNotFoundError, DataLossError, ListingOutdatedError):
                return self._planned(self._listed, starts, ends)
        return self._looking(lambda views: self._planned(views, starts, ends))

    def _planned(self, views: Views, starts: Marks, ends: Marks) -> list[ReadTask]:
        moved = {tp for tp, mark in ends.items() if starts.get(tp) != mark}
        for tp in sorted(moved - set(views)):
            self._lost(_gone(tp, ends[tp]) if self._selected(tp) else _left_out(tp, ends[tp]))
        there = {tp: view for tp, view in sorted(views.items()) if tp in moved}
        unread = {
            tp: (there[tp], found.offset)
            for tp, found in self._resume(there, starts).items()
            if found.remade or found.offset < ends[tp].offset
        }
        # Records that were cut since are not read. The next micro-batch continues where the log
        # diverges.
        still = self._resume({tp: view for tp, (view, _) in unread.items()}, ends)
        ranges = [
            self._range(view, at, min(still[tp].offset, ends[tp].offset))
            for tp, (view, at) in unread.items()
            if not still[tp].remade
        ]
        wanted = [found for found in ranges if found.start < found.end]
        return plan_tasks(wanted, self._options.read)

    def _range(self, view: StreamLogView, start: int, end: int) -> OffsetRange:
        layout = view.layout
        if not self._options.read.read_committed or start >= end:
            return OffsetRange(layout, start, end)
        # If it was planned with other options, it may reach into an undecided transaction.
        if end > view.readable_end and (stable := last_stable_offset(layout, end)) < end:
            raise ConfigError(
                f"{shown(layout.uri)}: the micro-batch planned before ends at offset {end}, and a "
                f"transaction is open since {stable}: start the query again when that has ended, "
                "or finish the micro-batch with isolation=read_uncommitted"
            )
        return OffsetRange(layout, start, end, tuple(aborted_transactions(layout)))

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return read_splits(partition.splits, self.settings, self.schema)


def _marks(
    views: Views,
    offsets: Mapping[TopicPartition, int],
    resumed: Mapping[TopicPartition, int] | None = None,
    before: Marks | None = None,
) -> dict[TopicPartition, StreamMark]:
    def mark(tp: TopicPartition) -> StreamMark:
        return views[tp].mark(offsets[tp], (resumed or {}).get(tp, 0), (before or {}).get(tp))

    return dict(zip(offsets, at_once(mark, list(offsets)), strict=True))


def _gone(tp: TopicPartition, mark: StreamMark) -> DataLossError:
    reason = "the partition is not there any more; should it come back, it is read from its start"
    return DataLossError(str(tp), mark.offset, mark.offset, reason)


def _left_out(tp: TopicPartition, mark: StreamMark) -> DataLossError:
    reason = "planned before, and not selected by the options any more"
    return DataLossError(str(tp), mark.offset, mark.offset, reason)


def stream_reader(given: Mapping[str, str], schema: StructType) -> LogstoreStreamReader:
    """
    Raises:
        ConfigError: an unknown option or column.
    """
    return LogstoreStreamReader(StreamOptions.from_spark(given), schema)


__all__ = ["LogstoreStreamReader", "StreamOptions", "stream_reader"]
