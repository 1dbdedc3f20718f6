"""Removing bytes from a log, and its end: truncation, retention, index repair, close.

Segments are removed under ``structure_lock``. The lock of the flusher is taken inside it, and the
WRITE lock only for moments, so that readers and appends go on.

Bytes are always removed in this order: publish a snapshot without them under another version, then
change the files. So a reader either works on bytes that stay, or finds that the version has
changed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from operator import index
from typing import NamedTuple

from checkpoints.errors import CheckpointError
from checkpoints.leader_epoch_checkpoint import LeaderEpochCheckpoint
from checkpoints.partition_metadata import PartitionMetadata, PartitionMetadataFile
from logstore.common.config import MAX_LONG, LogConfig
from logstore.common.errors import CorruptIndexError, InconsistentTopicIdError, LogstoreError
from logstore.common.locks import Rank, make_lock
from logstore.common.shield import shielded
from logstore.format import filenames
from logstore.log.core import LogCore, logger
from logstore.log.snapshot import LogView
from logstore.log.writing.flushing import LogFlusher
from logstore.log.writing.state import LogState, TruncationPhase
from logstore.log.writing.writer import LogWriter
from logstore.segments.open_files import closed_for_appends
from logstore.segments.producer_state import ProducerStateManager
from logstore.segments.rebuild import rebuild_indexes, rebuild_producers
from logstore.segments.segment import Segment, SegmentTruncation
from logstore.segments.segment_view import SegmentView

KEEPS_ALL = LogConfig(retention_ms=-1, retention_bytes=-1)


class _PlannedTruncation(NamedTuple):
    keep: int  # the segments that stay; the last one is truncated and becomes active
    before: SegmentView  # this last segment before that
    change: SegmentTruncation
    end_offset: int


class LogMaintenance:
    """Removes bytes and closes the log.

    Methods named ``…_locked`` need the locks in their names.
    """

    def __init__(
        self, core: LogCore, state: LogState, writer: LogWriter, flusher: LogFlusher
    ) -> None:
        self._core = core
        self._state = state
        self._writer = writer
        self._flusher = flusher
        self.structure_lock = make_lock(Rank.STRUCTURE)
        self.restarting = False  # whether all records are being dropped
        self._deleted: list[tuple[int, str]] = []  # (due ms, path) of files marked .deleted

    # -- truncate ------------------------------------------------------------------------------

    @shielded
    def truncate_to(self, offset: int) -> bool:
        """Truncate as `PartitionLog.truncate_to`."""
        if index(offset) < 0:
            raise ValueError(f"cannot truncate to offset {offset}")
        core, state = self._core, self._state
        with self.structure_lock:
            core.check()
            if offset < state.segments[0].base_offset:
                self._restart_structure_locked(offset, offset)
                return True
            with self._flusher.flush_lock:
                core.check()
                with core.doing("flush before a truncation"):
                    self._flusher.settle_flush_locked()
                with core.doing("truncate", whole=False):
                    with state.lock:
                        # A leadership that began here and wrote nothing is forgotten (F-278).
                        if offset >= state.log_end_offset:
                            state.epochs.truncate_from_end(state.log_end_offset)
                            return False
                        previous = state.truncation
                        state.truncation = TruncationPhase.UNDER_WAY  # appends wait from here on
                    try:
                        with core.doing("plan a truncation"):
                            # A roll may have happened before appends began to wait.
                            self._flusher.settle_flush_locked()
                            planned = self._plan_truncation_structure_flush_locked(offset)
                            producers = self._producers_at(planned.end_offset)
                    except BaseException:
                        state.truncation = previous  # nothing was changed
                        raise
                    self._truncate_structure_flush_locked(planned, producers)
        return True

    def _restart_flush_locked(self) -> None:
        """After all records are durably gone, and before the first new one, have owners drop what
        they store about the log, which describes the old records.
        """
        on_restart = self._core.owner.on_restart
        if on_restart is not None:
            start, base = self._state.log_start_offset, self._state.segments[0].base_offset
            on_restart(start if start > base else None)  # else what was deleted comes back
        self.restarting = False

    def _plan_truncation_structure_flush_locked(self, offset: int) -> _PlannedTruncation:
        """Plan what the segment with ``offset`` becomes without its end."""
        try:
            return self._planned_truncation(offset)
        except CorruptIndexError:
            log = LogView(self._core.snapshot)
            self._repair_structure_flush_locked(log[log.floor(offset)])
            return self._planned_truncation(offset)

    def _planned_truncation(self, offset: int) -> _PlannedTruncation:
        """Plan the end at the base of the batch with ``offset``: nothing is appended inside one."""
        log = LogView(self._core.snapshot)
        at = log.floor(offset)
        before = log[at]
        span = before.find(offset)
        end, position = min(offset, log.snapshot.log_end_offset), before.size
        if span is not None:
            end, position = min(end, span.base_offset), span.position
        change = before.segment.plan_truncation(before, position, end)
        return _PlannedTruncation(at + 1, before, change, end)

    def _producers_at(self, end_offset: int) -> ProducerStateManager:
        """A separate copy of the producer state at ``end_offset``."""
        old = self._state.producers
        producers = ProducerStateManager(
            self._core.storage, self._core.directory, old.expiration_ms
        )
        producers.set_snapshots(old.snapshots)
        if old.always_empty:
            producers.map_end_offset = self._state.log_end_offset
        rebuild_producers(
            producers,
            self._state.segments.snapshot(),
            self._state.log_start_offset,
            end_offset,
            self._core.clock.wall_ms(),
        )
        return producers

    def _truncate_structure_flush_locked(
        self, planned: _PlannedTruncation, producers: ProducerStateManager
    ) -> None:
        state, end = self._state, planned.end_offset
        segments = list(state.segments)
        keep, gone = segments[: planned.keep], segments[planned.keep :]
        with state.lock:
            empties = self.restarting = end <= state.log_start_offset
            keep[-1].apply_truncation(planned.change, end)
            keep[-1].state.cut_pending = True
            state.replace_segments_locked(keep)
            state.note_truncation_locked(end)
            state.log_start_offset = min(state.log_start_offset, end)
            state.epochs.truncate_from_end(end)
            state.high_watermark = min(state.high_watermark, end)
            state.replace_producers_locked(producers)
            state.publish_removal_locked()
        self._remove_newest_first(gone)
        keep[-1].truncate_files(planned.before, end)
        if empties:
            self._flusher.sync_truncation()
            self._restart_flush_locked()
        with state.lock:
            state.truncation = TruncationPhase.NOT_DURABLE
            if empties:
                self._flusher.mark_truncation_durable_locked()
            state.publish_removal_locked()  # the file may have been replaced

    @shielded
    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Drop all records. The log becomes empty at ``offset`` (F-269 … F-277).

        Raises:
            ValueError: below 0, or above 2**63 - 1.
        """
        start = offset if log_start_offset is None else log_start_offset
        if not (0 <= index(offset) <= MAX_LONG and 0 <= index(start) <= MAX_LONG):
            raise ValueError(f"cannot start at offset {offset} with log start {start}")
        with self.structure_lock:
            self._core.check()
            self._restart_structure_locked(offset, start)

    def _restart_structure_locked(self, offset: int, log_start_offset: int) -> None:
        core, state = self._core, self._state
        with core.doing("truncate", whole=False), self._flusher.flush_lock:
            with state.lock:
                core.check()
                self.restarting = True
                state.truncation = TruncationPhase.UNDER_WAY
                old = list(state.segments)
                segment = state.new_segment(offset)
                segment.state.cut_pending = True
                state.unsettled.clear()
                state.replace_segments_locked([segment])
                state.note_truncation_locked(offset)
                state.log_start_offset = log_start_offset
                state.high_watermark = max(offset, log_start_offset)
                state.epochs.clear(durable=False)
                producers = ProducerStateManager(
                    core.storage, core.directory, state.producers.expiration_ms
                )
                producers.set_snapshots(state.producers.snapshots)
                state.replace_producers_locked(producers)
                core.listeners.note_truncation(0)
                state.publish_removal_locked()
            self._remove_newest_first(old)
            producers.truncate_fully_and_start_at(offset)
            segment.create()
            self._flusher.save_epochs_flush_locked()
            self._flusher.sync_truncation()
            self._restart_flush_locked()
            with state.lock:
                self._flusher.mark_truncation_durable_locked()
                state.publish_removal_locked()

    # -- retention -----------------------------------------------------------------------------

    @shielded
    def delete_old_segments(self, *, only_released: bool = False) -> int:
        """Delete what retention allows (F-282 … F-285); the number of segments deleted.

        Args:
            only_released: delete what lies below the log start, whatever the configuration says.
        """
        core, state = self._core, self._state
        with self.structure_lock:
            core.check()
            now_ms = core.clock.wall_ms()
            with core.doing("choose segments to delete"):
                doomed = self._release_structure_locked(now_ms, only_released)
            with core.doing("delete segments", whole=False):
                # The oldest first and durably one by one, so that a crash leaves no hole in the
                # log. The epochs of a segment may be forgotten once a crash cannot bring it back.
                for segment in doomed:
                    with self._flusher.flush_lock:
                        self._mark_deleted(segment)
                        core.storage.sync_dir(core.directory)
                if doomed:
                    with self._flusher.flush_lock:
                        with state.lock:
                            state.epochs.truncate_from_start(state.log_start_offset)
                        self._flusher.save_epochs_flush_locked()
                self._purge_structure_locked(now_ms)
            return len(doomed)

    def _release_structure_locked(self, now_ms: int, only_released: bool) -> list[Segment]:
        """Remove expired segments from what readers see. Their files do not change yet."""
        core, state = self._core, self._state
        log = LogView(core.snapshot)
        count = deletable_segments(log, KEEPS_ALL if only_released else core.config, now_ms)
        if not count:
            return []
        if count == len(log):
            with state.lock, core.doing("roll"):
                self._writer.enter_locked()
                if log.snapshot.log_end_offset != state.log_end_offset:
                    count -= 1  # records were appended since, so it stays
                else:
                    self._writer.roll_locked(state.log_end_offset)
        with self._flusher.flush_lock:
            self._flusher.settle_flush_locked()  # no successor has to wait for a segment that goes
            with state.lock:
                segments = list(state.segments)
                doomed, rest = segments[:count], segments[count:]
                state.raise_log_start_locked(max(state.log_start_offset, rest[0].base_offset))
                state.replace_segments_locked(rest)
                state.publish_removal_locked()
            if not rest[0].name_durable:  # alone, a roll would not tell where the log ended
                self._flusher.sync_names_flush_locked((rest[0],))
        return doomed

    def _mark_deleted(self, segment: Segment) -> None:
        """Rename to ``.deleted`` now, unlink after ``file.delete.delay.ms`` (F-288)."""
        core = self._core
        due = core.clock.wall_ms() + core.config.file_delete_delay_ms
        paths = segment.mark_deleted()
        with self._state.lock:
            snapshot = self._state.producers.forget_snapshot(segment.base_offset)
        if snapshot is not None:
            marked = self._state.producers.mark_deleted(snapshot)
            paths += [marked] if marked else []
        self._deleted += [(due, path) for path in paths]

    def move_to(self, directory: str) -> None:
        """Take over the new path of the directory, of a log that nobody else uses."""
        core, state = self._core, self._state
        core.directory = state.producers.directory = directory
        path = os.path.join(directory, filenames.LEADER_EPOCH_CHECKPOINT)
        state.epochs.move_to(LeaderEpochCheckpoint(path, core.storage))
        for segment in state.segments:
            segment.move_to(directory)
        self._deleted = [
            (due, os.path.join(directory, os.path.basename(path))) for due, path in self._deleted
        ]

    def remove_later_structure_locked(self, paths: list[str]) -> None:
        """Unlink these ``.deleted`` files after ``file.delete.delay.ms``."""
        due = self._core.clock.wall_ms() + self._core.config.file_delete_delay_ms
        self._deleted += [(due, path) for path in paths]

    def _remove_newest_first(self, segments: list[Segment]) -> None:
        """Remove segments durably one by one, so that a crash leaves no hole in the log (S-37)."""
        for segment in reversed(segments):
            self._mark_deleted(segment)
            self._core.storage.sync_dir(self._core.directory)

    @property
    def has_deleted(self) -> bool:
        """Whether ``purge_deleted`` may have something to do."""
        return bool(self._deleted)

    @shielded
    def purge_deleted(self, now_ms: int) -> int:
        """Unlink ``.deleted`` files that are due; how many."""
        if not self._core.closed:
            self._core.check_owner()
        if not self._deleted:  # most logs, most of the time
            return 0
        with self.structure_lock:
            if self._core.closed:  # the paths may belong to another log
                return 0
            return self._purge_structure_locked(now_ms)

    def _purge_structure_locked(self, now_ms: int) -> int:
        due = [entry for entry in self._deleted if entry[0] <= now_ms]
        later = [entry for entry in self._deleted if entry[0] > now_ms]
        removed = 0
        try:
            for _, path in due:
                with self._core.doing("remove a deleted file"), suppress(FileNotFoundError):
                    self._core.storage.remove(path)
                removed += 1
        finally:
            self._deleted = later + due[removed:]  # if a resource is short it is tried again
        return removed

    # -- other changes in place ----------------------------------------------------------------

    @shielded
    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Write ``partition.metadata``, as `PartitionLog.assign_topic_id`."""
        with self.structure_lock:
            self._core.check()
            known = self._core.topic_id
            if known is not None:
                if known != topic_id:
                    raise InconsistentTopicIdError(
                        f"{self._core.directory} belongs to topic id {known}, not {topic_id}"
                    )
                return
            path = os.path.join(self._core.directory, filenames.PARTITION_METADATA)
            with self._core.doing("write partition.metadata"):
                file = PartitionMetadataFile(path, self._core.storage)
                file.write(PartitionMetadata(topic_id))
            self._core.topic_id = topic_id

    @shielded
    def configure(self, config: LogConfig) -> None:
        """Use another configuration from the next operation on.

        Records that ``flush.messages`` no longer allows to be unsynced wait for ``flush_overdue``,
        and are not in ``LogReplica.kept_end_offset``.
        """
        with self._state.lock:
            self._core.check()
            self._state.configure_locked(config)

    @shielded
    def repair_indexes(self, suspects: list[SegmentView]) -> None:
        """Rebuild indexes that readers found misleading, if their segments are still in the log."""
        with self.structure_lock, self._flusher.flush_lock:
            if self._core.failure is not None:
                return
            with self._core.doing("rebuild an index"):
                for view in suspects:
                    self._repair_structure_flush_locked(view)

    def _repair_structure_flush_locked(self, view: SegmentView) -> None:
        state = self._state
        segment = view.segment
        with state.lock:  # the active one still grows, and its index is in memory anyway
            if segment is state.segments.active:
                logger.warning("%s: index rebuilt", segment.log_path)
                rebuild_indexes(segment)
                state.publish_locked()
                return
        if not any(view is known for known in self._core.snapshot.sealed):
            return  # rebuilt, cut or removed since
        logger.warning("%s: index rebuilt", segment.log_path)
        rebuild_indexes(segment)
        with state.lock:
            state.replace_view_locked(view, segment.live())
            state.publish_locked()

    # -- the end -------------------------------------------------------------------------------

    def close(self, when_durable: Callable[[], None]) -> None:
        """Close as `PartitionLog.close`. ``when_durable`` is called once everything is durable."""
        core, state = self._core, self._state
        with self.structure_lock, self._flusher.flush_lock:
            if core.closed:
                return
            with state.lock:
                failed = core.failure is not None
                if not failed:
                    state.publish_locked()  # what an interrupted append left out
                    core.mark_closed()  # no append from here on
            try:
                if not failed:
                    self._close_files()
                    when_durable()
            finally:
                self._release()

    def _close_files(self) -> None:
        """Sync and trim all files, so that a clean start can trust them without reading records."""
        core, state = self._core, self._state
        try:
            self._flusher.settle_flush_locked()
            self._flusher.complete_truncation_flush_locked()
            state.producers.map_end_offset = state.log_end_offset
            state.producers.take_snapshot(sync=True)
            for segment in state.segments:
                segment.seal()
            self._flusher.flush_flush_locked(everything=True)
            core.storage.sync_dir(core.directory)  # the snapshot's name too
            self._purge_structure_locked(2**63)
        except (OSError, CheckpointError, LogstoreError, MemoryError) as error:
            core.failure = None
            raise core.fail("close", error) from error

    @shielded
    def release(self) -> None:
        """Release all files as they are, as the end of the process does."""
        with self.structure_lock, self._flusher.flush_lock:
            with self._state.lock:
                self._core.mark_closed()  # no append from here on
            self._release()

    def _release(self) -> None:
        self._core.mark_closed()
        closed_for_appends(self._writer)
        for segment in self._state.segments:
            segment.close()


def deletable_segments(log: LogView, config: LogConfig, now_ms: int) -> int:
    """Count the oldest segments that log start, size or time release, in this order.

    It is Kafka's ``deleteOldSegments`` (F-282 … F-284).

    Never a segment that reaches the high watermark, and never an empty last one.
    """
    doomed = 0
    snapshot = log.snapshot

    def extend(qualifies: Callable[[SegmentView, int | None], bool]) -> None:
        nonlocal doomed
        while doomed < len(log):
            segment = log[doomed]
            last = doomed + 1 == len(log)
            if snapshot.high_watermark < log.end_of(doomed) or (last and segment.size == 0):
                return
            if not qualifies(segment, None if last else log.base_of(doomed + 1)):
                return
            doomed += 1

    extend(lambda _, next_base: next_base is not None and next_base <= snapshot.log_start_offset)
    if config.delete and config.retention_bytes >= 0:
        excess = sum(log[at].size for at in range(doomed, len(log))) - config.retention_bytes

        def above_limit(segment: SegmentView, next_base: int | None) -> bool:
            nonlocal excess
            if excess < segment.size:
                return False
            excess -= segment.size
            return True

        extend(above_limit)
    if config.delete and config.retention_ms >= 0:
        extend(lambda segment, _: now_ms - segment.largest_timestamp > config.retention_ms)
    return doomed
