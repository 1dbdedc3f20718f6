"""The search can see: each of these broken cleaners is caught within a bounded number of seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from logstore.cleaner import cleaner as passes
from logstore.cleaner.log_cleaner import LogCleaner
from logstore.cleaner.transactions import PassTransactions
from logstore.kernels import RecordSieve
from logstore.log.replacing import LogReplacing
from logstore.manager.offsets import OffsetCheckpoints
from logstore.replaced_list import ReplacedList
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


def the_map_says_more_than_it_has_seen(patch: pytest.MonkeyPatch) -> None:
    """A map that was full counts as complete: what is behind is taken for clean."""
    mapped = passes._Pass._map_keys

    def mutant(self: Any) -> int:
        mapped(self)
        self._map.update_latest_offset(self._to_clean.end - 1)
        return int(self._to_clean.end)

    patch.setattr(passes._Pass, "_map_keys", mutant)


def aborted_records_count(patch: pytest.MonkeyPatch) -> None:
    """Data of an aborted transaction supersedes what is committed."""

    def mutant(self: Any, *args: Any) -> bool:
        on_data(self, *args)
        return False

    on_data = PassTransactions.on_data
    patch.setattr(PassTransactions, "on_data", mutant)


def producers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(passes._Rewrite, "_must_stay", lambda self, batch: False)
    patch.setattr(passes, "RecordSieve", lambda *given: _Deaf(RecordSieve(*given)))


class _Deaf:
    """A sieve that does not listen to which batches must stay."""

    def __init__(self, sieve: RecordSieve) -> None:
        self._sieve = sieve

    def set_last_offsets(self, offsets: Sequence[int]) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sieve, name)


def the_checkpoint_runs_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetCheckpoints, "note_cleaned", _note_far)


def _note_far(self: Any, tp: Any, offset: int, holds: Callable[[], bool]) -> bool:
    """Beyond what was cleaned."""
    with self._lock:
        stored = self._stored.get("cleaner-offset-checkpoint") or {}
        self._write_locked("cleaner-offset-checkpoint", {**stored, tp: offset + 4})
    return True


def no_list_of_what_is_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplacedList, "write", lambda self, storage, directory: None)
    patch.setattr(ReplacedList, "vouches_for", lambda self, storage, path: True)


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


MUTANTS: list[Patch] = [
    the_horizon_is_now,
    the_map_says_more_than_it_has_seen,
    aborted_records_count,
    producers_are_forgotten,
    the_checkpoint_runs_ahead,
    the_copy_is_not_synced,
    nothing_is_flushed_before,
    the_names_are_not_synced,
    the_log_start_may_move_back,
    no_list_of_what_is_replaced,
    the_oldest_record_stays,
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_cleaner_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert any(run(seed).error is not None for seed in range(SEEDS)), mutant.__name__
