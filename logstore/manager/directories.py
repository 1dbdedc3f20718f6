"""The log directories of a manager: which are live, and which logs they hold."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from checkpoints.errors import CheckpointError
from checkpoints.loggers import get_logger
from logstore.common.disk_errors import Concern, concern_of, is_busy
from logstore.common.errors import (
    ConfigError,
    LogClosedError,
    LogstoreError,
    LogUnavailableError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.common.forks import Ownership
from logstore.common.locks import Rank, make_lock
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog
from logstore.manager.log_dir import FutureLog, LogDir
from logstore.storage.base import Storage

logger = get_logger(__name__)

RETRY_MS = 60_000

LogsByPartition = dict[TopicPartition, PartitionLog]
TakenOut = tuple[LogDir, TopicPartition, PartitionLog | None]
"""Where a log was; None if it could not be opened."""
OnFailure = Callable[[str, LogstoreError], None]


class Directories:
    """Thread-safe. A caller may hold the lock of a log.

    Args:
        later: runs tasks that may wait for a disk.
        on_failure: called once for each directory that goes offline, after its logs refuse work.
        on_log_failure: called once for each log that goes offline alone.
    """

    def __init__(
        self,
        storage: Storage,
        later: Callable[[Callable[[], None]], object],
        on_failure: OnFailure | None,
        on_log_failure: OnFailure | None = None,
    ) -> None:
        self.ownership = Ownership("a log manager")
        self._lock = make_lock(Rank.MANAGER)
        self._storage = storage
        self._later = later
        self._on_failure = on_failure
        self._on_log_failure = on_log_failure
        self._live: dict[str, LogDir] = {}
        self._failed: list[LogDir] = []  # their files stay open until the end
        self._offline: dict[str, LogstoreError] = {}
        self._deleted: list[tuple[int, str]] = []  # (due ms, path)
        self._closed = False
        self.list_configured: Callable[[], Mapping[TopicPartition, PartitionLog]] | None = None

    # -- directories ---------------------------------------------------------------------------

    def add(self, log_dir: LogDir) -> None:
        with self._lock:
            self._live[log_dir.path] = log_dir

    def live(self) -> list[LogDir]:
        with self._lock:
            return list(self._live.values())

    def offline(self) -> dict[str, LogstoreError]:
        """Path → reason."""
        with self._lock:
            return dict(self._offline)

    def fail(self, path: str, failure: LogstoreError) -> None:
        """The whole directory is offline until it is opened again; the others go on (F-224).

        A log that met the failure may hold its locks, so nothing here waits for a disk.
        """
        with self._lock:
            log_dir = self._live.pop(path, None)
            if log_dir is None and (path in self._offline or self._closed):
                return
            self._offline[path] = failure
            logs = []
            if log_dir is not None:
                self._failed.append(log_dir)
                log_dir.failure = failure
                logs = [log for _, log in log_dir.items()]
        for log in logs:
            log.core.refuse(failure)
        if log_dir is not None:
            self._later(log_dir.release_lock)
        logger.error("log directory %s is offline: %s", path, failure)
        if self._on_failure is not None:
            self._on_failure(path, failure)

    def on_log_failure(self, path: str, failure: LogstoreError) -> None:
        """A log of the directory ``path`` went offline: alone, unless the medium may fail."""
        if concern_of(failure.__cause__) is Concern.DIRECTORY:
            self.fail(path, failure)
        elif self._on_log_failure is not None:
            self._on_log_failure(path, failure)

    @contextmanager
    def guard(self, log_dir: LogDir, operation: str, *, whatever: bool = False) -> Iterator[None]:
        """Translate disk errors of changes in a directory. If the medium fails, it goes offline.

        Args:
            whatever: it goes offline after any error that is not a shortage.
        Raises:
            StorageFailedError: the disk refused.
            ResourceBusyError: descriptors or memory are short.
        """
        try:
            yield
        except (OSError, CheckpointError) as error:
            if is_busy(error):
                raise ResourceBusyError(log_dir.path, operation, str(error)) from error
            failure = StorageFailedError(log_dir.path, operation, str(error))
            if whatever or concern_of(error) is Concern.DIRECTORY:
                self.fail(log_dir.path, failure)
            raise failure from error

    @contextmanager
    def room_for_one(
        self, *, is_new: bool = True, preferred: str | None = None
    ) -> Iterator[LogDir]:
        """The live directory with the fewest logs, or the preferred one. Inside the block it counts
        one more (F-8).

        Raises:
            StorageFailedError: no directory is live, or the log is not new and may be in an offline
                directory.
        """
        with self._lock:
            self._check_open_locked()
            if not self._live:
                raise StorageFailedError("", "create a log", "no log directory is live")
            if not is_new and self._offline:
                paths = ", ".join(self._offline)
                raise StorageFailedError(paths, "find a log", "a directory is offline")
            emptiest = min(self._live.values(), key=lambda d: len(d.logs) + d.creating)
            log_dir = self._live.get(preferred or "", emptiest)
            log_dir.creating += 1
        try:
            yield log_dir
        finally:
            with self._lock:
                log_dir.creating -= 1

    # -- future logs ---------------------------------------------------------------------------

    def future(self, tp: TopicPartition) -> tuple[LogDir, FutureLog] | None:
        """The copy that is to replace the log of a partition, and its live directory."""
        with self._lock:
            found = ((d, d.futures[tp]) for d in self._live.values() if tp in d.futures)
            return next(found, None)

    def add_future(self, log_dir: LogDir, tp: TopicPartition, future: FutureLog) -> None:
        """
        Raises:
            LogClosedError: the manager was closed.
        """
        with self._lock:
            self._check_open_locked()
            log_dir.futures[tp] = future

    def take_future(self, tp: TopicPartition) -> tuple[LogDir, FutureLog] | None:
        """As ``future``, and it can be found no longer."""
        with self._lock:
            for log_dir in self._live.values():
                if tp in log_dir.futures:
                    return log_dir, log_dir.futures.pop(tp)
            return None

    def promote(self, tp: TopicPartition, target: LogDir, log: PartitionLog) -> None:
        """Let the future log in ``target`` be the log of its partition."""
        with self._lock:
            for log_dir in (*self._live.values(), *self._failed):
                log_dir.logs.pop(tp, None)
            target.futures.pop(tp, None)
            target.logs[tp] = log

    # -- ``-delete`` directories (F-229) -------------------------------------------------------

    def remove_later(self, due_ms: int, path: str) -> None:
        """Remove a directory once the wall clock has reached a time."""
        with self._lock:
            self._deleted.append((due_ms, path))

    def purge(self, now_ms: int) -> int:
        """Remove the ``-delete`` directories that are due. Returns how many.

        A failed removal is tried again a minute later. First their names are durable: no power cut
        leaves part of a log under its former name.
        """
        with self._lock:
            due = [path for when, path in self._deleted if when <= now_ms]
            self._deleted = [entry for entry in self._deleted if entry[0] > now_ms]
        removed = 0
        synced: set[str] = set()
        for path in due:
            parent = posixpath.dirname(path)
            try:
                if parent not in synced:
                    self._storage.sync_dir(parent)
                    synced.add(parent)
                self._storage.remove_tree(path)
                removed += 1
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("%s is not removed yet: %s", path, error)
                self.remove_later(now_ms + RETRY_MS, path)
        return removed

    # -- logs ----------------------------------------------------------------------------------

    def logs(self) -> LogsByPartition:
        with self._lock:
            return {tp: log for d in self._live.values() for tp, log in d.logs.items()}

    def configured(self) -> Mapping[TopicPartition, PartitionLog]:
        """The logs whose configuration is known, so that it may say what is deleted: all, unless
        somebody else keeps the configurations and set ``list_configured``."""
        return self.logs() if self.list_configured is None else self.list_configured()

    def unavailable(self) -> dict[TopicPartition, LogUnavailableError]:
        """Logs of live directories that could not be opened, and why."""
        with self._lock:
            return {tp: why for d in self._live.values() for tp, why in d.unavailable.items()}

    def find(self, tp: TopicPartition) -> PartitionLog | None:
        """
        Raises:
            LogUnavailableError: the log is here but could not be opened.
        """
        with self._lock:
            self._check_open_locked()
            for log_dir in self._live.values():
                if tp in log_dir.logs:
                    return log_dir.logs[tp]
                if (why := log_dir.unavailable.get(tp)) is not None:
                    raise LogUnavailableError(why.path, why.reason)
            return None

    def home_of(self, tp: TopicPartition) -> LogDir | None:
        with self._lock:
            return next((d for d in self._live.values() if tp in d.logs), None)

    def register(self, made: Iterable[tuple[LogDir, PartitionLog]]) -> None:
        """Make new logs findable, all at once.

        Raises:
            ConfigError: a partition is here already (F-7).
            LogClosedError: the manager was closed.
        """
        made = list(made)
        with self._lock:
            self._check_open_locked()
            for log_dir, log in made:
                self._check_alone_locked(log.topic_partition, log_dir)
            for log_dir, log in made:
                log_dir.logs[log.topic_partition] = log
        for log_dir, log in made:
            if log_dir.failure is not None:  # failed since
                log.core.refuse(log_dir.failure)

    def set_unavailable(self, log_dir: LogDir, tp: TopicPartition, why: str) -> None:
        """Note that a log cannot be opened. Its files stay.

        Raises:
            ConfigError: the partition is in another directory too (F-7).
        """
        error = LogUnavailableError(log_dir.directory_of(tp), why)
        log_dir.offsets.keep_entries(tp)
        with self._lock:
            self._check_alone_locked(tp, log_dir)
            log_dir.unavailable[tp] = error
        logger.error("%s", error)

    def _check_alone_locked(self, tp: TopicPartition, log_dir: LogDir) -> None:
        for other in self._live.values():
            if tp in other.logs or tp in other.unavailable:
                raise ConfigError(
                    f"{tp} is both in {other.directory_of(tp)} and in {log_dir.directory_of(tp)} "
                    "(F-7)"
                )

    def take_out(self, tps: Iterable[TopicPartition]) -> list[TakenOut]:
        """Make these logs no longer findable. Returns those that were here."""
        taken: list[TakenOut] = []
        with self._lock:
            for tp in tps:
                for log_dir in self._live.values():
                    log = log_dir.logs.pop(tp, None)
                    if log is not None or log_dir.unavailable.pop(tp, None) is not None:
                        taken.append((log_dir, tp, log))
        return taken

    def check_open(self) -> None:
        """
        Raises:
            LogClosedError: the manager was closed.
        """
        with self._lock:
            self._check_open_locked()

    # -- the end -------------------------------------------------------------------------------

    def _check_open_locked(self) -> None:
        if self._closed:
            raise LogClosedError("the log manager is closed")

    def release(self) -> None:
        """Release all logs and directories without flushing. Nothing can be found afterwards."""
        with self._lock:
            self._closed = True
            all_dirs = [*self._live.values(), *self._failed]
            self._live.clear()
            self._failed.clear()
        for log_dir in all_dirs:
            log_dir.release()
