"""Ways to read at ``local[2]``, warm session, page cache: rows, bytes and filters, in one run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import spark_data
from workloads import START_MS, best, scaled, seconds

SIZE = scaled(512 << 20)
ALL, ONE = "the Python source, all columns", "the Python source, the one column needed"
REDUCED, COLUMNAR = "`map_batches`, reduced in Python", '`format("logstore")`'
PARQUET = "a Parquet copy, written before"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    directory = Path(__file__).resolve().parents[1] / ".cache" / "bench-spark"
    shutil.rmtree(directory, ignore_errors=True)
    rows = spark_data.make_directory(directory, SIZE)
    spark_data.warm(directory)
    yield directory, rows
    spark_data.remove(directory)


def source(spark: Any, directory: Path, form: str = "logstore", **options: str) -> Any:
    return spark.read.format(form).options(**options).load(str(directory))


@pytest.fixture(scope="module")
def routes(
    spark: Any, logs: tuple[Path, int]
) -> Iterator[dict[str, tuple[Callable[[], int], Callable[[], int]]]]:
    """For each way to read: how many records there are, and the sum of their values' lengths."""
    from logstore.spark import count, map_batches

    directory, _ = logs
    parquet = directory.with_name("bench-parquet")
    source(spark, directory).write.mode("overwrite").parquet(str(parquet))

    def total(frame: Any) -> int:
        return int(frame.selectExpr("sum(length(value))").first()[0])

    def python(**options: str) -> Any:
        return source(spark, directory, "logstore-python", **options)

    def lengths(batches: Any) -> Any:  # nested, so that it travels to the workers as code
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            total = pc.sum(pc.binary_length(batch.column("value"))).as_py()
            yield pa.RecordBatch.from_arrays([pa.array([total], pa.int64())], ["total"])

    def reduced() -> int:
        frame = map_batches(spark, lengths, "total bigint", str(directory), columns="value")
        return int(frame.selectExpr("sum(total)").first()[0])

    python(columns="offset").count()  # the first job starts the workers
    yield {
        ALL: (lambda: python().count(), lambda: total(python())),
        ONE: (lambda: python(columns="offset").count(), lambda: total(python(columns="value"))),
        REDUCED: (lambda: count(spark, str(directory)), reduced),
        COLUMNAR: (
            lambda: source(spark, directory).count(),
            lambda: total(source(spark, directory)),
        ),
        PARQUET: (
            lambda: spark.read.parquet(str(parquet)).count(),
            lambda: total(spark.read.parquet(str(parquet))),
        ),
    }
    spark_data.remove(parquet)


@pytest.mark.parametrize("question", ["count", "sum of lengths"])
def test_routes(claim: Any, logs: tuple[Path, int], routes: Any, question: str) -> None:
    """All ways are asked in turn, so that what the machine is busy with meets all alike."""
    directory, rows = logs
    size = spark_data.warm(directory)
    right = rows if question == "count" else rows * 100
    took, peaks = {}, {}
    for name, pair in routes.items():
        with spark_data.peak_of_workers() as peak:
            took[name] = seconds(lambda pair=pair: assert_is(pair[question != "count"](), right))
        peaks[name] = peak[0]
    called = {"count": "`count()`", "sum of lengths": "sum of value lengths"}[question]
    for name in (ONE, REDUCED, COLUMNAR, PARQUET):
        claim(
            f"{called} by {name}",
            rows / took[name] / 1e6,
            "M rows/s",
            peer=ALL,
            theirs=rows / took[ALL] / 1e6,
            goal={"count": 5, "sum of lengths": 4}[question] if name == COLUMNAR else None,
            note=f"{size / took[name] / 1e9:.2f} GB/s of log",
        )
    what = f"memory of a Python worker of the columnar source, {called}"
    claim(what, peaks[COLUMNAR] / 1e6, "MB", limit=150, less=True)


def assert_is(found: int, right: int) -> None:
    assert found == right


def test_count_by_batches(claim: Any, spark: Any, logs: tuple[Path, int]) -> None:
    """The same answer from the headers of batches, which say how many records each has."""
    directory, rows = logs

    def count() -> None:
        frame = source(spark, directory, granularity="batch", columns="recordCount,crcOk")
        assert frame.selectExpr("sum(recordCount)", "every(crcOk)").first() == (rows, True)

    def by_columns() -> None:
        assert source(spark, directory).count() == rows

    claim(
        "records counted by `granularity=batch`, every checksum compared",
        rows / best(2, count) / 1e6,
        "M rows/s",
        peer="`count()`",
        theirs=rows / best(2, by_columns) / 1e6,
    )


def test_one_percent_by_filter(claim: Any, spark: Any, logs: tuple[Path, int]) -> None:
    """A job that finds nothing costs planning, scheduling and a worker's round trip; that is taken
    off both times."""
    directory, rows = logs
    each = rows // 4
    low, high = each // 2, each // 2 + each // 100
    by_time = (
        f"timestamp >= timestamp_millis({START_MS + low}) "
        f"AND timestamp < timestamp_millis({START_MS + high})"
    )

    def filtered(where: str, wanted: int, **options: str) -> None:
        found = source(spark, directory, **options).where(where).selectExpr("sum(length(value))")
        assert found.first()[0] == (wanted * 100 if wanted else None)

    overhead = best(4, lambda: filtered("offset < 0", 0))
    full = best(1, lambda: filtered("offset >= 0", rows)) - overhead
    for column, condition, options in (
        ("offset", f"offset >= {low} AND offset < {high}", {}),
        ("timestamp", by_time, {}),
        ("timestamp, ascending", by_time, {"ascendingTimestamps": "true"}),
    ):
        took = best(
            4, lambda where=condition, how=options: filtered(where, 4 * (high - low), **how)
        )
        claim(
            f"one percent by {column}, of the time of a full scan",
            100 * max(0.0, took - overhead) / full,
            "%",
            limit=3,
            less=True,
            note=f"{took:.2f} s with the overhead of {overhead:.2f} s, full {full:.1f} s more",
        )
