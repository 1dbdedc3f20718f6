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
from workloads import START_CONFIG, in_turns, make_log, ready_batch, resident_bytes, scaled

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


def closed_directory(data: Path, count: int) -> None:
    """A directory of ``count`` partitions, closed cleanly; all are copies of one."""
    batch = ready_batch(10)
    with LogManager([data], START_CONFIG) as manager:
        (log,) = manager.create_topic("bench", 1)
        while len(log.segments) < 5 or log.segments[-1].size == 0:
            log.append_as_leader(batch, 0)
    files = [(each.name, each.read_bytes()) for each in (data / "bench-0").iterdir()]
    for partition in range(1, count):
        directory = data / f"bench-{partition}"
        directory.mkdir()
        for name, content in files:
            (directory / name).write_bytes(content)
    with LogManager([data], START_CONFIG) as manager:
        assert len(manager.recovery_reports) == count
    os.sync()  # not while a round is timed


def stop(manager: LogManager) -> None:
    assert all(report.clean for report in manager.recovery_reports)
    assert not any(report.bytes_scanned for report in manager.recovery_reports)
    manager.close()


def start_and_stop(data: Path) -> float:
    """The seconds of the start."""
    began = time.perf_counter()
    manager = LogManager([data], START_CONFIG)
    took = time.perf_counter() - began
    stop(manager)
    return took


@pytest.mark.parametrize(("partitions", "fewer"), [(500, 0), (2000, 500), (10_000, 2000)])
def test_clean_start(
    benchmark: Any, claim: Any, kafka: Any, disk: Path, partitions: int, fewer: int
) -> None:
    """Beside a start of fewer partitions, and Kafka's. That has a descriptor open for each segment,
    more than a process may have: of 10,000 partitions the peer is what it needs for 2,000."""
    count, few, data, small = scaled(partitions, 40), scaled(fewer, 20), disk / "all", disk / "few"
    closed_directory(data, count)
    peers: dict[str, Any] = {}
    if fewer:
        closed_directory(small, few)
        peers["small"] = lambda: start_and_stop(small)
    managers: list[LogManager] = []
    found = in_turns(
        benchmark,
        lambda: managers.append(LogManager([data], START_CONFIG)),
        teardown=lambda: stop(managers.pop()),
        **peers,
    )
    ours = [each / count * 1e3 for each in found["ours"]]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        growth = pool.apply(growth_of_a_fresh_process, (data,))
    source, logs = (small, few) if partitions > 2000 else (data, count)
    kafkas = kafka.load(source, clean=True, runs=3, warmups=1, scratch=disk)
    assert kafkas["logs"] == logs
    what, unit = f"clean start of {partitions:,} partitions of 5 segments", "ms a partition"
    claim(
        what,
        ours,
        unit,
        peer="Kafka, two threads" + f", of {fewer:,}" * (source is small),
        theirs=statistics.median(kafkas["seconds"]) / logs * 1e3,
        goal=3,
        less=True,
    )
    if fewer:
        theirs = statistics.median(found["small"]) / few * 1e3
        peer = f"of {fewer:,}"
        claim(f"{what}, beside fewer", ours, unit, peer=peer, theirs=theirs, goal=0.77, less=True)
    what = f"memory of an idle partition, of {partitions:,}"
    claim(what, growth / count / 1e3, "KB", limit=15, less=True)
