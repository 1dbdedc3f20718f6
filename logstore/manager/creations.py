"""Files that list the partitions of a topic while they are being created.

Each log directory that gets some of them has a file ``topic-creation-<topic id>`` with the names of
all, in the frame of an offset checkpoint. Kafka ignores it. The file is durable before the first
partition exists, and durably gone before the first partition can be found. So after a crash its
partitions are empty, and if one is missing the others are removed too. If the topic gets its first
records before it can be found, the offsets are 1 instead of 0, and after a crash the whole topic is
removed.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from checkpoints.errors import CheckpointFailedError, MalformedCheckpointError
from checkpoints.loggers import get_logger
from checkpoints.offset_checkpoint import OffsetCheckpoint
from checkpoints.partition_metadata import topic_id_from_text, topic_id_to_text
from logstore.common.types import TopicPartition
from logstore.storage.base import Storage

logger = get_logger(__name__)

PREFIX = "topic-creation-"


@dataclass(frozen=True, slots=True)
class Creation:
    """What one file says: partitions of one topic id, in any directory."""

    topic_id: uuid.UUID
    partitions: frozenset[TopicPartition]
    filled: bool = False  # with records, which were not visible before the end


class CreationFiles:
    """The creation files of one log directory.

    Raises ``CheckpointFailedError`` if a write fails.
    """

    def __init__(self, directory: str, storage: Storage) -> None:
        self._directory = directory
        self._storage = storage

    def _path(self, topic_id: uuid.UUID) -> str:
        return posixpath.join(self._directory, PREFIX + topic_id_to_text(topic_id))

    def read(self, names: Iterable[str]) -> list[Creation]:
        """The creations that were under way when the last process ended."""
        found = []
        for name in names:
            try:
                topic_id = topic_id_from_text(name.removeprefix(PREFIX))
                tps = OffsetCheckpoint(self._path(topic_id), self._storage).read()
            except (ValueError, MalformedCheckpointError) as error:  # such as a .tmp left behind
                logger.info("%s in %s is left alone: %s", name, self._directory, error)
                continue
            found.append(Creation(topic_id, frozenset(tps), any(tps.values())))
        return found

    def begin(self, creation: Creation) -> None:
        file = OffsetCheckpoint(self._path(creation.topic_id), self._storage)
        file.write(dict.fromkeys(sorted(creation.partitions), int(creation.filled)))

    def end(self, creation: Creation) -> None:
        path = self._path(creation.topic_id)
        try:
            self._storage.remove(path)
            self._storage.sync_dir(self._directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointFailedError(path, "remove", str(error)) from error
