"""The directory of the acts, which is created or emptied, but never if it holds anything else."""

from __future__ import annotations

import os
from typing import NamedTuple

from logstore.demo.directory import NotADemoError, check, empty
from logstore.format import filenames
from logstore.manager.log_dir import LOCK
from logstore.storage.local import LocalStorage
from replication.coordination.journal import FILE_NAME

SINGLE, CLUSTER, COORDINATOR = "single", "cluster", "coordinator"
REPORT = "report.html"
SPARK_LOG = "spark.log"
BROKERS = (0, 1, 2)


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
        check(path)
    for path in there:
        empty(path)
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
