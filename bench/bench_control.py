"""What a log does between records: truncation, checkpoints, starts."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from workloads import START_CONFIG, make_log, ready_batch

from checkpoints.offset_checkpoint import RECOVERY_POINT, OffsetCheckpoint
from logstore import AppendOrigin, LogManager, TopicPartition
from logstore.storage.local import LocalStorage

HERE = Path(__file__).resolve().parent
SEGMENT, CUT = 256_000_000, 10_000_000


@pytest.mark.parametrize("equal", [False, True], ids=["rising", "equal"])
def test_truncate_to(benchmark: Any, claim: Any, kafka: Any, disk: Path, equal: bool) -> None:
    # Nothing is flushed, as in the peer: freeing blocks that the disk has given out already is
    # another thing, ten times as long, and the same for both.
    log = make_log(disk / "bench-0", 100, SEGMENT, equal_timestamps=equal)
    batch = ready_batch(100)
    per_round = CUT // len(batch)
    block = batch * per_round

    def refill() -> None:
        log.append_as_leader(block, 0, AppendOrigin.COORDINATOR)

    times = []

    def cut() -> None:
        started = time.perf_counter()
        log.truncate_to(log.log_end_offset - 100 * per_round)
        times.append(time.perf_counter() - started)

    benchmark.pedantic(cut, setup=refill, rounds=50, warmup_rounds=5)
    log.crash()
    p50 = statistics.median(times[5:]) * 1e3
    peer = kafka.truncate(equal_timestamps=equal, scratch=disk)
    limit = 5.0 if equal else 1.0
    claim(
        what=f"truncate_to 10 MB off a 256 MB segment, {'equal' if equal else 'rising'} timestamps",
        ours=round(p50, 2),
        unit="ms p50",
        peer=f"Kafka {peer['p50_ms']:.2f} ms",
        ratio=round(peer["p50_ms"] / p50, 1),
        goal=f"at most {limit:g} ms",
        met=p50 <= limit,
    )


def test_checkpoint_of_1000_partitions(benchmark: Any, claim: Any, kafka: Any, disk: Path) -> None:
    checkpoint = OffsetCheckpoint(str(disk / RECOVERY_POINT), LocalStorage())
    offsets = {TopicPartition("orders", p): 1_000_000 + p for p in range(1000)}
    data = b"".join(b"orders %d %d\n" % (tp.partition, o) for tp, o in offsets.items())
    benchmark.pedantic(lambda: checkpoint.write(offsets), rounds=300, warmup_rounds=50)
    p50 = benchmark.stats.stats.median * 1e3
    bare = statistics.median(bare_replace(disk, data) for _ in range(300)) * 1e3
    peer = kafka.checkpoint(scratch=disk)
    claim(
        what="durable checkpoint of 1,000 partitions",
        ours=round(p50, 2),
        unit="ms p50",
        peer=f"Kafka {peer['p50_ms']:.2f} ms",
        ratio=round(peer["p50_ms"] / p50, 2),
        goal="at most 0.6 ms",
        met=p50 <= 0.6,
        note=f"the bare system calls {bare:.2f} ms",
    )


def bare_replace(disk: Path, data: bytes) -> float:
    directory = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
    started = time.perf_counter()
    descriptor = os.open(disk / "x.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)
    os.replace(disk / "x.tmp", disk / "x")
    os.fsync(directory)
    seconds = time.perf_counter() - started
    os.close(directory)
    return seconds


@pytest.mark.parametrize("partitions", [500, 2000])
def test_clean_start(benchmark: Any, claim: Any, kafka: Any, disk: Path, partitions: int) -> None:
    batch = ready_batch(10)
    with LogManager([disk / "data"], START_CONFIG) as manager:
        for log in manager.create_topic("bench", partitions):
            while len(log.segments) < 5 or log.active_segment.size == 0:
                log.append_as_leader(batch, 0)
    started_with: list[float] = []

    def start() -> None:
        begun = time.perf_counter()
        manager = LogManager([disk / "data"], START_CONFIG)
        started_with.append((time.perf_counter() - begun) / partitions * 1e3)
        assert all(report.clean for report in manager.recovery_reports)
        assert not any(report.bytes_scanned for report in manager.recovery_reports)
        manager.close()

    benchmark.pedantic(start, rounds=3)
    growth = int(
        subprocess.run(
            [sys.executable, str(HERE / "idle_memory.py"), str(disk / "data")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    peer = kafka.load(disk / "data", clean=True, runs=3, warmups=1, scratch=disk)
    theirs = min(peer["seconds"]) / partitions * 1e3
    claim(
        what=f"clean start of {partitions} partitions of 5 segments",
        ours=round(min(started_with), 3),
        unit="ms a partition",
        peer=f"Kafka {theirs:.3f} ms, two threads",
        ratio=round(theirs / min(started_with), 1),
        goal="5x Kafka, linear",
        met=theirs >= 5 * min(started_with),
    )
    claim(
        what=f"memory of an idle partition, of {partitions}",
        ours=round(growth / partitions / 1e3, 1),
        unit="KB",
        peer="",
        ratio="",
        goal="at most 20 KB",
        met=growth / partitions <= 20_000,
    )
