"""Ways to read at ``local[2]``, warm session, page cache: processor time of the JVM and of Python.

All ways are asked in turns, so that what the machine is busy with meets all alike.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import spark_data
from workloads import ROUNDS, START_MS, in_turns, rates, scaled, seconds

SPARE = Path(__file__).resolve().parents[1] / ".cache" / "bench-spark"
SIZES = {100: scaled(3_500_000 * 123), 1000: scaled(1_000_000 * 1026)}
"""Bytes of log for values of so many bytes: 3.5 and 1 million records."""

COLUMNAR, WORKERS = "the columnar source", "Python workers"
ROWS, PARQUET = "the Python source", "a Parquet copy with zstd"

QUESTIONS: dict[str, Callable[[Any], object]] = {
    "`count()`": lambda frame: frame.count(),
    "sum of value lengths": lambda frame: frame.selectExpr("sum(length(value))").first()[0],
    "all columns": lambda frame: frame.write.format("noop").mode("overwrite").save(),
}


@dataclass(frozen=True)
class Logs:
    value_bytes: int
    directory: Path
    parquet: Path
    rows: int

    @property
    def name(self) -> str:
        return f"{self.value_bytes}-byte values"


@pytest.fixture(scope="module", params=SIZES)
def logs(request: pytest.FixtureRequest, spark: Any) -> Iterator[Logs]:
    directory, parquet = SPARE / "logs", SPARE / "parquet"
    shutil.rmtree(SPARE, ignore_errors=True)
    size = request.param
    rows = spark_data.make_directory(directory, SIZES[size], value_bytes=size)
    spark_data.warm(directory)
    source(spark, directory).write.option("compression", "zstd").parquet(str(parquet))
    yield Logs(size, directory, parquet, rows)
    spark_data.remove(SPARE)


def source(spark: Any, directory: Path, form: str = "logstore") -> Any:
    return spark.read.format(form).load(str(directory))


@pytest.mark.parametrize("question", QUESTIONS)
def test_routes(benchmark: Any, claim: Any, spark: Any, logs: Logs, question: str) -> None:
    ask, right = QUESTIONS[question], {"`count()`": logs.rows, "all columns": None}
    frames = {
        COLUMNAR: partial(source, spark, logs.directory),
        WORKERS: partial(source, spark, logs.directory),
        PARQUET: lambda: spark.read.parquet(str(logs.parquet)),
    }
    if logs.value_bytes == min(SIZES):
        frames[ROWS] = partial(source, spark, logs.directory, "logstore-python")
    memory: dict[str, int] = dict.fromkeys(frames, 0)
    times: dict[str, list[float]] = {name: [] for name in frames}

    def asked(name: str) -> float:
        def work() -> None:
            with spark_data.peak_of_all() as peak, spark_data.native(spark, name != WORKERS):
                took = seconds(lambda: answers.append(ask(frames[name]())))
            memory[name] = max(memory[name], peak[0])
            times[name].append(took)

        answers: list[object] = []
        used = spark_data.cpu_of(work)
        assert answers == [right.get(question, logs.rows * logs.value_bytes)]
        return used

    ours: list[float] = []
    others = {name: partial(asked, name) for name in frames if name != COLUMNAR}
    used = in_turns(benchmark, lambda: ours.append(asked(COLUMNAR)), **others)
    used[COLUMNAR] = ours[1:]
    what = f"{question}, {logs.name}"
    goals = {PARQUET: 1, WORKERS: 2}
    for peer in others:
        medians = [median(times[name][1:]) for name in (COLUMNAR, peer)]
        claim(
            f"CPU of {what}, beside {peer}",
            used[COLUMNAR],
            "s",
            peer=peer,
            theirs=used[peer],
            goal=goals.get(peer),
            less=True,
            note="in {:.2f} s and {:.2f} s".format(*medians),
        )
    most = (memory[WORKERS] + 50e6) / 1e6
    what = f"memory of the JVM and Python, {what}: at most as with Python workers, and 50 MB"
    claim(what, memory[COLUMNAR] / 1e6, "MB", limit=most, less=True)


@pytest.mark.parametrize("column", ["offset", "timestamp", "timestamp, shuffled"])
def test_one_percent_by_filter(
    benchmark: Any, claim: Any, spark: Any, disk: Path, column: str
) -> None:
    """A job that finds nothing costs planning and scheduling, which is taken off both times."""
    shuffled = column.endswith("shuffled")
    directory, size = disk / "logs", SIZES[100]
    spread = size // 123 // 4 if shuffled else 0
    rows = spark_data.make_directory(directory, size, shuffled_by=spread)
    spark_data.warm(directory)
    each = rows // 4
    low, high = each // 2, each // 2 + each // 100
    ends = "offset", low, high
    if column != "offset":
        ends = "timestamp", *(f"timestamp_millis({START_MS + end})" for end in (low, high))
    condition = "{0} >= {1} AND {0} < {2}".format(*ends)
    stamps = (spark_data.stamp_of(offset, spread) - START_MS for offset in range(each))
    found = 4 * (sum(low <= stamp < high for stamp in stamps) if shuffled else high - low)

    def filtered(where: str, wanted: int) -> float:
        def work() -> None:
            frame = source(spark, directory).where(where).selectExpr("sum(length(value))")
            assert frame.first()[0] == (wanted * 100 if wanted else None)

        return spark_data.cpu_of(work)

    some: list[float] = []
    used = in_turns(
        benchmark,
        lambda: some.append(filtered(condition, found)),
        rounds=2 * ROUNDS - 1,
        nothing=lambda: filtered("offset < 0", 0),
        full=lambda: filtered("offset >= 0", rows),
    )
    ours, nothing, full = (min(times) for times in (some[1:], used["nothing"], used["full"]))
    claim(
        f"one percent by {column}, of the CPU of a full scan",
        100 * max(0.0, ours - nothing) / max(full - nothing, 0.01),
        "%",
        limit=5,
        less=True,
        note=f"the best of {len(some) - 1}: {ours:.2f} s, {nothing:.2f} s of them for a job that "
        f"reads nothing; the full scan {full:.2f} s",
    )


def test_beside_the_kafka_source(benchmark: Any, claim: Any, spark: Any, disk: Path) -> None:
    """Spark's own, from a server over the same files."""
    directory = disk / "logs"
    rows = spark_data.make_directory(directory, SIZES[100])
    spark_data.warm(directory)
    ask = QUESTIONS["sum of value lengths"]
    with spark_data.served(directory) as address:
        kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", address)

        def consumed() -> None:
            assert ask(kafka.option("subscribe", spark_data.TOPIC).load()) == rows * 100

        def read() -> None:
            assert ask(source(spark, directory)) == rows * 100

        took = in_turns(benchmark, read, kafka=lambda: seconds(consumed))
    claim(
        "sum of value lengths, beside Spark's Kafka source",
        rates(rows / 1e6, took["ours"]),
        "M rows/s",
        peer="the same records from `logstore serve`",
        theirs=rates(rows / 1e6, took["kafka"]),
        goal=4,
    )
