"""Exports of a topic to a table, each record once: docs/spark-interchange.md.

The commit that adds files to the table says which offsets they go up to. So a run that was killed
has added all of its rows or none, and the next one goes on at the right place. That the log is
still the one whose rows the table has is proved as for a stream, by the same marks.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
from pyspark.sql import Observation, functions
from pyspark.sql.types import StructType

from logstore.common.clock import SystemClock
from logstore.common.errors import ConfigError
from logstore.common.parallel import at_once
from logstore.common.random_id import random_id
from logstore.common.types import TopicPartition
from logstore.common.version import __version__
from logstore.directory.errors import DataLossError, ExportRefusedError
from logstore.spark.columns import DEFAULT_COLUMNS, ddl
from logstore.spark.delta_log import STATE, Action, DeltaLog
from logstore.spark.sessions import is_columnar
from logstore.spark.stream.stream import LogstoreStreamReader, StreamOptions, Views
from logstore.spark.stream.stream_log import Resumption
from logstore.spark.stream.stream_offsets import Marks, StreamMark, from_json, to_json
from logstore.spark.verification import watched
from logstore.storage.local import LocalStorage
from logstore.storage.paths import absolute_path
from logstore.verify import Progress

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = ddl("record", (*DEFAULT_COLUMNS, "headers"))
_STATE_VERSION = 1
_OURS = ("subscribe", "columns", "includeHeaders", "granularity", "replicas", "path", "paths")
_STARTS = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")
_MICROS = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
"""Readers of Delta's tables do not all take every time of Spark's default, INT96."""

_PART = re.compile(r"part-.*\.parquet")
_GROUP = "spark.jobGroup.id"
_MEASURED = ("partition", "offset")
"""The columns whose smallest and largest value in a file the table's readers know."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What a run has added to ``table``, a directory.

    ``version`` is the newest commit of the table. ``offsets`` has the start and the end, exclusive,
    of each partition with something new. ``lost`` says what retention had deleted before it was
    exported.
    """

    table: str
    version: int
    records: int = 0
    files: int = 0
    size: int = 0
    offsets: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    lost: tuple[str, ...] = ()


def export(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    topic: str,
    table: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> ExportReport:
    """Add to ``table`` the records of a topic that it does not have yet, each once.

    The first run makes the table: a Delta table, Parquet files and their log, with the columns of
    reading and ``headers``. Driver and executors must see it under one path.

    Args:
        progress: called on a thread of its own, with the offsets done and in all.
        options: those of reading, such as ``isolation``, ``upTo`` and ``broker``. Where the first
            run begins is ``startingOffsets``, by default ``earliest``. ``failOnDataLoss=False``
            goes on where retention has deleted records before they were exported.

    Raises:
        DataLossError: records were deleted before they were exported.
        ExportRefusedError: the topic was created again, or its log was cut below what the table
            has; the table is another topic's, was changed by another program, or is exported to at
            this moment.
        ConfigError: an unknown option, or a place to begin for a table that is there.
        LogstoreError: as reading does.
        PySparkException: the job failed, as where records are deleted while it reads them.
        OSError: the medium refused. If it was the commit itself, it may be there: the next run
            knows.
    """
    log = DeltaLog(_local(table))
    given = _given(os.fspath(directory), topic, options)
    with log.locked():
        latest = log.latest()
        newest, state = log.state(latest)
        before = None if state is None else _marks(log, topic, state, options)
        planner = _Planner(StreamOptions.from_spark(given), log.table)
        ends = planner.plan(before)
        report = ExportReport(
            log.table, latest, offsets=planner.ranges(ends), lost=tuple(planner.losses)
        )
        if before is not None and not report.offsets:
            return report
        place = log.data_directory(latest + 1, newest)
        try:
            files = _Job(spark, topic, given, report.offsets).run(log, place, progress)
            planner.check_unchanged(report.offsets, ends)
        except BaseException:
            with suppress(OSError):
                log.discard(place)
            raise
        # From here on the files may belong to a commit, and nothing removes them.
        made = [] if before is not None else _table(topic)
        report = replace(
            report,
            version=latest + 1,
            records=sum(each.rows for each in files),
            files=len(files),
            size=sum(each.size for each in files),
        )
        log.commit(
            report.version,
            [_commit_info(report, topic, ends), *made, *(each.action() for each in files)],
        )
    return report


def exported(spark: SparkSession, table: str | os.PathLike[str]) -> DataFrame:
    """The rows that were committed to ``table``, as every reader of Delta's tables sees them.

    Spark's own reader of Parquet would list files of a run that is still writing.

    Raises:
        ExportRefusedError: no export has made it, or another program has changed how it is read.
    """
    log = DeltaLog(_local(table))
    if log.latest() < 0:
        raise ExportRefusedError(log.table, "it is no table of an export")
    # Spark takes each for a pattern.
    files = ["file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", path) for path in log.files()]
    if not files:
        return spark.createDataFrame([], _SCHEMA)
    return spark.read.schema(_SCHEMA).parquet(*files)


def _local(table: str | os.PathLike[str]) -> str:
    path = absolute_path(LocalStorage(), os.fspath(table).removeprefix("file://"))
    if "://" in path:
        raise ConfigError(f"{path}: a table is on a local disk or a mounted file system")
    return path


def _given(directory: str, topic: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The options of planning."""
    taken = {name.lower() for name in _OURS}
    for name in options:
        if name.lower() in taken:
            raise ConfigError(f"option {name}: an export sets it itself")
    starts = {} if _starts(options) else {"startingOffsets": "earliest"}
    named = {name: str(value) for name, value in options.items()}
    return {**starts, **named, "path": directory, "subscribe": topic}


