"""Ways to read at ``local[2]``, warm session, page cache: rows, bytes and filters, in one run."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import spark_data
from workloads import START_MS, in_turns, rates, scaled, seconds

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
    from logstore.spark import map_batches

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
        REDUCED: (lambda: reduced() // 100, reduced),
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
def test_routes(
    benchmark: Any, claim: Any, logs: tuple[Path, int], routes: Any, question: str
) -> None:
    """All ways are asked in turn, so that what the machine is busy with meets all alike."""
    directory, rows = logs
    size = spark_data.warm(directory)
    right = rows if question == "count" else rows * 100
    peak = 0

    def ask(name: str) -> None:
        assert routes[name][question != "count"]() == right

    def columnar() -> None:
        nonlocal peak
        with spark_data.peak_of_workers() as found:
            ask(COLUMNAR)
        peak = max(peak, found[0])

    others = {name: lambda name=name: seconds(lambda: ask(name)) for name in routes}
    del others[COLUMNAR]
    took = in_turns(benchmark, columnar, **others)
    took[COLUMNAR] = took.pop("ours")
    called = {"count": "`count()`", "sum of lengths": "sum of value lengths"}[question]
    for name in (ONE, REDUCED, COLUMNAR, PARQUET):
        claim(
            f"{called} by {name}",
            rates(rows / 1e6, took[name]),
            "M rows/s",
            peer=ALL,
            theirs=rates(rows / 1e6, took[ALL]),
            goal={"count": 5, "sum of lengths": 4}[question] if name == COLUMNAR else None,
            note=f"{size / statistics.median(took[name]) / 1e9:.2f} GB/s of log",
        )
    what = f"memory of a Python worker of the columnar source, {called}"
    claim(what, peak / 1e6, "MB", limit=150, less=True)


def test_count_by_batches(benchmark: Any, claim: Any, spark: Any, logs: tuple[Path, int]) -> None:
    """The same answer from the headers of batches, which say how many records each has."""
    directory, rows = logs

    def count() -> None:
        frame = source(spark, directory, granularity="batch", columns="recordCount,crcOk")
        assert frame.selectExpr("sum(recordCount)", "every(crcOk)").first() == (rows, True)

    def by_columns() -> None:
        assert source(spark, directory).count() == rows

    took = in_turns(benchmark, count, columns=lambda: seconds(by_columns))
    claim(
        "records counted by `granularity=batch`, every checksum compared",
        rates(rows / 1e6, took["ours"]),
        "M rows/s",
        peer="`count()`",
        theirs=rates(rows / 1e6, took["columns"]),
    )


@pytest.mark.parametrize("column", ["offset", "timestamp", "timestamp, ascending"])
def test_one_percent_by_filter(
    benchmark: Any, claim: Any, spark: Any, logs: tuple[Path, int], column: str
) -> None:
    """A job that finds nothing costs planning, scheduling and a worker's round trip; that is taken
    off both times."""
    directory, rows = logs
    each = rows // 4
    low, high = each // 2, each // 2 + each // 100
    ends = "offset", low, high
    if column != "offset":
        ends = "timestamp", *(f"timestamp_millis({START_MS + end})" for end in (low, high))
    condition = "{0} >= {1} AND {0} < {2}".format(*ends)
    options = {"ascendingTimestamps": "true"} if column.endswith("ascending") else {}

    def filtered(where: str, wanted: int, **options: str) -> None:
        found = source(spark, directory, **options).where(where).selectExpr("sum(length(value))")
        assert found.first()[0] == (wanted * 100 if wanted else None)

    took = in_turns(
        benchmark,
        lambda: filtered(condition, 4 * (high - low), **options),
        nothing=lambda: seconds(lambda: filtered("offset < 0", 0)),
        full=lambda: seconds(lambda: filtered("offset >= 0", rows)),
    )
    ours, nothing, full = (min(times) for times in took.values())
    claim(
        f"one percent by {column}, of the time of a full scan",
        100 * max(0.0, ours - nothing) / (full - nothing),
        "%",
        limit=3,
        less=True,
        note=f"the best of {len(took['full'])}: {ours:.2f} s with the overhead of {nothing:.2f} s, "
        f"full {full - nothing:.1f} s more",
    )
