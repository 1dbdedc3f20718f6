"""Recovery of a 1 GiB segment after a crash, against Kafka's ``LogSegment.recover``."""

from __future__ import annotations

import shutil
import statistics
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from workloads import (
    CONFIG,
    RECORDS_PER_BATCH,
    fill,
    in_turns,
    make_log,
    rates,
    resident_bytes,
    scaled,
    seconds,
)

from logstore.log import PartitionLog
from logstore.manager.duties import WRITTEN_AT_ONCE

SIZE = scaled(1 << 30)
GOAL = {1: 40, 10: 10, 100: 8, 1000: 4}
MEMORY_MB = 32


def recover(directory: Path) -> None:
    """Open after a crash: scan, CRC, indexes written, epochs, producer state."""
    log = PartitionLog.open(directory, CONFIG)
    assert log.recovery_report.bytes_cut == 0
    log.crash()


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
    kafkas = kafka.recover(path, runs=3, warmups=1, scratch=disk)["median_mb_per_s"]
    took = in_turns(benchmark, lambda: recover(directory))["ours"]
    batches = f"{records} record{'s' * (records > 1)} a batch"
    claim(
        f"recovery of a 1 GiB segment, {batches}",
        rates(size / 1e9, took),
        "GB/s",
        peer="Kafka",
        theirs=kafkas / 1e3,
        goal=GOAL[records],
    )
    claim(f"memory of that recovery, {batches}", growth / 1e6, "MB", limit=MEMORY_MB, less=True)


@pytest.mark.parametrize("mib", [1024, 4096])
def test_growth(benchmark: Any, claim: Any, disk: Path, mib: int) -> None:
    """Of one log in segments of 1 GiB; then what is left to the background."""
    sizes = {}
    for name, amount in (("small-0", 256 << 20), ("large-0", mib << 20)):
        config = CONFIG.with_properties({"segment.bytes": str(1 << 30)})
        log = PartitionLog.open(disk / name, config)
        fill(log, 100, scaled(amount))
        sizes[name] = log.size / 1e9
        log.crash()
    small, large = disk / "small-0", disk / "large-0"
    took = in_turns(
        benchmark, lambda: recover(large), small=lambda: seconds(lambda: recover(small))
    )
    ours = rates(sizes["large-0"], took["ours"])
    claim(
        f"recovery of {mib:,} MiB of one log, 100 records a batch",
        ours,
        "GB/s",
        peer="256 MiB",
        theirs=rates(sizes["small-0"], took["small"]),
        goal=1 / 1.3,
    )
    log = PartitionLog.open(large, CONFIG)
    step = partial(log.flusher.write_again, WRITTEN_AT_ONCE)
    again = seconds(lambda: deque(iter(step, 0), 0))
    log.crash()
    claim(
        f"written again in the background, {mib:,} MiB of one log",
        sizes["large-0"] / again,
        "GB/s",
        peer="its recovery",
        theirs=statistics.median(ours),
    )


def test_recover_on_two_threads(benchmark: Any, claim: Any, disk: Path) -> None:
    make_log(disk / "bench-0", 100, SIZE).crash()
    shutil.copytree(disk / "bench-0", disk / "bench-1")
    both = [disk / "bench-0", disk / "bench-1"]
    with ThreadPoolExecutor(2) as pool:
        took = in_turns(
            benchmark,
            lambda: list(pool.map(recover, both)),
            one=lambda: seconds(lambda: [recover(each) for each in both]),
        )
    claim(
        "recovery of two segments of 1 GiB on two threads, 100 records a batch",
        rates(2 * SIZE / 1e9, took["ours"]),
        "GB/s",
        peer="one thread",
        theirs=rates(2 * SIZE / 1e9, took["one"]),
        goal=1.8,
    )
