"""Input of the benchmarks: the record of every claim is a 16-byte key and a 100-byte value."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from logstore import AppendOrigin, LogConfig
from logstore.format.batch import encode_batch
from logstore.log import PartitionLog

QUICK = "BENCH_QUICK" in os.environ
"""Whether each size is small: for a look at whether the benchmarks work."""

ROUNDS = 1 if QUICK else 3

KEY, VALUE = bytes(range(16)), bytes(range(100))
START_MS = 1_700_000_000_000
RECORDS_PER_BATCH = (1, 10, 100, 1000)
# Data in the page cache: nothing here may wait for a roll or a retention pass.
CONFIG = LogConfig(segment_bytes=2**31 - 1, segment_ms=2**62, message_timestamp_after_max_ms=2**62)

# Five segments in a few kilobytes: for what a start costs beside the records.
START_CONFIG = CONFIG.with_properties(
    {"segment.bytes": 4000, "index.interval.bytes": 512, "segment.index.bytes": 4096}
)


def scaled(amount: int, least: int = 1) -> int:
    """The amount, or in a quick look a small part of it."""
    return max(least, amount // 64) if QUICK else amount


def ready_batch(records: int, timestamp: int = START_MS) -> bytes:
    """One batch as a client sends it."""
    return bytes(encode_batch([(KEY, VALUE, timestamp + i) for i in range(records)]))


def fill(
    log: PartitionLog, records: int, size_bytes: int, *, equal_timestamps: bool = False
) -> None:
    """Append batches of ``records`` records until the log holds ``size_bytes``."""
    for block in blocks(records, equal_timestamps):
        if log.size >= size_bytes:
            return
        log.append_as_leader(block, 0, AppendOrigin.COORDINATOR)


def blocks(records: int, equal_timestamps: bool = False) -> Iterator[bytes]:
    """Endless blocks of about 1 MB of batches; timestamps rise unless equal."""
    per_block = max(1, 1_000_000 // len(ready_batch(records)))
    stamp = START_MS
    while True:
        yield b"".join(
            [ready_batch(records, stamp)] * per_block
            if equal_timestamps
            else [ready_batch(records, stamp + i * records) for i in range(per_block)]
        )
        if not equal_timestamps:
            stamp += per_block * records


def make_log(
    directory: Path, records: int, size_bytes: int, *, equal_timestamps: bool = False
) -> PartitionLog:
    log = PartitionLog.open(directory, CONFIG)
    fill(log, records, size_bytes, equal_timestamps=equal_timestamps)
    return log


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(
    benchmark: Any,
    ours: Callable[..., object],
    *,
    rounds: int = ROUNDS,
    setup: Callable[[], Any] | None = None,
    teardown: Callable[..., None] | None = None,
    **peers: Callable[[], float],
) -> dict[str, list[float]]:
    """The seconds of each round of ours, and what each peer gave in its turn before that round.

    They take turns, so that a slow minute of the machine is one for all of them. The first turn is
    not counted.
    """
    found: dict[str, list[float]] = {name: [] for name in peers}

    def turn() -> Any:
        for name, peer in peers.items():
            found[name].append(peer())
        return setup() if setup else None

    benchmark.pedantic(ours, setup=turn, teardown=teardown, rounds=rounds, warmup_rounds=1)
    return {"ours": timed(benchmark), **{name: each[1:] for name, each in found.items()}}


def timed(benchmark: Any) -> list[float]:
    """The seconds of each round that the fixture has timed."""
    return list(benchmark.stats.stats.data)


def rates(amount: float, times: Iterable[float]) -> list[float]:
    return [amount / each for each in times]


def resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
