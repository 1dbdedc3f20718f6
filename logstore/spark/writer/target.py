"""The target directory of a write: its state before the job, and a copy to append to.

The file ``logstore-writes`` of a target lists its writes. A repeated commit finds itself there. A
reader that lists the directory while it is replaced finds another list at the end than at the
start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from checkpoints import clean_shutdown
from checkpoints.checkpoint_file import load_file, store_file
from checkpoints.meta_properties import META_PROPERTIES
from checkpoints.offset_checkpoint import CLEANER, HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from checkpoints.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadataFile,
    topic_id_to_text,
)
from logstore.common.errors import ConfigError
from logstore.directory.layout import WRITES
from logstore.format import filenames
from logstore.manager.log_dir import LOCK
from logstore.storage.base import FileInfo, Storage
from logstore.storage.local import NamingStorage

_WRITES_MAX = 10_000  # a commit is repeated soon or never
_COPY_STEP = 16 << 20

_FILES = (
    LOCK,
    META_PROPERTIES,
    RECOVERY_POINT,
    LOG_START,
    HIGH_WATERMARK,
    CLEANER,
    clean_shutdown.CLEAN_SHUTDOWN,
    WRITES,
    "bootstrap.checkpoint",  # a file of a KRaft broker
)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic in the target.

    ``topic_id`` is "" without one; ``partitions`` is the highest number + 1.
    """

    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Target:
    """The content of a directory at one moment. ``exists`` is False for an empty one, too."""

    exists: bool = False
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    writes: tuple[str, ...] = ()


def look_at(storage: Storage, path: str) -> Target:
    """
    Raises:
        ConfigError: it is a file, or holds entries that do not belong to a log directory.
        MalformedCheckpointError: a topic's id or the list of writes is malformed.
        OSError: the medium refused.
    """
    info = storage.info(path)
    if info is None:
        return Target()
    if not info.is_dir:
        raise ConfigError(f"{path} is a file; a log directory is written")
    entries = storage.scan_dir(path)
    for entry in entries:
        if not (_is_partition(entry.name) if entry.is_dir else _is_log_dir_file(entry.name)):
            raise ConfigError(
                f"{path} holds {entry.name!r}, which is no part of a log directory: not written to"
            )
    return Target(bool(entries), _topics(storage, path, entries), read_writes(storage, path))


def _is_partition(name: str) -> bool:
    return name == filenames.REMOTE_LOG_INDEX_CACHE or filenames.partition_dir(name) is not None


def _is_log_dir_file(name: str) -> bool:
    return name.removesuffix(filenames.TEMPORARY_SUFFIX) in _FILES


def _topics(storage: Storage, path: str, entries: Iterable[FileInfo]) -> dict[str, TopicState]:
    topics: dict[str, TopicState] = {}
    for entry in entries:
        if not entry.is_dir or entry.name == filenames.REMOTE_LOG_INDEX_CACHE:
            continue
        parsed = filenames.parse_partition_dir(entry.name)
        if parsed.suffix:
            continue
        topic, partition = parsed.topic_partition
        metadata = os.path.join(path, entry.name, PARTITION_METADATA)
        found = PartitionMetadataFile(metadata, storage).read()
        topic_id = "" if found is None else topic_id_to_text(found.topic_id)
        known = topics.get(topic, TopicState(topic_id, 0))
        if known.topic_id != topic_id:
            raise ConfigError(f"{path}: the partitions of {topic} have different topic ids")
        topics[topic] = TopicState(topic_id, max(known.partitions, partition + 1))
    return topics


# ---- the list of writes ------------------------------------------------------------------------


def read_writes(storage: Storage, path: str) -> tuple[str, ...]:
    data = load_file(storage, os.path.join(path, WRITES))
    return () if data is None else tuple(data.decode("utf-8", "replace").split("\n"))


def store_writes(storage: Storage, path: str, writes: Iterable[str]) -> None:
    data = "\n".join(tuple(writes)[-_WRITES_MAX:]).encode()
    store_file(storage, os.path.join(path, WRITES), data)


# ---- a copy to append to -----------------------------------------------------------------------


def continue_in(storage: NamingStorage, target: str, directory: str) -> None:
    """Make ``directory`` a log directory with the logs of ``target``, which stays unchanged.

    Segments are linked, so they must be rolled before an append. Everything else is copied.

    Raises:
        ConfigError: the target was not closed cleanly, so its segments might need a cut.
        OSError: the medium refused.
    """
    if not clean_shutdown.exists(os.path.join(target, clean_shutdown.CLEAN_SHUTDOWN), storage):
        raise ConfigError(
            f"{target} was not closed cleanly: open and close it with LogManager, then append"
        )
    _copy_tree(storage, target, directory)


def _copy_tree(storage: NamingStorage, source: str, copy: str) -> None:
    storage.make_dir(copy)
    for entry in storage.scan_dir(source):
        here, there = os.path.join(source, entry.name), os.path.join(copy, entry.name)
        if entry.is_dir:
            _copy_tree(storage, here, there)
        elif entry.name != LOCK and not (
            entry.name.endswith(filenames.LOG_SUFFIX) and storage.link(here, there)
        ):
            _copy(storage, here, there, entry.size)
    storage.sync_dir(copy)


def _copy(storage: Storage, source: str, copy: str, size: int) -> None:
    read, write = storage.open(source, writable=False), storage.open(copy, create=True)
    try:
        for position in range(0, size, _COPY_STEP):
            write.write_at(position, read.read_at(position, min(_COPY_STEP, size - position)))
        write.sync()
    finally:
        read.close()
        write.close()


__all__ = [
    "Target",
    "TopicState",
    "continue_in",
    "look_at",
    "read_writes",
    "store_writes",
]
