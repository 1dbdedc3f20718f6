"""One log directory: its lock, its marker of a clean stop, its checkpoints and its logs."""

from __future__ import annotations

import os
import posixpath
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from checkpoints import clean_shutdown
from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.closed_replicas import (
    CLOSED_REPLICAS,
    ClosedReplica,
    ClosedReplicas,
    ClosedReplicasFile,
)
from checkpoints.errors import CheckpointError, CheckpointFailedError, MalformedCheckpointError
from checkpoints.loggers import get_logger
from checkpoints.meta_properties import META_PROPERTIES, MetaProperties, MetaPropertiesFile
from checkpoints.offset_checkpoint import OffsetCheckpoint
from checkpoints.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadataFile,
    topic_id_from_text,
    topic_id_to_text,
)
from logstore.common.errors import (
    InvalidTopicError,
    LogDirLockedError,
    LogstoreError,
    LogUnavailableError,
    StorageFailedError,
)
from logstore.common.parallel import run_all
from logstore.common.types import TopicPartition
from logstore.format import filenames
from logstore.log import PartitionLog
from logstore.manager.offsets import (
    CHECKPOINTS,
    HIGH_WATERMARK,
    LOG_START,
    OffsetCheckpoints,
    high_watermark,
    moved_start,
)
from logstore.storage.aside import move_aside
from logstore.storage.base import DirLock, FileKind, Storage

logger = get_logger(__name__)

LOCK = ".lock"
_A_BACKUP = (
    "this is a store of backups, which is only read: logstore restore makes a log directory of it"
)
_CREATION = "topic-creation-"
_STOP_FILES = (CLEAN_SHUTDOWN, CLOSED_REPLICAS)
_NOT_LOGS = (filenames.REMOTE_LOG_INDEX_CACHE, filenames.CLUSTER_METADATA_DIR)
_REPLACEABLE = [
    *(f"{name}{end}" for name in (*CHECKPOINTS, *_STOP_FILES) for end in ("", ".tmp")),
    META_PROPERTIES + ".tmp",
]


@dataclass(frozen=True, slots=True)
class Creation:
    """The content of one file: partitions of one topic id, in any directory."""

    topic_id: uuid.UUID
    partitions: frozenset[TopicPartition]
    filled: bool = False  # with records, which were not visible before the end


class CreationFiles:
    """The files of one log directory that list the partitions of a topic while it is created.

    Each log directory that gets some of them has a file ``topic-creation-<topic id>`` with the
    names of all, in the frame of an offset checkpoint. Kafka ignores it. The file is durable before
    the first partition exists, and durably gone before the first partition can be found. So after a
    crash its partitions are empty, and if one is missing the others are removed too. If the topic
    gets its first records before it can be found, the offsets are 1 instead of 0, and after a crash
    the whole topic is removed.

    Raises ``CheckpointFailedError`` if a write fails.
    """

    def __init__(self, directory: str, storage: Storage) -> None:
        self._directory = directory
        self._storage = storage

    def _path(self, topic_id: uuid.UUID) -> str:
        return posixpath.join(self._directory, _CREATION + topic_id_to_text(topic_id))

    def read(self, names: Iterable[str]) -> list[Creation]:
        """The creations that were under way when the last process ended."""
        found = []
        for name in names:
            try:
                topic_id = topic_id_from_text(name.removeprefix(_CREATION))
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


@dataclass(slots=True)
class FoundPartition:
    """The content of a partition directory in a log directory."""

    logs: list[TopicPartition] = field(default_factory=list)
    unreachable: list[TopicPartition] = field(default_factory=list)
    """Broken links. Their target may be on a disk that is not mounted."""
    present: set[TopicPartition] = field(default_factory=set)
    """Names that have a directory: of a log, a future log or the metadata log."""
    deleted: list[str] = field(default_factory=list)
    """Paths of ``-delete`` directories, and of second copies of one log."""
    creations: list[Creation] = field(default_factory=list)
    """Creations that were under way when the last process ended."""


@dataclass(slots=True)
class FutureLog:
    """A copy that is to replace the log of its partition in another directory (KIP-113)."""

    name: str  # of its directory
    log: PartitionLog | None = None  # None: found at the start, and not opened yet
    cleaned: int | None = None  # as of ``LogCopy``


