"""A writer killed at a random moment: time until everything is served again, against bytes.

Each point is one directory, never flushed, so all of it lies past the recovery point. Kafka's own
``LogManager`` recovers a copy of the same directory (the smaller ones: it works on a copy). The
plot is ``results/crash_recovery.svg``.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG

from logstore import LogManager

HERE = Path(__file__).resolve().parent
# (bytes past the recovery point, partitions)
CASES = [
    (256 << 20, 1),
    (1 << 30, 1),
    (2 << 30, 1),
    (4 << 30, 1),
    (8 << 30, 1),
    (1 << 30, 10),
    (4 << 30, 10),
    (1 << 30, 100),
    (4 << 30, 100),
    (2 << 30, 1000),
    (8 << 30, 1000),
]
KAFKA_MAX = 2 << 30
points: list[tuple[int, int, float, float | None]] = []


def killed_directory(directory: Path, size: int, partitions: int, seed: int) -> int:
    """Write until about ``size`` bytes, then SIGKILL at a random moment; the bytes on disk."""
    chance = random.Random(seed)
    writer = subprocess.Popen(
        [sys.executable, str(HERE / "crash_writer.py"), str(directory), str(partitions)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) >= size:
            break
    time.sleep(chance.random() * 0.02)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    return sum(path.stat().st_size for path in directory.glob("*/*.log"))


@pytest.mark.parametrize(("size", "partitions"), CASES)
def test_time_to_serve(
    benchmark: Any, claim: Any, kafka: Any, disk: Path, size: int, partitions: int
) -> None:
    directory = disk / "data"
    bytes_on_disk = killed_directory(directory, size, partitions, seed=size + partitions)
    peer = None
    if size <= KAFKA_MAX:
        peer = kafka.load(directory, runs=1, warmups=0, scratch=disk)

    def serve() -> LogManager:
        return LogManager([directory], CONFIG.with_properties({"segment.bytes": str(1 << 30)}))

    def crash(manager: LogManager) -> None:
        assert sum(report.bytes_scanned for report in manager.recovery_reports) >= size
        manager.crash()

    times = []
    for _ in range(3):
        started = time.perf_counter()
        manager = serve()
        times.append(time.perf_counter() - started)
        crash(manager)
    benchmark.pedantic(lambda: crash(serve()), rounds=1)
    seconds = min(times)
    kafka_seconds = None if peer is None else bytes_on_disk / peer["best_mb_per_s"] / 1e6
    points.append((bytes_on_disk, partitions, seconds, kafka_seconds))
    claim(
        what=f"killed with {bytes_on_disk / 1e9:.1f} GB unflushed in {partitions} partitions",
        ours=round(seconds, 2),
        unit="s to serve",
        peer="" if kafka_seconds is None else f"Kafka {kafka_seconds:.2f} s",
        ratio="" if kafka_seconds is None else round(kafka_seconds / seconds, 1),
        goal="see the plot",
        met=None,
        note=f"{bytes_on_disk / seconds / 1e9:.1f} GB/s",
    )
    shutil.rmtree(directory)


def test_plot(benchmark: Any) -> None:
    """The picture of the points above."""
    benchmark.pedantic(lambda: None, rounds=1)
    draw(points, HERE / "results" / "crash_recovery.svg")


def draw(points: list[tuple[int, int, float, float | None]], path: Path) -> None:
    """Bytes, partitions, own seconds and those of Kafka: a colour for each number of partitions.

    Both axes are logarithmic, since the times differ by a factor of 600.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter

    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for number, partitions in enumerate(sorted({p for _, p, _, _ in points})):
        named = f"{partitions:,} partition{'' if partitions == 1 else 's'}"
        own = sorted((b / 1e9, s) for b, p, s, _ in points if p == partitions)
        axes.plot(*zip(*own, strict=True), "o-", color=f"C{number}", label=f"logstore, {named}")
        peer = sorted((b / 1e9, k) for b, p, _, k in points if p == partitions and k is not None)
        if peer:
            axes.plot(*zip(*peer, strict=True), "x--", color=f"C{number}", label=f"Kafka, {named}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"])
    axes.set_yticks([0.1, 0.3, 1, 3, 10, 30], ["0.1", "0.3", "1", "3", "10", "30"])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title("A writer killed: time until all partitions are served again")
    axes.set_xlabel("GB past the recovery point")
    axes.set_ylabel("seconds until served")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    axes.grid(alpha=0.3)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
