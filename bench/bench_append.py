"""Appends of ready-made batches, against Kafka's ``LogSegment.append`` and the bare write."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG, RECORDS_PER_BATCH, in_turns, rates, ready_batch, scaled, seconds

from logstore import AppendOrigin
from logstore.log import PartitionLog

GOAL_MANY = {1: 6.0, 10: 4.0, 100: 2.0, 1000: 1.4}


def bare_write(path: Path, data: bytes, count: int) -> float:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    write = os.write
    started = time.perf_counter()
    for _ in range(count):
        write(descriptor, data)
    took = time.perf_counter() - started
    os.close(descriptor)
    path.unlink()
    return took


def opened(directory: Path, data: bytes) -> PartitionLog:
    log = PartitionLog.open(directory / "bench-0", CONFIG)
    log.append_as_leader(data, 0, AppendOrigin.COORDINATOR)
    return log


def appends(log: PartitionLog, data: bytes, count: int, origin: AppendOrigin) -> None:
    append = log.append_as_leader
    for _ in range(count):
        append(data, 0, origin)


def remove(log: PartitionLog) -> None:
    log.crash()
    for file in Path(log.directory).iterdir():
        file.unlink()


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("records", RECORDS_PER_BATCH)
def test_append(
    benchmark: Any, claim: Any, kafka: Any, disk: Path, records: int, many: bool
) -> None:
    one = ready_batch(records)
    size = scaled(64_000_000 if records == 1 else 256_000_000)
    kafkas = kafka.append(records, size, runs=3, scratch=disk)["median_mb_per_s"]
    data = one * max(1, 1_000_000 // len(one)) if many else one
    count = size // len(data)

    def validated() -> float:
        log = opened(disk, data)
        took = seconds(lambda: appends(log, data, count, AppendOrigin.CLIENT))
        remove(log)
        return took

    took = in_turns(
        benchmark,
        lambda log: appends(log, data, count, AppendOrigin.COORDINATOR),
        setup=lambda: ((opened(disk, data),), {}),
        teardown=remove,
        bare=lambda: bare_write(disk / "bare", data, count),
        validated=validated,
    )
    found = {name: rates(count * len(data) / 1e6, each) for name, each in took.items()}
    claim(
        f"append, {'1 MB of batches' if many else 'one batch'} a call, "
        f"{records} record{'s' * (records > 1)} a batch",
        found["ours"],
        "MB/s",
        peer="Kafka, one batch a call",
        theirs=kafkas,
        goal=GOAL_MANY[records] if many else 1.0,
        note=f"bare write {statistics.median(found['bare']):.0f}; with every record validated "
        f"{statistics.median(found['validated']):.0f}",
    )
