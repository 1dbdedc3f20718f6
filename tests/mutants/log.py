"""Broken logs: what they make durable, and what their recovery believes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from checkpoints import clean_shutdown
from logstore.common.errors import CorruptDataError
from logstore.kernels import SCAN_BAD_OFFSET
from logstore.log import PartitionLog
from logstore.log.maintenance import LogMaintenance
from logstore.log.replica import LogReplica
from logstore.log.writing import writer
from logstore.log.writing.flushing import LogFlusher
from logstore.log.writing.state import TruncationPhase
from logstore.log.writing.validation import ProducerUpdates
from logstore.manager import LogManager
from logstore.manager.opener import LogOpener
from logstore.recovery import crash_recovery, recovery, replacements, set_aside
from logstore.recovery.clean_start import CleanEnd
from logstore.recovery.replacements import Replacements, SplitPiece
from logstore.recovery.set_aside import CutSurvey, Remover
from logstore.segments import rebuild as replay
from logstore.segments.index import TransactionIndex
from logstore.segments.leader_epochs import LeaderEpochCache
from logstore.segments.producer_state import ProducerStateManager
from logstore.segments.segment import Segment
from logstore.segments.segment_view import SegmentView
from logstore.storage.memory import MemoryFile
from logstore.testing import FaultyStorage
from replication.partition import follower
from replication.replica_manager import replica_manager
from tests.mutants import MonkeyPatch, mutant


@mutant(crash=3)
def flush_without_sync(patch: MonkeyPatch) -> None:
    """A flush returns, and nothing was synced."""
    patch.setattr(Segment, "flush", lambda self, *, indexes: None)


@mutant()
def unsynced_records_counted_after_a_start(patch: MonkeyPatch) -> None:
    """Records that a kill left in the page cache count although flush.messages asks for a sync."""
    patch.setattr(LogFlusher, "flush_overdue", lambda self: None)


@mutant()
def acknowledged_before_sync(patch: MonkeyPatch) -> None:
    """With flush.messages=1 the sync comes a little after the answer."""
    after_append = LogFlusher.after_append

    def mutant(self: LogFlusher, last_offset: int, *, sync: bool = False) -> None:
        self._core.owner.background(lambda: after_append(self, last_offset, sync=sync))

    patch.setattr(LogFlusher, "after_append", mutant)


@mutant()
def asks_on_without_settling(patch: MonkeyPatch) -> None:
    """A follower goes on fetching behind an append that could not be synced."""

    def settle(manager: LogManager, tps: Any) -> None:
        manager.housekeeper.checkpoint_truncations(tps)

    patch.setattr(follower, "finish_changes", settle)
    patch.setattr(replica_manager, "finish_changes", settle)


@mutant()
def leader_counts_before_its_sync(patch: MonkeyPatch) -> None:
    """A leader commits what it has written, and could not sync."""
    end = property(lambda self: self._state.log_end_offset)
    patch.setattr(LogReplica, "kept_end_offset", end)


@mutant()
def whole_disk_called_damaged(patch: MonkeyPatch) -> None:
    """Once in the life of a disk, recovery finds damage in a log that has none."""
    load = LogOpener.load
    told = WeakSet[Any]()

    def mutant(self: LogOpener, log_dir: Any, tp: Any, *args: Any, **options: Any) -> PartitionLog:
        log = load(self, log_dir, tp, *args, **options)
        if not log_dir.clean and log.log_end_offset >= 8 and self.storage not in told:
            told.add(self.storage)
            log.crash()
            raise CorruptDataError(log.directory, 0, "damage that is not there")
        return log

    patch.setattr(LogOpener, "load", mutant)


@mutant()
def clean_marker_kept(patch: MonkeyPatch) -> None:
    """The marker of a clean stop outlives the start after it, and is believed whatever is there."""

    def end(last: Segment, recovery_point: int | None) -> CleanEnd:
        return CleanEnd(last.live().read_next_offset()[0])

    patch.setattr(clean_shutdown, "remove", lambda path, files: clean_shutdown.exists(path, files))
    patch.setattr(recovery, "clean_end", end)


@mutant(crash=8)
def torn_tail_not_cut(patch: MonkeyPatch) -> None:
    """Recovery finds the end of the good batches, and leaves the rest in the file."""
    patch.setattr(set_aside.Remover, "cut", lambda self, segment, position, reason, **_: None)


@mutant(crash=481)
def cut_not_made_durable(patch: MonkeyPatch) -> None:
    """What is appended after a truncation may reach the disk without it."""

    def settle(self: LogFlusher) -> None:
        if self._state.truncation is TruncationPhase.NOT_DURABLE:
            self.mark_truncation_durable_locked()

    patch.setattr(LogFlusher, "complete_truncation_flush_locked", settle)


@mutant()
def duplicates_not_recognised(patch: MonkeyPatch) -> None:
    """A retried batch of an idempotent producer is not compared with those it repeats."""
    nothing = ProducerUpdates([], [], [])
    patch.setattr(writer, "check_producers", lambda *args: nothing)


@mutant()
def producers_forgotten_in_recovery(patch: MonkeyPatch) -> None:
    """After a restart nobody remembers which sequences are in the log."""
    patch.setattr(recovery._Loader, "_load_producers", lambda self, *args: None)


# -- seen on a disk that crashes ------------------------------------------------------------------


@mutant(crash=0)
def recovery_point_without_sync(patch: MonkeyPatch) -> None:
    """The recovery point moves to the log end although only part of it was flushed."""
    covered = LogFlusher.flush_flush_locked

    def mutant(self: LogFlusher, **options: Any) -> None:
        self._state.note_synced_locked(self._state.log_end_offset)
        covered(self, **options)

    patch.setattr(LogFlusher, "flush_flush_locked", mutant)


@mutant(cuts=9)
def snapshot_of_a_roll_not_synced(patch: MonkeyPatch) -> None:
    """It has its name, and the segment before it may be deleted."""
    patch.setattr(ProducerStateManager, "sync_snapshot", lambda self, offset: None)


@mutant(crash=0)
def no_directory_sync(patch: MonkeyPatch) -> None:
    """Names are never made durable."""
    patch.setattr(FaultyStorage, "sync_dir", lambda self, path: None)


@mutant(crash=61)
def roll_without_sync(patch: MonkeyPatch) -> None:
    """A new segment may exist while the end of the one before is lost."""
    final = Segment.take_final_name

    def create(self: Segment) -> None:
        original(self)
        final(self)

    original = Segment.create
    patch.setattr(Segment, "create", create)


@mutant(crash=6)
def no_crc_in_recovery(patch: MonkeyPatch) -> None:
    """Recovery believes every batch whose header looks right."""

    def lenient(segment: Segment, **options: Any) -> Any:
        scan = original(segment, **options)
        for span in segment.live().walk(scan.valid_bytes):
            if span.magic != 2:
                break
            return _Shifted(scan, span.position + span.size, span.last_offset + 1)
        return scan

    original = crash_recovery.scan_segment
    patch.setattr(crash_recovery, "scan_segment", lenient)


class _Shifted:
    """A scan that claims one batch more than was good."""

    def __init__(self, scan: Any, valid_bytes: int, next_offset: int) -> None:
        self._scan, self.valid_bytes, self.next_offset = scan, valid_bytes, next_offset
        self.batch_count = scan.batch_count + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scan, name)


@mutant(crash=2354)
def marker_kept(patch: MonkeyPatch) -> None:
    """The marker of a clean stop outlives the start after it."""
    patch.setattr(clean_shutdown, "remove", lambda path, files: clean_shutdown.exists(path, files))


@mutant(crash=0)
def epochs_not_rebuilt(patch: MonkeyPatch) -> None:
    """The epoch file is believed where it is missing or behind the batches."""
    patch.setattr(LeaderEpochCache, "assign", _assign_only_durably)
    patch.setattr(recovery._Loader, "_derive_epochs", lambda self, *_: None)


_assign = LeaderEpochCache.assign


def _assign_only_durably(
    self: LeaderEpochCache, epoch: int, start_offset: int, *, durable: bool = True
) -> None:
    if durable:
        _assign(self, epoch, start_offset)


@mutant(crash=2)
def snapshots_not_replayed(patch: MonkeyPatch) -> None:
    """Producer state is what the newest snapshot says, with nothing after it."""
    patch.setattr(replay, "apply_batch", lambda producers, batch, segment: None)


@mutant(crash=199)
def stale_producers_after_truncation(patch: MonkeyPatch) -> None:
    """What the log knows of its producers is left as it was."""
    patch.setattr(LogMaintenance, "_producers_at", lambda self, offset: self._state.producers)


@mutant(crash=2)
def indexes_not_rebuilt(patch: MonkeyPatch) -> None:
    """Recovery leaves the indexes as the crash left them, and lookups believe them."""
    patch.setattr(Segment, "install_indexes", lambda self, offsets, times: None)
    patch.setattr(SegmentView, "_leads_to_batch", lambda self, entry: True)


@mutant()
def rebuilt_transactions_not_synced(patch: MonkeyPatch) -> None:
    """Recovery writes a transaction index below the recovery point, and nothing syncs it."""
    patch.setattr(TransactionIndex, "sync", lambda self: None)


@mutant()
def rebuilt_transactions_not_announced(patch: MonkeyPatch) -> None:
    """A transaction index that is half written looks like any other."""
    patch.setattr(crash_recovery.CrashRecovery, "_announce_rebuild", lambda self, segment: None)


@mutant()
def what_a_doubtful_stop_loses_is_not_kept(patch: MonkeyPatch) -> None:
    """Behind a clean marker all was flushed, whatever the recovery point says."""
    cut = Remover.cut

    def mutant(
        self: Remover, segment: Segment, position: int, reason: str, *, flushed: bool
    ) -> None:
        cut(self, segment, position, reason, flushed=flushed and not self._report.clean_doubt)

    patch.setattr(Remover, "cut", mutant)


@mutant()
def one_offset_may_be_there_twice(patch: MonkeyPatch) -> None:
    """The last record of a segment may have the offset at which the next one begins."""
    read = SegmentView.read_next_offset

    def mutant(self: SegmentView) -> tuple[int, int]:
        end, timestamp = read(self)
        return end - 1, timestamp

    def before_overlap(segments: list[Segment], first: int) -> int:
        with MonkeyPatch.context() as inner:
            inner.setattr(SegmentView, "read_next_offset", mutant)
            return original(segments, first)

    original = recovery._before_overlap
    patch.setattr(recovery, "_before_overlap", before_overlap)


# -- recovery --------------------------------------------------------------------------------------


@mutant()
def falling_epochs_end_the_scan(patch: MonkeyPatch) -> None:
    """As before: what lies behind the fall is cut."""
    scan_segment = crash_recovery.scan_segment

    def mutant(segment: Segment, **options: Any) -> Any:
        scan = scan_segment(segment, **options)
        epoch = -1
        for span in segment.live().walk(0):
            if span.leader_epoch < epoch:
                shifted = _Shifted(scan, span.position, span.base_offset)
                shifted.status = SCAN_BAD_OFFSET  # type: ignore[attr-defined]
                return shifted
            epoch = span.leader_epoch
        return scan

    patch.setattr(crash_recovery, "scan_segment", mutant)


@mutant()
def the_first_batch_cut_is_not_looked_at(patch: MonkeyPatch) -> None:
    def mutant(segment: Segment, position: int) -> CutSurvey:
        span = next(segment.live().walk(position), None)
        return survey_cut(segment, position + span.size) if span else CutSurvey(0, True, False)

    survey_cut = set_aside.survey_cut
    patch.setattr(set_aside, "survey_cut", mutant)


@mutant()
def the_kept_copy_is_not_synced(patch: MonkeyPatch) -> None:
    """It has its name, and the cut is durable, before its bytes are on the disk."""
    sync = FaultyStorage.on_sync

    def mutant(self: FaultyStorage, file: MemoryFile) -> None:
        if not file.path.endswith(".tmp"):
            sync(self, file)

    patch.setattr(FaultyStorage, "on_sync", mutant)


@mutant()
def the_name_of_the_kept_copy_is_not_synced(patch: MonkeyPatch) -> None:
    copy, sync_dir = Remover._copy, FaultyStorage.sync_dir

    def mutant(self: Remover, segment: Segment, position: int) -> None:
        with MonkeyPatch.context() as inner:
            inner.setattr(FaultyStorage, "sync_dir", lambda self, path: None)
            copy(self, segment, position)
        assert FaultyStorage.sync_dir is sync_dir

    patch.setattr(Remover, "_copy", mutant)


@mutant()
def nobody_is_told(patch: MonkeyPatch) -> None:
    """The bytes are kept, and the report says nothing."""
    cut = Remover.cut

    def mutant(
        self: Remover, segment: Segment, position: int, reason: str, *, flushed: bool
    ) -> None:
        before = list(self._report.warnings)
        cut(self, segment, position, reason, flushed=flushed)
        self._report.warnings[:] = before

    patch.setattr(Remover, "cut", mutant)


@mutant()
def an_emptied_log_is_deleted(patch: MonkeyPatch) -> None:
    def mutant(self: Remover, segment: Segment, why: str) -> None:
        for path in segment.mark_deleted():
            self._storage.remove(path)

    patch.setattr(Remover, "remove", mutant)


@mutant()
def kept_files_are_replaced(patch: MonkeyPatch) -> None:
    info = FaultyStorage.info

    def mutant(self: FaultyStorage, path: str) -> Any:
        return None if path.endswith(".cut") else info(self, path)

    patch.setattr(FaultyStorage, "info", mutant)


@mutant()
def a_split_forgets_the_last_batch(patch: MonkeyPatch) -> None:
    split = Replacements.split

    def mutant(
        self: Replacements,
        segment: Segment,
        pieces: Sequence[SplitPiece],
        producers: ProducerStateManager,
    ) -> None:
        *_, last = segment.live().walk(0)
        segment.state.size = last.position
        split(self, segment, pieces, producers)

    patch.setattr(Replacements, "split", mutant)


@mutant()
def pieces_are_named_before_all_are_written(patch: MonkeyPatch) -> None:
    """The names of a split reach the disk in any order."""
    split = Replacements.split

    def mutant(self: Replacements, *arguments: Any) -> None:
        with MonkeyPatch.context() as inner:
            inner.setattr(FaultyStorage, "sync_dir", lambda self, path: None)
            split(self, *arguments)

    patch.setattr(Replacements, "split", mutant)


@mutant()
def every_jump_is_believed(patch: MonkeyPatch) -> None:
    def mutant(segment: Segment, scan: Any, limit: int, flushed: int) -> Any:
        plan = plan_split(segment, scan, 2**63, 2**63)
        span = next(segment.live().walk(plan.end), None)
        if len(plan.pieces) == 1 and span is not None:
            pieces = [*plan.pieces, SplitPiece(span.base_offset, plan.end)]
            return plan._replace(pieces=pieces, end=span.position + span.size)
        return plan

    plan_split = crash_recovery.plan_split
    patch.setattr(crash_recovery, "plan_split", mutant)


@mutant()
def a_roll_is_settled_wherever_it_begins(patch: MonkeyPatch) -> None:
    settle = crash_recovery.CrashRecovery._settle_roll

    def mutant(
        self: Any, done: list[Segment], pending: deque[Segment], log_start_offset: int
    ) -> bool:
        return settle(self, done, pending, 2**63)

    patch.setattr(crash_recovery.CrashRecovery, "_settle_roll", mutant)


@mutant()
def a_roll_is_settled_before_what_lies_before_it(patch: MonkeyPatch) -> None:
    """The segment before it is not brought to the disk first."""
    settle, sync = crash_recovery.CrashRecovery._settle_roll, FaultyStorage.on_sync

    def mutant(self: Any, *arguments: Any) -> bool:
        with MonkeyPatch.context() as inner:
            inner.setattr(FaultyStorage, "on_sync", lambda self, file: None)
            settled: bool = settle(self, *arguments)
        assert FaultyStorage.on_sync is sync
        return settled

    patch.setattr(crash_recovery.CrashRecovery, "_settle_roll", mutant)


@mutant()
def rolls_are_compactions(patch: MonkeyPatch) -> None:
    """Every ``.swap`` gets its final name."""
    patch.setattr(replacements, "roll_marks", lambda names, point: [])


@mutant()
def no_word_of_what_is_lost(patch: MonkeyPatch) -> None:
    load = recovery._Loader.load

    def mutant(self: Any, *arguments: Any) -> Any:
        loaded = load(self, *arguments)
        loaded.report.offsets_lost = None
        return loaded

    patch.setattr(recovery._Loader, "load", mutant)
