"""A log of the model, changed as ``ReplicaLog`` changes its own; the epoch cache is the real one.

Appending and cutting records is a tuple; which epochs the log then knows is not so simple, hence
``LeaderEpochCache`` does it, on a file that is never written.
"""

from __future__ import annotations

from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from logstore.segments.leader_epochs import LeaderEpochCache
from logstore.storage.memory import MemoryStorage
from replication.simulator.exhaustive.state import Log, Record

_FILE = LeaderEpochCheckpoint(LEADER_EPOCH, MemoryStorage())


def append(log: Log, record: Record) -> Log:
    begun = begin_epoch(log, record.epoch)
    return Log((*log.records, record), begun.epochs)


def begin_epoch(log: Log, epoch: int) -> Log:
    """A leadership begins at the log end, whether or not anything is written in it (R-13)."""
    cache = LeaderEpochCache(_FILE, list(log.epochs))
    cache.assign(epoch, log.end_offset, durable=False)
    return Log(log.records, cache.entries)


def truncate(log: Log, offset: int) -> Log:
    """Also at the log end: an epoch that began there and wrote nothing is forgotten (F-278)."""
    cache = LeaderEpochCache(_FILE, list(log.epochs))
    cache.truncate_from_end(min(offset, log.end_offset))
    return Log(log.records[:offset], cache.entries)
