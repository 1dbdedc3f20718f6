"""A log of the model, changed as ``PartitionLog`` changes its own.

Records are a tuple. The epochs are not so simple, so the real ``LeaderEpochCache`` keeps them, on a
file that is never written.
"""

from __future__ import annotations

from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from logstore.segments.leader_epochs import LeaderEpochCache
from logstore.storage.memory import MemoryStorage
from replication.simulator.exhaustive.state import Log, ModelRecord

_FILE = LeaderEpochCheckpoint(LEADER_EPOCH, MemoryStorage())


def append(log: Log, record: ModelRecord) -> Log:
    begun = begin_epoch(log, record.epoch)
    return Log((*log.records, record), begun.epochs)


def begin_epoch(log: Log, epoch: int) -> Log:
    """Begin a leadership at the log end, whether or not it will write anything (R-13)."""
    cache = LeaderEpochCache(_FILE, list(log.epochs))
    cache.assign(epoch, log.end_offset, durable=False)
    return Log(log.records, cache.entries)


def truncate(log: Log, offset: int) -> Log:
    """Truncate. At the log end it forgets an epoch that began there and wrote nothing (F-278)."""
    cache = LeaderEpochCache(_FILE, list(log.epochs))
    cache.truncate_from_end(min(offset, log.end_offset))
    return Log(log.records[:offset], cache.entries)