def _starts(options: Mapping[str, Any]) -> list[str]:
    known = {name.lower() for name in _STARTS}
    return [name for name in options if name.lower() in known]


def _marks(
    log: DeltaLog, topic: str, state: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[TopicPartition, StreamMark]:
    """Return how far the table is."""
    if state.get("version") != _STATE_VERSION or not isinstance(state.get("marks"), dict):
        raise ExportRefusedError(log.table, "its last export is of a later version of logstore")
    if state.get("topic") != topic:
        raise ExportRefusedError(log.table, f"it is the table of the topic {state.get('topic')!r}")
    for name in _starts(options):
        raise ConfigError(f"option {name}: {log.table} is there, and goes on where it ends")
    try:
        return from_json(state["marks"])
    except ConfigError as error:
        raise ExportRefusedError(log.table, f"its last export is malformed: {error}") from error


# ---- what to export ----------------------------------------------------------------------------


class _Planner(LogstoreStreamReader):
    """Plans a run as a micro-batch of a stream, and refuses what would add an offset twice."""

    def __init__(self, options: StreamOptions, table: str) -> None:
        schema = StructType.fromDDL(_SCHEMA)
        assert isinstance(schema, StructType)
        super().__init__(options, schema)
        self._table = table
        self._starts: dict[TopicPartition, int] = {}
        self.losses: dict[str, None] = {}

    def plan(self, before: Marks | None) -> Marks:
        """The marks of all partitions at the end of this run. ``before`` are those of the last."""
        start = self.initialOffset() if before is None else to_json(before)
        ends = from_json(self.latestOffset(start, self.getDefaultReadLimit()))
        return {**(before or {}), **ends}  # a partition that is gone may come back

    def ranges(self, ends: Marks) -> dict[TopicPartition, tuple[int, int]]:
        return {
            tp: (self._starts[tp], mark.offset)
            for tp, mark in sorted(ends.items())
            if self._starts.get(tp, mark.offset) < mark.offset
        }

    def check_unchanged(self, read: Iterable[TopicPartition], ends: Marks) -> None:
        """Check that the logs that were read up to ``ends`` are still the same.

        Raises:
            ExportRefusedError: one was cut, or belongs to another topic.
            DataLossError: a partition is gone.
        """
        self._looking(lambda views: self._check(views, {tp: ends[tp] for tp in read}))

    def _check(self, views: Views, ends: Marks) -> None:
        for tp, mark in ends.items():
            if tp not in views:
                raise DataLossError(str(tp), mark.offset, mark.offset, "deleted during the export")
        for tp, found in self._found({tp: views[tp] for tp in ends}, ends).items():
            self._refuse(tp, found, ends)

    def _found(self, views: Views, marks: Marks) -> dict[TopicPartition, Resumption]:
        none = StreamMark(0)
        found = at_once(lambda each: each[1].resume(marks.get(each[0], none)), views.items())
        return dict(zip(views, found, strict=True))

    def _resume(self, views: Views, marks: Marks) -> dict[TopicPartition, Resumption]:
        resumed = self._found(views, marks)
        for tp, found in resumed.items():
            self._refuse(tp, found, marks)
            if found.loss is not None:
                self._lost(found.loss)
        self._starts = {tp: found.offset for tp, found in resumed.items()}
        return resumed

    def _lost(self, loss: DataLossError) -> None:
        if loss.start == loss.end:  # the partition is gone; unlike a stream, its mark stays
            reason = "the partition is not there any more; should it come back, it goes on there"
            loss = DataLossError(loss.path, loss.start, loss.end, reason)
        super()._lost(loss)
        self.losses[str(loss)] = None

    def _refuse(self, tp: TopicPartition, found: Resumption, marks: Marks) -> None:
        """Refuse a log that may have other records under offsets that the table has."""
        if tp not in marks or found.loss is None:
            return
        if found.remade or found.loss.start < marks[tp].offset:
            if not self._last_try:
                raise found.loss
            reason = found.loss.reason
            if found.remade:
                reason = reason.partition("): ")[0] + ")"
            raise ExportRefusedError(
                self._table,
                f"{tp}: {reason}; its offsets below {marks[tp].offset} are those of another log: "
                "export to another table",
            )


# ---- writing files -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """The Spark job of a run, with the options of its planning."""

    spark: SparkSession
    topic: str
    given: Mapping[str, str]
    ranges: Mapping[TopicPartition, tuple[int, int]]

    def run(self, log: DeltaLog, directory: str, progress: Progress | None) -> list[_File]:
        """Write the records to a new directory of the table, durably."""
        if not self.ranges:
            return []
        rows = self.write(os.path.join(log.table, directory), progress)
        files = _written(log.table, directory)
        found = sum(each.rows for each in files)
        if found != rows:
            raise ExportRefusedError(
                log.table,
                f"the executors have written {rows} rows, and the driver sees {found} of them: it "
                "must be under one path for all",
            )
        log.sync(directory, (os.path.basename(each.path) for each in files))
        return files

    def write(self, directory: str, progress: Progress | None) -> int:
        """Write Parquet files, the records of a task to one file; return how many records."""
        session = self.spark
        if is_columnar(session):  # no Python source can be registered with a second session
            session = session.newSession()
            session.conf.set(*_MICROS)
        frame = session.read.format("logstore").options(**self._options()).load()
        counted = Observation()
        frame = frame.observe(counted, functions.count(functions.lit(1)).alias("rows"))
        context, group = self.spark.sparkContext, random_id()
        before = context.getLocalProperty(_GROUP)
        context.setLocalProperty(_GROUP, group)
        try:
            total = sum(end - start for start, end in self.ranges.values())
            with watched(lambda: _done(context, group, total), total, progress):
                # Where Spark's default is another file system, a path alone means that one.
                frame.write.parquet(f"file://{directory}")
        finally:
            context.setLocalProperty(_GROUP, cast(str, before))  # or None
        return int(counted.get["rows"])

    def _options(self) -> dict[str, str]:
        # The ends are decided. A high watermark that falls must not move them.
        others = {name.lower() for name in ("subscribe", "upTo", "failOnDataLoss", *_STARTS)}
        kept = {name: value for name, value in self.given.items() if name.lower() not in others}
        starts = {tp.partition: start for tp, (start, _) in self.ranges.items()}
        ends = {tp.partition: end for tp, (_, end) in self.ranges.items()}
        return kept | {
            "assign": json.dumps({self.topic: list(starts)}),
            "startingOffsets": json.dumps({self.topic: starts}),
            "endingOffsets": json.dumps({self.topic: ends}),
            "includeHeaders": "true",
        }


def _done(context: SparkContext, group: str, total: int) -> int:
    """The share of ``total`` that the finished tasks of a job group have."""
    tracker = context.statusTracker()
    jobs = [job for at in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(at))]
    stages = [stage for job in jobs for at in job.stageIds if (stage := tracker.getStageInfo(at))]
    tasks = sum(stage.numTasks for stage in stages)
    return total * sum(stage.numCompletedTasks for stage in stages) // tasks if tasks else 0


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a job. ``path`` is relative to the table."""

    path: str
    size: int
    modified_ms: int
    rows: int
    least: Mapping[str, int]
    most: Mapping[str, int]

    def action(self) -> Action:
        statistics = {
            "numRecords": self.rows,
            "minValues": self.least,
            "maxValues": self.most,
            "nullCount": dict.fromkeys(self.least, 0),
        }
        return {
            "add": {
                "path": self.path,
                "partitionValues": {},
                "size": self.size,
                "modificationTime": self.modified_ms,
                "dataChange": True,
                "stats": json.dumps(statistics),
            }
        }


def _written(table: str, directory: str) -> list[_File]:
    """The files of a job that have rows."""
    entries = LocalStorage().scan_dir(os.path.join(table, directory))
    names = [entry.name for entry in entries if _PART.fullmatch(entry.name)]
    files = at_once(lambda name: _file(table, f"{directory}/{name}"), names)
    return [each for each in files if each.rows]


def _file(table: str, path: str) -> _File:
    status = os.stat(os.path.join(table, path))
    found = pq.read_metadata(os.path.join(table, path))
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    for group in map(found.row_group, range(found.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name, known = column.path_in_schema, column.statistics
            if name in _MEASURED and known is not None and known.has_min_max:
                least[name] = min(least.get(name, known.min), known.min)
                most[name] = max(most.get(name, known.max), known.max)
    modified_ms = status.st_mtime_ns // 1_000_000
    return _File(path, status.st_size, modified_ms, found.num_rows, least, most)


# ---- the actions of a commit -------------------------------------------------------------------


def _table(topic: str) -> list[Action]:
    schema = StructType.fromDDL(_SCHEMA)
    assert isinstance(schema, StructType)
    metadata = {
        "id": random_id(),
        "name": topic,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.json(),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": SystemClock().wall_ms(),
    }
    return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]


def _commit_info(report: ExportReport, topic: str, ends: Marks) -> Action:
    return {
        "commitInfo": {
            "timestamp": SystemClock().wall_ms(),
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
            "operationMetrics": {
                "numFiles": str(report.files),
                "numOutputRows": str(report.records),
                "numOutputBytes": str(report.size),
            },
            "engineInfo": f"logstore/{__version__}",
            STATE: {
                "version": _STATE_VERSION,
                "topic": topic,
                "ranges": {str(tp.partition): each for tp, each in report.offsets.items()},
                "marks": to_json(ends),
            },
        }
    }


__all__ = ["ExportReport", "export", "exported"]
