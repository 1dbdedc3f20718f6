"""``logstore verify`` as one Spark job: executors check the segments.

Plan and join are those of `logstore.verify`, so the findings are the same. They run on the driver,
which lists the directories and reads their small files, so it must reach the paths too. Only
``run_job`` is distributed. A segment comes back as a summary, which stays packed until its
partition is joined.
"""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyspark  # noqa: F401 (a missing extra shows at import, where it is explained)

from logstore.format import filenames
from logstore.spark.executor_environment import driver_context
from logstore.storage.uri import open_storage
from logstore.verify import Progress, VerifyOptions, VerifyReport
from logstore.verify.common.report import UNKNOWN, Finding, Severity
from logstore.verify.partition.partition_check import absolute
from logstore.verify.plan import VerifyPlan
from logstore.verify.replicas.replicas import Failure, run_job
from logstore.verify.segment.segment_check import SegmentJob, SegmentResult

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


_TASK_SIZE_MIN, _TASK_SIZE_MAX = 16 << 20, 256 << 20
_SEGMENT_COST = 1 << 20
"""The cost of opening the files of a segment, in bytes of a full one."""

_TASKS_PER_CORE = 8
"""Enough to balance the cores; a task costs about 10 ms."""

_PROGRESS_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Verification:
    """The result as a report, and as tables of the session with null for unknown values."""

    report: VerifyReport
    spark: SparkSession

    @property
    def findings(self) -> DataFrame:
        """The findings, with columns severity, rule, broker, topic, partition, segment, position,
        offset, file and message. What could not be read is an error of the rule ``unusable``.
        """
        return self.spark.createDataFrame(_findings_table(self.report))

    @property
    def partitions(self) -> DataFrame:
        """One row for each partition of each broker, as in ``PartitionReport``."""
        return self.spark.createDataFrame(_partitions_table(self.report))


class _Work(NamedTuple):
    """A segment to check, with its number among all and the URI of its storage.

    The driver makes ``directory`` absolute, because an executor has another working directory.
    """

    number: int
    uri: str
    directory: str
    job: SegmentJob
    size: int


