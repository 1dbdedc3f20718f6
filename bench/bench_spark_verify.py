"""Verification at ``local[2]``, warm session, page cache, against Kafka's own dump-log tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spark_data
from workloads import best, scaled, seconds

from logstore.format.codecs.compression import Compression
from logstore.verify import VerifyOptions

SIZE = scaled(2 << 30, 64 << 20)
ROUNDS = 2
BATCH_LEVEL = VerifyOptions(deep=False, fingerprint=False)
DEEP = VerifyOptions(deep=True, fingerprint=False)


def clean(spark: Any, *directories: Path, options: VerifyOptions) -> None:
    from logstore.spark import verify_on_spark

    report = verify_on_spark(spark, *map(str, directories), options=options).report
    assert report.clean, [*report.findings, *report.unusable]


def dump_rate(directory: Path) -> float:
    """GB/s of Kafka's tool, batch level, on one segment, the start of its JVM too."""
    import kafka_tools

    path = max(directory.rglob("*.log"), key=lambda p: p.stat().st_size)
    took = seconds(lambda: kafka_tools.dump_log([path], deep=False, timeout_s=900))
    return path.stat().st_size / took / 1e9


@pytest.mark.parametrize("level", ["batch level", "deep", "deep, zstd"])
def test_verify(claim: Any, spark: Any, kafka: Any, disk: Path, level: str) -> None:
    directory = disk / "logs"
    zstd = level == "deep, zstd"
    rows = spark_data.make_directory(
        directory,
        SIZE // 8 if zstd else SIZE,
        compression=Compression.ZSTD if zstd else Compression.NONE,
        segment_bytes=(64 if zstd else 512) << 20,
    )
    stored = spark_data.warm(directory)
    options = BATCH_LEVEL if level == "batch level" else DEEP
    with spark_data.peak_of_workers() as peak:
        took = best(ROUNDS, lambda: clean(spark, directory, options=options))
    unpacked = rows * (100 + 16 + 10) if zstd else stored  # a record of such a batch, about
    rate, what = unpacked / took / 1e9, f"verification on Spark, {level}"
    note = f"{stored / 1e9:.1f} GB stored, {rows / took / 1e6:.0f} M records/s"
    claim(what, rate, "GB/s", limit=2.5 if level == "batch level" else 1, note=note)
    if level == "batch level":
        dumped, peer = dump_rate(directory), "Kafka's dump tool"
        claim(f"{what}, beside Kafka", rate, "GB/s", peer=peer, theirs=dumped, goal=40)
    claim(f"memory of a Python worker in it, {level}", peak[0] / 1e6, "MB", limit=400, less=True)


@pytest.mark.parametrize("level", ["batch level", "deep"])
def test_compare_three_replicas(claim: Any, spark: Any, disk: Path, level: str) -> None:
    first = disk / "broker-0"
    spark_data.make_directory(first, SIZE // 3, partitions=2)
    replicas = [first]
    for broker in (1, 2):
        replicas.append(disk / f"broker-{broker}")
        spark_data.copy_as_broker(first, replicas[-1], broker)
    spark_data.warm(disk)

    def took(compare: bool) -> float:
        options = VerifyOptions(deep=level == "deep", fingerprint=False, compare=compare)
        return best(ROUNDS, lambda: clean(spark, *replicas, options=options))

    claim(
        f"three replicas verified and compared, {level}",
        took(compare=True),
        "s",
        peer="only verified",
        theirs=took(compare=False),
        goal=1 / 1.3,
        less=True,
    )


def test_growth(claim: Any, spark: Any, disk: Path) -> None:
    """Four times the bytes, and the same bytes in more segments."""

    def rate(name: str, size: int, segment_bytes: int) -> tuple[float, int]:
        directory = disk / name
        spark_data.make_directory(directory, size, segment_bytes=segment_bytes)
        stored = spark_data.warm(directory)
        took = best(ROUNDS, lambda: clean(spark, directory, options=BATCH_LEVEL))
        found = len(list(directory.rglob("*.log")))
        spark_data.remove(directory)
        return stored / took / 1e9, found

    quarter, fewer = rate("quarter", SIZE // 4, SIZE // 32)
    cut, more = rate("cut", SIZE // 4, 1_100_000)
    whole, _ = rate("whole", SIZE, SIZE // 32)
    peer = f"a quarter of it, {fewer} segments"
    claim("2 GiB verified at batch level", whole, "GB/s", peer=peer, theirs=quarter)
    what = "a quarter of it in short segments"
    claim(what, cut, "GB/s", peer=peer, theirs=quarter, note=f"{more} segments")
