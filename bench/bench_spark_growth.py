"""Time of verification and of a count as data and segments grow; the plot ``results/spark.svg``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spark_data

from logstore.verify import VerifyOptions

HERE = Path(__file__).resolve().parent
# (bytes, partitions, segments): growth in bytes, then in segments of the same bytes
CASES = [
    (1 << 30, 4, 4),
    (4 << 30, 4, 16),
    (16 << 30, 16, 64),
    (1 << 30, 10, 10),
    (1 << 30, 10, 100),
    (1 << 30, 10, 1000),
]
BATCH_LEVEL = VerifyOptions(deep=False, fingerprint=False)
points: list[tuple[int, int, float, float, int]] = []


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from logstore.spark import session

    spark = session("local[2]", app_name="bench", conf=spark_data.CONF)
    yield spark
    spark.stop()


@pytest.mark.parametrize(("size", "partitions", "segments"), CASES)
def test_growth(
    benchmark: Any, claim: Any, spark: Any, disk: Path, size: int, partitions: int, segments: int
) -> None:
    from logstore.spark import verify_on_spark

    directory = disk / "logs"
    rows = spark_data.make_directory(
        directory, size, partitions=partitions, segment_bytes=size // segments
    )
    stored = spark_data.warm(directory)

    def check() -> None:
        assert verify_on_spark(spark, str(directory), options=BATCH_LEVEL).report.clean

    def count() -> float:
        started = time.perf_counter()
        frame = spark.read.format("logstore").option("columns", "offset").load(str(directory))
        assert frame.count() == rows
        return time.perf_counter() - started

    count()
    with spark_data.peak_of_workers() as peak:
        benchmark.pedantic(check, warmup_rounds=1, rounds=2)
        counted = count()
    seconds = benchmark.stats.stats.min
    found = len(list(directory.rglob("*.log")))
    points.append((stored, found, seconds, counted, peak[0]))
    claim(
        what=f"{stored / 1e9:.1f} GB in {found} segments, verified at batch level",
        ours=round(seconds, 2),
        unit="s",
        goal="linear, see the plot",
        met=None,
        note=f"{stored / seconds / 1e9:.2f} GB/s; `count()` of one column {counted:.2f} s, "
        f"{rows / counted / 1e6:.1f} M rows/s; worker {peak[0] / 1e6:.0f} MB",
    )


def test_plot(benchmark: Any) -> None:
    """The picture of the points above."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    benchmark.pedantic(lambda: None, rounds=1)
    figure, (by_bytes, by_segments) = plt.subplots(1, 2, figsize=(9, 4))
    grown, cut = points[:3], points[3:]
    for at, name in ((2, "verify, batch level"), (3, "count() of one column")):
        by_bytes.plot([p[0] / 1e9 for p in grown], [p[at] for p in grown], marker="o", label=name)
        by_segments.plot([p[1] for p in cut], [p[at] for p in cut], marker="o", label=name)
    by_bytes.set_xlabel("GB of segments")
    by_segments.set_xlabel("segments of 1 GB in all")
    by_segments.set_xscale("log")
    for axes in (by_bytes, by_segments):
        axes.set_ylabel("seconds, local[2]")
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.grid(alpha=0.3)
    figure.tight_layout()
    (HERE / "results").mkdir(exist_ok=True)
    figure.savefig(HERE / "results" / "spark.svg")
