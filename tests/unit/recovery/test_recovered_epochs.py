"""The epoch file after a crash, where compaction removed the first batches of an epoch."""

from __future__ import annotations

import random

from checkpoints.leader_epoch_checkpoint import LeaderEpochCheckpoint
from logstore.format.filenames import LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, segment_file_name
from logstore.log import PartitionLog
from logstore.testing import FaultyStorage
from tests.crash.disk import DIRECTORY, T0, open_log
from tests.crash.model import data_batch
from tests.support.cases import for_each

Batches = list[tuple[int, int, int]]  # base offset, count, leader epoch
Entries = list[tuple[int, int]]
PATH = f"{DIRECTORY}/{LEADER_EPOCH_CHECKPOINT}"

LEFT: Batches = [(0, 10, 0), (45, 5, 2)]  # between them nothing is left


def written(batches: Batches, entries: Entries, rolls: tuple[int, ...] = ()) -> FaultyStorage:
    """A log with these batches and this epoch file, whose process was killed."""
    disk = FaultyStorage()
    disk.make_dir(DIRECTORY)
    log = open_log(disk)
    for base, count, epoch in batches:
        if base in rolls:
            log.roll()
        log.replica.append_as_follower(data_batch(base, epoch, [(b"k", b"v", T0)] * count).data)
    log.crash()
    LeaderEpochCheckpoint(PATH, disk).write(entries)
    return disk


def recovered(disk: FaultyStorage, recovery_point: int) -> PartitionLog:
    log = open_log(disk, recovery_point=recovery_point)
    found = log.epochs.entries
    log.crash()
    assert LeaderEpochCheckpoint(PATH, disk).read() == list(found)
    return log


@for_each("recovery_point", [0, 7, 45, 46])
@for_each("rolls", [(), (45,)])
@for_each(
    "named, kept",
    [
        ([(0, 0), (2, 10)], [(0, 0), (2, 10)]),
        ([(0, 0), (2, 45)], [(0, 0), (2, 45)]),
        # No batch of epoch 1 is left.
        ([(0, 0), (1, 10), (2, 20)], [(0, 0), (1, 10), (2, 20)]),
        ([(0, 0), (1, 45)], [(0, 0), (2, 45)]),
        # A file that is older than the batches, or younger (S-37).
        ([(0, 0)], [(0, 0), (2, 45)]),
        ([(0, 0), (2, 47)], [(0, 0), (2, 45)]),
        ([(0, 0), (2, 10), (3, 50)], [(0, 0), (2, 10)]),
        # Batches contradict it.
        ([(0, 0), (2, 5)], [(0, 0), (2, 45)]),
        ([(0, 0), (5, 10)], [(0, 0), (2, 45)]),
    ],
)
def test_an_entry_stays_that_no_batch_contradicts(
    named: Entries, kept: Entries, rolls: tuple[int, ...], recovery_point: int
) -> None:
    """F-232: as Kafka, so that a follower of epoch 0 hears that it ended at 10.

    What lies wholly below the recovery point is as the file has it.
    """
    log = recovered(written(LEFT, named, rolls), recovery_point)
    scanned_from = 45 if rolls and recovery_point >= 45 else 0
    if any(start < scanned_from and (epoch, start) not in kept for epoch, start in named):
        return
    assert log.epochs.entries == tuple(kept)


def test_an_epoch_stays_of_which_no_batch_is_left_at_all() -> None:
    disk = written(LEFT[:1], [(0, 0), (2, 10)])
    name = segment_file_name(30, LOG_SUFFIX)
    disk.write_file(f"{DIRECTORY}/{name}", b"")
    log = recovered(disk, 0)
    assert log.log_end_offset == 30
    assert log.epochs.entries == ((0, 0), (2, 10))


@for_each("seed", range(12))
def test_whatever_compaction_removes_the_epochs_stay(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(5):
        batches: Batches = []
        entries: Entries = []
        offset = epoch = 0
        for _ in range(source.randint(2, 12)):
            if not entries or source.random() < 0.4:
                epoch += source.randint(1, 3)
                entries.append((epoch, offset))
            count = source.randint(1, 4)
            batches.append((offset, count, epoch))
            offset += count
        left = [each for each in batches[:-1] if source.random() < 0.5] + batches[-1:]
        bases = [base for base, _, _ in left[1:]]
        rolls = tuple(base for base in bases if source.random() < 0.4)
        log = recovered(written(left, entries, rolls), source.randint(0, offset))
        assert log.epochs.entries == tuple(entries)
