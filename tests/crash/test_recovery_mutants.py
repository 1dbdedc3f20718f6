"""The tests of recovery can see: each of these broken recoveries fails one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from logstore.kernels import SCAN_BAD_OFFSET
from logstore.recovery import crash_recovery, log_files, recovery, set_aside
from logstore.recovery.replacements import Replacements, SplitPiece
from logstore.recovery.set_aside import Remover, Stock
from logstore.segments.producer_state import ProducerStateManager
from logstore.segments.segment import Segment
from logstore.storage.memory import MemoryFile
from logstore.testing import FaultyStorage
from tests.crash import test_enumerated_damage as damage
from tests.crash import test_enumerated_replacements as replacements
from tests.crash.test_mutants import _Shifted

Patch = Callable[[pytest.MonkeyPatch], None]
Proof = Callable[[], None]


def falling_epochs_end_the_scan(patch: pytest.MonkeyPatch) -> None:
    """As before: what lies behind the fall is cut."""
    scan_segment = crash_recovery.scan_segment

    def mutant(segment: Segment, **options: Any) -> Any:
        scan = scan_segment(segment, **options)
        epoch = -1
        for span in segment.walk(0):
            if span.leader_epoch < epoch:
                shifted = _Shifted(scan, span.position, span.base_offset)
                shifted.status = SCAN_BAD_OFFSET  # type: ignore[attr-defined]
                return shifted
            epoch = span.leader_epoch
        return scan

    patch.setattr(crash_recovery, "scan_segment", mutant)


def the_first_batch_cut_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    def mutant(segment: Segment, position: int) -> Stock:
        span = next(segment.walk(position), None)
        return take_stock(segment, position + span.size) if span else Stock(0, True, False)

    take_stock = set_aside.take_stock
    patch.setattr(set_aside, "take_stock", mutant)


def the_copy_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """It has its name, and the cut is durable, before its bytes are on the disk."""
    sync = FaultyStorage.on_sync

    def mutant(self: FaultyStorage, file: MemoryFile) -> None:
        if not file.path.endswith(".tmp"):
            sync(self, file)

    patch.setattr(FaultyStorage, "on_sync", mutant)


def the_name_of_the_copy_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    copy, sync_dir = Remover._copy, FaultyStorage.sync_dir

    def mutant(self: Remover, segment: Segment, position: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(FaultyStorage, "sync_dir", lambda self, path: None)
            copy(self, segment, position)
        assert FaultyStorage.sync_dir is sync_dir

    patch.setattr(Remover, "_copy", mutant)


def nobody_is_told(patch: pytest.MonkeyPatch) -> None:
    """The bytes are kept, and the report says nothing."""
    cut = Remover.cut

    def mutant(
        self: Remover, segment: Segment, position: int, reason: str, *, flushed: bool
    ) -> None:
        before = list(self._report.warnings)
        cut(self, segment, position, reason, flushed=flushed)
        self._report.warnings[:] = before

    patch.setattr(Remover, "cut", mutant)


def an_emptied_log_is_deleted(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: Remover, segment: Segment, why: str) -> None:
        for path in segment.mark_deleted():
            self._storage.remove(path)

    patch.setattr(Remover, "remove", mutant)


def kept_files_are_replaced(patch: pytest.MonkeyPatch) -> None:
    info = FaultyStorage.info

    def mutant(self: FaultyStorage, path: str) -> Any:
        return None if path.endswith(".cut") else info(self, path)

    patch.setattr(FaultyStorage, "info", mutant)


def a_split_forgets_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    split = Replacements.split

    def mutant(
        self: Replacements,
        segment: Segment,
        pieces: Sequence[SplitPiece],
        producers: ProducerStateManager,
    ) -> None:
        *_, last = segment.walk(0)
        segment.state.size = last.position
        split(self, segment, pieces, producers)

    patch.setattr(Replacements, "split", mutant)


def pieces_are_named_before_all_are_written(patch: pytest.MonkeyPatch) -> None:
    """The names of a split reach the disk in any order."""
    split = Replacements.split

    def mutant(self: Replacements, *arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(FaultyStorage, "sync_dir", lambda self, path: None)
            split(self, *arguments)

    patch.setattr(Replacements, "split", mutant)


def pieces_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "flush", lambda self, *, indexes: None)


def every_jump_is_believed(patch: pytest.MonkeyPatch) -> None:
    def mutant(segment: Segment, scan: Any, limit: int, flushed: int) -> Any:
        plan = plan_split(segment, scan, 2**63, 2**63)
        span = next(segment.walk(plan.end), None)
        if len(plan.pieces) == 1 and span is not None:
            pieces = [*plan.pieces, SplitPiece(span.base_offset, plan.end)]
            return plan._replace(pieces=pieces, end=span.position + span.size)
        return plan

    plan_split = crash_recovery.plan_split
    patch.setattr(crash_recovery, "plan_split", mutant)


def a_roll_is_settled_wherever_it_begins(patch: pytest.MonkeyPatch) -> None:
    settle = crash_recovery.CrashRecovery._settle_roll

    def mutant(
        self: Any, done: list[Segment], pending: deque[Segment], log_start_offset: int
    ) -> bool:
        return settle(self, done, pending, 2**63)

    patch.setattr(crash_recovery.CrashRecovery, "_settle_roll", mutant)


def a_roll_is_settled_before_what_lies_before_it(patch: pytest.MonkeyPatch) -> None:
    """The segment before it is not brought to the disk first."""
    settle, sync = crash_recovery.CrashRecovery._settle_roll, FaultyStorage.on_sync

    def mutant(self: Any, *arguments: Any) -> bool:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(FaultyStorage, "on_sync", lambda self, file: None)
            settled: bool = settle(self, *arguments)
        assert FaultyStorage.on_sync is sync
        return settled

    patch.setattr(crash_recovery.CrashRecovery, "_settle_roll", mutant)


def rolls_are_compactions(patch: pytest.MonkeyPatch) -> None:
    """Every ``.swap`` gets its final name."""
    patch.setattr(log_files, "roll_marks", lambda names, point: [])


def no_word_of_what_is_lost(patch: pytest.MonkeyPatch) -> None:
    load = recovery._Loader.load

    def mutant(self: Any, *arguments: Any) -> Any:
        loaded = load(self, *arguments)
        loaded.report.offsets_lost = None
        return loaded

    patch.setattr(recovery._Loader, "load", mutant)


def one(shape: str) -> Proof:
    return lambda: damage.test_valid_bytes_that_are_cut_are_kept_counted_and_told_of(shape)


MUTANTS: dict[Patch, Proof] = {
    falling_epochs_end_the_scan: lambda: damage.test_batches_of_a_lower_epoch_are_kept(False),
    the_first_batch_cut_is_not_looked_at: one("the first batch cut is whole"),
    the_copy_is_not_synced: (
        lambda: damage.test_no_crash_loses_what_recovery_sets_aside("behind a torn batch")
    ),
    the_name_of_the_copy_is_not_synced: (
        lambda: damage.test_no_crash_loses_what_recovery_sets_aside("behind a torn batch")
    ),
    nobody_is_told: one("the first batch cut is whole"),
    an_emptied_log_is_deleted: (
        lambda: damage.test_a_log_that_holds_batches_is_never_emptied_in_silence(False)
    ),
    kept_files_are_replaced: damage.test_what_was_kept_before_is_not_replaced,
    a_split_forgets_the_last_batch: (
        lambda: replacements.test_a_segment_that_spans_too_many_offsets_is_split(False)
    ),
    pieces_are_named_before_all_are_written: (
        lambda: replacements.test_no_crash_loses_anything_of_a_split("alone")
    ),
    pieces_are_not_synced: lambda: replacements.test_no_crash_loses_anything_of_a_split("alone"),
    every_jump_is_believed: replacements.test_a_jump_that_what_follows_contradicts_is_damage,
    a_roll_is_settled_wherever_it_begins: (
        lambda: replacements.test_a_roll_whose_predecessor_lost_its_tail_is_set_aside(
            (24,), replacements.SIZE
        )
    ),
    a_roll_is_settled_before_what_lies_before_it: (
        replacements.test_a_roll_is_settled_only_once_what_lies_before_it_is_on_the_disk
    ),
    rolls_are_compactions: (
        lambda: replacements.test_a_roll_whose_predecessor_lost_its_tail_is_set_aside(
            (24,), replacements.SIZE
        )
    ),
    no_word_of_what_is_lost: (
        lambda: damage.test_a_log_shorter_than_its_recovery_point_says_what_is_lost(False)
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        MUTANTS[mutant]()
