"""Verification at ``local[2]``, warm session, page cache, against Kafka's own dump-log tool."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import spark_data
from workloads import in_turns, rates, scaled, seconds

from logstore.format.codecs.compression import Compression
from logstore.verify import VerifyOptions

SIZE = scaled(2 << 30, 64 << 20)
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
def test_verify(benchmark: Any, claim: Any, spark: Any, kafka: Any, disk: Path, level: str) -> None:
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
        took = in_turns(benchmark, lambda: clean(spark, directory, options=options))["ours"]
    unpacked = rows * (100 + 16 + 10) if zstd else stored  # a record of such a batch, about
    rate, what = rates(unpacked / 1e9, took), f"verification on Spark, {level}"
    note = f"{stored / 1e9:.1f} GB stored, {rows / statistics.median(took) / 1e6:.0f} M records/s"
    claim(what, rate, "GB/s", limit=2.5 if level == "batch level" else 1, note=note)
    if level == "batch level":
        dumped, peer = dump_rate(directory), "Kafka's dump tool"
        claim(f"{what}, beside Kafka", rate, "GB/s", peer=peer, theirs=dumped, goal=40)
    claim(f"memory of a Python worker in it, {level}", peak[0] / 1e6, "MB", limit=400, less=True)


@pytest.mark.parametrize("level", ["batch level", "deep"])
def test_compare_three_replicas(
    benchmark: Any, claim: Any, spark: Any, disk: Path, level: str
) -> None:
    first = disk / "broker-0"
    spark_data.make_directory(first, SIZE // 3, partitions=2)
    replicas = [first]
    for broker in (1, 2):
        replicas.append(disk / f"broker-{broker}")
        spark_data.copy_as_broker(first, replicas[-1], broker)
    spark_data.warm(disk)

    def verify(compare: bool) -> None:
        options = VerifyOptions(deep=level == "deep", fingerprint=False, compare=compare)
        clean(spark, *replicas, options=options)

    took = in_turns(
        benchmark,
        lambda: verify(compare=True),
        only_verified=lambda: seconds(lambda: verify(compare=False)),
    )
    claim(
        f"three replicas verified and compared, {level}",
        took["ours"],
        "s",
        peer="only verified",
        theirs=took["only_verified"],
        goal=1 / 1.3,
        less=True,
    )


@pytest.mark.parametrize(
    ("what", "size", "segment_bytes"),
    [
        ("2 GiB verified at batch level", SIZE, SIZE // 32),
        ("a quarter of it in short segments", SIZE // 4, 1_100_000),
    ],
)
def test_growth(
    benchmark: Any, claim: Any, spark: Any, disk: Path, what: str, size: int, segment_bytes: int
) -> None:
    """Four times the bytes, and the same bytes in more segments."""
    quarter, other = disk / "quarter", disk / "other"
    spark_data.make_directory(quarter, SIZE // 4, segment_bytes=SIZE // 32)
    spark_data.make_directory(other, size, segment_bytes=segment_bytes)
    stored, of_quarter = spark_data.warm(other), spark_data.warm(quarter)
    took = in_turns(
        benchmark,
        lambda: clean(spark, other, options=BATCH_LEVEL),
        quarter=lambda: seconds(lambda: clean(spark, quarter, options=BATCH_LEVEL)),
    )
    fewer, more = (len(list(each.rglob("*.log"))) for each in (quarter, other))
    claim(
        what,
        rates(stored / 1e9, took["ours"]),
        "GB/s",
        peer=f"a quarter of it, {fewer} segments",
        theirs=rates(of_quarter / 1e9, took["quarter"]),
        note=f"{more} segments",
    )
