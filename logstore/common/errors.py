"""The errors of a log. `logstore.errors` has them for users, and says what each is for."""

from __future__ import annotations

import os
from typing import Any, Self

from checkpoints.printable import PrintableError, printable


class LogstoreError(PrintableError):
    """Base of all errors raised by ``logstore``."""


class CorruptDataError(LogstoreError):
    """Bytes that break the format, found at byte ``position`` of ``path``."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(path, position, reason)  # plain args: survives pickling to a worker
        self.path, self.position, self.reason = path, position, reason

    def located(self, path: str, base: int = 0) -> Self:
        """The same error with its place in a file: kernels know only a buffer that starts at
        ``base``.
        """
        return type(self)(path, base + self.position, self.reason)

    def _text(self) -> str:
        path = printable(self.path) or "<buffer>"
        return f"{path} at byte {self.position}: {self.reason}"


class CorruptBatchError(CorruptDataError):
    """A batch of a ``.log`` is damaged; see ``CorruptDataError``."""


class CorruptIndexError(CorruptDataError):
    """An index is damaged; it is rebuilt from its ``.log``."""


class CorruptSnapshotError(CorruptDataError):
    pass


class LogUnavailableError(LogstoreError):
    """A log cannot be opened: ``path`` is its directory, ``reason`` says why.

    Its files stay as they are. Repair it and open the manager again, or delete it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def _text(self) -> str:
        return f"{printable(self.path)} cannot be opened: {self.reason}"


class StorageFailedError(LogstoreError):
    """The disk failed. What reached it is unknown, so nothing is retried (F-224)."""

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(path, operation, reason)
        self.path, self.operation, self.reason = path, operation, reason

    def _text(self) -> str:
        return f"{printable(self.path)}: {self.operation} failed: {self.reason}"


class ResourceBusyError(LogstoreError):
    """Descriptors or memory are short; the disk works.

    Nothing was done. Try again when something was released. Only if ``flush.messages`` makes an
    append sync, its records are already in the log and not durable yet.
    """

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(path, operation, reason)
        self.path, self.operation, self.reason = path, operation, reason

    def _text(self) -> str:
        return f"{printable(self.path)}: {self.operation}: {self.reason}"


class LogClosedError(LogstoreError):
    """The log was closed; open it again."""


class LogMovedError(LogClosedError):
    """The log was moved to another directory. What it has done is done there, too.

    Attributes:
        successor: the ``PartitionLog`` that has its place.
    """

    def __init__(self, reason: str, successor: Any = None) -> None:
        super().__init__(reason)
        self.successor = successor


class LogCleaningAbortedError(LogstoreError):
    """The log was cut, shortened or closed during a pass of the cleaner, or the pass was stopped.

    Segments that were already replaced stay. Nothing else was changed, and the next pass begins
    again.
    """


