"""Make a log durable: flushes, and the syncs that a roll or a truncation leaves to do.

The files of the log are synced, and changed in place, under ``flush_lock``. The WRITE lock is taken
inside it only for moments, so that appends go on during a sync.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from logstore.common.config import MAX_LONG
from logstore.common.errors import InvariantError, LogMovedError, ResourceBusyError
from logstore.common.locks import Rank, make_lock
from logstore.common.shield import shielded
from logstore.log.core import LogCore, logger
from logstore.log.writing.state import LogState, TruncationPhase
from logstore.log.writing.writer import LogWriter
from logstore.segments.open_files import with_idle_closed
from logstore.segments.segment import Segment


class LogFlusher:
    """Syncs a log. Methods named ``…_flush_locked`` need ``flush_lock``."""

    def __init__(self, core: LogCore, state: LogState, writer: LogWriter) -> None:
        self._core = core
        self._state = state
        self._writer = writer
        self.flush_lock = make_lock(Rank.FLUSH)
        self.last_flush_ms = core.clock.wall_ms()
        self._has_unwritten = True  # perhaps
        writer.await_truncation = self.complete_truncation
        writer.await_flush = self.flush

    def after_append(self, last_offset: int, *, sync: bool = False) -> None:
        """Do what an append leaves to do after it has released the WRITE lock.

        Raises:
            StorageFailedError, ResourceBusyError: the records are in the log, and not durable.
        """
        state = self._state
        if state.epochs_due:
            state.epochs_due = False  # before: later epochs need another write
            if self._is_short_for(self.save_epochs):
                state.epochs_due = True
        if state.upkeep_due:
            state.upkeep_due = False
            self._core.owner.background(self._try_upkeep)
        if sync or last_offset >= state.flush_at:
            with_idle_closed(partial(self.flush, last_offset + 1))

    def _try_upkeep(self) -> None:
        if self._is_short_for(self.upkeep):
            self._state.upkeep_due = True

    def _is_short_for(self, task: Callable[[], None]) -> bool:
        """Run a task that may wait. Returns whether a resource is short for it.

        An append that is in the log does not fail for that.
        """
        try:
            with_idle_closed(task)
        except ResourceBusyError as error:
            logger.warning("left to the next append: %s", error)
            return True
        return False

    def flush(self, offset: int | None = None) -> None:
        """Make all records below ``offset`` (default: the log end) durable.

        One sync serves all waiting threads: it covers everything appended before it began.

        Raises:
            StorageFailedError: a sync failed; it is never tried again (F-224).
        """
        core = self._core
        target = core.snapshot.log_end_offset if offset is None else offset
        try:
            core.check()
            if not self._covered(target):
                self._flush(target)
        except LogMovedError as moved:  # the records were appended before, so they are there
            moved.successor.flush(target)

    @shielded
    def _flush(self, target: int) -> None:
        core = self._core
        with self.flush_lock, core.doing("flush"):
            core.check()
            if not self._covered(target):  # otherwise another thread's sync covered it
                self.settle_flush_locked()
                if not self._covered(target):
                    self.flush_flush_locked()

    @shielded
    def flush_overdue(self) -> None:
        """Sync what ``flush.messages`` does not allow to be unsynced, without an append.

        After a start the page cache may hold records of a process that was killed before its sync,
        and a replica would count them as kept. Also, a new limit may be lower than the old one.

        Raises:
            StorageFailedError, ResourceBusyError: the records are in the log, and not durable.
        """
        self._core.check_owner()
        end = self._core.snapshot.log_end_offset
        if end > self._state.flush_at:
            with_idle_closed(partial(self.flush, end))

    def _covered(self, offset: int) -> bool:
        state = self._state
        return offset <= state.synced and state.segments.active.name_durable

    def flush_flush_locked(self, *, everything: bool = False) -> None:
        """Sync all above the recovery point, then move it up (F-220).

        Only the ``.log`` of the active segment is synced: after a crash its indexes are rebuilt
        anyway, because the segment that holds the recovery point is always recovered whole. Its
        indexes are synced once it is no longer active, or with ``everything``.
        """
        state = self._state
        self.complete_truncation_flush_locked()
        with state.lock:
            start, end = state.synced, state.log_end_offset
            # The active one also if it is empty, because it may have been cut.
            segments = state.segments.between(start, max(end, start) + 1)
            active = state.segments.active
        if end > start or everything:
            for segment in segments:
                segment.flush(indexes=everything or segment is not active)
        if any(not segment.name_durable for segment in segments):
            self.sync_names_flush_locked(segments)
        self.save_epochs_flush_locked()
        with state.lock:
            state.note_synced_locked(end)
        self.last_flush_ms = self._core.clock.wall_ms()

    def sync_names_flush_locked(self, segments: tuple[Segment, ...]) -> None:
        """Make the present names of the segments durable."""
        names = [segment.suffix for segment in segments]
        self._core.storage.sync_dir(self._core.directory)
        for segment, name in zip(segments, names, strict=True):
            segment.name_durable = segment.suffix == name

    def save_epochs_flush_locked(self) -> None:
        """Write the epoch file if the cache has changed, without the WRITE lock."""
        state = self._state
        with state.lock:
            epochs = state.epochs
            entries = None if epochs.saved else epochs.entries
        if entries is not None:
            epochs.write(entries)
            with state.lock:
                epochs.mark_saved(entries)

    @shielded
    def save_epochs(self) -> None:
        with self.flush_lock:
            if isinstance(self._core.failure, LogMovedError):
                return  # the move has taken them along
            self._core.check()
            with self._core.doing("write leader-epoch-checkpoint"):
                self.save_epochs_flush_locked()

    # -- rolls and cuts that are not durable ---------------------------------------------------

    @shielded
    def upkeep(self) -> None:
        """Make every sealed segment durable, give its successor the final name, and write the
        epochs. Does nothing if the log is closed.
        """
        with self.flush_lock:
            if self._core.failure is None:
                with self._core.doing("flush after a roll"):
                    self.settle_flush_locked()
                    self.save_epochs_flush_locked()
                if self.unwritten_bytes:
                    self._write_again_flush_locked(MAX_LONG)

    @property
    def unwritten_bytes(self) -> int:
        """How many bytes ``write_again`` has left to do. Once there are none, none come."""
        if self._has_unwritten:
            left = sum(segment.unwritten.size for segment in self._state.segments.snapshot())
            self._has_unwritten = left > 0
            return left
        return 0

    @shielded
    def write_again(self, size: int) -> int:
        """Write about ``size`` bytes of what a crash may have left in the page cache alone.

        A flush writes all of it first: this makes that flush shorter, and the time in which the
        kernel may drop such a page. Returns the bytes written; 0 if there are none, or the log is
        closed.
        """
        if not self.unwritten_bytes:
            return 0
        with self.flush_lock:
            return 0 if self._core.failure else self._write_again_flush_locked(size)

    def _write_again_flush_locked(self, size: int) -> int:
        written = 0
        for segment in self._state.segments.snapshot():
            before = segment.unwritten.size
            if before and written < size:
                with self._core.doing("write again"):
                    segment.write_again(size - written)
                written += before - segment.unwritten.size
        return written

    def settle_flush_locked(self) -> None:
        """Sync sealed segments, then rename their successors, the oldest first.

        Segments that are rolled during this wait for the next call, so that a fast writer cannot
        keep it running. The recovery point stays if a sync fails (KAFKA-9892).
        """
        state = self._state
        with state.lock:
            rolls = tuple(state.unsettled)
            if not rolls:
                return
            sealed = state.segments.between(state.synced, rolls[-1].segment.base_offset)
        segments = tuple(dict.fromkeys((*sealed, *(roll.before for roll in rolls))))
        for segment in segments:
            segment.flush(indexes=True)
        for roll in rolls:
            if roll.snapshot is not None:
                state.producers.sync_snapshot(roll.snapshot)
        self.sync_names_flush_locked(segments)
        self.save_epochs_flush_locked()
        for roll in rolls:
            roll.segment.take_final_name()
            roll.before.release()
        with state.lock:
            del state.unsettled[: len(rolls)]
            state.note_synced_locked(min(rolls[-1].segment.base_offset, state.log_end_offset))
        self.last_flush_ms = self._core.clock.wall_ms()

    @shielded
    def complete_truncation(self) -> None:
        """Make a truncation durable, including names, before anything is written after it."""
        with self.flush_lock:
            self._core.check()
            with self._core.doing("flush a truncation"):
                self.complete_truncation_flush_locked()

    def complete_truncation_flush_locked(self) -> None:
        state = self._state
        if state.truncation is TruncationPhase.UNDER_WAY:  # it holds this lock until it is done
            raise self._core.fail("truncate", InvariantError("it was interrupted half way"))
        if state.truncation is TruncationPhase.NOT_DURABLE:
            self.sync_truncation()
            if self._core.owner.on_truncation is not None:
                self._core.owner.on_truncation()
            with state.lock:
                self.mark_truncation_durable_locked()

    def sync_truncation(self) -> None:
        with self._state.segments.active.file.held() as file:
            file.sync()
        self._core.storage.sync_dir(self._core.directory)

    def mark_truncation_durable_locked(self) -> None:
        self._state.truncation = TruncationPhase.NONE
        self._state.segments.active.state.cut_pending = False

    @shielded
    def roll(self) -> None:
        """Roll as `PartitionLog.roll`."""
        state = self._state
        with state.lock:
            self._writer.enter_locked()
            if state.segments.active.size:
                with self._core.doing("roll"):
                    self._writer.roll_locked(state.log_end_offset)
        self.after_append(-1)
