"""Appends of ready-made batches, against Kafka's ``LogSegment.append`` and the bare write."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG, RECORDS_PER_BATCH, ready_batch

from logstore import AppendOrigin, PartitionLog

GOAL_SINGLE = {1: 0.9, 10: 0.9, 100: 0.9, 1000: 0.9}
GOAL_MANY = {1: 6.0, 10: 3.0, 100: 1.5, 1000: 1.1}
SIZE = {1: 64_000_000, 10: 256_000_000, 100: 256_000_000, 1000: 256_000_000}
ROUNDS = 7


def bare_write(path: Path, data: bytes, count: int) -> float:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    write = os.write
    started = time.perf_counter()
    for _ in range(count):
        write(descriptor, data)
    seconds = time.perf_counter() - started
    os.close(descriptor)
    path.unlink()
    return seconds


def appends(directory: Path, data: bytes, count: int, origin: AppendOrigin) -> float:
    log = PartitionLog.open(directory / f"bench-{time.monotonic_ns()}-0", CONFIG)
    append = log.append_as_leader
    append(data, 0, origin)
    started = time.perf_counter()
    for _ in range(count):
        append(data, 0, origin)
    seconds = time.perf_counter() - started
    log.crash()
    for file in Path(log.directory).iterdir():
        file.unlink()
    return seconds


@pytest.mark.parametrize("records", RECORDS_PER_BATCH)
def test_append_one_batch_a_call(
    benchmark: Any, claim: Any, kafka: Any, disk: Path, records: int
) -> None:
    data = ready_batch(records)
    count = SIZE[records] // len(data)
    peer = kafka.append(records, SIZE[records], runs=ROUNDS, scratch=disk)
    bare = min(bare_write(disk / "bare", data, count) for _ in range(ROUNDS))
    validated = min(appends(disk, data, count, AppendOrigin.CLIENT) for _ in range(3))
    benchmark.pedantic(
        lambda: appends(disk, data, count, AppendOrigin.COORDINATOR), rounds=ROUNDS, warmup_rounds=1
    )
    rate = count * len(data) / benchmark.stats.stats.min / 1e6
    claim(
        what=f"append, one batch a call, {records} records a batch",
        ours=round(rate),
        unit="MB/s",
        peer=f"Kafka {peer['best_mb_per_s']:.0f} MB/s",
        ratio=round(rate / peer["best_mb_per_s"], 2),
        goal=f"at least {GOAL_SINGLE[records]}x Kafka",
        met=rate >= GOAL_SINGLE[records] * peer["best_mb_per_s"],
        note=f"bare write {count * len(data) / bare / 1e6:.0f}; with every record validated "
        f"{count * len(data) / validated / 1e6:.0f}",
    )


@pytest.mark.parametrize("records", RECORDS_PER_BATCH)
def test_append_many_batches_a_call(
    benchmark: Any, claim: Any, kafka: Any, disk: Path, records: int
) -> None:
    single = ready_batch(records)
    data = single * max(1, 1_000_000 // len(single))
    count = 256_000_000 // len(data)
    peer = kafka.append(records, SIZE[records], runs=ROUNDS, scratch=disk)
    bare = min(bare_write(disk / "bare", data, count) for _ in range(ROUNDS))
    benchmark.pedantic(
        lambda: appends(disk, data, count, AppendOrigin.COORDINATOR), rounds=ROUNDS, warmup_rounds=1
    )
    rate = count * len(data) / benchmark.stats.stats.min / 1e6
    claim(
        what=f"append, 1 MB of batches a call, {records} records a batch",
        ours=round(rate),
        unit="MB/s",
        peer=f"Kafka {peer['best_mb_per_s']:.0f} MB/s, one a call",
        ratio=round(rate / peer["best_mb_per_s"], 2),
        goal=f"at least {GOAL_MANY[records]}x Kafka",
        met=rate >= GOAL_MANY[records] * peer["best_mb_per_s"],
        note=f"bare write {count * len(data) / bare / 1e6:.0f}",
    )
