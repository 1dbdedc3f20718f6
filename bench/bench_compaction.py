"""Compaction by key against Kafka's own cleaner, and who waits for it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from bench_beside import claim_waits
from workloads import START_MS, in_turns, rates, scaled

from logstore import BrokerConfig, LogConfig, LogManager, TopicPartition
from logstore.format.batch import encode_batch_lists
from logstore.format.codecs.compression import Compression
from logstore.kernels import OffsetMap

SIZE = {Compression.NONE: scaled(512 << 20), Compression.ZSTD: scaled(256 << 20)}
SEGMENT = scaled(128 << 20)
RECORDS_PER_BATCH = 100
VERSIONS = 10
"""Of each key, on average: the newest one stays, 90 % are superseded."""

BESIDE = scaled(256 << 20)
KEYS = scaled(20_000) * RECORDS_PER_BATCH
KEY_BYTES = 16
SLOT_BYTES = 24
LOAD_FACTOR = 0.9
MAP_RATIO = 5
GOAL = {Compression.NONE: 4, Compression.ZSTD: 3}
WHERE = TopicPartition("compacted", 0)
CONFIG = LogConfig(
    segment_bytes=SEGMENT, segment_ms=2**62, retention_ms=-1, cleanup_policy=("compact",)
)
BROKER = BrokerConfig(log_cleaner_threads=1)


def manager(root: Path) -> LogManager:
    """One whose cleaner runs only when it is told."""
    return LogManager([root], CONFIG, broker_config=BROKER, background=False)


def write_input(root: Path, codec: Compression, size: int) -> None:
    """Write a log of about ``size`` bytes before compression.

    Keys of 16 bytes come in no order, so that hardly a batch stays as it is. Half of a value of
    100 bytes is random.
    """
    rng = random.Random(1)
    record_bytes = KEY_BYTES + 100 + 8
    batches = size // (RECORDS_PER_BATCH * record_bytes + 61)
    keys = [rng.randbytes(KEY_BYTES) for _ in range(batches * RECORDS_PER_BATCH // VERSIONS)]
    with manager(root) as managed:
        log = managed.get_or_create(*WHERE)
        for number in range(batches):
            noise = rng.randbytes(50 * RECORDS_PER_BATCH)
            values = [noise[at : at + 50] * 2 for at in range(0, len(noise), 50)]
            stamps = [START_MS + number] * RECORDS_PER_BATCH
            chosen = rng.choices(keys, k=RECORDS_PER_BATCH)
            batch = encode_batch_lists(chosen, values, stamps, compression=codec)
            log.append_as_leader(bytes(batch), 0)
        log.roll()
        log.append([(b"last", b"")])  # the active segment is never cleaned


def test_offset_map(benchmark: Any, claim: Any, kafka: Any, disk: Path) -> None:
    """Ours walks batches and takes the keys from their records; Kafka's is handed each key."""
    rng = random.Random(1)
    keys = [rng.randbytes(KEY_BYTES) for _ in range(KEYS)]
    none = [b""] * RECORDS_PER_BATCH
    batches = bytearray()
    for at in range(0, KEYS, RECORDS_PER_BATCH):
        part = keys[at : at + RECORDS_PER_BATCH]
        batches += encode_batch_lists(part, none, [START_MS] * len(part), base_offset=at)
    memory = KEYS * SLOT_BYTES * 10 // 9 + SLOT_BYTES
    offsets = OffsetMap(memory, LOAD_FACTOR)
    data = bytes(batches)

    def fill() -> None:
        offsets.clear()
        position = 0
        while position < len(data):
            before = position
            position = offsets.add_run(data, position, 0)[0]
            assert position > before

    peer = kafka.offset_map(keys=KEYS, runs=3, warmups=2, scratch=disk)
    took = in_turns(benchmark, fill, rounds=5)["ours"]
    assert len(offsets) == KEYS
    assert offsets.get(keys[KEYS // 2]) == KEYS // 2
    claim(
        "offset map: 2 million keys of 16 bytes out of batches of 100",
        rates(KEYS / 1e6, took),
        "M keys/s",
        peer="Kafka's map alone",
        theirs=peer["put_m_keys_per_s"],
        goal=MAP_RATIO,
        note=f"{memory / offsets.slots:.1f} bytes a slot",
    )


@pytest.mark.parametrize("codec", GOAL, ids=lambda codec: codec.name.lower())
def test_compaction(benchmark: Any, claim: Any, kafka: Any, disk: Path, codec: Compression) -> None:
    given = disk / "given"
    write_input(given, codec, SIZE[codec])
    before = sum(path.stat().st_size for path in given.glob("*/*.log"))
    peer = kafka.compact(given / str(WHERE), segment_bytes=SEGMENT, runs=1, warmups=1, scratch=disk)
    after, root = 0, disk / "ours"

    def copy() -> tuple[tuple[LogManager], dict[str, object]]:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(given, root)
        return (manager(root),), {}

    def compact(managed: LogManager) -> None:
        assert not managed.cleaner.clean_by_hand(WHERE).stats.map_full

    def close(managed: LogManager) -> None:
        nonlocal after
        after = managed.get(*WHERE).size
        managed.close()

    took = in_turns(benchmark, compact, setup=copy, teardown=close)["ours"]
    name, half = codec.name.lower(), codec is Compression.ZSTD
    claim(
        f"compaction of {'256' if half else '512'} MiB, 90 % superseded, batches of 100, {name}",
        rates(before / 1e6, took),
        "MB/s",
        peer="Kafka",
        theirs=peer["best_mb_per_s"],
        goal=GOAL[codec],
        note=f"{before / 1e6:.0f} MB stored, {after / 1e6:.0f} left; "
        f"Kafka leaves {peer['bytes_after'] / 1e6:.0f}",
    )


@pytest.mark.parametrize("codec", GOAL, ids=lambda codec: codec.name.lower())
def test_beside_compaction(benchmark: Any, claim: Any, disk: Path, codec: Compression) -> None:
    write_input(disk, codec, BESIDE)
    with manager(disk) as managed:
        log = managed.get_or_create(*WHERE)
        claim_waits(
            benchmark,
            claim,
            f"a compaction of 256 MiB{' in zstd' * (codec is Compression.ZSTD)}",
            lambda: managed.cleaner.clean_by_hand(WHERE),
            {
                "an append": lambda: log.append([(b"k", b"v")]),
                "a read at the end": lambda: log.read(log.log_end_offset - 1, 4096),
                "a read of what is compacted": lambda: log.read(0, 4096),
            },
            rounds=1,
        )
