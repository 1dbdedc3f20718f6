"""Verification at ``local[2]``, warm session, page cache, against Kafka's own dump-log tool."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spark_data

from logstore.format.codecs.compression import Compression
from logstore.verify import VerifyOptions

SIZE = 4 << 30
ROUNDS = 3
BATCH_LEVEL = VerifyOptions(deep=False, fingerprint=False)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from logstore.spark import session

    spark = session("local[2]", app_name="bench", conf=spark_data.CONF)
    yield spark
    spark.stop()


def clean(spark: Any, *directories: Path, options: VerifyOptions) -> None:
    from logstore.spark import verify_on_spark

    report = verify_on_spark(spark, *map(str, directories), options=options).report
    assert report.clean, [*report.findings, *report.unusable]


def dump_seconds(directory: Path) -> tuple[int, float]:
    """Bytes and time of Kafka's tool, batch level, on one segment, the start of its JVM too."""
    import kafka_tools

    path = max(directory.rglob("*.log"), key=lambda p: p.stat().st_size)
    started = time.perf_counter()
    kafka_tools.dump_log([path], deep=False, timeout_s=900)
    return path.stat().st_size, time.perf_counter() - started


@pytest.mark.parametrize("level", ["batch", "deep", "deep-zstd"])
def test_verify(benchmark: Any, claim: Any, spark: Any, kafka: Any, disk: Path, level: str) -> None:
    directory = disk / "logs"
    zstd = level == "deep-zstd"
    size = SIZE // 8 if zstd else SIZE
    rows = spark_data.make_directory(
        directory,
        size,
        compression=Compression.ZSTD if zstd else Compression.NONE,
        segment_bytes=64 << 20 if zstd else 1 << 30,
    )
    stored = spark_data.warm(directory)
    options = BATCH_LEVEL if level == "batch" else VerifyOptions(deep=True, fingerprint=False)
    clean(spark, directory, options=options)
    with spark_data.peak_of_workers() as peak:
        benchmark.pedantic(lambda: clean(spark, directory, options=options), rounds=ROUNDS)
    seconds = benchmark.stats.stats.min
    unpacked = rows * (100 + 16 + 10) if zstd else stored  # a record of such a batch, about
    rate, goal = unpacked / seconds / 1e9, 2.5 if level == "batch" else 1.0
    peer: dict[str, Any] = {}
    met = rate >= goal
    if level == "batch":
        dumped, dump = dump_seconds(directory)
        ratio = rate / (dumped / dump / 1e9)
        met = met and ratio >= 40
        peer = {"peer": f"Kafka's dump tool {dumped / dump / 1e6:.0f} MB/s", "ratio": round(ratio)}
    claim(
        what=f"verification, {level} level, {stored / 1e9:.1f} GB stored",
        ours=round(rate, 2),
        unit="GB/s",
        **peer,
        goal=f"at least {goal} GB/s" + (", 40x the tool" if level == "batch" else ""),
        met=met,
        note=f"{rows / seconds / 1e6:.0f} M records/s",
    )
    claim(
        what=f"memory of a Python worker in it, {level}",
        ours=round(peak[0] / 1e6),
        unit="MB",
        goal="at most 400 MB",
        met=peak[0] <= 400e6,
    )


@pytest.mark.parametrize("deep", [False, True])
def test_compare_three_replicas(
    benchmark: Any, claim: Any, spark: Any, disk: Path, deep: bool
) -> None:
    first = disk / "broker-0"
    spark_data.make_directory(first, SIZE // 3, partitions=2)
    replicas = [first]
    for broker in (1, 2):
        replicas.append(disk / f"broker-{broker}")
        spark_data.copy_as_broker(first, replicas[-1], broker)
    spark_data.warm(disk)
    options = VerifyOptions(deep=deep, fingerprint=False)

    def apart() -> None:
        """The same three as if they had nothing in common: verified, not compared."""
        clean(spark, *replicas, options=VerifyOptions(deep=deep, fingerprint=False, compare=False))

    apart()
    alone = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        apart()
        alone.append(time.perf_counter() - started)
    benchmark.pedantic(lambda: clean(spark, *replicas, options=options), rounds=ROUNDS)
    ratio = benchmark.stats.stats.min / min(alone)
    claim(
        what=f"comparison of three replicas, {'deep' if deep else 'batch level'}",
        ours=round(ratio, 2),
        unit="x verifying them",
        goal="at most 1.3x",
        met=ratio <= 1.3,
        note=f"{min(alone):.2f} s verified, {benchmark.stats.stats.min:.2f} s compared as well",
    )
