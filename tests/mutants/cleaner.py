"""Broken cleaners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logstore.cleaner import cleaner as passes
from logstore.cleaner.log_cleaner import LogCleaner
from logstore.cleaner.transactions import PassTransactions
from logstore.kernels import OffsetMap, RecordSieve
from logstore.log.replacing import LogReplacing
from logstore.log.writing.producing import LogProducers
from logstore.manager.offsets import OffsetCheckpoints
from logstore.testing import FaultyStorage
from tests.mutants import MonkeyPatch, mutant


@mutant(cleaner=0)
def tombstones_dropped_at_once(patch: MonkeyPatch) -> None:
    """The pass after the one that first sees a tombstone drops it before all have read it."""

    def mutant(
        offset_map: OffsetMap, now_ms: int, delete_retention_ms: int, *rest: Any
    ) -> RecordSieve:
        return RecordSieve(offset_map, now_ms, 0, *rest)

    patch.setattr(passes, "RecordSieve", mutant)


@mutant(cleaner=15)
def aborted_records_count(patch: MonkeyPatch) -> None:
    """Data of an aborted transaction supersedes what is committed."""

    def mutant(self: Any, *args: Any) -> bool:
        on_data(self, *args)
        return False

    on_data = PassTransactions.on_data
    patch.setattr(PassTransactions, "on_data", mutant)


@mutant(cleaner=47)
def the_checkpoint_runs_ahead(patch: MonkeyPatch) -> None:
    patch.setattr(OffsetCheckpoints, "note_cleaned", _note_far)


def _note_far(self: Any, tp: Any, offset: int, holds: Callable[[], bool]) -> bool:
    """Beyond what was cleaned."""
    with self._lock:
        stored = self._stored.get("cleaner-offset-checkpoint") or {}
        self._write_locked("cleaner-offset-checkpoint", {**stored, tp: offset + 4})
    return True


@mutant(cleaner=2)
def the_copy_is_not_synced(patch: MonkeyPatch) -> None:
    patch.setattr(passes.CleanedSegment, "flush", lambda self, indexes: None)


@mutant(cleaner=6)
def nothing_is_flushed_before(patch: MonkeyPatch) -> None:
    patch.setattr("logstore.log.writing.flushing.LogFlusher.flush", _only_if_due)


def _only_if_due(self: Any, offset: int | None = None) -> None:
    return None


@mutant(cleaner=6)
def the_names_are_not_synced(patch: MonkeyPatch) -> None:
    swap = LogReplacing._swap_structure_locked

    def mutant(self: Any, *args: Any) -> Any:
        with MonkeyPatch.context() as inner:
            inner.setattr(FaultyStorage, "sync_dir", lambda *_: None)
            return swap(self, *args)

    patch.setattr(LogReplacing, "_swap_structure_locked", mutant)


@mutant(cleaner=0, cuts=54)
def the_last_sequence_of_a_producer_goes(patch: MonkeyPatch) -> None:
    """With the last of its records: no empty batch stays in their place."""
    patch.setattr(LogProducers, "entries", lambda self: [])


@mutant(cleaner=762)
def the_log_start_may_move_back(patch: MonkeyPatch) -> None:
    patch.setattr(LogCleaner, "_keep_log_start", lambda self, tp, view: None)


@mutant(cleaner=0)
def the_oldest_record_stays(patch: MonkeyPatch) -> None:
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
