"""Appends of ready-made batches, against Kafka's ``LogSegment.append`` and the bare write."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG, RECORDS_PER_BATCH, in_turns, ready_batch, scaled

from logstore import AppendOrigin
from logstore.log import ReplicaLog

GOAL_MANY = {1: 6.0, 10: 4.0, 100: 2.0, 1000: 1.4}
ROUNDS = 3


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


def appends(directory: Path, data: bytes, count: int, origin: AppendOrigin) -> float:
    log = ReplicaLog.open(directory / "bench-0", CONFIG)
    append = log.append_as_leader
    append(data, 0, origin)
    started = time.perf_counter()
    for _ in range(count):
        append(data, 0, origin)
    took = time.perf_counter() - started
    log.crash()
    for file in Path(log.directory).iterdir():
        file.unlink()
    return took


@pytest.mark.parametrize("records", RECORDS_PER_BATCH)
def test_append(claim: Any, kafka: Any, disk: Path, records: int) -> None:
    one = ready_batch(records)
    size = scaled(64_000_000 if records == 1 else 256_000_000)
    kafkas = kafka.append(records, size, runs=ROUNDS, scratch=disk)["best_mb_per_s"]
    for how, data, goal in (
        ("one batch a call", one, 1.0),
        ("1 MB of batches a call", one * max(1, 1_000_000 // len(one)), GOAL_MANY[records]),
    ):
        count = size // len(data)
        took = in_turns(
            ROUNDS,
            ours=partial(appends, disk, data, count, AppendOrigin.COORDINATOR),
            bare=partial(bare_write, disk / "bare", data, count),
            validated=partial(appends, disk, data, count, AppendOrigin.CLIENT),
        )
        rates = {name: count * len(data) / each / 1e6 for name, each in took.items()}
        claim(
            f"append, {how}, {records} record{'s' * (records > 1)} a batch",
            rates["ours"],
            "MB/s",
            peer="Kafka, one batch a call",
            theirs=kafkas,
            goal=goal,
            note=f"bare write {rates['bare']:.0f}; with every record validated "
            f"{rates['validated']:.0f}",
        )
