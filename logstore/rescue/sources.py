"""The sources: log directories and partition directories, and what their small files say.

Everything here may be damaged. A checkpoint that cannot be read counts as absent, and is noted.
Only the identity of a topic is not guessed: if sources name different topic ids, the caller has to
choose.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from checkpoints import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    META_PROPERTIES,
    RECOVERY_POINT,
    CheckpointError,
    LeaderEpochCheckpoint,
    MetaProperties,
    MetaPropertiesFile,
    OffsetCheckpoint,
    PartitionMetadataFile,
    TopicPartition,
    TopicProperties,
    TopicPropertiesFile,
    clean_shutdown,
    topic_id_to_text,
)
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH
from checkpoints.partition_metadata import PARTITION_METADATA
from checkpoints.printable import printable
from checkpoints.topic_properties import TOPIC_PROPERTIES
from logstore.common.errors import ConfigError
from logstore.format import filenames
from logstore.storage.base import FileInfo, Storage
from logstore.storage.uri import log_directory

LOCK = ".lock"
_CHECKPOINTS = (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER)
_MARKS = (*_CHECKPOINTS, META_PROPERTIES, LOCK, clean_shutdown.CLEAN_SHUTDOWN)
_DATA = re.compile(r"([0-9]{20})\.log(\.swap|\.[0-9]+(\.[0-9]+)?\.cut)?")
"""Files with batches of the log: segments, and what a recovery cut off and kept."""

_A_STORE = (
    "a store of segments, which logstore restore brings back; with --lossy what is damaged is left "
    "out and named"
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with batches. ``is_segment``: its name says where it begins."""

    name: str
    base: int
    size: int
    is_segment: bool


@dataclass(slots=True)
class SourceReplica:
    """One partition directory of a source, with the values of its small files; −1 is unknown."""

    source: str
    path: str
    topic_id: uuid.UUID | None = None
    high_watermark: int = -1
    log_start: int = -1
    recovery_point: int = -1
    compacted: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=list)
    properties: TopicProperties | None = None
    files: list[DataFile] = field(default_factory=list)
    orphans: dict[int, str] = field(default_factory=dict)
    """Base offset → name of an index that has no ``.log``."""
    reached: int = -1
    """The highest offset in the name of a file. The log reached at least that far."""


