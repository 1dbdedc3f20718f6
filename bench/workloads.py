"""Input of the benchmarks: the record of every claim is a 16-byte key and a 100-byte value."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from logstore import AppendOrigin, LogConfig
from logstore.format.batch import encode_batch
from logstore.log import ReplicaLog

QUICK = "BENCH_QUICK" in os.environ
"""Whether each size is small: for a look at whether the benchmarks work."""

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


def fill(log: ReplicaLog, records: int, size_bytes: int, *, equal_timestamps: bool = False) -> None:
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
) -> ReplicaLog:
    log = ReplicaLog.open(directory, CONFIG)
    fill(log, records, size_bytes, equal_timestamps=equal_timestamps)
    return log


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def best(rounds: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest round; one before them is not counted."""
    work()
    return min(seconds(work) for _ in range(rounds))


def in_turns(rounds: int, **runs: Callable[[], float]) -> dict[str, float]:
    """The best of each run, which returns seconds for a unit of its work.

    They take turns, so that a slow minute of the machine is one for all of them. The first turn is
    not counted.
    """
    turns = [{name: run() for name, run in runs.items()} for _ in range(1 + rounds)]
    return {name: min(turn[name] for turn in turns[1:]) for name in runs}


def resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
