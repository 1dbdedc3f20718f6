"""Which partitions are about to be created, on the disk as long as they are.

The file has the frame of an offset checkpoint; its offsets mean nothing. Kafka ignores it. An entry
goes, durably, before anybody finds the log that it names, so a log of an entry holds no record.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Collection

from checkpoints.errors import CheckpointFailedError, MalformedCheckpointError
from checkpoints.offset_checkpoint import OffsetCheckpoint
from logstore.locks import Rank, make_lock
from logstore.storage.base import Storage
from logstore.types import TopicPartition

logger = logging.getLogger(__name__)

CREATIONS = "creation-checkpoint"


class CreationFile:
    """The file of one log directory; missing while nothing is created.

    Raises ``CheckpointFailedError`` when the disk refuses.
    """

    def __init__(self, directory: str, storage: Storage) -> None:
        self._lock = make_lock(Rank.CHECKPOINT)
        self._directory = directory
        self._file = OffsetCheckpoint(posixpath.join(directory, CREATIONS), storage)
        self._storage = storage
        self._under_way: set[TopicPartition] = set()

    def load(self) -> set[TopicPartition]:
        """What was under way when the last process ended."""
        try:
            self._under_way = set(self._file.read())
        except MalformedCheckpointError as error:
            logger.warning("%s; treated as absent", error)
        return set(self._under_way)

    def add(self, tps: Collection[TopicPartition]) -> None:
        with self._lock:
            self._under_way.update(tps)
            self._write_locked()

    def remove(self, tps: Collection[TopicPartition]) -> None:
        with self._lock:
            self._under_way.difference_update(tps)
            self._write_locked()

    def _write_locked(self) -> None:
        if self._under_way:
            self._file.write(dict.fromkeys(sorted(self._under_way), 0))
            return
        try:
            self._storage.remove(self._file.path)
            self._storage.sync_dir(self._directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointFailedError(self._file.path, "remove", str(error)) from error
