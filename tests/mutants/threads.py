"""Broken logs, each with one thing left out that keeps threads apart."""

from __future__ import annotations

from typing import Any

from logstore.common.errors import LogstoreError, StorageFailedError
from logstore.common.locks import Rank, make_lock
from logstore.format.index_entry import AbortedTxn
from logstore.log import maintenance
from logstore.log.core import LogCore
from logstore.log.listeners import ChangeListeners
from logstore.log.maintenance import LogMaintenance
from logstore.log.reading.snapshot_reader import LogReader
from logstore.log.snapshot import LogView
from logstore.log.writing import flushing, state
from logstore.log.writing.flushing import LogFlusher
from logstore.log.writing.state import LogState, TruncationPhase
from logstore.log.writing.writer import LogWriter
from logstore.segments.index import TransactionIndex
from logstore.segments.segment import Segment
from logstore.segments.segment_view import SegmentView
from tests.mutants import MonkeyPatch, mutant


class _NoLock:
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return True

    def release(self) -> None: ...

    def locked(self) -> bool:
        return False

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *exc: object) -> None: ...


def _without(patch: MonkeyPatch, module: Any, dropped: Rank) -> None:
    def make(rank: Rank, *plain: Any) -> Any:
        return _NoLock() if rank is dropped else make_lock(rank, *plain)

    patch.setattr(module, "make_lock", make)


@mutant(interleavings=15)
def no_write_lock(patch: MonkeyPatch) -> None:
    _without(patch, state, Rank.WRITE)


@mutant(interleavings="flush, roll")
def no_flush_lock(patch: MonkeyPatch) -> None:
    _without(patch, flushing, Rank.FLUSH)


@mutant(interleavings="retention, retention")
def no_structure_lock(patch: MonkeyPatch) -> None:
    _without(patch, maintenance, Rank.STRUCTURE)


class _LiveView(SegmentView):
    @property
    def size(self) -> int:  # type: ignore[override]
        return int(self.segment.state.size)

    @size.setter
    def size(self, size: int) -> None: ...


@mutant(interleavings="available bytes, append")
def live_size(patch: MonkeyPatch) -> None:
    """Readers take the size that the active segment has, not the one that was published."""
    original = LogView._active_view

    def mutant(self: LogView) -> SegmentView:
        view = original(self)
        return _LiveView(view.segment, 0, view.offset_entries, view.time_entries)

    patch.setattr(LogView, "_active_view", mutant)


@mutant(interleavings=115)
def no_second_look(patch: MonkeyPatch) -> None:
    """A read counts although something was removed under it."""
    patch.setattr(LogReader, "moved", lambda self, log: self._core.failure is not None)


@mutant(interleavings=115)
def removal_unseen(patch: MonkeyPatch) -> None:
    """A removal is published under the same version."""
    patch.setattr(LogState, "publish_removal_locked", LogState.publish_locked)


@mutant(interleavings=4)
def range_unchecked(patch: MonkeyPatch) -> None:
    """What was deleted is read for as long as its files are there."""
    patch.setattr(LogReader, "check_range", lambda self, snapshot, offset: None)


@mutant(interleavings=3)
def published_before_written(patch: MonkeyPatch) -> None:
    """Readers are told of a batch that is not in the file yet."""
    original = LogWriter._segment_for_locked

    def mutant(self: LogWriter, size: int, first: int, last: int, largest: int) -> Segment:
        segment = original(self, size, first, last, largest)
        state = segment.state
        before = state.next_offset, state.size
        state.next_offset, state.size = last + 1, state.size + size
        self._state.publish_locked()
        state.next_offset, state.size = before
        return segment

    patch.setattr(LogWriter, "_segment_for_locked", mutant)


@mutant(interleavings=3)
def abort_indexed_late(patch: MonkeyPatch) -> None:
    """The index tells of an abort only after the log does."""
    waiting: list[tuple[TransactionIndex, tuple[AbortedTxn, ...]]] = []
    append, publish = TransactionIndex.append, LogState.publish_locked

    def later(self: TransactionIndex, *transactions: AbortedTxn) -> None:
        waiting.append((self, transactions))

    def mutant(self: LogState) -> None:
        publish(self)
        while waiting:
            index, transactions = waiting.pop()
            append(index, *transactions)

    patch.setattr(TransactionIndex, "append", later)
    patch.setattr(LogState, "publish_locked", mutant)


@mutant(interleavings=2)
def unstable_offset_ignored(patch: MonkeyPatch) -> None:
    """Committed readers are sent to the watermark, whatever is open."""

    def mutant(self: LogState) -> None:
        self.first_unstable = -1

    patch.setattr(LogState, "refresh_unstable_locked", mutant)


@mutant(interleavings=190)
def newest_first(patch: MonkeyPatch) -> None:
    """Retention removes the newest of several segments first."""
    original = LogMaintenance._release_structure_locked

    def mutant(self: LogMaintenance, now_ms: int) -> list[Segment]:
        return original(self, now_ms)[::-1]

    patch.setattr(LogMaintenance, "_release_structure_locked", mutant)


@mutant(interleavings=23)
def oldest_cut_first(patch: MonkeyPatch) -> None:
    """A truncation removes the oldest of several segments first."""
    original = LogMaintenance._remove_newest_first

    def mutant(self: LogMaintenance, segments: list[Segment]) -> None:
        original(self, segments[::-1])

    patch.setattr(LogMaintenance, "_remove_newest_first", mutant)