class LogDir:
    """A log directory. Open it with ``LogDir.open``; ``release`` gives it up.

    Attributes:
        clean: the last stop was a clean one.
        broker_epochs: the epochs in the marker of that stop (``clean_shutdown.read_epochs``).
        closed: the replicas over which the marker was written, if a file that agrees with it names
            them.
        is_new: it has not been used before, or has lost ``meta.properties``.
        logs: changed only under the lock of ``Directories``.
        futures: copies of logs of other directories, changed under the same lock.
        unavailable: why logs could not be opened; changed under the same lock.
        creating: how many logs are being created.
        loaded: all logs that were found are in ``logs``.
        failure: why the directory is offline.
        strays: names of logs that were set aside, by the part before the unique id.
    """

    def __init__(self, path: str, storage: Storage, lock: DirLock) -> None:
        self.path = path
        self.offsets = OffsetCheckpoints(path, storage)
        self.creations = CreationFiles(path, storage)
        self.clean = False
        self.broker_epochs: tuple[int, ...] = ()
        self.closed: ClosedReplicas | None = None
        self.is_new = False
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.futures: dict[TopicPartition, FutureLog] = {}
        self.unavailable: dict[TopicPartition, LogUnavailableError] = {}
        self.creating = 0
        self.loaded = False
        self.failure: LogstoreError | None = None
        self.strays: dict[str, list[str]] = {}
        self._storage = storage
        self._lock = lock

    @classmethod
    def open(cls, path: str, storage: Storage) -> LogDir:
        """Create and lock: the first steps of F-236. ``remove_marker`` is the next one.

        Raises:
            LogDirLockedError: another process has it.
            StorageFailedError: the disk refused, or it is a store of backups.
        """
        try:
            if storage.info(path) is None:
                storage.make_dir(path)
            is_new = storage.info(posixpath.join(path, META_PROPERTIES)) is None
            if is_new and storage.info(posixpath.join(path, filenames.BACKUPS)) is not None:
                raise StorageFailedError(path, "open", _A_BACKUP)
            if is_new:
                storage.sync_dir(os.path.dirname(os.path.normpath(path)) or ".")
            lock = storage.lock(posixpath.join(path, LOCK))
        except (LogDirLockedError, StorageFailedError):
            raise
        except OSError as error:
            raise StorageFailedError(path, "open", str(error)) from error
        log_dir = cls(path, storage, lock)
        log_dir.is_new = is_new
        try:
            log_dir._clear_irregular()
        except OSError as error:
            lock.release()
            raise StorageFailedError(path, "open", str(error)) from error
        except BaseException:
            lock.release()
            raise
        return log_dir

    def _clear_irregular(self) -> None:
        """Rename entries that have the name of a file to write but are no regular file."""
        for name in _REPLACEABLE:
            path = posixpath.join(self.path, name)
            info = self._storage.info(path)
            if info is not None and not info.is_file:
                aside = move_aside(self._storage, path)
                logger.warning("%s is no regular file; it is %s", path, os.path.basename(aside))

    def remove_marker(self) -> None:
        """Remove the marker of a clean stop, and keep what it says. A start that is refused before
        leaves the directory as the stop did.

        Raises:
            StorageFailedError: the disk refused.
        """
        try:
            self._remove_marker()
        except (OSError, CheckpointError) as error:
            raise StorageFailedError(self.path, "remove marker", str(error)) from error

    def _remove_marker(self) -> None:
        self.broker_epochs = clean_shutdown.read_epochs(self._marker, self._storage) or ()
        try:
            closed = self._closed_file.read()
        except MalformedCheckpointError as error:
            logger.warning("%s; taken as absent", error)
            closed = None
        if closed is not None and closed.broker_epochs == self.broker_epochs:
            self.closed = closed
        # Durably gone before anything is loaded: a crash while loading is unclean (F-47). The same
        # sync makes names durable that a process left when it died.
        self.clean = clean_shutdown.remove(self._marker, self._storage)

    @property
    def _closed_file(self) -> ClosedReplicasFile:
        return ClosedReplicasFile(posixpath.join(self.path, CLOSED_REPLICAS), self._storage)

    @property
    def _marker(self) -> str:
        return posixpath.join(self.path, CLEAN_SHUTDOWN)

    def directory_of(self, tp: TopicPartition) -> str:
        return posixpath.join(self.path, filenames.partition_dir_name(tp))

    def items(self) -> list[tuple[TopicPartition, PartitionLog]]:
        """The logs that are open, future ones included: their entries are in the checkpoints, too,
        and no partition has both here."""
        futures = ((tp, each.log) for tp, each in list(self.futures.items()))
        return [*self.logs.items(), *((tp, log) for tp, log in futures if log is not None)]

    def keep_log_starts(self) -> None:
        """Write the starts of logs that start inside their first segment (F-12)."""
        self.offsets.write(LOG_START, self.items, moved_start)

    # -- loading -------------------------------------------------------------------------------

    def find(self) -> FoundPartition:
        """List the directory, and read its checkpoints.

        A directory whose name is not that of a log is left alone, with a warning. Kafka refuses to
        start then (F-6).

        Raises:
            StorageFailedError: the disk refused.
        """
        try:
            entries = self._storage.scan_dir(self.path)
        except OSError as error:
            raise StorageFailedError(self.path, "list", str(error)) from error
        found = FoundPartition()
        for name, _, _, kind in entries:
            path = posixpath.join(self.path, name)
            if kind is FileKind.OTHER:
                self._find_link(name, path, found)
            if kind is not FileKind.DIRECTORY:
                continue
            if name == filenames.REMOTE_LOG_INDEX_CACHE:
                continue
            try:
                parsed = filenames.parse_partition_dir(name)
            except InvalidTopicError as error:
                logger.warning("left alone in %s: %s", self.path, error)
                continue
            if parsed.suffix == filenames.DELETE_DIR_SUFFIX:
                found.deleted.append(path)
            elif parsed.suffix == filenames.STRAY_DIR_SUFFIX:
                self.add_stray(name)
            elif not parsed.suffix:
                found.present.add(parsed.topic_partition)
                if name not in _NOT_LOGS:
                    found.logs.append(parsed.topic_partition)
            elif parsed.topic_partition in self.futures:
                found.deleted.append(path)
            else:
                found.present.add(parsed.topic_partition)
                self.futures[parsed.topic_partition] = FutureLog(name)
        try:
            self.offsets.load(found.present)
            for tp in self.futures.keys() - set(found.logs):
                self.offsets.keep_entries(tp)
            names = [e.name for e in entries if not e.is_dir and e.name.startswith(_CREATION)]
            found.creations = self.creations.read(names)
        except CheckpointError as error:
            raise StorageFailedError(self.path, "load", str(error)) from error
        return found

    def set_aside(self, tp: TopicPartition, unique_id: str, why: str) -> str:
        """Rename the directory of a log to ``…-stray``. Returns the name, to be made durable."""
        directory, name = self.directory_of(tp), filenames.stray_dir_name(tp, unique_id)
        logger.warning("%s %s and becomes %s", directory, why, name)
        self._storage.rename(directory, posixpath.join(self.path, name))
        return name

    def rename_deleted(self, tp: TopicPartition, unique_id: str) -> str:
        """Rename the directory of a log to ``…-delete``. Returns the path, to be made durable."""
        path = posixpath.join(self.path, filenames.delete_dir_name(tp, unique_id))
        self._storage.rename(self.directory_of(tp), path)
        return path

    def add_stray(self, name: str) -> None:
        """Note a log that was set aside."""
        self.strays.setdefault(name.rpartition(".")[0], []).append(name)

    def stray_of(self, tp: TopicPartition, topic_id: uuid.UUID) -> str | None:
        """The name of the log of this partition and topic that was set aside, if there is one.

        Raises:
            CheckpointFailedError: the medium refused, so it is not known.
        """
        prefix = filenames.stray_dir_name(tp, topic_id.hex).rpartition(".")[0]
        for name in self.strays.get(prefix, ()):
            if topic_id_in(posixpath.join(self.path, name), self._storage) == topic_id:
                return name
        return None

    def _find_link(self, name: str, path: str, found: FoundPartition) -> None:
        """Note a broken link with the name of a log.

        Anything else that is neither file nor directory is ignored.
        """
        with suppress(InvalidTopicError):
            tp, suffix, _ = filenames.parse_partition_dir(name)
            real = posixpath.join(self._storage.real_path(self.path), name)
            if not suffix and name not in _NOT_LOGS and self._storage.real_path(path) != real:
                found.present.add(tp)
                found.unreachable.append(tp)

    # -- closing -------------------------------------------------------------------------------

    def close(
        self,
        broker_epochs: Sequence[int],
        threads: int,
        unproven: Collection[TopicPartition] | None,
    ) -> None:
        """Close the logs, write the checkpoints, then the marker of a clean stop (F-48).

        The marker is left out after an error, or if a log is unavailable or was not recovered. The
        next start then recovers.

        Args:
            unproven: replicas whose logs the stop does not prove; None if it proves none.
        """
        failed = any(log.failed for _, log in self.items())
        outcomes = run_all([log.close for _, log in self.items()], threads, "logstore-close")
        errors = [error for _, error in outcomes if error is not None]
        for error in errors:
            if not isinstance(error, Exception):
                raise error
            logger.error("closing a log of %s: %s", self.path, error)
        if errors or failed or self.failure is not None or not self.loaded:
            return
        try:
            self.offsets.write_recovery_points(self.items)
            self.offsets.write(LOG_START, self.items, moved_start)
            self.offsets.write(HIGH_WATERMARK, self.items, high_watermark)
            if not (self.unavailable or self._has_unrecovered()):  # the marker would cover these
                self._write_closed(broker_epochs, unproven)
                *earlier, last = broker_epochs or (clean_shutdown.UNKNOWN_BROKER_EPOCH,)
                clean_shutdown.write(self._marker, last, self._storage, earlier)
        except (OSError, CheckpointError) as error:
            logger.error("no clean shutdown of %s: %s", self.path, error)

    def _has_unrecovered(self) -> bool:
        """Whether no one has opened a future log since a stop that was not clean."""
        return not self.clean and any(each.log is None for each in self.futures.values())

    def _write_closed(
        self, broker_epochs: Sequence[int], unproven: Collection[TopicPartition] | None
    ) -> None:
        """Name the closed logs, before the marker that makes it count."""
        if not broker_epochs or unproven is None:
            with suppress(FileNotFoundError):  # that of an earlier stop, perhaps of the same epochs
                self._storage.remove(posixpath.join(self.path, CLOSED_REPLICAS))
            return
        logs = {tp: closed_replica(log) for tp, log in self.logs.items() if tp not in unproven}
        self._closed_file.write(ClosedReplicas(tuple(broker_epochs), logs, unproven))

    def release_lock(self) -> None:
        """Release the lock of the directory for other processes. Idempotent."""
        self._lock.release()

    def release(self) -> None:
        """Release everything without flushing."""
        for _, log in self.items():
            log.crash()
        self._lock.release()


