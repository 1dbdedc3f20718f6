"""The start of a log manager: directories are opened, compared and loaded (F-236)."""

from __future__ import annotations

import gc
import os
import posixpath
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from checkpoints.closed_replicas import ClosedReplica
from checkpoints.errors import CheckpointError, MalformedCheckpointError
from checkpoints.meta_properties import META_PROPERTIES, MetaProperties, MetaPropertiesFile
from checkpoints.partition_metadata import topic_id_to_text
from checkpoints.printable import printable
from logstore.common.disk_errors import Concern, concern_of, is_busy
from logstore.common.errors import (
    ConfigError,
    CorruptDataError,
    LogstoreError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.common.parallel import TaskOutcome, run_all
from logstore.common.random_id import new_uuid
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog
from logstore.manager.future_logs import settle_moves
from logstore.manager.log_dir import Creation, FoundPartition, LogDir, closed_replica
from logstore.manager.opener import LoadProgress, LogOpener, count_as_old
from logstore.manager.topic_configs import TopicConfigs
from logstore.recovery.set_aside import CUT_SUFFIX
from logstore.storage.aside import ASIDE_SUFFIX
from logstore.storage.paths import absolute_path

SYNC_THREADS = 16  # which wait for the disk


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Creations whose end was not noted, and their logs, empty or filled by the creation."""

    creations: list[tuple[LogDir, Creation]]
    logs: list[tuple[LogDir, PartitionLog]]


@dataclass(frozen=True, slots=True)
class LastStop:
    """The proof that the directories give of the last stop of a broker (KIP-966).

    Attributes:
        broker_epochs: those since which nothing but ``unproven`` was lost, ascending. None if a
            directory is offline or has no clean marker, a log is unavailable, or one is not as the
            stop left it without being among ``unproven``.
        unproven: replicas whose logs are missing, or surely not as the stop left them.
        may_miss_logs: further logs may be missing without a trace.
        proves_logs: each log that is not ``unproven`` is as the stop left it.
    """

    broker_epochs: tuple[int, ...] = ()
    unproven: frozenset[TopicPartition] = frozenset()
    may_miss_logs: bool = False
    proves_logs: bool = False


class Loader:
    """Loads all directories.

    A directory that fails goes offline, a log that is too damaged to be opened becomes unavailable,
    and the rest is loaded. Other errors end the start.
    """

    def __init__(
        self,
        opener: LogOpener,
        configs: TopicConfigs,
        threads: int,
    ) -> None:
        self._opener = opener
        self._configs = configs
        self._threads = threads
        self._progress = opener.owner.progress
        self._storage = opener.storage
        self._directories = opener.directories
        self._stopped = False

    def stop(self) -> None:
        """Load no further log: the start ends with a ``KeyboardInterrupt``."""
        self._stopped = True

    def distinct(self, directories: Iterable[str | os.PathLike[str]]) -> list[str]:
        """The absolute paths, without a slash at the end.

        Raises:
            ConfigError: no path was given, or one was given twice.
        """
        absolute = (absolute_path(self._storage, d) for d in directories)
        paths = [path.rstrip("/") or "/" for path in absolute]
        if not paths:
            raise ConfigError("at least one log directory is needed")
        seen: dict[str, str] = {}
        for path in paths:
            real = self._storage.real_path(path)
            if real in seen:
                raise ConfigError(f"{path} and {seen[real]} are the same directory")
            seen[real] = path
        return paths

    def open_all(self, paths: Iterable[str]) -> None:
        """
        Raises:
            LogDirLockedError: a directory is open elsewhere.
            StorageFailedError: none can be opened. That is not logged as well.
        """
        failed: dict[str, StorageFailedError] = {}
        for path in paths:
            try:
                self._directories.add(LogDir.open(path, self._storage))
            except StorageFailedError as error:
                failed[path] = error
        self._go_on_without(failed)

    def _go_on_without(self, failed: Mapping[str, StorageFailedError]) -> None:
        if failed and all(each.path in failed for each in self._directories.live()):
            raise _none_open(failed)
        for path, failure in failed.items():
            self._directories.fail(path, failure)

    def check_meta(self) -> tuple[str, int]:
        """Check that the directories agree on the ids of the cluster and the node, and with those
        that are given. Only then the markers of clean stops go, and a directory without the file
        gets it (F-39 … F-45).

        Raises:
            ConfigError: they do not agree.
            StorageFailedError: of no directory the marker can be removed.
        """
        cluster_id, node_id = self._opener.owner.cluster_id, self._opener.owner.node_id
        found: dict[str, MetaProperties] = {}
        for log_dir in self._directories.live():
            try:
                meta = self._meta_file(log_dir).read()
            except CheckpointError as error:
                self._fail(log_dir, "read meta.properties", error)
                continue
            if meta is not None:
                found[log_dir.path] = meta
        ids = {m.cluster_id for m in found.values() if m.cluster_id is not None}
        nodes = {m.node_id for m in found.values() if m.node_id is not None}
        if cluster_id is not None:
            ids.add(cluster_id)
        if node_id is not None:
            nodes.add(node_id)
        if len(ids) > 1 or len(nodes) > 1:
            wanted = "" if node_id is None else f"wanted is node {node_id} of {cluster_id}; "
            each = "; ".join(
                f"{path} is of node {meta.node_id} of {printable(str(meta.cluster_id), 200)}"
                for path, meta in found.items()
            )
            raise ConfigError(
                f"the log directories belong to different clusters or nodes: {wanted}{each}"
            )
        directory_ids = [m.directory_id for m in found.values() if m.directory_id]
        if len(set(directory_ids)) != len(directory_ids):
            raise ConfigError("two log directories carry the same directory.id")
        cluster_id = next(iter(ids), None) or topic_id_to_text(
            new_uuid(self._opener.owner.random_id)
        )
        node_id = next(iter(nodes), 0)
        failed: dict[str, StorageFailedError] = {}
        for log_dir in self._directories.live():
            try:
                log_dir.remove_marker()
            except StorageFailedError as error:
                failed[log_dir.path] = error
        self._go_on_without(failed)
        for log_dir in self._directories.live():
            if log_dir.path not in found:
                self._write_meta(log_dir, cluster_id, node_id)
        return cluster_id, node_id

    def _meta_file(self, log_dir: LogDir) -> MetaPropertiesFile:
        return MetaPropertiesFile(posixpath.join(log_dir.path, META_PROPERTIES), self._storage)

    def _write_meta(self, log_dir: LogDir, cluster_id: str, node_id: int) -> None:
        directory_id = new_uuid(self._opener.owner.random_id)
        meta = MetaProperties(1, cluster_id, node_id, directory_id)
        try:
            self._meta_file(log_dir).write(meta, self._opener.clock.wall_ms())
        except CheckpointError as error:
            self._fail(log_dir, "write meta.properties", error)

    def load_all(self) -> Unfinished:
        """Load all logs. Logs of a creation that may have been interrupted cannot be found yet.

        Raises:
            ConfigError: a partition is in two directories (F-7).
        """
        with _no_collection():
            unfinished = self._load_all()
            count_as_old(sum(len(each.logs) for each in self._directories.live()))
            return unfinished

    def _load_all(self) -> Unfinished:
        unfinished = Unfinished([], [])
        found_in: dict[LogDir, FoundPartition] = {}
        for log_dir in self._directories.live():
            try:
                found_in[log_dir] = log_dir.find()
            except StorageFailedError as error:
                self._directories.fail(log_dir.path, error)
        failed = settle_moves(self._storage, found_in, self._opener.owner.random_id)
        self._go_on_without(failed)
        is_whole = not self._directories.offline()
        for log_dir, found in found_in.items():
            if log_dir.path in failed:
                continue
            # Where a disk is missing, its copy of a log may not have the name yet: they are kept.
            for path in found.deleted if is_whole else ():
                self._directories.remove_later(0, path)
            load = self._loader_of(log_dir, found.logs)
            # A clean start reads no record: nothing to do without the interpreter's lock.
            threads = 1 if log_dir.clean else self._threads
            tasks = [partial(load, tp) for tp in found.logs]
            outcomes = run_all(tasks, threads, "logstore-recovery")
            if not log_dir.clean:
                outcomes = self._sync_names(outcomes)
            unfinished.creations.extend((log_dir, creation) for creation in found.creations)
            self._collect(log_dir, found, outcomes, unfinished)
        return unfinished

    def _loader_of(
        self, log_dir: LogDir, partitions: list[TopicPartition]
    ) -> Callable[[TopicPartition], PartitionLog]:
        done = 0
        count_lock = threading.Lock()

        def load(tp: TopicPartition) -> PartitionLog:
            nonlocal done
            if self._stopped:
                raise KeyboardInterrupt
            config = self._configs.load(tp.topic, log_dir.directory_of(tp))
            log = self._opener.load(log_dir, tp, config, sync_names=log_dir.clean)
            with count_lock:
                done += 1
                progress = LoadProgress(log_dir.path, done, len(partitions), log.recovery_report)
            if self._progress is not None:
                self._progress(progress)
            return log

        return load

    def _sync_names(
        self, outcomes: list[TaskOutcome[PartitionLog]]
    ) -> list[TaskOutcome[PartitionLog]]:
        """Make the names in the directories of loaded logs durable, many at once: the disk takes
        them together. Returns the outcomes after that."""

        def sync(outcome: TaskOutcome[PartitionLog]) -> TaskOutcome[PartitionLog]:
            log = outcome.value
            if log is not None:
                try:
                    self._storage.sync_dir(log.directory)
                except BaseException as error:
                    log.crash()
                    if not isinstance(error, OSError):
                        raise
                    kind = ResourceBusyError if is_busy(error) else StorageFailedError
                    raise kind(log.directory, "open", str(error)) from error
            return outcome

        threads = SYNC_THREADS if self._threads > 1 else 1
        done = run_all([partial(sync, each) for each in outcomes], threads, "logstore-sync")
        synced = [each.value or TaskOutcome(None, each.error) for each in done]
        return synced + outcomes[len(synced) :]  # an interrupt ends it early

    def _collect(
        self,
        log_dir: LogDir,
        found: FoundPartition,
        outcomes: list[TaskOutcome[PartitionLog]],
        unfinished: Unfinished,
    ) -> None:
        begun = {(c.topic_id, tp): c.filled for c in found.creations for tp in c.partitions}
        fatal: BaseException | None = None
        failure: Exception | None = None
        for tp, (log, error) in zip(found.logs, outcomes, strict=False):
            filled = None if log is None or log.topic_id is None else begun.get((log.topic_id, tp))
            if log is not None and filled is not None and (filled or self._is_new(log_dir, log)):
                unfinished.logs.append((log_dir, log))
            elif log is not None:
                try:
                    self._directories.register([(log_dir, log)])
                except ConfigError as twice:
                    log.crash()
                    fatal = fatal or twice
            elif _concerns_one_log(error):
                try:
                    self._directories.set_unavailable(log_dir, tp, str(error))
                except ConfigError as twice:
                    fatal = fatal or twice
            elif is_busy(error):
                fatal = fatal or ResourceBusyError(log_dir.path, f"load {tp}", str(error))
            elif isinstance(error, StorageFailedError | CheckpointError):
                failure = failure or StorageFailedError(log_dir.path, f"load {tp}", str(error))
            else:
                fatal = fatal or error
        for tp in found.unreachable:
            try:
                reason = f"{log_dir.directory_of(tp)} is a link that leads nowhere"
                self._directories.set_unavailable(log_dir, tp, reason)
            except ConfigError as twice:
                fatal = fatal or twice
        if fatal is not None:
            raise fatal
        try:
            if failure is not None:
                raise failure
            log_dir.offsets.lower_entries(log_dir.items)
        except (StorageFailedError, CheckpointError) as error:
            self._fail(log_dir, "load", error)
        log_dir.loaded = log_dir.failure is None

    def _is_new(self, log_dir: LogDir, log: PartitionLog) -> bool:
        """Whether the log never held a byte. Only then may its creation be undone."""
        if log.log_end_offset or log.recovery_report.bytes_cut:
            return False
        return not any(
            name.endswith(CUT_SUFFIX) or ASIDE_SUFFIX in name
            for name, *_ in self._storage.scan_dir(log_dir.directory_of(log.topic_partition))
        )

    def last_stop(self) -> LastStop:
        """
        Raises:
            StorageFailedError: no directory is live.
        """
        live, offline = self._directories.live(), self._directories.offline()
        if not live:
            raise _none_open(offline)
        epochs = max((log_dir.broker_epochs for log_dir in live), key=lambda each: each[-1:])
        known = all(log_dir.broker_epochs for log_dir in live)
        agreed = known and not offline and not self._directories.unavailable()
        proving = [d for d in live if d.closed is not None and d.broker_epochs == epochs]
        unproven = _unproven(live, epochs, proving)
        intact = all(
            tp in unproven or not log.recovery_report.clean_doubt
            for log_dir in live
            for tp, log in log_dir.items()
        )
        return LastStop(
            epochs if agreed and intact else (),
            unproven,
            may_miss_logs=any(d.is_new or (d.broker_epochs and d not in proving) for d in live),
            proves_logs=len(proving) == len(live) and not offline,
        )

    def _fail(self, log_dir: LogDir, doing: str, error: Exception) -> None:
        if not isinstance(error, StorageFailedError):
            error = StorageFailedError(log_dir.path, doing, str(error))
        self._directories.fail(log_dir.path, error)


def _none_open(failed: Mapping[str, LogstoreError]) -> LogstoreError:
    first = next(iter(failed.values()))
    if len(failed) == 1:
        return first
    return StorageFailedError(", ".join(failed), "open any log directory", str(first))


def _unproven(
    live: Iterable[LogDir], epochs: tuple[int, ...], proving: Collection[LogDir]
) -> frozenset[TopicPartition]:
    """Replicas whose logs are missing, or surely not as the last stop left them."""
    found: set[TopicPartition] = set()
    closed: dict[TopicPartition, ClosedReplica] = {}
    logs: dict[TopicPartition, PartitionLog] = {}
    for log_dir in live:
        found |= log_dir.offsets.gone
        if log_dir.broker_epochs not in ((), epochs):
            found.update(log_dir.logs)  # the directory came back older than it was
        logs |= log_dir.logs
    for log_dir in proving:
        assert log_dir.closed is not None
        closed |= log_dir.closed.logs
        found.update(log_dir.closed.unproven)
    found.update(
        tp for tp, was in closed.items() if tp not in logs or closed_replica(logs[tp]) != was
    )
    found.update(tp for log_dir in proving for tp in log_dir.logs if tp not in closed)
    return frozenset(found)


def _concerns_one_log(error: BaseException | None) -> bool:
    """Whether an error is damage, or of the files of this log alone."""
    if isinstance(error, StorageFailedError | CheckpointError) and not isinstance(
        error, MalformedCheckpointError
    ):
        return concern_of(error) in (Concern.PARTITION, Concern.CALLER)
    return isinstance(error, CorruptDataError | MalformedCheckpointError)


__all__ = ["LastStop", "Loader", "Unfinished"]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector.

    A load creates no garbage, and with thousands of logs the collector would take half of the time:
    what was created meanwhile is young, and the first collection of the young would look at all of
    it.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
