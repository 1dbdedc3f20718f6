"""Recovery of a 1 GiB segment after a crash, against Kafka's ``LogSegment.recover``."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG, RECORDS_PER_BATCH, make_log, resident_bytes

from logstore.log import ReplicaLog

SIZE = 1 << 30
GOAL = {1: 40, 10: 10, 100: 3, 1000: 1.5}


def recover(directory: Path) -> float:
    """Seconds to open after a crash: scan, CRC, indexes written, epochs, producer state."""
    started = time.perf_counter()
    log = ReplicaLog.open(directory, CONFIG)
    seconds = time.perf_counter() - started
    assert log.recovery_report.bytes_cut == 0
    log.crash()
    return seconds


def resident_growth(directory: Path) -> int:
    """Most memory, above that before, while the segment is recovered, by sampling."""
    before, peak, done = resident_bytes(), 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, resident_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    recover(directory)
    done.set()
    thread.join()
    return peak - before


@pytest.mark.parametrize("records", RECORDS_PER_BATCH)
def test_recover_one_segment(
    benchmark: Any, claim: Any, kafka: Any, disk: Path, records: int
) -> None:
    directory = disk / "bench-0"
    make_log(directory, records, SIZE).crash()
    path = directory / f"{0:020d}.log"
    size = path.stat().st_size
    recover(directory)
    growth = resident_growth(directory)
    peer = kafka.recover(path, runs=3, warmups=1, scratch=disk)
    benchmark.pedantic(lambda: recover(directory), rounds=7)
    rate = size / benchmark.stats.stats.min / 1e6
    claim(
        what=f"recovery of a 1 GiB segment, {records} records a batch",
        ours=round(rate / 1000, 2),
        unit="GB/s",
        peer=f"Kafka {peer['best_mb_per_s'] / 1000:.2f} GB/s",
        ratio=round(rate / peer["best_mb_per_s"], 1),
        goal=f"at least {GOAL[records]}x Kafka",
        met=rate >= GOAL[records] * peer["best_mb_per_s"],
        note=f"{growth / 1e6:.0f} MB of memory",
    )
    claim(
        what=f"memory of that recovery, {records} records a batch",
        ours=round(growth / 1e6, 1),
        unit="MB",
        peer="",
        ratio="",
        goal="below 64 MB",
        met=growth < 64e6,
    )


@pytest.mark.parametrize("records", [100])
def test_recover_on_two_threads(benchmark: Any, claim: Any, disk: Path, records: int) -> None:
    make_log(disk / "bench-0", records, SIZE).crash()
    shutil.copytree(disk / "bench-0", disk / "bench-1")
    both = [disk / "bench-0", disk / "bench-1"]
    one = min(sum(recover(d) for d in both) for _ in range(5))
    with ThreadPoolExecutor(2) as pool:
        benchmark.pedantic(lambda: list(pool.map(recover, both)), rounds=7, warmup_rounds=1)
    ratio = one / benchmark.stats.stats.min
    claim(
        what=f"recovery of two segments on two threads, {records} records a batch",
        ours=round(ratio, 2),
        unit="x one thread",
        peer="",
        ratio="",
        goal="at least 1.7x",
        met=ratio >= 1.7,
    )
