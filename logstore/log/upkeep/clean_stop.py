"""Files that a log without a manager leaves behind, so that its next start is a clean one.

``clean-stop`` in the partition's directory says how ``close`` left the log. Every open in this
library first removes it durably, and trusts it only if the files are still as it says: any other
writer changes the size or the time of the last segment.

The log directory may also have a manager's or a broker's files about all its partitions. An open of
one partition alone removes what they promise about it.
"""

from __future__ import annotations

import os
from contextlib import suppress
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
from checkpoints.errors import MalformedCheckpointError
from checkpoints.offset_checkpoint import LOG_START, RECOVERY_POINT, OffsetCheckpoint
from checkpoints.types import TopicPartition
from logstore.format import filenames
from logstore.log.core.core import logger
from logstore.log.core.holding import all_holds, parent_of
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.storage.base import FileInfo, Storage

_SIZE_MAX = 4096  # bytes


class StartPoint(NamedTuple):
    """What a start may rely on. ``recovery_point`` is None if none is on file."""

    clean: bool
    recovery_point: int | None
    log_start_offset: int


class CleanStop(NamedTuple):
    """How ``close`` left a log: offsets, and base, size and time in ms of the last segment."""

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


# -- the log directory around it -------------------------------------------------------------------


def take_start_point(storage: Storage, directory: str) -> StartPoint:
    """Find out how the last owner left a log, and durably invalidate that.

    The caller holds the lock of the log directory.

    Raises:
        OSError, CheckpointError: the medium refused.
        InvalidTopicError: the directory's name is not ``topic-partition``.
    """
    parent = parent_of(directory)
    parsed = filenames.parse_partition_dir(os.path.basename(os.path.normpath(directory)))
    tp = parsed.topic_partition
    if parsed.suffix:  # the entries belong to another log
        return StartPoint(False, None, 0)
    there = storage.info(directory) is not None
    stop = read_clean_stop(storage, directory) if there else None
    start = _entry(storage, parent, LOG_START, tp)
    point = _entry(storage, parent, RECOVERY_POINT, tp)
    marker = os.path.join(parent, clean_shutdown.CLEAN_SHUTDOWN)
    clean = clean_shutdown.exists(marker, storage)
    if there:
        remove_clean_stop(storage, directory)
    if clean:
        clean_shutdown.remove(marker, storage)
    if point is not None:  # it describes a log that has not been changed since
        _set_entry(storage, parent, RECOVERY_POINT, tp, None)
    if stop is not None:
        first = max(stop.log_start_offset, start or 0)
        if first <= stop.log_end_offset:
            return StartPoint(True, stop.log_end_offset, first)
    if not there:
        if start is not None:  # of a deleted log of this name
            _set_entry(storage, parent, LOG_START, tp, None)
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


def leave_start_point(
    storage: Storage, directory: str, tp: TopicPartition, first_base: int, start: int, end: int
) -> None:
    """Write the mark, and the checkpoints that a manager or a broker will read.

    Raises:
        OSError, CheckpointError: the medium refused.
    """
    parent = parent_of(directory)
    _set_entry(storage, parent, LOG_START, tp, start if start > first_base else None)
    if storage.info(os.path.join(parent, RECOVERY_POINT)) is not None:
        _set_entry(storage, parent, RECOVERY_POINT, tp, end)
    write_clean_stop(storage, directory, start, end)


def keep_log_start(storage: Storage, directory: str, tp: TopicPartition, start: int | None) -> None:
    """Make a log start durable, or remove it before the log begins elsewhere.

    Raises:
        OSError, CheckpointError: the medium refused.
    """
    _set_entry(storage, parent_of(directory), LOG_START, tp, start)


def _entry(storage: Storage, parent: str, name: str, tp: TopicPartition) -> int | None:
    try:
        return OffsetCheckpoint(os.path.join(parent, name), storage).read().get(tp)
    except MalformedCheckpointError as error:
        logger.warning("%s; taken as absent", error)
        return None


def _set_entry(
    storage: Storage, parent: str, name: str, tp: TopicPartition, offset: int | None
) -> None:
    """Change one entry. The guard of all open logs is held, because they share these files."""
    checkpoint = OffsetCheckpoint(os.path.join(parent, name), storage)
    with all_holds():
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
