"""Moves of logs between the directories of a manager (KIP-113).

A future log is a copy in a directory ``<topic>-<partition>.<32 hex digits>-future``. Once it has
all, it gets the name of the log, and then the log becomes ``<topic>-<partition>.<the same
digits>-delete``. A crash may leave each of these changes or not, in any order, since they are on
two disks. A start goes on with what it finds:

=============== ============ ===============================================================
old directory   new one      what a start does
=============== ============ ===============================================================
log             future       the copy goes on with the next role of the partition
``-delete``     future       the copy has all: it becomes the log
log             log          the new one has ``moved-from``: the old one becomes ``-delete``, unless
                             it has a later leadership, of a start without the new disk
``-delete``     log          the move is complete
no live one     future       as Kafka: it stays, and is cut to what the next log has
=============== ============ ===============================================================

Everything that was durable in the old log is durable in the copy before the first change, and no
sync of the copy ends before the last one is durable. So each row keeps what was promised.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from checkpoints.checkpoint_file import load_file, store_file
from checkpoints.errors import CheckpointError
from checkpoints.leader_epoch_checkpoint import LeaderEpochCheckpoint
from checkpoints.loggers import get_logger
from logstore.common.errors import (
    CorruptDataError,
    InconsistentTopicIdError,
    LogstoreError,
    StorageFailedError,
    UnknownTopicOrPartitionError,
)
from logstore.common.random_id import RandomId
from logstore.common.types import TopicPartition
from logstore.format import filenames
from logstore.log import PartitionLog
from logstore.log.moving import LogCopy
from logstore.manager.claims import Claims
from logstore.manager.directories import Directories
from logstore.manager.log_dir import FoundPartition, FutureLog, LogDir
from logstore.manager.offsets import HIGH_WATERMARK, high_watermark
from logstore.manager.opener import LogOpener
from logstore.storage.base import Storage

logger = get_logger(__name__)

_PATH_MAX = 4096


class FutureLogs:
    """Begins, drops and ends moves. Thread-safe; the caller holds no lock of a log.

    Attributes:
        preferred: the log directories that logs get when they are created.
    """

    def __init__(self, directories: Directories, opener: LogOpener, claims: Claims) -> None:
        self.preferred: dict[TopicPartition, str] = {}
        self._directories = directories
        self._opener = opener
        self._claims = claims
        self._storage = opener.storage

    def place_of(self, tp: TopicPartition) -> str | None:
        """The path of the log directory to which a log is on its way."""
        found = self._directories.future(tp)
        return None if found is None else found[0].path

    def partitions(self) -> set[TopicPartition]:
        """Those that have a future log in a live directory, opened or not."""
        return {tp for log_dir in self._directories.live() for tp in list(log_dir.futures)}

    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """The future logs that are open."""
        found = (
            (tp, each.log) for d in self._directories.live() for tp, each in [*d.futures.items()]
        )
        return {tp: log for tp, log in found if log is not None}

    def begin(self, tp: TopicPartition, path: str | None = None) -> LogCopy:
        """Begin to move a log to the live directory of that path, or go on with a move.

        Args:
            path: None for a future log that is there.
        Raises:
            UnknownTopicOrPartitionError: there is no such log, no future log, or no such directory.
            InvalidTopicError: the name of its directory would be too long.
            InconsistentTopicIdError, CorruptDataError: the future log belonged to another topic of
                that name, or is damaged. It is dropped.
            StorageFailedError: the disk refused.
        """
        with self._claims.of_all([tp]):
            current = self._directories.find(tp)
            if current is None:
                raise UnknownTopicOrPartitionError(f"{tp} is not in a live directory")
            log_dir, future = self._directories.future(tp) or self._create(tp, path)
            if future.log is None:
                try:
                    future.log = self._open(log_dir, tp, future.name, current)
                except (InconsistentTopicIdError, CorruptDataError):
                    self.drop_claimed([tp])
                    raise
                if future.log.log_end_offset > current.recovery_report.log_end_offset:
                    # A crash has taken these from the log, which may have others in their place,
                    # of the same epoch if nobody leads it.
                    future.log.truncate_to(current.recovery_report.log_end_offset)
            log = future.log
            if log.epochs.latest < 0 and log.log_start_offset < log.log_end_offset:
                # Nothing tells whether it still is what the log has.
                log.maintenance.truncate_fully_and_start_at(current.log_start_offset)
            return LogCopy(current, log, future.cleaned)

    def has_room(self, copy: LogCopy, size: int) -> bool:
        """Whether the disk takes ``size`` more bytes of a copy, and a new segment: a disk that is
        full would be offline, with all its other logs.

        Raises:
            StorageFailedError: the disk refused.
        """
        future = copy.future
        needed = 2 * (size + future.config.segment_index_bytes)
        log_dir = self._directories.future(future.topic_partition)
        if log_dir is None:
            return True
        with self._directories.guard(log_dir[0], "copy a log"):
            return self._storage.free_bytes(log_dir[0].path) >= needed

    def _create(self, tp: TopicPartition, path: str | None) -> tuple[LogDir, FutureLog]:
        log_dir = next((d for d in self._directories.live() if d.path == path), None)
        if log_dir is None:
            raise UnknownTopicOrPartitionError(f"{tp} has no future log, and no place for one")
        name = filenames.future_dir_name(tp, self._opener.owner.random_id())
        with self._directories.guard(log_dir, "begin a move"):
            log_dir.offsets.forget_logs({tp})
            self._storage.make_dir(posixpath.join(log_dir.path, name))
        home = self._directories.home_of(tp)
        future = FutureLog(name, None, None if home is None else home.offsets.cleaned(tp))
        self._directories.add_future(log_dir, tp, future)
        return log_dir, future

    def _open(
        self, log_dir: LogDir, tp: TopicPartition, name: str, current: PartitionLog
    ) -> PartitionLog:
        log = self._opener.load(log_dir, tp, current.config, name=name)
        try:
            if log.topic_id is None and current.topic_id is not None:
                log.assign_topic_id(current.topic_id)
            elif log.topic_id != current.topic_id:
                reason = f"{log.directory} has topic id {log.topic_id}, not {current.topic_id}"
                raise InconsistentTopicIdError(reason)
            with self._directories.guard(log_dir, "begin a move"):
                # Else they would be believed once the copy has grown again.
                log_dir.offsets.lower_entries(log_dir.items, lambda: [(tp, log)])
        except BaseException:
            log.crash()
            raise
        return log

    def drop(self, tp: TopicPartition) -> None:
        """End a move: what was copied is deleted. Nothing is done without one."""
        with self._claims.of_all([tp]):
            self.drop_claimed([tp])

    def drop_claimed(self, tps: Iterable[TopicPartition]) -> None:
        """As ``drop``; the caller has a claim on them. An error is logged."""
        for tp in tps:
            taken = self._directories.take_future(tp)
            if taken is None:
                continue
            log_dir, future = taken
            if future.log is not None:
                future.log.crash()
            try:
                with self._directories.guard(log_dir, "end a move"):
                    log_dir.offsets.forget_logs({tp})
                    path = self._rename_deleted(log_dir, tp, future.name)
                    self._directories.remove_later(self._opener.clock.wall_ms(), path)
            except LogstoreError as error:
                logger.warning("the future log of %s is not deleted yet: %s", tp, error)

    def _rename_deleted(self, log_dir: LogDir, tp: TopicPartition, name: str) -> str:
        unique_id = self._opener.owner.random_id()
        path = posixpath.join(log_dir.path, filenames.delete_dir_name(tp, unique_id))
        self._storage.rename(posixpath.join(log_dir.path, name), path)
        return path

    def end(self, copy: LogCopy, switch: Callable[[Callable[[], None]], bool]) -> bool:
        """Let a copy take the place of its log, if it has all of it.

        Args:
            switch: calls its argument, which never waits for a disk, while nobody changes the role
                of the log; False if it cannot be now.
        Returns:
            False if there is more to copy.
        Raises:
            LogClosedError, UnknownTopicOrPartitionError: the log or its copy is gone.
            StorageFailedError: a disk refused; what is left is as before.
        """
        tp = copy.current.topic_partition
        with self._claims.of_all([tp]):
            home, found = self._directories.home_of(tp), self._directories.future(tp)
            if home is None or found is None or found[1].log is not copy.future:
                raise UnknownTopicOrPartitionError(f"{tp} is not being moved")
            target, future = found
            copy.future.flush()
            with self._directories.guard(home, "end a move"):
                # What it says of an earlier move must not come back beside what is said now.
                with suppress(FileNotFoundError):
                    self._storage.remove(_marker(home, tp))
                self._storage.sync_dir(home.directory_of(tp))
            with self._directories.guard(target, "end a move"):
                marker = posixpath.join(copy.future.directory, filenames.MOVED_FROM)
                store_file(self._storage, marker, f"{home.path}\n".encode())
                target.offsets.write_recovery_points(target.items)
                target.offsets.write(HIGH_WATERMARK, target.items, high_watermark)
                self._note_cleaned(home, target, copy)
            move = _Move(self._storage, home, target, future.name, copy)
            done = copy.finish(
                lambda: switch(lambda: self._put_in_place(move)), lambda: self._settle(move)
            )
        if done:
            logger.info("%s is in %s now", tp, target.path)
        return done

    def _note_cleaned(self, home: LogDir, target: LogDir, copy: LogCopy) -> None:
        """What was clean when the copy began is clean in it."""
        tp = copy.current.topic_partition
        if copy.cleaned is not None:
            offset = min(copy.cleaned, copy.future.log_end_offset)
            target.offsets.note_cleaned(tp, offset, lambda: True)

    def _put_in_place(self, move: _Move) -> None:
        tp, copy = move.tp, move.copy
        with self._directories.guard(move.target, "end a move"):
            self._storage.rename(copy.future.directory, move.target.directory_of(tp))
        copy.take_over(move.target.directory_of(tp))
        self._directories.promote(tp, move.target, copy.future)
        # From here on there is no way back: a start would take the new log, too.
        with (
            suppress(LogstoreError),
            self._directories.guard(move.home, "end a move", whatever=True),
        ):
            self._storage.rename(move.home.directory_of(tp), move.deleted)

    def _settle(self, move: _Move) -> None:
        with (
            suppress(LogstoreError),
            self._directories.guard(move.home, "end a move", whatever=True),
        ):
            self._storage.sync_dir(move.home.path)
            move.home.offsets.forget_logs({move.tp})
        with self._directories.guard(move.target, "end a move", whatever=True):
            self._storage.sync_dir(move.target.path)
            if move.home.failure is None:
                with suppress(FileNotFoundError):
                    self._storage.remove(_marker(move.target, move.tp))
                delay_ms = move.copy.future.config.file_delete_delay_ms
                due_ms = self._opener.clock.wall_ms() + delay_ms
                self._directories.remove_later(due_ms, move.deleted)


class _Move:
    """A move that ends: from where to where, and what the old directory becomes."""

    def __init__(
        self, storage: Storage, home: LogDir, target: LogDir, name: str, copy: LogCopy
    ) -> None:
        self.tp = copy.current.topic_partition
        self.home, self.target, self.copy = home, target, copy
        unique_id = filenames.parse_partition_dir(name).unique_id
        self.deleted = posixpath.join(home.path, filenames.delete_dir_name(self.tp, unique_id))


# -- the start -------------------------------------------------------------------------------------


def settle_moves(
    storage: Storage, found: Mapping[LogDir, FoundPartition], random_id: RandomId
) -> dict[str, StorageFailedError]:
    """At the start, before a log is loaded, end the moves that were ending when the process did.

    Returns:
        Directories whose disk refused, by their paths.
    """
    failed: dict[str, StorageFailedError] = {}
    for log_dir, each in found.items():
        for tp, future in list(log_dir.futures.items()):
            if any(tp in other.logs for other in found.values()):
                continue
            unique_id = filenames.parse_partition_dir(future.name).unique_id
            name = filenames.delete_dir_name(tp, unique_id)
            if any(posixpath.join(d.path, name) in other.deleted for d, other in found.items()):
                _change(storage, log_dir, future.name, filenames.partition_dir_name(tp), failed)
                del log_dir.futures[tp]
                each.logs.append(tp)
    homes: dict[TopicPartition, list[LogDir]] = {}
    for log_dir, each in found.items():
        for tp in each.logs:
            homes.setdefault(tp, []).append(log_dir)
    for tp, dirs in homes.items():
        old = _replaced(storage, tp, dirs) if len(dirs) == 2 else None
        if old is not None:
            name = filenames.delete_dir_name(tp, random_id())
            _change(storage, old, filenames.partition_dir_name(tp), name, failed)
            found[old].logs.remove(tp)
            found[old].deleted.append(posixpath.join(old.path, name))
    return failed


def _replaced(storage: Storage, tp: TopicPartition, dirs: list[LogDir]) -> LogDir | None:
    """Which of two logs the other one has replaced; None if nothing says so."""
    first, second = dirs
    is_first = _origin(storage, second, tp) == first.path
    if is_first == (_origin(storage, first, tp) == second.path):
        return None
    old, new = (first, second) if is_first else (second, first)
    # A start without the disk of the new log went on with the old one, in a later leadership.
    return new if _epoch(storage, old, tp) > _epoch(storage, new, tp) else old


def _epoch(storage: Storage, log_dir: LogDir, tp: TopicPartition) -> int:
    path = posixpath.join(log_dir.directory_of(tp), filenames.LEADER_EPOCH_CHECKPOINT)
    try:
        return max(LeaderEpochCheckpoint(path, storage).read(), default=(-1, 0))[0]
    except CheckpointError:
        return -1


def _origin(storage: Storage, log_dir: LogDir, tp: TopicPartition) -> str | None:
    """The log directory from which a log says that it was moved; None if it says nothing."""
    try:
        data = load_file(storage, _marker(log_dir, tp), _PATH_MAX)
        return None if data is None else data.decode().removesuffix("\n")
    except (CheckpointError, UnicodeDecodeError):
        return None


def _marker(log_dir: LogDir, tp: TopicPartition) -> str:
    return posixpath.join(log_dir.directory_of(tp), filenames.MOVED_FROM)


def _change(
    storage: Storage,
    log_dir: LogDir,
    before: str,
    after: str,
    failed: dict[str, StorageFailedError],
) -> None:
    logger.warning("%s in %s becomes %s: a move was ending", before, log_dir.path, after)
    try:
        storage.rename(*(posixpath.join(log_dir.path, name) for name in (before, after)))
        storage.sync_dir(log_dir.path)
    except OSError as error:
        failed[log_dir.path] = StorageFailedError(log_dir.path, "end a move", str(error))


__all__ = ["FutureLogs", "settle_moves"]