@mutant(interleavings=12)
def flush_limit_kept(patch: MonkeyPatch) -> None:
    """A truncation lowers the recovery point, but not the offset that is flushed by count."""

    def mutant(self: LogState, offset: int) -> None:
        self.recovery_point = offset
        limit = offset + self.core.config.flush_messages - 1
        self.flush_at = max(self.flush_at, limit)

    patch.setattr(LogState, "set_recovery_point_locked", mutant)


@mutant(interleavings=1)
def flush_by_count_forgotten(patch: MonkeyPatch) -> None:
    """An append beyond ``flush.messages`` returns without a sync."""
    original = LogFlusher.after_append

    def mutant(self: LogFlusher, last_offset: int, **options: Any) -> None:
        original(self, -1, **options)

    patch.setattr(LogFlusher, "after_append", mutant)


@mutant(interleavings=22)
def flush_of_another_moment(patch: MonkeyPatch) -> None:
    """The recovery point takes in what was appended beside the sync."""
    original = LogFlusher.flush_flush_locked

    def mutant(self: LogFlusher, **options: Any) -> None:
        original(self, **options)
        with self._state.lock:
            self._state.note_synced_locked(self._state.log_end_offset)

    patch.setattr(LogFlusher, "flush_flush_locked", mutant)


@mutant(interleavings=2)
def named_before_settled(patch: MonkeyPatch) -> None:
    """A new segment gets its final name before the one before it is durable."""
    original = LogFlusher.settle_flush_locked

    def mutant(self: LogFlusher) -> None:
        for roll in self._state.unsettled:
            roll.segment.take_final_name()
        original(self)

    patch.setattr(LogFlusher, "settle_flush_locked", mutant)


@mutant(interleavings="roll, truncate")
def roll_slips_in(patch: MonkeyPatch) -> None:
    """A truncation does not look again for a roll after it has stopped appends."""
    original = LogFlusher.settle_flush_locked

    def mutant(self: LogFlusher) -> None:
        if self._state.truncation is not TruncationPhase.UNDER_WAY:
            original(self)

    patch.setattr(LogFlusher, "settle_flush_locked", mutant)


@mutant(interleavings=226)
def append_into_a_cut(patch: MonkeyPatch) -> None:
    """Appends do not wait for a truncation that is under way."""
    original = LogWriter.enter_locked

    def mutant(self: LogWriter) -> None:
        if self._state.truncation is TruncationPhase.UNDER_WAY:
            self._core.check()
        else:
            original(self)

    patch.setattr(LogWriter, "enter_locked", mutant)


@mutant(interleavings="read, truncate and append")
def cut_before_published(patch: MonkeyPatch) -> None:
    """The file is cut while readers are still sent there."""
    original = LogMaintenance._truncate_structure_flush_locked

    def mutant(self: LogMaintenance, planned: Any, producers: Any) -> None:
        with planned.before.segment.file.held() as file:
            file.truncate(planned.change.position)
        original(self, planned, producers)

    patch.setattr(LogMaintenance, "_truncate_structure_flush_locked", mutant)


@mutant(interleavings=1)
def sync_under_the_write_lock(patch: MonkeyPatch) -> None:
    """An append that rolls syncs the old segment itself."""
    original = LogWriter.roll_locked

    def mutant(self: LogWriter, new_base: int) -> None:
        self._state.segments.active.flush(indexes=False)
        original(self, new_base)

    patch.setattr(LogWriter, "roll_locked", mutant)


@mutant(interleavings=1)
def locks_in_another_order(patch: MonkeyPatch) -> None:
    """A flush takes the WRITE lock first."""
    original = LogFlusher.flush

    def mutant(self: LogFlusher, offset: int | None = None) -> None:
        with self._state.lock:
            self._state.core.check()
            with self.flush_lock:
                pass
        original(self, offset)

    patch.setattr(LogFlusher, "flush", mutant)


@mutant(interleavings="append, close")
def closed_files_read_on(patch: MonkeyPatch) -> None:
    """A read that met a close reports what the files said."""

    def mutant(self: LogReader, log: LogView) -> bool:
        return bool(self._core.snapshot.version != log.snapshot.version)

    patch.setattr(LogReader, "moved", mutant)


@mutant(interleavings="flush beside one that fails")
def failure_forgotten(patch: MonkeyPatch) -> None:
    """After a failed sync the next one is believed."""

    def mutant(self: LogCore, operation: str, error: BaseException) -> LogstoreError:
        return StorageFailedError(self.directory, operation, str(error))

    patch.setattr(LogCore, "fail", mutant)


@mutant(interleavings=19)
def nobody_woken(patch: MonkeyPatch) -> None:
    """Who waits for records is not told of them."""
    patch.setattr(ChangeListeners, "wake_all", lambda self: None)


@mutant(interleavings="follow, truncate and append")
def cut_not_told(patch: MonkeyPatch) -> None:
    """Who follows is not told of a truncation."""
    patch.setattr(ChangeListeners, "note_truncation", lambda self, offset: None)


@mutant(interleavings=7)
def sync_forgotten(patch: MonkeyPatch) -> None:
    """``append(…, sync=True)`` does not wait."""
    original = LogFlusher.after_append

    def mutant(self: LogFlusher, last_offset: int, *, sync: bool = False) -> None:
        original(self, last_offset)

    patch.setattr(LogFlusher, "after_append", mutant)
