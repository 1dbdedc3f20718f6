"""What a log does between records: truncation, checkpoints, starts."""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from workloads import ROUNDS, START_CONFIG, make_log, ready_batch, resident_bytes, scaled, timed

from checkpoints.offset_checkpoint import RECOVERY_POINT, OffsetCheckpoint
from logstore import AppendOrigin, LogManager, TopicPartition
from logstore.storage.local import LocalStorage

SEGMENT, CUT = scaled(256_000_000, 12_000_000), 10_000_000


@pytest.mark.parametrize("equal", [False, True], ids=["rising", "equal"])
def test_truncate_to(benchmark: Any, claim: Any, kafka: Any, disk: Path, equal: bool) -> None:
    # Nothing is flushed, as in the peer: freeing blocks that the disk has given out already is
    # another thing, ten times as long, and the same for both.
    log = make_log(disk / "bench-0", 100, SEGMENT, equal_timestamps=equal)
    batch = ready_batch(100)
    per_round = CUT // len(batch)
    block = batch * per_round

    def grow() -> tuple[tuple[int], dict[str, object]]:
        end = log.log_end_offset
        log.append_as_leader(block, 0, AppendOrigin.COORDINATOR)
        return (end,), {}

    benchmark.pedantic(log.truncate_to, setup=grow, rounds=scaled(50, 2), warmup_rounds=5)
    p50 = benchmark.stats.stats.median * 1e3
    log.crash()
    kafkas = kafka.truncate(equal_timestamps=equal, scratch=disk)["p50_ms"]
    what = f"truncate_to 10 MB off a 256 MB segment, {'equal' if equal else 'rising'} timestamps"
    limit = 5.0 if equal else 1.0
    claim(what, p50, "ms p50", limit=limit, less=True)
    claim(f"{what}, beside Kafka", p50, "ms p50", peer="Kafka", theirs=kafkas, less=True)


def test_checkpoint_of_1000_partitions(benchmark: Any, claim: Any, kafka: Any, disk: Path) -> None:
    checkpoint = OffsetCheckpoint(str(disk / RECOVERY_POINT), LocalStorage())
    offsets = {TopicPartition("orders", p): 1_000_000 + p for p in range(1000)}
    data = b"".join(b"orders %d %d\n" % (tp.partition, o) for tp, o in offsets.items())
    benchmark.pedantic(checkpoint.write, (offsets,), rounds=scaled(300, 10), warmup_rounds=50)
    p50 = benchmark.stats.stats.median * 1e3
    bare = statistics.median(bare_replace(disk, data) for _ in range(scaled(300, 10))) * 1e3
    kafkas = kafka.checkpoint(scratch=disk)["p50_ms"]
    what, unit = "durable checkpoint of 1,000 partitions", "ms p50"
    claim(what, p50, unit, limit=0.6, less=True, note=f"the bare system calls {bare:.2f} ms")
    claim(f"{what}, beside Kafka", p50, unit, peer="Kafka", theirs=kafkas, less=True)


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


def growth_of_a_fresh_process(directory: Path) -> int:
    """By how many bytes a process grows when it opens a log directory."""
    with LogManager([f"{directory}-warm"], START_CONFIG) as manager:
        manager.create_topic("warm", 1)  # imports, pools and first allocations are not counted
    gc.collect()
    before = resident_bytes()
    with LogManager([directory], START_CONFIG):
        gc.collect()
        return resident_bytes() - before


@pytest.mark.parametrize("partitions", [500, 2000])
def test_clean_start(benchmark: Any, claim: Any, kafka: Any, disk: Path, partitions: int) -> None:
    count = scaled(partitions, 20)
    batch = ready_batch(10)
    with LogManager([disk / "data"], START_CONFIG) as manager:
        for log in manager.create_topic("bench", count):
            while len(log.segments) < 5 or log.segments[-1].size == 0:
                log.append_as_leader(batch, 0)

    managers: list[LogManager] = []

    def start() -> None:
        managers.append(LogManager([disk / "data"], START_CONFIG))

    def close() -> None:
        manager = managers.pop()
        assert all(report.clean for report in manager.recovery_reports)
        assert not any(report.bytes_scanned for report in manager.recovery_reports)
        manager.close()

    benchmark.pedantic(start, teardown=close, rounds=ROUNDS)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        growth = pool.apply(growth_of_a_fresh_process, (disk / "data",))
    kafkas = kafka.load(disk / "data", clean=True, runs=3, warmups=1, scratch=disk)
    claim(
        f"clean start of {partitions:,} partitions of 5 segments",
        [each / count * 1e3 for each in timed(benchmark)],
        "ms a partition",
        peer="Kafka, two threads",
        theirs=statistics.median(kafkas["seconds"]) / count * 1e3,
        goal=5,
        less=True,
    )
    what = f"memory of an idle partition, of {partitions:,}"
    claim(what, growth / count / 1e3, "KB", limit=20, less=True)
