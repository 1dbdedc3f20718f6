"""Verification of one segment on one thread, without Spark: ``pytest bench/bench_verify.py``.

*Batch level* is checksums, headers, offsets, epochs and both indexes; *deep* decodes every record
too; *with ranges* adds the digests of a comparison of replicas, in ranges of 65,536 offsets.
Compressed data counts by its unpacked size. All from the page cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workloads import (
    CONFIG,
    KEY,
    RECORDS_PER_BATCH,
    START_MS,
    in_turns,
    make_log,
    rates,
    scaled,
    seconds,
)

from logstore import AppendOrigin, PartitionLog
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.storage.local import LocalStorage
from logstore.verify import SegmentJob, SegmentResult, VerifyOptions, verify_segment
from logstore.verify.common.digests import CompareSpec

SIZE = scaled(256 << 20)
PACKED_SIZE = scaled(16 << 20)
RANGES = CompareSpec(0, 2**62, 65_536)
GOAL = {1: 0.5, 10: 1.25, 100: 1.25, 1000: 1.25}
DEEP_GOAL = 0.5
CODEC_GOAL = {"gzip": 0.5, "snappy": 0.5, "lz4": 0.5, "zstd": 1.0}
LEVELS = {
    "batch level": {},
    "batch level with ranges": {"ranges": True},
    "deep": {"deep": True},
}

Check = Callable[[], SegmentResult]


def check_of(directory: Path, *, deep: bool = False, ranges: bool = False) -> Check:
    compare = RANGES if ranges else None
    files = frozenset((".log", ".index", ".timeindex"))
    job = SegmentJob(str(directory), 0, files=files, trimmed=True, compare=compare)
    options = VerifyOptions(deep=deep, fingerprint=False)

    def check() -> SegmentResult:
        result = verify_segment(LocalStorage(), job, options)
        assert not any(result.problems.values())
        assert bool(result.ranges) == ranges
        return result

    return check


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("records", RECORDS_PER_BATCH)
def test_verify_one_segment(
    benchmark: Any, claim: Any, disk: Path, records: int, level: str
) -> None:
    directory = disk / "bench-0"
    make_log(directory, records, SIZE).close()
    check, plain = check_of(directory, **LEVELS[level]), check_of(directory)
    size = plain().size / 1e9
    what = f"verification on one thread, {level}, {records} record{'s' * (records > 1)} a batch"
    if level == "batch level with ranges":
        took = in_turns(benchmark, check, plain=lambda: seconds(plain))
        ours, theirs = rates(size, took["ours"]), rates(size, took["plain"])
        claim(what, ours, "GB/s", peer="without ranges", theirs=theirs)
    else:
        ours = rates(size, in_turns(benchmark, check)["ours"])
        claim(what, ours, "GB/s", limit=DEEP_GOAL if level == "deep" else GOAL[records])


@pytest.mark.parametrize("codec", CODEC_GOAL)
@pytest.mark.parametrize("records", [100, 1000])
def test_verify_compressed(
    benchmark: Any, claim: Any, disk: Path, codec: str, records: int
) -> None:
    """Text of few words: it shrinks three- to fourfold."""
    rng = random.Random(1)
    words = [rng.randbytes(rng.randint(1, 5)).hex() for _ in range(200)]
    values = [" ".join(rng.choices(words, k=30))[:100].encode() for _ in range(5000)]
    directory, unpacked = disk / "bench-0", 0
    log = PartitionLog.open(directory, CONFIG)
    while log.size < PACKED_SIZE:
        stamp = START_MS + log.log_end_offset
        rows = [(KEY, rng.choice(values), stamp + n) for n in range(records)]
        unpacked += len(encode_batch(rows))
        packed = encode_batch(rows, compression=Compression.of(codec))
        log.append_as_leader(packed, 0, AppendOrigin.COORDINATOR)
    log.close()
    took = in_turns(benchmark, check_of(directory, deep=True))
    claim(
        f"verification on one thread, deep, {codec}, {records:,} records a batch",
        rates(unpacked / 1e9, took["ours"]),
        "GB/s unpacked",
        limit=CODEC_GOAL[codec],
        note=f"{unpacked / PACKED_SIZE:.1f} times smaller on disk",
    )
