"""Partitioners: exact to the bit with Kafka's, stable by key, sticky without one."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import mmh3
import pytest

from logstore.common.errors import ConfigError
from logstore.common.partitioner import murmur2, murmur3, partitioner

# The test vectors of Kafka's own UtilsTest.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KAFKA_VECTORS, ids=lambda key: key.decode()[:20])
def test_murmur2_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == KAFKA_VECTORS[key]


def int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def java_murmur2(data: bytes) -> int:
    """Kafka's method, statement by statement, with Java's signed 32-bit arithmetic."""
    m, h = int32(0x5BD1E995), int32(0x9747B28C ^ len(data))
    for i in range(len(data) // 4):
        k = int32(sum(data[i * 4 + j] << 8 * j for j in range(4)))
        k = int32(k * m)
        k ^= (k & 0xFFFFFFFF) >> 24
        k = int32(k * m)
        h = int32(int32(h * m) ^ k)
    index, rest = len(data) & ~3, len(data) % 4
    if rest >= 3:
        h = int32(h ^ data[index + 2] << 16)
    if rest >= 2:
        h = int32(h ^ data[index + 1] << 8)
    if rest >= 1:
        h = int32(int32(h ^ data[index]) * m)
    h ^= (h & 0xFFFFFFFF) >> 13
    h = int32(h * m)
    return int32(h ^ (h & 0xFFFFFFFF) >> 15)


def test_murmur2_agrees_with_java_arithmetic_on_any_bytes() -> None:
    rng = random.Random(2)
    for size in range(70):
        for _ in range(20):
            data = rng.randbytes(size)
            assert murmur2(data) == java_murmur2(data)


def test_a_negative_hash_becomes_positive_as_in_kafka() -> None:
    """``toPositive`` clears the sign bit; it is no absolute value."""
    assert partitioner().partition(b"21", 10) == (-973932308 & 0x7FFFFFFF) % 10


def test_murmur3_is_mmh3_with_seed_0() -> None:
    assert murmur3(b"foobar") == mmh3.hash(b"foobar", 0)
    assert partitioner("murmur3").partition(b"foobar", 7) == (murmur3(b"foobar") & 0x7FFFFFFF) % 7


@pytest.mark.parametrize("name", ["murmur2", "murmur3"])
def test_keys_spread_evenly_and_stay(name: str) -> None:
    chosen = partitioner(name)
    keys = [b"key-%d" % i for i in range(4000)]
    first = [chosen.partition(key, 8) for key in keys]
    counts = Counter(first)
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 1.3 * min(counts.values())
    chosen.on_new_batch()
    assert [chosen.partition(key, 8) for key in keys] == first
    assert chosen.partition(b"", 8) in range(8)


def test_null_keys_stick_until_the_batch_is_complete() -> None:
    chosen = partitioner(rng=random.Random(1))
    visited = []
    for _ in range(60):
        batch = {chosen.partition(None, 3) for _ in range(10)}
        assert len(batch) == 1
        visited += batch
        chosen.on_new_batch()
    assert set(visited) == {0, 1, 2}
    assert all(a != b for a, b in pairwise(visited))


def test_null_keys_follow_a_changed_number_of_partitions() -> None:
    chosen = partitioner(rng=random.Random(1))
    for count in (9, 1, 4, 2):
        for _ in range(10):
            assert chosen.partition(None, count) in range(count)
            chosen.on_new_batch()


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="known are: murmur2, murmur3"):
        partitioner("crc")
    with pytest.raises(ValueError, match="0 partitions"):
        partitioner().partition(b"k", 0)
