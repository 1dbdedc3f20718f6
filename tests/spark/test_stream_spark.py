"""Streaming queries over logs that a writer of this process appends to meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException

from logstore import LogConfig, LogManager
from logstore.log import PartitionLog
from tests.spark.test_columnar import workers
from tests.support.until import patience, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.slow


@pytest.fixture
def manager(tmp_path) -> Iterator[LogManager]:
    config = LogConfig(segment_bytes=4000, index_interval_bytes=200)
    with LogManager([tmp_path / "data"], config) as manager:
        yield manager


class Sink:
    """What arrived, by micro-batch: one that is run again must bring the same rows."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, int, int, str]]] = {}
        self.fail_on = -1

    def __call__(self, batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("topic", "partition", "offset", "string(value)").collect()
        found = sorted(map(tuple, rows))
        assert self.batches.setdefault(number, found) == found
        if number == self.fail_on:
            self.fail_on = -1
            raise RuntimeError("the sink failed after it wrote")

    @property
    def rows(self) -> list[tuple[str, int, int, str]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def query(
    spark: SparkSession,
    tmp_path: Path,
    sink: Callable[[Any, int], None],
    *,
    now: bool = True,
    name: str = "logstore",
    **options: Any,
) -> StreamingQuery:
    source = spark.readStream.format(name).option("startingOffsets", "earliest")
    for option, value in options.items():
        source = source.option(option, value)
    stream = source.load(str(tmp_path / "data")).writeStream.foreachBatch(sink)
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    return (stream.trigger(availableNow=True) if now else stream).start()


def finish(started: StreamingQuery) -> None:
    assert started.awaitTermination(int(patience()))


def append(manager: LogManager, topic: str, partition: int, count: int) -> None:
    log = manager.get_or_create(topic, partition)
    for _ in range(count):
        log.append([(None, b"%d" % log.log_end_offset + bytes([32]) * 100)])


def expected(manager: LogManager) -> list[tuple[str, int, int, str]]:
    return sorted(
        (*tp, record.offset, record.value.decode())
        for tp, log in manager.logs.items()
        for record in log.records()
    )


@pytest.mark.essential
def test_each_record_once_over_restarts_rolls_failures_and_new_partitions(spark, manager, tmp_path):
    """The sink fails once after it wrote: the same range comes again, and nothing else twice."""
    sink = Sink()
    append(manager, "t", 0, 50)
    finish(query(spark, tmp_path, sink, maxOffsetsPerTrigger=30))
    assert sink.rows == expected(manager)
    assert [len(rows) for rows in sink.batches.values()] == [30, 20]

    append(manager, "t", 0, 40)
    append(manager, "t", 1, 20)
    append(manager, "later", 0, 10)
    sink.fail_on = max(sink.batches) + 1
    with pytest.raises(StreamingQueryException, match="the sink failed after it wrote"):
        finish(query(spark, tmp_path, sink))
    append(manager, "t", 0, 5)
    finish(query(spark, tmp_path, sink))
    assert sink.rows == expected(manager)
    assert len(manager.get("t", 0).segments) > 2


def test_a_running_query_follows_a_live_log_and_stops_at_a_loss(spark, manager, tmp_path):
    sink = Sink()
    append(manager, "t", 0, 10)
    running = query(spark, tmp_path, sink, now=False)
    try:
        for count in (0, 7):
            append(manager, "t", 0, count)
            running.processAllAvailable()
            assert sink.rows == expected(manager)
        progress = running.lastProgress["sources"][0]
        assert json.loads(progress["endOffset"])["offsets"] == {"t": {"0": 17}}

        before = expected(manager)
        log = manager.get("t", 0)
        log.truncate_to(15)
        log.epochs.assign(1)
        append(manager, "t", 0, 5)
        with pytest.raises(StreamingQueryException, match="t-0: offsets 15 to 17: cut meanwhile"):
            running.awaitTermination(int(patience()))
    finally:
        running.stop()
    assert sink.rows == before

    finish(query(spark, tmp_path, sink, failOnDataLoss="false"))
    assert sink.rows == sorted(before + expected(manager)[15:])


def test_a_directory_for_each_micro_batch(spark, manager, tmp_path):
    """The recipe of docs/spark-streaming.md: a micro-batch written again replaces itself."""
    append(manager, "t", 0, 30)
    failed: list[int] = []

    def save(batch: DataFrame, number: int) -> None:
        rows = batch.select("key", "value", "partition").write.format("logstore")
        rows.mode("overwrite").option("topic", "copy").save(str(tmp_path / "out" / str(number)))
        if not failed:
            failed.append(number)
            raise RuntimeError("failed after it wrote")

    def run() -> None:
        finish(query(spark, tmp_path, save, maxOffsetsPerTrigger=20))

    with pytest.raises(StreamingQueryException, match="failed after it wrote"):
        run()
    run()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0", "1"]
    found = []
    for number in range(2):
        with PartitionLog.open(tmp_path / "out" / str(number) / "copy-0") as log:
            found += [record.value for record in log.records()]
    assert found == [record.value for record in manager.get("t", 0).records()]


def test_a_backup_continued_by_each_micro_batch(spark, manager, tmp_path):
    """The recipe of docs/spark-streaming.md: a micro-batch that runs again is there already. Its
    frame is used twice, as it is and filtered: each time it is all of the micro-batch."""
    append(manager, "t", 0, 30)
    append(manager, "t", 1, 7)
    failed: list[int] = []
    counts: dict[int, tuple[int, int, int]] = {}

    def save(batch: DataFrame, number: int) -> None:
        rows = batch.select("key", "value", "topic", "partition")
        counts[number] = batch.count(), batch.where("partition = 1").count(), batch.count()
        write = rows.write.format("logstore").mode("append")
        write.option("writeId", f"copy-{number}").save(str(tmp_path / "out"))
        if len(failed) < 2:
            failed.append(number)
            raise RuntimeError("failed after it wrote")

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="failed after it wrote"):
            finish(query(spark, tmp_path, save, maxOffsetsPerTrigger=20))
    finish(query(spark, tmp_path, save, maxOffsetsPerTrigger=20))
    assert failed == [0, 0]
    assert all(first == last for first, _, last in counts.values())
    assert [sum(column) for column in zip(*counts.values(), strict=True)] == [37, 7, 37]
    with LogManager([tmp_path / "out"]) as copy:
        assert expected(copy) == expected(manager)


def test_a_first_micro_batch_that_fails_loses_nothing(spark, manager, tmp_path):
    """From the end on: Spark asks where that is again, after a restart."""
    append(manager, "t", 0, 5)
    sink = Sink()
    running = query(spark, tmp_path, sink, now=False, startingOffsets="latest")
    try:
        running.processAllAvailable()
    finally:
        running.stop()
    append(manager, "t", 0, 7)
    sink.fail_on = 1
    with pytest.raises(StreamingQueryException, match="the sink failed after it wrote"):
        finish(query(spark, tmp_path, sink, startingOffsets="latest"))
    append(manager, "t", 0, 3)
    finish(query(spark, tmp_path, sink, startingOffsets="latest"))
    assert sink.rows == sorted(expected(manager)[5:])


def test_a_checkpoint_is_continued_by_either_source(spark, manager, tmp_path):
    sink = Sink()
    for turn, name in enumerate(("logstore-python", "logstore", "logstore-python")):
        append(manager, "t", 0, 10)
        sink.fail_on = 2 * turn
        with pytest.raises(StreamingQueryException, match="the sink failed after it wrote"):
            finish(query(spark, tmp_path, sink, name=name, maxOffsetsPerTrigger=5))
        other = "logstore" if name == "logstore-python" else "logstore-python"
        finish(query(spark, tmp_path, sink, name=other, maxOffsetsPerTrigger=5))
        assert sink.rows == expected(manager)


def test_progress_and_plan_of_a_stream_by_column(spark, manager, tmp_path):
    append(manager, "t", 0, 10)
    running = query(spark, tmp_path, Sink(), now=False, maxOffsetsPerTrigger=6)
    try:
        running.processAllAvailable()
        source = running.recentProgress[0]["sources"][0]
        running.stop()
        assert running.exception() is None
    finally:
        running.stop()
    assert source["description"] == f"logstore[{tmp_path}/data]"
    assert json.loads(source["latestOffset"])["offsets"] == {"t": {"0": 10}}
    assert source["metrics"] == {
        "minOffsetsBehindLatest": "4",
        "maxOffsetsBehindLatest": "4",
        "avgOffsetsBehindLatest": "4.0",
    }


def test_a_stream_whose_python_hangs_is_stopped_and_has_not_failed(spark, manager, tmp_path):
    append(manager, "t", 0, 10)
    running = query(spark, tmp_path, Sink(), now=False)
    hung: list[psutil.Process] = []
    try:
        running.processAllAvailable()
        hung = workers()
        for worker in hung:
            worker.suspend()
        running.stop()
        assert running.exception() is None
    finally:
        for worker in hung:
            with suppress(psutil.NoSuchProcess):
                worker.resume()
        running.stop()


def test_a_stream_whose_python_is_killed_fails_and_goes_on_when_started_again(
    spark, manager, tmp_path
):
    sink = Sink()
    append(manager, "t", 0, 10)
    running = query(spark, tmp_path, sink, now=False)
    try:
        running.processAllAvailable()
        for worker in workers():
            worker.kill()
        append(manager, "t", 0, 10)
        with pytest.raises(StreamingQueryException, match="the Python worker ended in the midst"):
            running.awaitTermination(int(patience()))
    finally:
        running.stop()
    finish(query(spark, tmp_path, sink))
    assert sink.rows == expected(manager)


def test_a_wrong_option_is_told_when_the_query_starts(spark, manager, tmp_path):
    append(manager, "t", 0, 1)
    with pytest.raises(StreamingQueryException, match="unknown option 'maxoffsetpertrigger'"):
        finish(query(spark, tmp_path, Sink(), maxOffsetPerTrigger=3))


def test_a_query_whose_second_source_does_not_begin_keeps_no_process(spark, manager, tmp_path):
    append(manager, "t", 0, 1)
    other = tmp_path / "other"
    with LogManager([other]) as second:
        append(second, "t", 0, 1)
    source = spark.readStream.format("logstore")
    both = source.load(str(tmp_path / "data")).union(source.load(str(other)))
    other.rename(tmp_path / "gone")
    before = len(workers())
    for number in range(4):
        writer = both.writeStream.format("noop").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{number}"))
        with pytest.raises(StreamingQueryException, match="other is no log directory"):
            finish(writer.start())
    until(lambda: len(workers()) <= before + 2)  # two that were asked are idle
