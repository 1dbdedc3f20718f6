"""A log without a manager: it is open only once, and its next start is a clean one.

The lock is that of the log directory around it, which Kafka and ``LogManager`` take too. Several
partitions of one directory may be open in one process, and then share its lock.

``clean-stop`` in the partition's directory says how ``close`` left the log. Every open in this
library first removes it durably, and trusts it only if the files are still as it says: any other
writer changes the size or the time of the last segment.

The log directory may also have a manager's or a broker's files about all its partitions. An open of
one partition alone removes what they promise about it.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from checkpoints import clean_shutdown
from checkpoints.checkpoint_file import (
    MAX_I64,
    frame,
    load_file,
    parse_entries,
    parse_number,
    store_file,
)
from checkpoints.errors import CheckpointError, MalformedCheckpointError
from checkpoints.offset_checkpoint import LOG_START, RECOVERY_POINT, OffsetCheckpoint
from logstore.common.errors import LogDirLockedError
from logstore.common.forks import in_child
from logstore.common.locks import Rank, make_lock
from logstore.common.shield import shielded
from logstore.common.types import TopicPartition
from logstore.format import filenames
from logstore.kernels import LogSnapshot
from logstore.log.core import logger, medium_error
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.storage.base import DirLock, FileInfo, Storage
from logstore.storage.local import LocalStorage

LOCK = ".lock"
_SIZE_MAX = 4096  # bytes of ``clean-stop``

_Key = tuple[object, str]


@dataclass(slots=True)
class _Shared:
    """The lock of one log directory, and the partitions that are open under it."""

    lock: DirLock
    partitions: set[str] = field(default_factory=set)


_guard = make_lock(Rank.MANAGER)
_shared: dict[_Key, _Shared] = {}


@in_child
def _forget_locks() -> None:
    """A child owns none of its parent's locks (``logstore.storage.local``)."""
    _shared.clear()
    _dropped.clear()


class StartPoint(NamedTuple):
    """The facts that a start may rely on. ``recovery_point`` is None if none is on file."""

    clean: bool
    recovery_point: int | None
    log_start_offset: int


