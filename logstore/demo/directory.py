"""The log directory of an earlier demo: empty it, and never anything else."""

from __future__ import annotations

import os

from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.closed_replicas import CLOSED_REPLICAS
from checkpoints.errors import CheckpointError
from checkpoints.meta_properties import META_PROPERTIES, MetaPropertiesFile
from checkpoints.offset_checkpoint import CLEANER, HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from logstore.common.errors import InvalidTopicError, LogstoreError
from logstore.demo.topic import CLUSTER_ID, TOPIC
from logstore.format import filenames
from logstore.manager.log_dir import LOCK
from logstore.storage.local import LocalStorage

_FILES = {
    LOCK,
    META_PROPERTIES,
    CLEAN_SHUTDOWN,
    CLEANER,
    CLOSED_REPLICAS,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
}


class NotADemoError(LogstoreError):
    """The directory holds something that a demo did not write."""


def check(directory: str) -> None:
    """
    Raises:
        NotADemoError: it holds something that is not a log directory of a demo.
        OSError: it cannot be read.
    """
    storage = LocalStorage()
    names = [entry.name for entry in storage.scan_dir(directory)]
    if not set(names) <= {LOCK}:
        _check(storage, directory, names)


def empty(directory: str) -> None:
    """Remove all that a checked directory holds.

    Raises:
        LogDirLockedError: it is open elsewhere. Nothing was changed.
        OSError: it cannot be written.
    """
    storage = LocalStorage()
    lock = storage.lock(os.path.join(directory, LOCK))
    try:
        for entry in storage.scan_dir(directory):
            path = os.path.join(directory, entry.name)
            if entry.is_dir:
                storage.remove_tree(path)
            elif entry.name != LOCK:
                storage.remove(path)
    finally:
        lock.release()


def _check(storage: LocalStorage, directory: str, names: list[str]) -> None:
    try:
        meta = MetaPropertiesFile(os.path.join(directory, META_PROPERTIES), storage).read()
    except CheckpointError:
        meta = None
    foreign = [name for name in names if not _is_ours(storage, directory, name)]
    if meta is None or meta.cluster_id != CLUSTER_ID or foreign:
        raise NotADemoError(
            f"{directory} is not empty and holds {foreign[0] if foreign else 'a log directory'}, "
            "which no earlier demo wrote: nothing was touched; give another directory with --dir"
        )


def _is_ours(storage: LocalStorage, directory: str, name: str) -> bool:
    info = storage.info(os.path.join(directory, name))
    if info is None or not info.is_dir:
        return name.removesuffix(filenames.TEMPORARY_SUFFIX) in _FILES
    try:
        return filenames.parse_partition_dir(name).topic_partition.topic == TOPIC
    except InvalidTopicError:
        return False
