"""Ways to read at ``local[2]``, warm session, page cache: rows, bytes and filters, in one run."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import spark_data
from workloads import START_MS

SIZE = int(os.environ.get("LOGSTORE_BENCH_BYTES", 1 << 30))  # 8.5 M records
ROUNDS = 2
ALL, ONE = "the Python source, all columns", "the Python source, the one column needed"
REDUCED, COLUMNAR = "`map_batches`, reduced in Python", '`format("logstore")`, by column'
PARQUET = "a Parquet copy, written before"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from logstore.spark import session

    spark = session("local[2]", app_name="bench", conf=spark_data.CONF)
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    directory = Path(__file__).resolve().parents[1] / ".cache" / "bench-spark"
    shutil.rmtree(directory, ignore_errors=True)
    rows = spark_data.make_directory(directory, SIZE)
    spark_data.warm(directory)
    yield directory, rows
    spark_data.remove(directory)


def best(action: Callable[[], object], rounds: int = 1) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


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
def test_routes(
    benchmark: Any, claim: Any, logs: tuple[Path, int], routes: Any, question: str
) -> None:
    """Each round asks all ways, so that what the machine is busy with meets all alike."""
    directory, rows = logs
    size = spark_data.warm(directory)
    asked = {name: pair[question != "count"] for name, pair in routes.items()}
    right = rows if question == "count" else rows * 100
    seconds = dict.fromkeys(asked, float("inf"))
    peaks = dict.fromkeys(asked, 0)
    for _ in range(ROUNDS):
        for name, ask in asked.items():
            with spark_data.peak_of_workers() as peak:
                seconds[name] = min(seconds[name], best(lambda ask=ask: assert_is(ask(), right)))
            peaks[name] = max(peaks[name], peak[0])
    benchmark.pedantic(asked[COLUMNAR], rounds=1)
    wanted = {"count": 5, "sum of lengths": 4}[question]
    for name in asked:
        ratio = seconds[ALL] / seconds[name]
        goal = f"at least {wanted}x" if name == COLUMNAR else ""
        claim(
            what=f"{question}: {name}",
            ours=round(rows / seconds[name] / 1e6, 1),
            unit="M rows/s",
            ratio=round(ratio, 1),
            goal=goal,
            met=ratio >= wanted if goal else None,
            note=f"{size / seconds[name] / 1e9:.2f} GB/s of log",
        )
    claim(
        what=f"memory of a Python worker of the columnar source in it, {question}",
        ours=round(peaks[COLUMNAR] / 1e6),
        unit="MB",
        goal="below 150 MB",
        met=peaks[COLUMNAR] < 150e6,
    )


def assert_is(found: int, right: int) -> None:
    assert found == right


def test_count_by_batches(benchmark: Any, claim: Any, spark: Any, logs: tuple[Path, int]) -> None:
    """The same answer from the headers of batches, which say how many records each has."""
    directory, rows = logs

    def count() -> None:
        frame = source(spark, directory, granularity="batch", columns="recordCount,crcOk")
        assert frame.selectExpr("sum(recordCount)", "every(crcOk)").first() == (rows, True)

    count()
    benchmark.pedantic(count, rounds=ROUNDS)
    claim(
        what="records counted by `granularity=batch`, every checksum compared",
        ours=round(rows / benchmark.stats.stats.min / 1e6, 1),
        unit="M rows/s",
        goal="",
        met=None,
    )


@pytest.mark.parametrize("column", ["offset", "timestamp", "timestamp, ascending"])
def test_one_percent_by_filter(
    benchmark: Any, claim: Any, spark: Any, logs: tuple[Path, int], column: str
) -> None:
    directory, rows = logs
    options = {"ascendingTimestamps": "true"} if "ascending" in column else {}
    each = rows // 4
    low, high = each // 2, each // 2 + each // 100
    if column == "offset":
        condition = f"offset >= {low} AND offset < {high}"
    else:
        first, last = START_MS + low, START_MS + high
        condition = (
            f"timestamp >= timestamp_millis({first}) AND timestamp < timestamp_millis({last})"
        )

    def filtered(where: str, wanted: int) -> None:
        assert source(spark, directory, **options).where(where).selectExpr(
            "sum(length(value))"
        ).first()[0] == (wanted * 100 if wanted else None)

    # What a job costs that finds nothing: planning, scheduling, a worker's round trip.
    overhead = best(lambda: filtered("offset < 0", 0), 5)
    full = best(lambda: filtered("offset >= 0", rows)) - overhead
    wanted = 4 * (high - low)
    filtered(condition, wanted)
    benchmark.pedantic(lambda: filtered(condition, wanted), rounds=5)
    share = max(0.0, benchmark.stats.stats.min - overhead) / full
    claim(
        what=f"one percent by {column}, of the time of a full scan, job overhead apart",
        ours=round(100 * share, 1),
        unit="%",
        goal="at most 3 %",
        met=share <= 0.03,
        note=f"{benchmark.stats.stats.min:.2f} s, full {full:.1f} s, overhead {overhead:.2f} s",
    )
