"""The search can see: each of these broken engines is caught within a bounded number of seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from checkpoints import clean_shutdown
from logstore.log.upkeep.maintenance import LogMaintenance
from logstore.log.writing.flushing import LogFlusher
from logstore.log.writing.writer import Cut
from logstore.recovery import crash_recovery, recovery, set_aside
from logstore.segments import rebuild as replay
from logstore.segments.leader_epochs import LeaderEpochCache
from logstore.segments.segment import Segment
from logstore.segments.segment_view import SegmentView
from logstore.testing import FaultyStorage
from tests.crash.simulated import run

Patch = Callable[[pytest.MonkeyPatch], None]


def flush_without_sync(patch: pytest.MonkeyPatch) -> None:
    """``flush`` returns, and nothing was synced."""
    patch.setattr(Segment, "flush", lambda self, *, indexes: None)


def recovery_point_without_sync(patch: pytest.MonkeyPatch) -> None:
    """The recovery point moves to the log end although only part of it was flushed."""
    covered = LogFlusher.flush_flush_locked

    def mutant(self: LogFlusher, **options: Any) -> None:
        self._writer.note_synced_locked(self._writer.log_end_offset)
        covered(self, **options)

    patch.setattr(LogFlusher, "flush_flush_locked", mutant)


def no_directory_sync(patch: pytest.MonkeyPatch) -> None:
    """Names are never made durable."""
    patch.setattr(FaultyStorage, "sync_dir", lambda self, path: None)


def cut_not_made_durable(patch: pytest.MonkeyPatch) -> None:
    """What is appended after a truncation may reach the disk without it."""

    def mutant(self: LogFlusher) -> None:
        if self._writer.cut is Cut.NOT_DURABLE:
            self.cut_is_durable_locked()

    patch.setattr(LogFlusher, "settle_cut_flush_locked", mutant)


def roll_without_sync(patch: pytest.MonkeyPatch) -> None:
    """A new segment may exist while the end of the one before is lost."""
    final = Segment.take_final_name

    def create(self: Segment) -> None:
        original(self)
        final(self)

    original = Segment.create
    patch.setattr(Segment, "create", create)


def no_crc_in_recovery(patch: pytest.MonkeyPatch) -> None:
    """Recovery believes every batch whose header looks right."""

    def lenient(segment: Segment, **options: Any) -> Any:
        scan = original(segment, **options)
        for span in segment.walk(scan.valid_bytes):
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


def tail_not_cut(patch: pytest.MonkeyPatch) -> None:
    """Recovery finds the end of the good batches, and leaves the rest in the file."""
    patch.setattr(set_aside.Remover, "cut", lambda self, segment, position, reason, **options: None)


def marker_kept(patch: pytest.MonkeyPatch) -> None:
    """The marker of a clean stop outlives the start after it."""
    patch.setattr(clean_shutdown, "remove", lambda path, files: clean_shutdown.exists(path, files))


def epochs_not_rebuilt(patch: pytest.MonkeyPatch) -> None:
    """The epoch file is believed where it is missing or behind the batches."""
    patch.setattr(LeaderEpochCache, "assign", _assign_only_durably)
    patch.setattr(recovery._Loader, "_derive_epochs", lambda self, segments, start: None)


_assign = LeaderEpochCache.assign


def _assign_only_durably(
    self: LeaderEpochCache, epoch: int, start_offset: int, *, durable: bool = True
) -> None:
    if durable:
        _assign(self, epoch, start_offset)


def snapshots_not_replayed(patch: pytest.MonkeyPatch) -> None:
    """Producer state is what the newest snapshot says, with nothing after it."""
    patch.setattr(replay, "apply_batch", lambda producers, batch, segment: None)


def stale_producers_after_truncation(patch: pytest.MonkeyPatch) -> None:
    """What the log knows of its producers is left as it was."""
    patch.setattr(LogMaintenance, "_producers_at", lambda self, offset: self._writer.producers)


def indexes_not_rebuilt(patch: pytest.MonkeyPatch) -> None:
    """Recovery leaves the indexes as the crash left them, and lookups believe them."""
    patch.setattr(Segment, "install_indexes", lambda self, offsets, times: None)
    patch.setattr(SegmentView, "_leads_to_batch", lambda self, entry: True)


MUTANTS: dict[Patch, int] = {
    flush_without_sync: 1,
    recovery_point_without_sync: 1,
    no_directory_sync: 1,
    cut_not_made_durable: 450,
    roll_without_sync: 1,
    no_crc_in_recovery: 1,
    tail_not_cut: 1,
    marker_kept: 150,
    epochs_not_rebuilt: 1,
    snapshots_not_replayed: 1,
    stale_producers_after_truncation: 200,
    indexes_not_rebuilt: 1550,
}
"""Each with the seed to begin with, to save time; from 1 on all are found too, if not by 200."""
SEEDS = 200


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    first = MUTANTS[mutant]
    found = next((r for r in map(run, range(first, first + SEEDS)) if r.failed), None)
    assert found is not None, f"{SEEDS} seeds did not see it"
    print(f"{mutant.__name__}: seed {found.seed}: {found.error}")
