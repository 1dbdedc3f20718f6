"""The leader epoch cache by itself, which unit tests see through a log alone: Kafka's
LeaderEpochFileCacheTest as the tables of F-204 … F-218."""

from __future__ import annotations

import pytest

from checkpoints.leader_epoch_checkpoint import LeaderEpochCheckpoint
from logstore.segments.leader_epochs import LeaderEpochCache
from tests.support.builders import Disk

Entries = list[tuple[int, int]]
UNDEFINED = (-1, -1)
SAMPLE: Entries = [(2, 10), (4, 20), (7, 35)]


def cache_of(*entries: tuple[int, int], disk: Disk | None = None) -> LeaderEpochCache:
    disk = disk or Disk()
    checkpoint = LeaderEpochCheckpoint(disk.path("leader-epoch-checkpoint"), disk.storage)
    cache = LeaderEpochCache(checkpoint, [])
    for epoch, start in entries:
        cache.assign(epoch, start)
    return cache


def entries_of(cache: LeaderEpochCache) -> Entries:
    return [tuple(entry) for entry in cache.entries]  # type: ignore[misc]


def test_should_persist_epochs_between_instances() -> None:
    """A cache opened again is equal; an assignment is in the file at once, a truncation after
    ``flush`` (F-204, F-207)."""
    disk = Disk()
    cache = cache_of((2, 6), (3, 8), (4, 11), disk=disk)
    assert disk.read("leader-epoch-checkpoint") == b"0\n3\n2 6\n3 8\n4 11\n"
    cache.truncate_from_end(11)
    assert not cache.saved
    cache.flush()
    checkpoint = LeaderEpochCheckpoint(disk.path("leader-epoch-checkpoint"), disk.storage)
    reopened = LeaderEpochCache(checkpoint, [])
    for epoch, start in checkpoint.read():
        reopened.assign(epoch, start)
    assert entries_of(reopened) == entries_of(cache) == [(2, 6), (3, 8)]


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        (-1, UNDEFINED),
        (0, (0, 10)),
        (1, (1, 10)),
        (2, (2, 20)),
        (3, (2, 20)),
        (4, (4, 35)),
        (5, (4, 35)),
        (6, (4, 35)),
        (7, (7, 50)),
        (8, UNDEFINED),
    ],
)
def test_end_offset_for_an_epoch(query: int, answer: tuple[int, int]) -> None:
    """F-208: shouldReturnLogEndOffsetIfLatestEpochRequested, shouldReturnFirstEpochIfRequested…,
    shouldReturnNextAvailableEpochIfThereIsNoExactEpoch…."""
    assert cache_of(*SAMPLE).end_offset_for(query, 50) == answer
    assert cache_of().end_offset_for(query, 50) == UNDEFINED


@pytest.mark.parametrize(
    ("offset", "epoch"), [(5, None), (9, None), (10, 2), (19, 2), (20, 4), (34, 4), (99, 7)]
)
def test_epoch_for_an_offset(offset: int, epoch: int | None) -> None:
    """F-209."""
    assert cache_of(*SAMPLE).epoch_for_offset(offset) == epoch
    assert cache_of().epoch_for_offset(offset) is None


def test_assignments_in_a_row() -> None:
    """F-210 … F-214: each on what the one before left. At the same start the newer epoch replaces
    the older one; a lower epoch removes the higher ones (shouldEnforceMonotonicallyIncreasing…,
    shouldTruncateIfMatchingEpochButEarlierStartingOffset)."""
    cache = cache_of(*SAMPLE)
    for (epoch, start), left in [
        ((7, 40), SAMPLE),
        ((7, 33), [(2, 10), (4, 20), (7, 33)]),
        ((5, 30), [(2, 10), (4, 20), (5, 30)]),
        ((9, 20), [(2, 10), (9, 20)]),
        ((3, 60), [(2, 10), (3, 60)]),
    ]:
        cache.assign(epoch, start)
        assert entries_of(cache) == left
        assert cache.latest_epoch == left[-1][0]


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (5, SAMPLE),
        (10, SAMPLE),
        (15, [(2, 15), (4, 20), (7, 35)]),
        (20, [(4, 20), (7, 35)]),
        (34, [(4, 34), (7, 35)]),
        (35, [(7, 35)]),
        (50, [(7, 50)]),
    ],
)
def test_truncate_from_start(offset: int, left: Entries) -> None:
    """F-206, F-215, F-216: a cut inside an epoch keeps its rest, and the last epoch always stays
    (shouldUpdateOffset…, shouldRetainLatestEpochOnClearAllEarliest…)."""
    cache = cache_of(*SAMPLE)
    cache.truncate_from_start(offset)
    assert entries_of(cache) == left


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (36, SAMPLE),
        (35, SAMPLE[:2]),
        (21, SAMPLE[:2]),
        (20, SAMPLE[:1]),
        (10, []),
        (0, []),
        (-1, SAMPLE),
    ],
)
def test_truncate_from_end(offset: int, left: Entries) -> None:
    """F-205, F-217, F-218."""
    cache = cache_of(*SAMPLE)
    cache.truncate_from_end(offset)
    assert entries_of(cache) == left
    assert cache.latest_epoch == (left[-1][0] if left else -1)


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_negative_values_are_refused(epoch: int, start: int) -> None:
    """F-204."""
    with pytest.raises(ValueError):
        cache_of().assign(epoch, start)
