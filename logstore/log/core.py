"""The state that the parts of one log share: its directory, its snapshot, and why it stopped."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from checkpoints.errors import CheckpointError
from checkpoints.files import UnusableFileError
from checkpoints.loggers import get_logger
from logstore.common.clock import Clock
from logstore.common.config import MAX_LONG, LogConfig
from logstore.common.disk_errors import Concern, concern_of, is_busy
from logstore.common.errors import (
    CorruptDataError,
    ForkedError,
    LogClosedError,
    LogstoreError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.common.locks import Lock
from logstore.common.random_id import RandomId, random_id
from logstore.common.types import TopicPartition
from logstore.kernels import LogCell
from logstore.log.listeners import ChangeListeners
from logstore.storage.base import Storage

logger = get_logger("logstore.log")

Background = Callable[[Callable[[], None]], None]


def run_inline(task: Callable[[], None]) -> None:
    """Run a task at once, the default for a log without a manager. Kafka schedules it."""
    task()


@dataclass(frozen=True, slots=True)
class LogOwner:
    """The decisions that the owner of many logs, such as ``LogManager``, takes for each of them.

    The defaults are those of a log that is opened alone.

    Attributes:
        managed: the owner holds the lock and keeps what a start needs. Nothing is locked or left
            behind, and only the next three count (unclean, 0 and 0 by default).
        clean_shutdown, recovery_point, log_start_offset: what is known about the last stop. If none
            is given, it comes from what the last owner left in the directory.
        clean_shutdown: trust the files if headers and ``recovery_point`` agree. Otherwise
            everything from the segment of ``recovery_point`` on is scanned, and cut at the first
            bad batch.
        keep_name: make the name of a new directory durable. Otherwise the owner does it before the
            first record, for many logs at once.
        sync_names: make the names in the directory durable after an unclean stop, because the
            process that died may have removed some. Otherwise as for ``keep_name``.
        producer_id_expiration_ms: forget a producer that is silent for this long.
        replicated: the owner moves the high watermark; otherwise it follows the log end.
        background: runs tasks that may happen later, such as the flush of a rolled segment.
        on_failure: called once when the log goes offline. The cause of the error says whether the
            disk may have failed, or only a file (`disk_errors`). The lock of appends may be held,
            so it must return at once.
        on_truncation: called when one is durable, before the first new record. On return the
            offsets that the owner stores for the log must durably not exceed its end.
        on_restart: called when a truncation has dropped all records, before the first new one. On
            return everything that the owner stores for the log must be durably gone, except the log
            start that is given, if records below it are left in the files.
        random_id: returns 32 new hex digits, for ``segment.jitter.ms``.
    """

    managed: bool = False
    clean_shutdown: bool | None = None
    recovery_point: int | None = None
    log_start_offset: int | None = None
    keep_name: bool = True
    sync_names: bool = True
    producer_id_expiration_ms: int = MAX_LONG
    replicated: bool = False
    background: Background = run_inline
    on_failure: Callable[[StorageFailedError], None] | None = None
    on_truncation: Callable[[], None] | None = None
    on_restart: Callable[[int | None], None] | None = None
    random_id: RandomId = random_id


ALONE = LogOwner()


def unusable(error: UnusableFileError) -> CorruptDataError:
    """The error for an entry that is not the expected file: damage of that file."""
    return CorruptDataError(str(error.filename), 0, error.reason)


def medium_error(path: str, operation: str, error: BaseException) -> LogstoreError:
    """The error for a failed operation that does not take the log offline."""
    if isinstance(error, UnusableFileError):
        return unusable(error)
    kind = ResourceBusyError if is_busy(error) else StorageFailedError
    return kind(path, operation, str(error) or "not enough memory")


class LogCore(LogCell):
    """``snapshot`` is replaced as a whole under the WRITE lock, and read without a lock."""

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        storage: Storage,
        clock: Clock,
        owner: LogOwner,
    ) -> None:
        self.directory = directory
        self.topic_partition: TopicPartition  # from the load on, as the next two
        self.name: str
        self.topic_id: uuid.UUID | None
        self.config = config
        self.storage = storage
        self.clock = clock
        self.inherited: ForkedError | None = None  # then it may be read, and is never changed
        self.listeners = ChangeListeners()
        self.cursor_locks: dict[str, Lock] = {}  # by name; any number of cursors may share one
        self.owner = owner

    def check(self) -> None:
        """Raise the reason if the log refuses further work."""
        if self.failure is not None:
            raise self.failure

    def check_owner(self) -> None:
        """
        Raises:
            ForkedError: another process opened the log.
        """
        if self.inherited is not None:
            raise self.inherited

    @property
    def unreadable(self) -> LogstoreError | None:
        """The reason why the log can no longer be read, or None."""
        return None if self.failure is self.inherited else self.failure

    def disown(self, pid: int) -> None:
        """In a forked child, refuse all that changes a file. See `forks.Inherited`."""
        self.listeners.forget()
        if self.inherited is None:
            self.inherited = ForkedError(self.directory, pid)
        if self.failure is None:
            self.failure = self.inherited

    @property
    def closed(self) -> bool:
        return isinstance(self.failure, LogClosedError)

    def refuse(self, failure: LogstoreError) -> None:
        """Refuse further work because of ``failure``, unless there is an earlier reason."""
        if self.failure is None:
            self.failure = failure
        self.listeners.wake_all()

    def mark_closed(self) -> None:
        if self.failure is self.inherited:  # a child closes what it may not change
            self.failure = None
        self.refuse(LogClosedError(f"{self.directory} is closed"))

    def fail(self, operation: str, error: BaseException) -> LogstoreError:
        """After a disk error, refuse all work until the log is opened again (F-224, F-315).

        The owner decides by the cause whether others are concerned (``disk_errors``).
        """
        failure = StorageFailedError(self.directory, operation, str(error))
        if self.failure is None:
            self.refuse(failure)
            logger.error("%s", failure)
            failure.__cause__ = error  # says whether it may be the medium
            if self.owner.on_failure is not None:
                self.owner.on_failure(failure)
        return failure

    @contextmanager
    def doing(self, operation: str, *, whole: bool = True) -> Iterator[None]:
        """Translate disk errors.

        ``whole``: if a resource is short or a name too long, nothing was changed. So the log goes
        on, and the caller may try again.

        Raises:
            StorageFailedError: the disk refused; the log is offline, unless the caller is at fault.
            ResourceBusyError: descriptors or memory are short.
        """
        try:
            yield
        except (OSError, CheckpointError, MemoryError) as error:
            if whole and concern_of(error) in (Concern.MACHINE, Concern.CALLER):
                raise medium_error(self.directory, operation, error) from error
            if self.closed:  # released beside this call
                assert self.failure is not None
                raise self.failure from error
            raise self.fail(operation, error) from error