def verify_on_spark(
    spark: SparkSession,
    *paths: str | os.PathLike[str],
    options: VerifyOptions | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check log directories, partition directories or single files of them; compare replicas.

    Paths may be URIs. Executors must reach the same paths under the same names. ``progress`` is
    called on a thread of its own, with the bytes done and in all.

    Damage is a finding, never an exception. What cannot be read is in the report's ``unusable``,
    and the rest is checked. ``options.threads`` has no effect here, because Spark has its own
    cores.

    Raises:
        ConfigError: a session of Spark Connect.
        ValueError: no path was given.
    """
    if not paths:
        raise ValueError("no path to verify")
    context = driver_context(spark, "verify_on_spark")
    plan = VerifyPlan(options or VerifyOptions())
    for path in paths:
        plan.add(os.fspath(path))
    replica_sets = plan.replica_sets()
    work: list[_Work] = []
    ends: list[int] = []
    for replicas in replica_sets:
        replicas.prepare(plan.report)
        for check in replicas.checks:
            sizes = [*check.sizes, *check.replacements.sizes]
            for job, size in zip(check.all_jobs, sizes, strict=True):
                work.append(_Work(len(work), check.uri, absolute(job.directory), job, size))
        ends.append(len(work))
    packed = _run(context, work, plan.options, progress)
    start = 0
    for replicas, end in zip(replica_sets, ends, strict=True):
        outcomes = [_outcome(work[n], packed.pop(n)) for n in range(start, end)]
        replicas.finish(outcomes, plan.report)
        start = end
    return Verification(plan.report, spark)


def _run(
    context: SparkContext,
    work: Sequence[_Work],
    options: VerifyOptions,
    progress: Progress | None,
) -> dict[int, bytes]:
    """All outcomes by number, packed."""
    if not work:
        return {}
    tasks = _pack(work, context.defaultParallelism)
    done = context.accumulator(0)

    def check(task: Iterable[list[_Work]]) -> Iterator[tuple[int, bytes]]:
        for item in (item for items in task for item in items):
            outcome = _check(item, options)
            done.add(item.size)
            yield item.number, zlib.compress(pickle.dumps(outcome), 1)

    total = sum(item.size for item in work)
    with watched(lambda: min(done.value, total), total, progress):
        return dict(context.parallelize(tasks, len(tasks)).mapPartitions(check).collect())


def _check(item: _Work, options: VerifyOptions) -> SegmentResult | Failure:
    job = replace(item.job, directory=item.directory)
    return run_job(open_storage(item.uri)[0], job, options)


def _outcome(item: _Work, packed: bytes) -> SegmentResult | Failure:
    """Unpack an outcome.

    If only the executor cannot find a segment, it was not deleted: the machine of the executor
    lacks the mount, and nothing was checked.
    """
    outcome: SegmentResult | Failure = pickle.loads(zlib.decompress(packed))
    if isinstance(outcome, SegmentResult) and filenames.LOG_SUFFIX in outcome.vanished:
        path = item.job.path(filenames.LOG_SUFFIX)
        if open_storage(item.uri)[0].info(path) is not None:
            return Failure("not found by an executor: paths must mean the same on all machines")
    return outcome


def _pack(work: Sequence[_Work], cores: int) -> list[list[_Work]]:
    """Tasks of like size, the largest first, so that the last ones to end are small."""
    total = sum(item.size + _SEGMENT_COST for item in work)
    wanted = min(max(total // (cores * _TASKS_PER_CORE), _TASK_SIZE_MIN), _TASK_SIZE_MAX)
    tasks: list[list[_Work]] = []
    filled = wanted
    for item in sorted(work, key=lambda item: -item.size):
        if filled >= wanted:
            tasks.append([])
            filled = 0
        tasks[-1].append(item)
        filled += item.size + _SEGMENT_COST
    return tasks


@contextmanager
def watched(done: Callable[[], int], total: int, progress: Progress | None) -> Iterator[None]:
    """Report progress while a job runs, on a thread of its own, and once more when it is done."""
    if progress is None:
        yield
        return
    ended = Event()

    def watch() -> None:
        while not ended.wait(_PROGRESS_SECONDS):
            progress(done(), total)

    thread = Thread(target=watch, name="logstore-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    progress(total, total)


_COUNTS = ("segments", "bytes", "batches", "records", "log_start_offset", "log_end_offset")
_OFFSETS = ("high_watermark", "recovery_point", "compared_from", "compared_end")
_TIME = pa.timestamp("us", tz="UTC")
_FINDINGS = pa.schema(
    [
        pa.field("severity", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
        pa.field("broker", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("segment", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("file", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
    ]
)
_PARTITIONS = pa.schema(
    [
        pa.field("broker", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("directory", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in _COUNTS),
        *(pa.field(name, pa.int64()) for name in _OFFSETS),
        pa.field("min_timestamp", _TIME),
        pa.field("max_timestamp", _TIME),
        pa.field("fingerprint", pa.string()),
    ]
)


def _findings_table(report: VerifyReport) -> pa.Table:
    names = {"segment": "segment_base"}
    unusable = [
        Finding(Severity.ERROR, "unusable", line.partition(": ")[0], line)
        for line in report.unusable
    ]
    return _table([*report.findings, *unusable], _FINDINGS, names)


def _partitions_table(report: VerifyReport) -> pa.Table:
    return _table(report.partitions, _PARTITIONS, {})


def _table(rows: Sequence[Any], schema: pa.Schema, names: dict[str, str]) -> pa.Table:
    return pa.table(
        [
            pa.array(_column(rows, names.get(field.name, field.name), field), field.type)
            for field in schema
        ],
        schema=schema,
    )


def _column(rows: Iterable[Any], name: str, field: pa.Field) -> list[Any]:
    values = (getattr(row, name) for row in rows)
    if not field.nullable:
        return [str(value) if pa.types.is_string(field.type) else value for value in values]
    scale = 1000 if field.type == _TIME else 1
    if pa.types.is_string(field.type):
        return [value or None for value in values]
    return [None if value == UNKNOWN else value * scale for value in values]


__all__ = ["Verification", "verify_on_spark", "watched"]