class LogDirLockedError(LogstoreError):
    """The log directory is open elsewhere (rule F-9)."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(path, holder)
        self.path, self.holder = path, holder

    def _text(self) -> str:
        path = printable(self.path)
        return (
            f"{path} is locked by {self.holder}. A log directory has one owner at a time, for all "
            "partitions in it: close it there, or use another directory"
        )


class ForkedError(LogstoreError):
    """Process ``pid`` opened ``name``, and this process was forked from it. Nothing was done.

    What the parent opened stays the parent's: a child may read and close it. To write, let the
    parent close it, and open it in the child.
    """

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(name, pid)
        self.name, self.pid = name, pid

    def _text(self) -> str:
        return (
            f"{printable(self.name)} was opened by process {self.pid}, and this is process "
            f"{os.getpid()}, which was forked from it: what it is to change it must open itself"
        )


class OffsetOutOfRangeError(LogstoreError):
    """``offset`` is outside ``[start, end]``, the range of the log ``name``."""

    def __init__(self, name: str, offset: int, start: int, end: int) -> None:
        super().__init__(name, offset, start, end)
        self.name, self.offset, self.start, self.end = name, offset, start, end

    def _text(self) -> str:
        return f"{printable(self.name)}: offset {self.offset} is outside [{self.start}, {self.end}]"


class ResultTooLargeError(LogstoreError):
    """The result does not fit one object. The text says how to request it in parts."""


class LogTruncatedError(OffsetOutOfRangeError):
    """The log was cut below ``offset``, which a reader had reached.

    The records from ``end`` on are gone, and others may already be in their place.
    """

    def _text(self) -> str:
        return (
            f"{printable(self.name)}: the records before offset {self.offset} were read, but the "
            f"log was cut at {self.end} since then"
        )


class PartialAppendError(LogstoreError):
    """``extend`` stopped in the middle. ``__cause__`` is the error that stopped it.

    The first ``record_count`` of the given records were appended, the last one at ``last_offset``
    (−1: none).
    """

    def __init__(self, name: str, record_count: int, last_offset: int, reason: str) -> None:
        super().__init__(name, record_count, last_offset, reason)
        self.name, self.record_count = name, record_count
        self.last_offset, self.reason = last_offset, reason

    def _text(self) -> str:
        done = "nothing was appended"
        if self.record_count:
            done = f"{self.record_count} records were appended, up to offset {self.last_offset}"
        return f"{printable(self.name)}: {self.reason}; {done}"


class CursorError(LogstoreError):
    """The name of a cursor is invalid, or its file is damaged or belongs to another topic."""


class RecordRejectedError(LogstoreError):
    """A batch was refused before anything was written.

    ``record_errors`` lists ``(index in the batch, message)`` if single records are at fault.
    """

    def __init__(self, reason: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(reason, record_errors)
        self.reason, self.record_errors = reason, record_errors

    def _text(self) -> str:
        if not self.record_errors:
            return self.reason
        index, message = self.record_errors[0]
        more = f" and {len(self.record_errors) - 1} more" if len(self.record_errors) > 1 else ""
        return f"{self.reason}: record {index}: {message}{more}"


class CorruptMessageError(RecordRejectedError):
    pass


class InvalidRecordError(RecordRejectedError):
    pass


class InvalidTimestampError(RecordRejectedError):
    pass


class RecordTooLargeError(RecordRejectedError):
    pass


class RecordListTooLargeError(RecordRejectedError):
    pass


class UnsupportedCompressionTypeError(RecordRejectedError):
    pass


class UnsupportedForMessageFormatError(RecordRejectedError):
    pass


class OutOfOrderSequenceError(RecordRejectedError):
    pass


class InvalidProducerEpochError(RecordRejectedError):
    pass


class InvalidTxnStateError(RecordRejectedError):
    pass


class TransactionCoordinatorFencedError(RecordRejectedError):
    pass


class OffsetsOutOfOrderError(RecordRejectedError):
    pass


class UnexpectedAppendOffsetError(RecordRejectedError):
    """A follower append that starts below the log end offset (rule F-164)."""

    def __init__(self, reason: str, first_offset: int = -1, last_offset: int = -1) -> None:
        super().__init__(reason)
        self.args = (reason, first_offset, last_offset)
        self.first_offset, self.last_offset = first_offset, last_offset


class LeadershipEndedError(LogstoreError):
    """An append for a leadership that has ended. Nothing was appended."""

    def __init__(self, path: str, leader_epoch: int, now: int) -> None:
        super().__init__(path, leader_epoch, now)
        self.path, self.leader_epoch, self.now = path, leader_epoch, now

    def _text(self) -> str:
        path = printable(self.path)
        return f"{path}: an append of epoch {self.leader_epoch}, the replica is in {self.now}"


class PolicyViolationError(LogstoreError):
    pass


class InconsistentTopicIdError(LogstoreError):
    pass


class UnknownTopicOrPartitionError(LogstoreError):
    pass


class TopicExistsError(LogstoreError):
    pass


class InvalidTopicError(LogstoreError):
    pass


class ConfigError(LogstoreError):
    pass


class InvariantError(LogstoreError):
    pass


class RescueError(LogstoreError):
    """A rescue could not be finished. There is no result."""
