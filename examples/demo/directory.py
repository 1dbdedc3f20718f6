"""The directory of the acts, which is created or emptied, but never if it holds anything else."""

from __future__ import annotations

import os
from typing import NamedTuple

from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.closed_replicas import CLOSED_REPLICAS
from checkpoints.errors import CheckpointError
from checkpoints.meta_properties import META_PROPERTIES, MetaPropertiesFile
from checkpoints.offset_checkpoint import CLEANER, HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from examples.demo.topic import CLUSTER_ID, TOPIC
from logstore.common.errors import InvalidTopicError, LogstoreError
from logstore.format import filenames
from logstore.manager.log_dir import LOCK
from logstore.storage.local import LocalStorage
from replication.coordination.journal import FILE_NAME

SINGLE, CLUSTER, COORDINATOR = "single", "cluster", "coordinator"
REPORT = "report.html"
SPARK_LOG = "spark.log"
BROKERS = (0, 1, 2)


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


class Places(NamedTuple):
    single: str
    cluster: str
    report: str
    spark_log: str

    def broker(self, broker_id: int) -> str:
        """The log directory of a broker, where ``Cluster`` puts it."""
        return os.path.join(self.cluster, f"broker-{broker_id}")


def prepare(directory: str) -> Places:
    """Make the directory, or empty it when an earlier demo left it.

    Raises:
        NotADemoError: it holds something else. Nothing was changed.
        LogDirLockedError: it is open elsewhere.
        OSError: it cannot be made or written.
    """
    storage = LocalStorage()
    places = Places(
        *(os.path.join(directory, name) for name in (SINGLE, CLUSTER, REPORT, SPARK_LOG))
    )
    coordinator = os.path.join(places.cluster, COORDINATOR)
    if _names(storage, directory) - {SINGLE, CLUSTER, REPORT, SPARK_LOG, LOCK}:
        log_dirs = [directory]  # a log directory itself, from an earlier form of the demo
    else:
        log_dirs = [places.single, *map(places.broker, BROKERS)]
        _expect(storage, places.cluster, {COORDINATOR, *(f"broker-{b}" for b in BROKERS)})
        _expect(storage, coordinator, {FILE_NAME, FILE_NAME + filenames.TEMPORARY_SUFFIX, LOCK})
    there = [path for path in log_dirs if storage.info(path) is not None]
    for path in there:
        _check_log_dir(path)
    for path in there:
        _empty_log_dir(path)
    if storage.info(coordinator) is not None:
        storage.remove_tree(coordinator)
    for path in (directory, places.single, places.cluster):
        if storage.info(path) is None:
            storage.make_dir(path)
    return places


def _names(storage: LocalStorage, path: str) -> set[str]:
    if storage.info(path) is None:
        return set()
    return {entry.name for entry in storage.scan_dir(path)}


def _expect(storage: LocalStorage, path: str, known: set[str]) -> None:
    foreign = sorted(_names(storage, path) - known)
    if foreign:
        raise NotADemoError(
            f"{path} holds {foreign[0]}, which no earlier demo wrote: nothing was touched; give "
            "another directory with --dir"
        )


def _check_log_dir(directory: str) -> None:
    """
    Raises:
        NotADemoError: it holds something that is not a log directory of a demo.
        OSError: it cannot be read.
    """
    storage = LocalStorage()
    names = [entry.name for entry in storage.scan_dir(directory)]
    if not set(names) <= {LOCK}:
        _expect_ours(storage, directory, names)


def _empty_log_dir(directory: str) -> None:
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


def _expect_ours(storage: LocalStorage, directory: str, names: list[str]) -> None:
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
