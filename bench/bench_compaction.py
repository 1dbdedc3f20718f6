"""Compaction by key against Kafka's own cleaner."""

from __future__ import annotations

import random
from pathlib import Path

from workloads import START_MS

from logstore import LogConfig
from logstore.format.batch import encode_batch_lists
from logstore.format.codecs.compression import Compression
from logstore.log import ReplicaLog

SIZE = 1 << 30
SEGMENT = 128 << 20
RECORDS_PER_BATCH = 100
VERSIONS = 10
"""Of each key, on average: the newest one stays, 90 % are superseded."""


def write_input(directory: Path, codec: Compression, size: int = SIZE) -> int:
    """Write a log of about ``size`` bytes before compression, and return its records.

    Keys of 16 bytes come in no order, so that hardly a batch stays as it is. Half of a value of
    100 bytes is random.
    """
    rng = random.Random(1)
    config = LogConfig(segment_bytes=SEGMENT, retention_ms=-1, cleanup_policy=("compact",))
    record_bytes = 16 + 100 + 8
    batches = size // (RECORDS_PER_BATCH * record_bytes + 61)
    total = batches * RECORDS_PER_BATCH
    keys = [rng.randbytes(16) for _ in range(total // VERSIONS)]
    with ReplicaLog.open(directory, config) as log:
        for number in range(batches):
            noise = rng.randbytes(50 * RECORDS_PER_BATCH)
            values = [noise[at : at + 50] * 2 for at in range(0, len(noise), 50)]
            stamps = [START_MS + number] * RECORDS_PER_BATCH
            chosen = rng.choices(keys, k=RECORDS_PER_BATCH)
            log.append_as_leader(
                bytes(encode_batch_lists(chosen, values, stamps, compression=codec)), 0
            )
        log.roll()
        log.append([(b"last", b"")])  # the active segment is never cleaned
    return total