def closed_replica(log: PartitionLog) -> ClosedReplica:
    """Return what proves that a log is as it was closed.

    An epoch that begins at the log end, without a record, is not kept by a load.
    """
    end = log.log_end_offset
    epochs = (epoch for epoch, start in reversed(log.epochs.entries) if start < end)
    return ClosedReplica(log.topic_id, end, next(epochs, -1))


# -- without a lock --------------------------------------------------------------------------------


class DirectoryContent(NamedTuple):
    """The content that a start would find: the owner, and the logs with the ids of their topics."""

    meta: MetaProperties | None
    logs: dict[TopicPartition, uuid.UUID | None]


def peek(path: str, storage: Storage) -> DirectoryContent:
    """List a log directory, which is neither locked nor changed. What cannot be read is left out:
    opening it reports that.
    """
    try:
        meta = MetaPropertiesFile(posixpath.join(path, META_PROPERTIES), storage).read()
    except CheckpointError:
        meta = None
    try:
        entries = storage.scan_dir(path)
    except OSError:
        return DirectoryContent(meta, {})
    logs = {}
    for entry in entries:
        if not entry.is_dir or entry.name == filenames.CLUSTER_METADATA_DIR:
            continue
        try:
            parsed = filenames.parse_partition_dir(entry.name)
        except InvalidTopicError:
            continue
        if not parsed.suffix:
            topic_id = None
            with suppress(CheckpointError):
                topic_id = topic_id_in(posixpath.join(path, entry.name), storage)
            logs[parsed.topic_partition] = topic_id
    return DirectoryContent(meta, logs)


def topic_id_in(directory: str, storage: Storage) -> uuid.UUID | None:
    """The topic id of a partition's directory; None without one that makes sense.

    Raises:
        CheckpointFailedError: the medium refused.
    """
    try:
        found = PartitionMetadataFile(posixpath.join(directory, PARTITION_METADATA), storage).read()
    except MalformedCheckpointError:
        return None
    return None if found is None else found.topic_id
