"""A disk that fills up, refuses, or loses its power under a mirror."""

from __future__ import annotations

import errno
import random
from contextlib import suppress

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError, StorageFailedError
from logstore.testing import FaultyStorage
from replication.server.serving import ServedCluster
from tests.support.mirrors import (
    DIRECTORY,
    caught_up,
    mirror_of,
    mirrored_bytes,
    source_bytes,
    write,
)
from tests.support.served import new_name
from tests.support.until import until


@pytest.fixture
def tp(kafka: ServedCluster) -> TopicPartition:
    name = new_name("kept")
    kafka.create_topic(name)
    found = TopicPartition(name, 0)
    write(kafka, found, *[b"x" * 1000] * 20)
    return found


def run(kafka: ServedCluster, storage: FaultyStorage, tp: TopicPartition) -> None:
    with mirror_of(kafka, storage, topics=(tp.topic,), internal=False) as mirror:
        mirror.start()
        mirror.catch_up(2000)


def cut_power(
    kafka: ServedCluster, storage: FaultyStorage, tp: TopicPartition, rng: random.Random
) -> None:
    """After some change of the disk, or once all is mirrored."""
    moment = storage.operations + rng.randrange(1, 60)
    with mirror_of(kafka, storage, topics=(tp.topic,), internal=False) as mirror:
        mirror.start()
        until(
            lambda: (
                storage.operations >= moment
                or mirrored_bytes(mirror, tp) == source_bytes(kafka, tp)
            ),
            "it writes",
        )
        storage.crash(rng)


def test_a_full_disk_ends_the_mirror(kafka: ServedCluster, tp: TopicPartition) -> None:
    """With the reason; what is there is true, and after there is room it goes on."""
    storage = FaultyStorage(capacity=8000)
    with pytest.raises(StorageFailedError, match="No space"):
        run(kafka, storage, tp)
    storage.capacity = None
    with mirror_of(kafka, storage, topics=(tp.topic,), internal=False) as mirror:
        mirror.start()
        caught_up(mirror)
        assert mirrored_bytes(mirror, tp) == source_bytes(kafka, tp)


def test_a_disk_that_fills_up_while_it_runs(kafka: ServedCluster, tp: TopicPartition) -> None:
    storage = FaultyStorage()
    with mirror_of(kafka, storage, topics=(tp.topic,), internal=False) as mirror:
        mirror.start()
        caught_up(mirror)
        storage.fail("write", "*.log", error=errno.ENOSPC, times=1 << 30, partial=100)
        write(kafka, tp, b"y" * 1000)
        until(lambda: mirror.failure is not None, "it fails")
        assert mirror.status.failure
        with pytest.raises(LogstoreError):
            mirror.catch_up(20_000)
    storage.heal()
    with mirror_of(kafka, storage, topics=(tp.topic,), internal=False) as mirror:
        mirror.start()
        caught_up(mirror)
        assert mirrored_bytes(mirror, tp) == source_bytes(kafka, tp)


@pytest.mark.parametrize("after", [0, 3, 8, 20, 40])
@pytest.mark.parametrize("operation", ["write", "sync", "sync_dir", "rename"])
def test_one_operation_that_fails(
    kafka: ServedCluster, tp: TopicPartition, operation: str, after: int
) -> None:
    """At any of the first places: the mirror says so or does it again, and keeps nothing wrong."""
    storage = FaultyStorage()
    storage.fail(operation, f"{DIRECTORY}*", after=after)
    with suppress(LogstoreError, OSError):
        run(kafka, storage, tp)
    storage.heal()
    with mirror_of(kafka, storage, topics=(tp.topic,), internal=False) as mirror:
        mirror.start()
        caught_up(mirror)
        assert mirrored_bytes(mirror, tp) == source_bytes(kafka, tp)


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut(kafka: ServedCluster, tp: TopicPartition, seed: int) -> None:
    """What was not synced is lost, or a part of it; the source gives it again."""
    storage, rng = FaultyStorage(), random.Random(seed)
    for _ in range(3):
        write(kafka, tp, *[b"z" * 1000] * 5)
        with suppress(LogstoreError, OSError):
            cut_power(kafka, storage, tp, rng)
    with mirror_of(kafka, storage, topics=(tp.topic,), internal=False) as mirror:
        mirror.start()
        caught_up(mirror)
        assert mirrored_bytes(mirror, tp) == source_bytes(kafka, tp)
