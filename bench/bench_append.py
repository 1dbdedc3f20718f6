"""Appends of ready-made batches, against Kafka's ``LogSegment.append`` and the bare write."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG, RECORDS_PER_BATCH, in_turns, ready_batch

from logstore import AppendOrigin
from logstore.log import ReplicaLog

GOAL_SINGLE = dict.fromkeys(RECORDS_PER_BATCH, 1.0)
GOAL_MANY = {1: 6.0, 10: 4.0, 100: 2.0, 1000: 1.4}
SIZE = {1: 64_000_000, 10: 256_000_000, 100: 256_000_000, 1000: 256_000_000}
ROUNDS = 7


def kafka_rate(kafka: Any, records: int, disk: Path) -> float:
    """MB/s. Kafka has a process of its own and cannot take turns, so it runs before ours and after,
    and the better run counts: a slow minute of the machine is no advantage."""
    run = kafka.append(records, SIZE[records], runs=ROUNDS, scratch=disk)
    return float(run["best_mb_per_s"])


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
    log = ReplicaLog.open(directory / f"bench-{time.monotonic_ns()}-0", CONFIG)
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
    peer = kafka_rate(kafka, records, disk)
    validated = min(appends(disk, data, count, AppendOrigin.CLIENT) for _ in range(3))
    best = in_turns(
        benchmark,
        ROUNDS,
        ours=lambda: appends(disk, data, count, AppendOrigin.COORDINATOR),
        bare=lambda: bare_write(disk / "bare", data, count),
    )
    ours, bare = best["ours"], best["bare"]
    rate = count * len(data) / ours / 1e6
    peer = max(peer, kafka_rate(kafka, records, disk))
    claim(
        what=f"append, one batch a call, {records} records a batch",
        ours=round(rate),
        unit="MB/s",
        peer=f"Kafka {peer:.0f} MB/s",
        ratio=round(rate / peer, 2),
        goal=f"at least {GOAL_SINGLE[records]}x Kafka",
        met=rate >= GOAL_SINGLE[records] * peer,
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
    peer = kafka_rate(kafka, records, disk)
    best = in_turns(
        benchmark,
        ROUNDS,
        ours=lambda: appends(disk, data, count, AppendOrigin.COORDINATOR),
        bare=lambda: bare_write(disk / "bare", data, count),
    )
    ours, bare = best["ours"], best["bare"]
    rate = count * len(data) / ours / 1e6
    peer = max(peer, kafka_rate(kafka, records, disk))
    claim(
        what=f"append, 1 MB of batches a call, {records} records a batch",
        ours=round(rate),
        unit="MB/s",
        peer=f"Kafka {peer:.0f} MB/s, one a call",
        ratio=round(rate / peer, 2),
        goal=f"at least {GOAL_MANY[records]}x Kafka",
        met=rate >= GOAL_MANY[records] * peer,
        note=f"bare write {count * len(data) / bare / 1e6:.0f}",
    )
