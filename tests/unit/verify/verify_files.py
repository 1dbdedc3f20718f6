"""A small clean log directory that has every kind of file, and single bits of its files flipped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from verify_logs import LOG_DIR, SMALL, fill, patch, state_of

from checkpoints.offset_checkpoint import CLEANER, OffsetCheckpoint
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog, run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.manager.log_dir import Creation, CreationFiles
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from logstore.verify import VerifyOptions, VerifyReport, verify

ALONE, NEW = "/alone/events-0", "/new"
ROOTS = (LOG_DIR, ALONE, NEW)
CONFIG = {"segment.bytes": "2000", "index.interval.bytes": "300", "retention.ms": "-1"}


class FileFlip(NamedTuple):
    path: str
    position: int
    bit: int


def every_file() -> MemoryStorage:
    """``/data`` of a manager, with two partitions of a topic and one entry in each checkpoint;
    ``/alone`` of a log by itself; both closed cleanly. In ``/new`` a topic was being created."""
    clock = ManualClock()
    storage = MemoryStorage()
    manager = LogManager(
        [LOG_DIR], SMALL, storage=storage, clock=clock, owner=ManagerOwner(run_later=run_inline)
    )
    logs = manager.create_topic("orders", 2, CONFIG)
    fill(logs[0], clock, 45, random.Random(7), transactions=True)
    fill(logs[1], clock, 4, random.Random(8))
    logs[0].delete_records(logs[0].segments[1].base_offset + 1)
    logs[0].maintenance.delete_old_segments()
    logs[0].cursor("billing").commit(logs[0].log_end_offset - 3)
    manager.housekeeper.checkpoint_recovery_points()
    manager.housekeeper.checkpoint_high_watermarks()
    manager.close(broker_epoch=25)
    OffsetCheckpoint(f"{LOG_DIR}/{CLEANER}", storage).write({TopicPartition("orders", 1): 3})
    _alone(storage, clock)
    _creating(storage, clock)
    return storage


def _alone(storage: MemoryStorage, clock: ManualClock) -> None:
    storage.make_dir("/alone")
    log = PartitionLog.open(ALONE, SMALL, storage=storage, clock=clock)
    for number in range(3):
        log.append([(b"key", b"%d" % number)])
    log.cursor("audit").commit(2)
    log.close()


def _creating(storage: MemoryStorage, clock: ManualClock) -> None:
    """Killed when the partition was there, and the file that announced it as well."""
    manager = LogManager(
        [NEW], SMALL, storage=storage, clock=clock, owner=ManagerOwner(run_later=run_inline)
    )
    topic_id = manager.create_topic("fresh", 1)[0].topic_id
    assert topic_id is not None
    partitions = frozenset({TopicPartition("fresh", 0)})
    CreationFiles(NEW, storage).begin(Creation(topic_id, partitions))
    manager.crash()


def flips_of(storage: MemoryStorage) -> Iterator[FileFlip]:
    """Every bit of every file but the ``.log`` files, of which there are runs of their own."""
    for root in ROOTS:
        for path, (size, _, _) in sorted(state_of(storage, root).items()):
            if not path.endswith(".log"):
                for bit in range(8 * size):
                    yield FileFlip(path, bit >> 3, bit & 7)


def check_root(storage: MemoryStorage, path: str) -> VerifyReport:
    root = next(root for root in ROOTS if path.startswith(root))
    return verify([root], VerifyOptions(threads=1), storage=storage)


def flipped(storage: MemoryStorage, flip: FileFlip) -> tuple[bytes, VerifyReport]:
    """The file with one bit the other way, and what ``verify`` says of it; then it is put back."""
    before = storage.read_file(flip.path)[flip.position]
    patch(storage, flip.path, flip.position, bytes([before ^ 1 << flip.bit]))
    try:
        return storage.read_file(flip.path), check_root(storage, flip.path)
    finally:
        patch(storage, flip.path, flip.position, bytes([before]))
