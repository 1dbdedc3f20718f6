"""The content of log directories, from names and small files, for ``logstore ls``.

No lock is taken and nothing is written. Of each log only the end of the last segment is read.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from checkpoints.errors import CheckpointError
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from checkpoints.meta_properties import META_PROPERTIES, MetaPropertiesFile
from checkpoints.offset_checkpoint import HIGH_WATERMARK, LOG_START, OffsetCheckpoint
from checkpoints.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadataFile,
    topic_id_to_text,
)
from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.cli.common.topics import partition_dir
from logstore.common.errors import LogClosedError, LogstoreError
from logstore.format import filenames
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.storage import Storage

Note = Callable[[str], None]
T = TypeVar("T", covariant=True)


class _SmallFile(Protocol[T]):
    def read(self) -> T: ...


@dataclass(slots=True)
class ListedReplica:
    """One partition directory. None stands for a value that no file has.

    ``offset_lag``: offsets behind the longest listed replica. ``is_leader``: see `compare`.
    ``size`` is the bytes of all files.
    """

    topic_partition: TopicPartition
    directory: str
    broker: str
    topic_id: str | None
    log_start_offset: int
    log_end_offset: int
    high_watermark: int | None
    leader_epoch: int | None
    segments: int
    size: int
    offset_lag: int | None = None
    is_leader: bool | None = None


@dataclass(slots=True)
class LogDirectory:
    """One log directory; ``broker`` is its node id, else its path."""

    path: str
    broker: str
    cluster_id: str | None = None
    replicas: list[ListedReplica] = field(default_factory=list)


@dataclass(slots=True)
class Lister:
    """Lists directories one after the other. ``note`` is called with what is left out, and why."""

    storage: Storage
    note: Note

    def log_directory(self, path: str) -> LogDirectory:
        """All partitions of a log directory, by topic and number."""
        found = self._identity(path)
        high_watermarks = self._offsets(path, HIGH_WATERMARK)
        log_starts = self._offsets(path, LOG_START)
        marked: defaultdict[str, int] = defaultdict(int)
        for entry in self.storage.scan_dir(path):
            tp = _partition_of(entry.name, marked) if entry.is_dir else None
            if tp is None:
                continue
            directory = os.path.join(path, entry.name)
            replica = self._replica(directory, tp, found.broker, log_starts.get(tp, 0))
            if replica is not None:
                replica.high_watermark = high_watermarks.get(tp)
                found.replicas.append(replica)
        for suffix, count in sorted(marked.items()):
            noun = "directory" if count == 1 else "directories"
            self.note(f"{printable(path)}: left out {count} {suffix} {noun}")
        found.replicas.sort(key=lambda each: each.topic_partition)
        return found

    def _identity(self, path: str) -> LogDirectory:
        found = LogDirectory(path, path)
        meta = self._read(MetaPropertiesFile(os.path.join(path, META_PROPERTIES), self.storage))
        if meta is not None:
            found.cluster_id = meta.cluster_id
            found.broker = path if meta.node_id is None else str(meta.node_id)
        return found

    def _offsets(self, path: str, name: str) -> dict[TopicPartition, int]:
        return self._read(OffsetCheckpoint(os.path.join(path, name), self.storage)) or {}

    def _read(self, file: _SmallFile[T]) -> T | None:
        try:
            return file.read()
        except CheckpointError as error:
            self.note(f"{error}; taken as absent")
            return None

    def _replica(
        self, directory: str, tp: TopicPartition, broker: str, log_start: int
    ) -> ListedReplica | None:
        """List a replica. None if the directory has vanished or cannot be read."""
        try:
            reader = DirectoryReader(directory, storage=self.storage)
            bases = reader.bases()
            names = [] if bases else [entry.name for entry in self.storage.scan_dir(directory)]
            if names and not any(map(_is_of_a_log, names)):
                self.note(f"{printable(directory)} is left out: nothing in it is of a log")
                return None
            start = max(log_start, bases[0] if bases else 0)
            end = max(start, reader.end_on_file())
            size = sum(entry.size for entry in self.storage.scan_dir(directory) if entry.is_file)
        except (FileNotFoundError, LogClosedError):
            self.note(f"{printable(directory)}: deleted during the listing")
            return None
        except (LogstoreError, OSError) as error:
            self.note(f"{printable(directory)} is left out: {error}")
            return None
        return ListedReplica(
            tp,
            directory,
            broker,
            self._topic_id(directory),
            start,
            end,
            None,
            self._epoch(directory),
            len(bases),
            size,
        )

    def _topic_id(self, directory: str) -> str | None:
        path = os.path.join(directory, PARTITION_METADATA)
        metadata = self._read(PartitionMetadataFile(path, self.storage))
        return None if metadata is None else topic_id_to_text(metadata.topic_id)

    def _epoch(self, directory: str) -> int | None:
        """The latest leader epoch."""
        path = os.path.join(directory, LEADER_EPOCH)
        entries = self._read(LeaderEpochCheckpoint(path, self.storage)) or ()
        return max((epoch for epoch, _ in entries), default=None)


def _is_of_a_log(name: str) -> bool:
    known = name in (LEADER_EPOCH, PARTITION_METADATA, filenames.CLEAN_STOP)
    return known or filenames.parse_segment_file(name) is not None


def _partition_of(name: str, marked: dict[str, int]) -> TopicPartition | None:
    """The partition of a directory.

    Directories that are no log in use are counted in ``marked``.
    """
    parsed = partition_dir(name)
    if parsed is not None and parsed.suffix:
        marked[parsed.suffix] += 1
        return None
    return None if parsed is None else parsed.topic_partition


def compare(replicas: Iterable[ListedReplica]) -> None:
    """Fill in lag and leader if several replicas of a partition were listed.

    Partitions of the same name with different topic ids are different partitions.
    """
    groups: defaultdict[tuple[TopicPartition, str | None], list[ListedReplica]] = defaultdict(list)
    for replica in replicas:
        groups[replica.topic_partition, replica.topic_id].append(replica)
    for group in groups.values():
        if len(group) > 1:
            longest = max(replica.log_end_offset for replica in group)
            for replica in group:
                replica.offset_lag = longest - replica.log_end_offset
            _find_leader(group)


def _find_leader(group: list[ListedReplica]) -> None:
    """Find the leader if one replica is ahead. The files do not name it.

    A leader has its epoch on file, and the records of that epoch, before any follower. So the only
    replica with the highest epoch, or among several the only longest one, is the leader. Equal
    replicas and copies with one broker id show no leader.
    """
    ranks = sorted(map(_rank, group))
    brokers = {replica.broker for replica in group}
    if ranks[-1] == ranks[-2] or ranks[-1][0] < 0 or len(brokers) < len(group):
        return
    for replica in group:
        replica.is_leader = _rank(replica) == ranks[-1]


def _rank(replica: ListedReplica) -> tuple[int, int]:
    epoch = -1 if replica.leader_epoch is None else replica.leader_epoch
    return epoch, replica.log_end_offset
