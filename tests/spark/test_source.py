"""The batch source in Spark: what test_source_logs finds true without it holds through it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.reading import Broker
from tests.spark.test_golden_source import ALL, DATA, expected_row, lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow  # a JVM

Load = Callable[..., "DataFrame"]
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(params=["logstore", "logstore-python"], ids=["by column", "in Python"])
def form(request: pytest.FixtureRequest) -> str:
    """Each question to both sources."""
    found: str = request.param
    return found


PUSHING = pytest.mark.parametrize(
    ("form", "session"),
    [("logstore", "true"), ("logstore-python", "true"), ("logstore-python", "false")],
    ids=["by column", "in Python, push-down", "in Python, no push-down"],
    indirect=True,
)


@pytest.fixture
def session(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    """With the setting for filters of Python sources, which means nothing to the other."""
    before = spark.conf.get(PUSH_DOWN)
    spark.conf.set(PUSH_DOWN, request.param)
    yield spark
    spark.conf.set(PUSH_DOWN, before)


@pytest.fixture
def load(spark: SparkSession, form: str) -> Load:
    def read(path: Any, **options: Any) -> DataFrame:
        return spark.read.format(form).options(**options).load(path)

    return read


@pytest.mark.essential
def test_columns_and_types_are_those_of_sparks_kafka_source(load: Load, logs: Path) -> None:
    frame = load(str(logs), includeHeaders=True)
    assert [(name, kind) for name, kind in frame.dtypes] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert frame.count() == 1200


@pytest.mark.essential
def test_golden_logs_have_the_values_that_kafka_reads(load: Load, tmp_path: Path) -> None:
    for name in ("v0-gzip", "v1-lz4", "v2-none", "v2-txn", "v2-zstd"):
        _check_golden(load, DATA / name, tmp_path / name)


def _check_golden(load: Load, folder: Path, logs: Path) -> None:
    shutil.copytree(folder, logs / "golden-7")
    batches = {one["position"]: one for one in lines(folder / "batches.jsonl")}
    segment = int(next(folder.glob("*.log")).stem)
    expected = [
        expected_row(record, batches[record["batch"]], segment, str(logs))
        for record in lines(folder / "records.jsonl")
    ]
    frame = load(str(logs), columns=ALL, includeControl=True)
    for got, want in zip(frame.collect(), expected, strict=True):
        row = got.asDict(recursive=True)
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
        want["timestamp"] = round(want["timestamp"].timestamp() * 1000)
        row.update({key: bytes(row[key]) for key in ("key", "value") if row[key] is not None})
        assert row == want


QUERIES = {
    "topic = 'orders' AND partition = 1 AND offset >= 390": 10,
    "offset BETWEEN 100 AND 109": 30,
    "offset IN (1, 399, 400)": 6,
    "topic LIKE 'pay%' AND offset < 7": 7,
    "timestamp >= timestamp_millis(390)": 30,
    "timestamp < timestamp_millis(10) AND topic = 'payments'": 10,
    "timestamp = timestamp_millis(200)": 30,
    "offset = 5 OR topic = 'payments'": 402,
    "key = X'6B' AND offset > 397": 6,
    "offset IS NULL": 0,
}


@pytest.mark.essential
@PUSHING
def test_filters_give_the_same_rows_with_push_down_and_without(
    session: SparkSession, load: Load, logs: Path
) -> None:
    frame = load(str(logs))
    assert {query: frame.where(query).count() for query in QUERIES} == QUERIES


def test_exact_filters_are_gone_from_the_plan(spark: SparkSession, load: Load, logs: Path) -> None:
    spark.conf.set(PUSH_DOWN, "true")

    def plan(condition: str) -> str:
        frame = load(str(logs), pushFilters=True).where(condition)
        return str(frame._jdf.queryExecution().executedPlan().toString())

    assert "Filter (" not in plan("topic = 'orders' AND offset >= 390")
    assert "Filter (" not in plan("timestamp >= timestamp_millis(390)")
    assert "Filter " in plan("timestamp IN (timestamp_millis(390), timestamp_millis(20))")
    spark.conf.set(PUSH_DOWN, "false")


@PUSHING
def test_a_frame_used_twice_gives_each_query_its_own_rows(
    session: SparkSession, load: Load, logs: Path
) -> None:
    """Filtered, then whole; in a union, a self-join, a view and a cache."""
    frame = load(str(logs))
    few = frame.where("topic = 'orders' AND partition = 1 AND offset >= 390")
    assert [few.count(), frame.count(), few.count(), frame.count()] == [10, 1200, 10, 1200]
    assert few.union(frame).count() == 1210
    other = frame.where("topic = 'payments' AND offset < 395")
    assert few.alias("a").join(other.alias("b"), "offset").count() == 5
    frame.createOrReplaceTempView("used_twice")
    queries = ("WHERE offset < 3", "", "WHERE topic = 'payments'", "")
    counts = [session.sql(f"SELECT * FROM used_twice {query}").count() for query in queries]
    assert counts == [9, 1200, 400, 1200]
    cached = few.cache()
    assert [cached.count(), frame.count(), cached.where("offset = 391").count()] == [10, 1200, 1]
    cached.unpersist()


@PUSHING
def test_a_frame_filtered_in_each_micro_batch_is_whole_in_the_next(
    session: SparkSession, load: Load, logs: Path, tmp_path: Path
) -> None:
    frame = load(str(logs))
    seen: list[tuple[int, int]] = []

    def sink(_: DataFrame, number: int) -> None:
        seen.append((frame.where(f"offset < {number + 1}").count(), frame.count()))

    stream = session.readStream.format("logstore").options(
        startingOffsets="earliest", maxOffsetsPerTrigger=600
    )
    query = stream.load(str(logs)).writeStream.foreachBatch(sink)
    checkpointed = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    checkpointed.trigger(availableNow=True).start().awaitTermination()
    assert seen[:2] == [(3, 1200), (6, 1200)]


def test_sql_reads_paths_through_a_view(spark: SparkSession, logs: Path, form: str) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING `{form}` "
        f"OPTIONS (path '{logs}', subscribe 'orders', startingOffsets 'earliest')"
    )
    [row] = spark.sql("SELECT count(*) AS n, max(offset) AS last FROM orders").collect()
    assert (row["n"], row["last"]) == (800, 399)


def test_several_paths_are_loaded_together(load: Load, logs: Path) -> None:
    paths = [f"{logs}/orders-0", f"{logs}/pay*"]
    rows = load(paths).groupBy("topic").count().orderBy("topic").collect()
    assert [(row["topic"], row["count"]) for row in rows] == [("orders", 400), ("payments", 400)]


def test_a_schema_of_the_users_chooses_columns(spark: SparkSession, logs: Path, form: str) -> None:
    frame = (
        spark.read.format(form)
        .schema("offset bigint, isControl boolean, value binary")
        .load(str(logs))
    )
    assert frame.columns == ["offset", "isControl", "value"]
    assert frame.where("length(value) = 50 AND NOT isControl").count() == 1200


@pytest.mark.essential
def test_batches_are_rows_of_their_own(load: Load, logs: Path) -> None:
    frame = load(str(logs), granularity="batch")
    [row] = frame.selectExpr("count(*)", "sum(recordCount)", "bool_and(crcOk)").collect()
    assert tuple(row) == (120, 1200, True)


def test_a_corrupt_batch_fails_the_query_and_names_the_file(
    load: Load, logs: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "logs"
    shutil.copytree(logs, copy)
    log = sorted((copy / "payments-0").glob("*.log"))[1]
    with log.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    with pytest.raises(Exception, match=f"{log} at byte 0: checksum"):
        load(str(copy)).count()
    assert load(str(copy), mode="DROPMALFORMED").count() == 1190


def test_mistakes_in_options_reach_the_user(
    spark: SparkSession, load: Load, logs: Path, form: str
) -> None:
    with pytest.raises(Exception, match="Did you mean 'startingOffsets'"):
        load(str(logs), startingOfsets="earliest").count()
    with pytest.raises(Exception, match="nowhere is no log directory"):
        load(str(logs / "nowhere")).count()
    with pytest.raises(Exception, match="column offset is bigint, not string"):
        spark.read.format(form).schema("offset string").load(str(logs)).count()


def test_an_empty_log_directory_has_no_rows(load: Load, tmp_path: Path) -> None:
    with Broker(tmp_path / "logs", orders=1):
        pass
    assert load(str(tmp_path / "logs")).count() == 0
