"""Choose the partition of a record by its key, as Kafka's producers do.

Records with the same key must go to the same partition from every client, so ``murmur2`` equals
Kafka's ``Utils.murmur2`` bit for bit, with Java's 32-bit arithmetic. ``murmur3`` distributes as
well and is several times faster (it is the native ``mmh3``), but no Kafka client agrees with it:
use it for topics that only this library writes.

Records without a key stay on one partition until a batch is complete, then move to another one at
random (Kafka's sticky partitioning): fuller batches than one record to each partition in turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import mmh3

from logstore.common.suggestions import unknown

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


class Partitioner(Protocol):
    """One for each topic and writer; not safe for several threads at once."""

    def partition(self, key: bytes | None, partition_count: int) -> int:
        """The partition, below ``partition_count``. The same non-null key gets the same one."""
        ...

    def on_new_batch(self) -> None:
        """Note that a batch of records without keys is complete.

        The next ones go to another partition.
        """
        ...


def murmur2(data: bytes) -> int:
    """Kafka's ``Utils.murmur2``: a signed 32-bit number. About 1 µs for a short key."""
    size = len(data)
    tail = size & ~3
    h = _SEED ^ size
    for at in range(0, tail, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if tail < size:
        h = (h ^ int.from_bytes(data[tail:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    h ^= h >> 15
    return h - (h >> 31 << 32)


def murmur3(data: bytes) -> int:
    """MurmurHash3 (x86, 32 bit, seed 0): a signed 32-bit number. Not Kafka's."""
    return mmh3.hash(data)


class HashPartitioner:
    """``toPositive(hash(key)) % partition_count``; sticky without a key."""

    def __init__(self, hash_key: Callable[[bytes], int], rng: random.Random | None = None) -> None:
        """``rng`` chooses partitions for records without a key; pass a seeded one to repeat."""
        self._hash = hash_key
        self._random = rng or random.Random()
        self._sticky = -1  # none chosen yet
        self._previous = -1

    def partition(self, key: bytes | None, partition_count: int) -> int:
        if partition_count < 1:
            raise ValueError(f"{partition_count} partitions")
        if key is not None:
            return (self._hash(key) & _POSITIVE) % partition_count
        if not 0 <= self._sticky < partition_count:
            self._sticky = self._choose(partition_count)
        return self._sticky

    def on_new_batch(self) -> None:
        self._previous, self._sticky = self._sticky, -1

    def _choose(self, partition_count: int) -> int:
        """Choose any partition except the current one, if there is another."""
        if partition_count == 1 or not 0 <= self._previous < partition_count:
            return self._random.randrange(partition_count)
        chosen = self._random.randrange(partition_count - 1)
        return chosen + (chosen >= self._previous)


_HASHES: dict[str, Callable[[bytes], int]] = {"murmur2": murmur2, "murmur3": murmur3}


def partitioner(name: str = "murmur2", rng: random.Random | None = None) -> Partitioner:
    """``murmur2``, Kafka's default, or ``murmur3``.

    Raises:
        ConfigError: another name.
    """
    if name not in _HASHES:
        raise unknown("partitioner", name, _HASHES)
    return HashPartitioner(_HASHES[name], rng)


__all__ = ["HashPartitioner", "Partitioner", "murmur2", "murmur3", "partitioner"]
