"""A writer killed at a random moment: time until everything is served again, against bytes.

Each case is one directory, never flushed, so all of it lies past the recovery point. Kafka's own
``LogManager`` recovers a copy of the same directory.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG, ROUNDS, blocks, scaled, timed

from checkpoints.offset_checkpoint import RECOVERY_POINT
from logstore import AppendOrigin, LogManager

RECOVERING = CONFIG.with_properties({"segment.bytes": str(1 << 30)})
# (bytes past the recovery point, partitions); of 1,000 partitions each has a block.
CASES = [(256 << 20, 1), (1 << 30, 1), (1 << 30, 10), (1 << 30, 100), (1 << 30, 1000)]
TOLD_BYTES = 16 << 20


def write(directory: Path, partitions: int, told: Connection) -> None:
    """Append blocks to all partitions in turn until killed; tell the bytes so far now and then."""
    manager = LogManager([directory], RECOVERING)
    logs = manager.create_topic("bench", partitions)
    source = blocks(100)
    size = 0
    for _ in count():
        block = next(source)
        for log in logs:
            log.append_as_leader(block, 0, AppendOrigin.COORDINATOR)
            size += len(block)
            if size % TOLD_BYTES < len(block):
                told.send(size)


def killed_directory(directory: Path, size: int, partitions: int) -> int:
    """Write until about ``size`` bytes, then SIGKILL at a random moment; the bytes on disk."""
    chance = random.Random(size + partitions)
    context = multiprocessing.get_context("spawn")
    told, tells = context.Pipe(duplex=False)
    writer = context.Process(target=write, args=(directory, partitions, tells))
    writer.start()
    tells.close()  # so that the end of the writer is the end of what it tells
    while told.recv() < size:
        pass
    time.sleep(chance.random() * 0.02)
    writer.kill()
    writer.join()
    return sum(path.stat().st_size for path in directory.glob("*/*.log"))


def forget_flushes(directory: Path) -> None:
    """A slow machine has time for a checkpoint; without it nothing counts as flushed."""
    (directory / RECOVERY_POINT).unlink(missing_ok=True)


@pytest.mark.parametrize(("size", "partitions"), CASES)
def test_time_to_serve(
    benchmark: Any, claim: Any, kafka: Any, disk: Path, size: int, partitions: int
) -> None:
    directory = disk / "data"
    least = scaled(size, 16 << 20)
    on_disk = killed_directory(directory, least, scaled(partitions))
    kafkas = on_disk / kafka.load(directory, runs=1, warmups=0, scratch=disk)["best_mb_per_s"] / 1e6

    managers: list[LogManager] = []

    def begin() -> None:
        forget_flushes(directory)

    def serve() -> None:
        managers.append(LogManager([directory], RECOVERING))

    def kill() -> None:
        manager = managers.pop()
        if manager.duties is not None:  # otherwise one may still write a checkpoint for the next
            manager.duties.stop(wait=True)
        assert sum(report.bytes_scanned for report in manager.recovery_reports) >= least
        manager.crash()

    benchmark.pedantic(serve, setup=begin, teardown=kill, rounds=ROUNDS)
    took = timed(benchmark)
    claim(
        f"killed with {size >> 20:,} MiB unflushed in {partitions:,} partition"
        f"{'s' * (partitions > 1)}, until served",
        took,
        "s",
        peer="Kafka",
        theirs=kafkas,
        less=True,
        note=f"{on_disk / 1e9:.2f} GB on disk, {on_disk / statistics.median(took) / 1e9:.1f} GB/s",
    )
