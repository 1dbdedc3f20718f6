"""The offset checkpoints of one log directory (F-11 … F-14).

An entry has a name, which may belong to another log later. Three rules keep an entry with its log.
The entries of a name are durably dropped before the name may be used again. A load trusts only
entries whose name has a directory. A log that is being emptied has no entry until that is done. A
log without an entry is scanned from its start.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter

from checkpoints.checkpoint_file import FileState
from checkpoints.errors import MalformedCheckpointError
from checkpoints.loggers import get_logger
from checkpoints.offset_checkpoint import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from logstore.common.locks import Rank, make_lock
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog
from logstore.storage.base import Storage

logger = get_logger(__name__)

# In the order in which entries are dropped. A recovery point may equal a log start because nothing
# below that start is needed (F-222). Without the log start it would be wrong.
CHECKPOINTS = (RECOVERY_POINT, HIGH_WATERMARK, LOG_START, CLEANER)

Offsets = dict[TopicPartition, int]
ListLogs = Callable[[], Iterable[tuple[TopicPartition, PartitionLog]]]
OffsetOf = Callable[[PartitionLog], int | None]

recovery_point: Callable[[PartitionLog], int] = attrgetter("recovery_point")
high_watermark: Callable[[PartitionLog], int] = attrgetter("high_watermark")


class OffsetCheckpoints:
    """The checkpoints of one directory. One writer at a time; the content on disk is remembered.

    A write may raise ``CheckpointFailedError``. The caller then takes the directory offline.
    """

    def __init__(self, directory: str, storage: Storage) -> None:
        self._lock = make_lock(Rank.CHECKPOINT)
        self._files = {
            name: OffsetCheckpoint(posixpath.join(directory, name), storage) for name in CHECKPOINTS
        }
        # Without the files that are missing. None: damaged, or a write failed.
        self._stored: dict[str, Offsets | None] = {}
        self._unsure: set[str] = set()  # a write failed: the file has the old or the new content
        self.gone: set[TopicPartition] = set()  # those that had an entry and no log at the load
        # Entries of logs that could not be opened: every write keeps them until the log is
        # repaired.
        self._kept: dict[str, Offsets] = {name: {} for name in CHECKPOINTS}

    def load(self, present: Collection[TopicPartition]) -> None:
        """Read the files, and durably drop entries whose name is not in ``present``.

        A damaged file counts as absent, with a warning (S-55).

        Raises:
            CheckpointFailedError: the medium refused.
        """
        with self._lock:
            for name, file in self._files.items():
                try:
                    state, found = file.inspect()
                except MalformedCheckpointError as error:
                    logger.warning("%s; taken as absent", error)
                    self._stored[name] = None
                    continue
                if state is FileState.MISSING:
                    continue
                self._stored[name] = found
                kept = {tp: offset for tp, offset in found.items() if tp in present}
                if len(kept) < len(found):
                    self.gone |= found.keys() - kept.keys()
                    logger.warning("%s: drops entries of logs that are not here", file.path)
                    self._write_locked(name, kept)

    def stored(self, name: str) -> Offsets:
        """The content of one of ``CHECKPOINTS``."""
        return self._stored.get(name) or {}

    def is_there(self, name: str) -> bool:
        """Whether a checkpoint is on file, be it damaged."""
        return name in self._stored

    def keep_entries(self, tp: TopicPartition) -> None:
        """Keep the entries of ``tp``, whose log cannot be opened."""
        with self._lock:
            for name, kept in self._kept.items():
                offset = (self._stored.get(name) or {}).get(tp)
                if offset is not None:
                    kept[tp] = offset

    def forget_logs(self, gone: Collection[TopicPartition]) -> None:
        """Forget names, durably. One write of a file serves all of them."""
        with self._lock:
            for kept in self._kept.values():
                for tp in gone:
                    kept.pop(tp, None)
            # A new log has none as a rule, and then no file is looked through.
            if any(
                offsets is None or any(tp in offsets for tp in gone)
                for offsets in self._stored.values()
            ):
                self._keep_locked(lambda tp: tp not in gone)

    def lower_entries(self, logs: ListLogs, concerned: ListLogs | None = None) -> None:
        """Lower entries that are above their logs, after a load or a truncation.

        Once a log has grown again, the next start would trust them, and take records for flushed or
        committed that are not. One write of a file serves all logs; none is needed if no entry is
        above its log.

        Args:
            concerned: the truncated ones of ``logs``; all by default.
        """
        concerned = concerned or logs
        with self._lock:
            self._lower_locked(HIGH_WATERMARK, logs, concerned, high_watermark)
            self._lower_cleaned_locked(concerned, after_load=concerned is logs)
            if self._unsure.isdisjoint((LOG_START, RECOVERY_POINT)):
                self._lower_locked(RECOVERY_POINT, logs, concerned, recovery_point)
            else:
                self._write_recovery_points_locked(logs)

    # -- the cleaner ---------------------------------------------------------------------------

    def cleaned(self, tp: TopicPartition) -> int | None:
        """The offset below which the log is known to be clean."""
        with self._lock:
            return (self._stored.get(CLEANER) or {}).get(tp)

    def note_cleaned(self, tp: TopicPartition, offset: int, holds: Callable[[], bool]) -> bool:
        """Durably write how far a log is clean, if ``holds`` still confirms it.

        A truncation lowers the entry under the same lock, so an older result of a pass cannot
        replace it.
        """
        with self._lock:
            if not holds():
                return False
            stored = self._stored.get(CLEANER)
            if stored is None:  # missing, damaged or unsure: the other logs begin at their starts
                stored = self._kept[CLEANER]
            self._write_locked(CLEANER, {**stored, tp: offset})
            return True

    def _lower_cleaned_locked(self, concerned: ListLogs, *, after_load: bool) -> None:
        """Lower the entries of truncated logs: records after a cut were never mapped, so the log is
        dirty from the active segment on. After a load an entry above its log is wrong, and the
        whole log is dirty (F-290, F-313).
        """
        if CLEANER in self._unsure:
            self._write_locked(CLEANER, dict(self._kept[CLEANER]))
            return
        stored = self._stored.get(CLEANER)
        if not stored:
            return
        lowered: Offsets = {}
        for tp, log in concerned():
            offset = stored.get(tp)
            if offset is None or log.maintenance.restarting:
                continue
            if after_load:
                if offset > log.log_end_offset:
                    lowered[tp] = log.log_start_offset
            elif offset > log.snapshot.active.base_offset:
                lowered[tp] = log.snapshot.active.base_offset
        if lowered:
            self._write_locked(CLEANER, {**stored, **lowered})

    def restart_log(self, tp: TopicPartition, start: int | None) -> None:
        """Drop the entries of ``tp``, whose log has durably lost all its records.

        Args:
            start: its log start, if deleted records are left below.
        """
        with self._lock:
            starts = None if start is None else {tp: start}
            self._keep_locked(lambda other: other != tp, starts)

    def _keep_locked(
        self, belongs: Callable[[TopicPartition], bool], starts: Offsets | None = None
    ) -> None:
        for name in CHECKPOINTS:
            if name not in self._stored:
                continue
            stored = self._stored[name]
            before = self._kept[name] if stored is None else stored
            kept = {tp: offset for tp, offset in before.items() if belongs(tp)}
            if name == LOG_START:
                kept |= starts or {}
            if stored is None or kept != stored:
                self._write_locked(name, kept)

    def write(self, name: str, logs: ListLogs, offset_of: OffsetOf) -> None:
        """Write one checkpoint, unless the file has the same content."""
        with self._lock:
            self._write_locked(name, self._collect_locked(name, logs, offset_of))

    def write_recovery_points(self, logs: ListLogs) -> None:
        """Write the recovery points (F-11, F-227).

        The log starts go first. A recovery point that equals a log start means that nothing below
        it is needed (F-222). With an older log start on file it would cover records that were never
        flushed. For the same reason the points are collected before the starts. Both happen under
        one lock, so values from before a truncation never replace values from after it.
        """
        with self._lock:
            # After a truncation the next checkpoint of high watermarks would come too late.
            self._lower_locked(HIGH_WATERMARK, logs, logs, high_watermark)
            self._write_recovery_points_locked(logs)

    def _write_recovery_points_locked(self, logs: ListLogs) -> None:
        points = self._collect_locked(RECOVERY_POINT, logs, recovery_point)
        self._write_locked(LOG_START, self._collect_locked(LOG_START, logs, moved_start))
        self._write_locked(RECOVERY_POINT, points)

    def _lower_locked(
        self,
        name: str,
        logs: ListLogs,
        concerned: ListLogs,
        offset_of: Callable[[PartitionLog], int],
    ) -> None:
        if name in self._unsure:  # any entry may be too high
            self._write_locked(name, self._collect_locked(name, logs, offset_of))
            return
        stored = self._stored.get(name)
        if stored:
            above = {
                tp: offset
                for tp, log in concerned()
                if stored.get(tp, 0) > (offset := offset_of(log)) and not log.maintenance.restarting
            }
            if above:
                self._write_locked(name, stored | above)

    def _collect_locked(self, name: str, logs: ListLogs, offset_of: OffsetOf) -> Offsets:
        stored = self._stored.get(name) or {}
        found = dict(self._kept[name])
        for tp, log in logs():
            offset = offset_of(log)
            if (
                log.maintenance.restarting
            ):  # its old records may still come back, and then they need the entry
                offset = stored.get(tp)
            if offset is not None:
                found[tp] = offset
        return found

    def _write_locked(self, name: str, offsets: Offsets) -> None:
        if self._stored.get(name) == offsets:
            return
        self._stored[name] = None
        self._unsure.add(name)
        self._files[name].write(offsets)
        self._unsure.discard(name)
        self._stored[name] = offsets


def moved_start(log: PartitionLog) -> int | None:
    """The log start, or None if it is the base of the first segment (F-12)."""
    start = log.log_start_offset
    return start if start > log.segments[0].base_offset else None


__all__ = ["CHECKPOINTS", "HIGH_WATERMARK", "LOG_START", "RECOVERY_POINT", "OffsetCheckpoints"]