class PartitionHold:
    """One open partition of this process. A second release does nothing."""

    __slots__ = ("_directory", "_key", "_parent", "_partition", "_shared", "_storage")

    def __init__(
        self, storage: Storage, directory: str, key: _Key, partition: str, shared: _Shared
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._parent = _parent_of(directory)
        self._key = key
        self._partition = partition
        self._shared: _Shared | None = shared

    def take_start_point(self) -> StartPoint:
        """Find out how the last owner left the log, and durably invalidate that.

        Raises:
            OSError, CheckpointError: the medium refused.
            InvalidTopicError: the directory's name is not ``topic-partition``.
        """
        storage, directory = self._storage, self._directory
        parsed = filenames.parse_partition_dir(os.path.basename(os.path.normpath(directory)))
        if parsed.suffix:  # the entries belong to another log
            return StartPoint(False, None, 0)
        there = storage.info(directory) is not None
        stop = read_clean_stop(storage, directory) if there else None
        start, point = self._entry(LOG_START), self._entry(RECOVERY_POINT)
        marker = os.path.join(self._parent, clean_shutdown.CLEAN_SHUTDOWN)
        clean = clean_shutdown.exists(marker, storage)
        if there:
            remove_clean_stop(storage, directory)
        if clean:
            clean_shutdown.remove(marker, storage)
        if point is not None:  # it describes a log that has not been changed since
            self._set_entry(RECOVERY_POINT, None)
        if stop is not None:
            first = max(stop.log_start_offset, start or 0)
            if first <= stop.log_end_offset:
                return StartPoint(True, stop.log_end_offset, first)
        if not there:
            if start is not None:  # of a deleted log of this name
                self._set_entry(LOG_START, None)
            return StartPoint(True, None, 0)
        if start is not None:
            end = DirectoryReader(directory, storage=storage).end_on_file()
            if start > end:
                logger.warning(
                    "%s: %s has log start %d, but the log ends at %d: ignored",
                    directory,
                    LOG_START,
                    start,
                    end,
                )
                return StartPoint(False, None, 0)
        return StartPoint(clean, point, start or 0)

    def leave_start_point(self, snapshot: LogSnapshot, first_base: int) -> None:
        """After a close has made everything durable, write what a clean start needs: the mark, and
        the checkpoints that a manager or a broker will read.
        """
        start, end = snapshot.log_start_offset, snapshot.log_end_offset
        try:
            self.keep_log_start(start if start > first_base else None)
            if self._storage.info(os.path.join(self._parent, RECOVERY_POINT)) is not None:
                self._set_entry(RECOVERY_POINT, end)
            write_clean_stop(self._storage, self._directory, start, end)
        except (OSError, CheckpointError) as error:
            logger.error("%s: the next start will recover: %s", self._directory, error)

    def keep_log_start(self, start: int | None) -> None:
        """Make a log start durable, or remove it before the log begins elsewhere.

        Raises:
            OSError, CheckpointError: the medium refused.
        """
        self._set_entry(LOG_START, start)

    def _checkpoint(self, name: str) -> OffsetCheckpoint:
        return OffsetCheckpoint(os.path.join(self._parent, name), self._storage)

    @property
    def _tp(self) -> TopicPartition:
        name = os.path.basename(os.path.normpath(self._directory))
        return filenames.parse_partition_dir(name).topic_partition

    def _entry(self, name: str) -> int | None:
        try:
            return self._checkpoint(name).read().get(self._tp)
        except MalformedCheckpointError as error:
            logger.warning("%s; taken as absent", error)
            return None

    def _set_entry(self, name: str, offset: int | None) -> None:
        """Change one entry. The guard of all open logs is held, because they share these files."""
        checkpoint, tp = self._checkpoint(name), self._tp
        with _guard:
            try:
                offsets = dict(checkpoint.read())
            except MalformedCheckpointError:
                return
            if offsets.get(tp) == offset:
                return
            if offset is None:
                del offsets[tp]
            else:
                offsets[tp] = offset
            checkpoint.write(offsets)

    def release(self) -> None:
        with _guard:
            shared, self._shared = self._shared, None
            if shared is not None:
                _release(self._key, self._partition, shared)
            _release_dropped()

    def __del__(self) -> None:
        # A log that was never closed. This may run under any lock, so the next call releases it.
        if self._shared is not None:
            _dropped.append((self._key, self._partition, self._shared))


_dropped: deque[tuple[_Key, str, _Shared]] = deque()


def _release_dropped() -> None:
    while _dropped:
        _release(*_dropped.popleft())


def _release(key: _Key, partition: str, shared: _Shared) -> None:
    shared.partitions.discard(partition)
    if not shared.partitions and _shared.get(key) is shared:
        del _shared[key]
        shared.lock.release()


@shielded
def hold_partition(storage: Storage, directory: str) -> PartitionHold:
    """Take the partition in ``directory``; its log directory is created when missing.

    Raises:
        LogDirLockedError: the partition is open already, or another owner has its log directory.
        StorageFailedError: the disk refused.
        ResourceBusyError: descriptors are short.
    """
    parent = _parent_of(directory)
    try:
        if storage.info(parent) is None:
            storage.make_dir(parent)
        partition = storage.real_path(directory)
        key = (_domain(storage), storage.real_path(parent))
        with _guard:
            _release_dropped()
            shared = _shared.get(key)
            if shared is not None and not shared.lock.held:  # released by a simulated crash
                del _shared[key]
                shared = None
            for (domain, _), other in _shared.items():
                if domain == key[0] and partition in other.partitions and other.lock.held:
                    raise LogDirLockedError(directory, f"this process (pid {os.getpid()})")
            if shared is None:
                shared = _Shared(storage.lock(os.path.join(parent, LOCK)))
                _shared[key] = shared
            shared.partitions.add(partition)
    except OSError as error:
        raise medium_error(parent, "lock", error) from error
    return PartitionHold(storage, directory, key, partition, shared)


def _parent_of(directory: str) -> str:
    return os.path.dirname(os.path.normpath(directory)) or "."


def _domain(storage: Storage) -> object:
    """An identity for storages that have the same files under the same paths."""
    return LocalStorage if isinstance(storage, LocalStorage) else storage


# -- the mark of a clean stop ----------------------------------------------------------------------


class CleanStop(NamedTuple):
    """The offsets at ``close``, and base, size and time in ms of the last segment."""

    log_start_offset: int
    log_end_offset: int
    base_offset: int
    size: int
    mtime_ms: int


def read_clean_stop(storage: Storage, directory: str) -> CleanStop | None:
    """The mark, if it exists and the files are still as it says.

    Raises:
        OSError, CheckpointFailedError: the medium refused.
    """
    path = os.path.join(directory, filenames.CLEAN_STOP)
    numbers: list[int | None] = []
    with suppress(MalformedCheckpointError):
        data = load_file(storage, path, _SIZE_MAX)
        if data is None:
            return None
        for _, fields in parse_entries(path, data, len(CleanStop._fields)):
            numbers = [parse_number(field, MAX_I64) for field in fields]
    if not numbers or None in numbers:
        logger.warning("%s is damaged: the log is recovered", path)
        return None
    stop = CleanStop(*numbers)  # type: ignore[arg-type]
    last = _last_segment(storage, directory)
    if last is None or (stop.size, stop.mtime_ms) != (last.size, last.mtime_ms):
        return None
    name = filenames.segment_file_name(stop.base_offset, filenames.LOG_SUFFIX)
    return stop if last.name == name else None


def write_clean_stop(
    storage: Storage, directory: str, log_start_offset: int, log_end_offset: int
) -> None:
    """Write the mark, after ``close`` has made everything durable.

    Raises:
        OSError, CheckpointFailedError: the write failed, so the next start recovers.
    """
    last = _last_segment(storage, directory)
    parsed = None if last is None else filenames.parse_segment_file(last.name)
    if last is None or parsed is None:
        return
    stop = CleanStop(log_start_offset, log_end_offset, parsed.offset, last.size, last.mtime_ms)
    line = " ".join(str(number) for number in stop)
    store_file(storage, os.path.join(directory, filenames.CLEAN_STOP), frame(line + "\n", 1))


def remove_clean_stop(storage: Storage, directory: str) -> None:
    """Remove the mark durably. A crash from here on is an unclean stop.

    An entry that is not a file was never trusted. The load renames it.
    """
    path = os.path.join(directory, filenames.CLEAN_STOP)
    info = storage.info(path)
    if info is None or not info.is_file:
        return
    storage.remove(path)
    storage.sync_dir(directory)


def _last_segment(storage: Storage, directory: str) -> FileInfo | None:
    """The last ``.log``; None also if a replacement or a roll is unfinished."""
    last = None
    for info in storage.scan_dir(directory):
        parsed = filenames.parse_segment_file(info.name)
        if parsed is None:
            continue
        if parsed.transition in (filenames.SWAP_SUFFIX, filenames.CLEANED_SUFFIX):
            return None
        if parsed.suffix == filenames.LOG_SUFFIX and not parsed.transition:
            last = info
    return last