@dataclass(slots=True)
class Sources:
    """All that was found. ``notes`` has a line for everything that is ignored or cannot be read."""

    replicas: dict[TopicPartition, list[SourceReplica]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    metas: dict[str, MetaProperties] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(f.size for found in self.replicas.values() for r in found for f in r.files)


class SourceReader:
    """Lists sources and reads their small files; nothing is written."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.found = Sources()

    def add(self, path: str) -> None:
        """Add a log directory, or the directory of one partition.

        Raises:
            ConfigError: it is neither.
            OSError: it cannot be listed.
        """
        if log_directory(path) != path:
            raise ConfigError(f"{printable(path)}: {_A_STORE}")
        info = self._storage.info(path)
        if info is None or not info.is_dir:
            raise ConfigError(f"{printable(path)}: not a directory")
        entries = self._storage.scan_dir(path)
        parsed = filenames.partition_dir(os.path.basename(os.path.abspath(path)))
        if parsed is not None and not any(entry.name in _MARKS for entry in entries):
            parent = os.path.dirname(os.path.abspath(path))
            self._partition(path, path, parsed.topic_partition, self._offsets(parent))
            return
        before = sum(map(len, self.found.replicas.values()))
        self._log_dir(path, entries)
        known = any(entry.name in _MARKS for entry in entries)
        if not known and before == sum(map(len, self.found.replicas.values())):
            raise ConfigError(f"{printable(path)}: neither a log directory nor a partition")

    def _log_dir(self, path: str, entries: Iterable[FileInfo]) -> None:
        offsets = self._offsets(path)
        meta_file = MetaPropertiesFile(os.path.join(path, META_PROPERTIES), self._storage)
        meta = self._read(meta_file.read)
        if meta is not None:
            self.found.metas[path] = meta
        for entry in entries:
            if not entry.is_dir or entry.name == filenames.REMOTE_LOG_INDEX_CACHE:
                continue
            parsed = filenames.partition_dir(entry.name)
            full = os.path.join(path, entry.name)
            if entry.name == filenames.CLUSTER_METADATA_DIR:
                self._note(f"{full}: left alone, it is the log of the controllers")
            elif parsed is None:
                self._note(f"{full}: left alone, the name is of no partition")
            elif parsed.suffix:
                self._note(f"{full}: left alone, a {parsed.suffix} directory")
            else:
                self._partition(path, full, parsed.topic_partition, offsets)

    def _note(self, text: str) -> None:
        self.found.notes.append(printable(text))

    def _read(self, read: Callable[[], T]) -> T | None:
        """Read a small file. One that cannot be read counts as absent."""
        try:
            return read()
        except (CheckpointError, OSError) as failure:
            self._note(f"{failure}; taken as absent")
            return None

    def _offsets(self, log_dir: str) -> Mapping[str, Mapping[TopicPartition, int]]:
        files = {
            name: OffsetCheckpoint(os.path.join(log_dir, name), self._storage)
            for name in _CHECKPOINTS
        }
        return {name: self._read(file.read) or {} for name, file in files.items()}

    def _partition(
        self,
        source: str,
        path: str,
        tp: TopicPartition,
        offsets: Mapping[str, Mapping[TopicPartition, int]],
    ) -> None:
        def small(name: str) -> str:
            return os.path.join(path, name)

        replica = SourceReplica(source, path)
        metadata = self._read(PartitionMetadataFile(small(PARTITION_METADATA), self._storage).read)
        replica.topic_id = None if metadata is None else metadata.topic_id
        epochs = LeaderEpochCheckpoint(small(LEADER_EPOCH), self._storage)
        replica.epochs = self._read(epochs.read) or []
        properties = TopicPropertiesFile(small(TOPIC_PROPERTIES), self._storage)
        replica.properties = self._read(properties.read)
        replica.high_watermark = offsets[HIGH_WATERMARK].get(tp, -1)
        replica.log_start = offsets[LOG_START].get(tp, -1)
        replica.recovery_point = offsets[RECOVERY_POINT].get(tp, -1)
        replica.compacted = offsets[CLEANER].get(tp, 0) > 0
        self._list(replica, self._read(lambda: self._storage.scan_dir(path)) or [])
        self.found.replicas.setdefault(tp, []).append(replica)

    def _list(self, replica: SourceReplica, entries: Iterable[FileInfo]) -> None:
        indexes: dict[int, str] = {}
        for entry in entries:
            data = _DATA.fullmatch(entry.name)
            parsed = filenames.parse_segment_file(entry.name)
            if data and int(data[1]) <= filenames.MAX_OFFSET:
                if not entry.is_file:
                    self._note(f"{replica.path}/{entry.name}: left alone, no regular file")
                    continue
                kept = entry.name.endswith(".cut")
                replica.files.append(DataFile(entry.name, int(data[1]), entry.size, not kept))
                continue
            if parsed is None or parsed.transition:
                continue
            replica.reached = max(replica.reached, parsed.offset)
            if parsed.suffix != filenames.SNAPSHOT_SUFFIX:
                indexes[parsed.offset] = entry.name
        bases = {file.base for file in replica.files}
        replica.reached = max([replica.reached, *bases])
        replica.orphans = {base: name for base, name in indexes.items() if base not in bases}


def choose_topic_ids(sources: Sources, chosen: Mapping[str, uuid.UUID]) -> dict[str, uuid.UUID]:
    """The id of each topic; replicas of another topic under the same name are left out.

    Args:
        chosen: the ids that the caller has chosen, by topic.
    Raises:
        ConfigError: sources have different ids for a topic and the caller chose none, or chose an
            id that no source has.
    """
    ids: dict[str, dict[uuid.UUID, list[str]]] = {}
    for tp, replicas in sources.replicas.items():
        for replica in replicas:
            if replica.topic_id is not None:
                places = ids.setdefault(tp.topic, {}).setdefault(replica.topic_id, [])
                places.append(replica.path)
    settled = {topic: _chosen_id(topic, found, chosen) for topic, found in ids.items()}
    unknown = chosen.keys() - settled.keys()
    if unknown:
        raise ConfigError(f"no source has a topic id of {printable(', '.join(sorted(unknown)))}")
    for tp, replicas in list(sources.replicas.items()):
        own = settled.get(tp.topic)
        kept = [r for r in replicas if own is None or r.topic_id in (None, own)]
        sources.replicas[tp] = kept
        for replica in replicas:
            if replica not in kept:
                sources.notes.append(printable(f"{replica.path}: left out, of another topic id"))
        if not kept:
            del sources.replicas[tp]
    return settled


def _chosen_id(
    topic: str, found: Mapping[uuid.UUID, list[str]], chosen: Mapping[str, uuid.UUID]
) -> uuid.UUID:
    wanted = chosen.get(topic)
    if wanted is not None and wanted not in found:
        raise ConfigError(f"no source has {topic} with topic id {topic_id_to_text(wanted)}")
    if wanted is None and len(found) > 1:
        choices = "; ".join(
            f"{topic_id_to_text(topic_id)} in {', '.join(map(printable, paths[:3]))}"
            for topic_id, paths in found.items()
        )
        raise ConfigError(
            f"topic {topic} has different ids, so these are different topics or a file is "
            f"damaged; choose one with --topic-id {topic}=ID: {choices}"
        )
    return wanted or next(iter(found))
