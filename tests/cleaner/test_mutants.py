"""The search can see: each of these broken cleaners is caught within a bounded number of seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logstore.cleaner import cleaner as passes
from logstore.cleaner.log_cleaner import LogCleaner
from logstore.cleaner.transactions import PassTransactions
from logstore.kernels import RecordSieve
from logstore.log.upkeep.replacing import LogReplacing
from logstore.manager.offsets import OffsetCheckpoints
from logstore.testing import FaultyStorage
from tests.cleaner.search import run

Patch = Callable[[pytest.MonkeyPatch], None]
SEEDS = 900


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def sieve_with(**changes: Any) -> Callable[..., RecordSieve]:
    names = ("offset_map", "now_ms", "delete_retention_ms", "upper_bound", "last_offsets")

    def make(*given: Any) -> RecordSieve:
        values = dict(zip(names, given, strict=True))
        values |= {name: change(values[name]) for name, change in changes.items()}
        return RecordSieve(*values.values())

    return make


def the_horizon_is_now(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(passes, "RecordSieve", sieve_with(delete_retention_ms=lambda _: 0))


def aborted_records_count(patch: pytest.MonkeyPatch) -> None:
    """Data of an aborted transaction supersedes what is committed."""

    def mutant(self: Any, *args: Any) -> bool:
        on_data(self, *args)
        return False

    on_data = PassTransactions.on_data
    patch.setattr(PassTransactions, "on_data", mutant)


def the_checkpoint_runs_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetCheckpoints, "note_cleaned", _note_far)


def _note_far(self: Any, tp: Any, offset: int, holds: Callable[[], bool]) -> bool:
    """Beyond what was cleaned."""
    with self._lock:
        stored = self._stored.get("cleaner-offset-checkpoint") or {}
        self._write_locked("cleaner-offset-checkpoint", {**stored, tp: offset + 4})
    return True


def the_copy_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(passes.CleanedSegment, "flush", lambda self, indexes: None)


def nothing_is_flushed_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("logstore.log.writing.flushing.LogFlusher.flush", _only_if_due)


def _only_if_due(self: Any, offset: int | None = None) -> None:
    return None


def the_names_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    swap = LogReplacing._swap_structure_locked

    def mutant(self: Any, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(FaultyStorage, "sync_dir", lambda *_: None)
            return swap(self, *args)

    patch.setattr(LogReplacing, "_swap_structure_locked", mutant)


def the_log_start_may_move_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogCleaner, "_keep_log_start", lambda self, tp, view: None)


def the_oldest_record_stays(patch: pytest.MonkeyPatch) -> None:
    """In place of the newest one."""
    mapped = passes._Pass._map_keys

    def mutant(self: Any) -> int:
        end: int = mapped(self)
        start = max(self._to_clean.first_dirty, self._log.log_start_offset)
        self._map.clear()
        for record in reversed(list(self._log.records(start, end))):
            self._map.put(record.key, record.offset)
        self._map.update_latest_offset(end - 1)
        return end

    patch.setattr(passes._Pass, "_map_keys", mutant)


# With the seed from which the search begins: the first one that finds it.
MUTANTS: list[tuple[Patch, int]] = [
    (the_horizon_is_now, 0),
    (the_copy_is_not_synced, 1),
    (nothing_is_flushed_before, 2),
    (the_oldest_record_stays, 7),
    (aborted_records_count, 15),
    (the_checkpoint_runs_ahead, 47),
    (the_names_are_not_synced, 190),
    (the_log_start_may_move_back, 762),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mutant", "first"), MUTANTS, ids=[m.__name__ for m, _ in MUTANTS])
def test_a_broken_cleaner_is_caught(
    mutant: Patch, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert any(run(seed).error is not None for seed in range(first, first + SEEDS))
