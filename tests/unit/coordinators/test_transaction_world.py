"""Random histories of transactions: the promises hold, and a coordinator or a log that forgets one
rule is found out (TransactionCoordinatorConcurrencyTest.testConcurrentRandomSequences). Long:
``python -m tests.support.transaction_world --seconds 600``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.segments.producer_state import ProducerAppend, ProducerStateManager, TransactionCheck
from replication.coordinators.effects import Append, StartTimer, WriteMarkers
from replication.coordinators.transactions import shard as shards
from replication.coordinators.transactions import transitions
from replication.coordinators.transactions.shard import TransactionShard
from replication.coordinators.transactions.state import TransactionVersion
from tests.support import transaction_world
from tests.support.transactional_histories import Fate
from tests.support.transactions import V1, V2

Patch = pytest.MonkeyPatch
SEEDS = 10
MUTANT_SEEDS = 150


@pytest.mark.parametrize("version", [V1, V2])
def test_every_promise_holds(version: TransactionVersion) -> None:
    fates: Counter[Fate] = Counter()
    for seed in range(SEEDS):
        world = transaction_world.run(seed, version)
        fates.update(attempt.fate for attempt in world.attempts if attempt.acknowledged)
    assert min(fates[fate] for fate in Fate) > 2, fates


# -- mutants: each forgets one rule ---------------------------------------------------------------


def _no_verification(patch: Patch) -> None:
    patch.setattr(ProducerAppend, "_check_verified", lambda self, batch: None)


def _verified_for_ever(patch: Patch) -> None:
    """A marker does not end what was confirmed for its transaction."""

    def update(self: ProducerStateManager, append: ProducerAppend) -> None:
        append.ended_epoch = -1
        original(self, append)

    original = ProducerStateManager.update
    patch.setattr(ProducerStateManager, "update", update)


def _markers_of_any_epoch(patch: Patch) -> None:
    original = ProducerAppend.__init__

    def init(self: ProducerAppend, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        if self._check is TransactionCheck.NEWER_EPOCH:
            self._check = TransactionCheck.NONE

    patch.setattr(ProducerAppend, "__init__", init)


def _fences_nobody(patch: Patch) -> None:
    original = transitions.fence

    def fence(known, now_ms):  # type: ignore[no-untyped-def]
        move = original(known, now_ms)
        epoch = known.producer_epoch
        return move._replace(target=replace(move.target, producer_epoch=epoch))

    patch.setattr(transitions, "fence", fence)
    patch.setattr(shards, "fence", fence)


def _gives_an_epoch_twice(patch: Patch) -> None:
    original = transitions._begin

    def begin(known, timeout_ms, expected, new_id, now_ms):  # type: ignore[no-untyped-def]
        move = original(known, timeout_ms, expected, new_id, now_ms)
        if known.producer_epoch < 0:
            return move
        target = replace(move.target, producer_epoch=known.producer_epoch)
        return move._replace(
            target=target, answer=move.answer._replace(producer_epoch=known.producer_epoch)
        )

    patch.setattr(transitions, "_begin", begin)


def _answers_before_it_is_written(patch: Patch) -> None:
    original = TransactionShard._write

    def write(self, entry, move, to):  # type: ignore[no-untyped-def]
        effects = original(self, entry, move, None)
        return [*shards._answered(to, move.answer), *effects]

    patch.setattr(TransactionShard, "_write", write)


def _forgets_a_partition(patch: Patch) -> None:
    original = TransactionShard._mark

    def mark(self, entry, prepared):  # type: ignore[no-untyped-def]
        return [e._replace(partitions=e.partitions[:1]) for e in original(self, entry, prepared)]

    patch.setattr(TransactionShard, "_mark", mark)


def _adds_without_a_record(patch: Patch) -> None:
    original = TransactionShard._write

    def write(self, entry, move, to):  # type: ignore[no-untyped-def]
        if move.target.state.name != "ONGOING":
            return original(self, entry, move, to)
        entry.current = move.target
        return shards._answered(to, move.answer)

    patch.setattr(TransactionShard, "_write", write)


def _goes_on_with_nothing(patch: Patch) -> None:
    original = TransactionShard.on_loaded

    def on_loaded(self, now_ms):  # type: ignore[no-untyped-def]
        return [e for e in original(self, now_ms) if isinstance(e, StartTimer)]

    patch.setattr(TransactionShard, "on_loaded", on_loaded)


def _never_aborts(patch: Patch) -> None:
    patch.setattr(TransactionShard, "_abort_overdue", lambda self, now_ms: [])


def _completes_before_the_markers(patch: Patch) -> None:
    original = TransactionShard._mark

    def mark(self, entry, prepared):  # type: ignore[no-untyped-def]
        [markers] = original(self, entry, prepared)
        assert isinstance(markers, WriteMarkers)
        done = transitions.complete(prepared, prepared.last_update_ms)
        effects = self._complete(entry, done)
        assert isinstance(effects[0], Append)
        return [markers, *effects]

    def written(self, token, error_code, now_ms):  # type: ignore[no-untyped-def]
        return []

    patch.setattr(TransactionShard, "_mark", mark)
    patch.setattr(TransactionShard, "_on_markers_written", written)


def _run_all(version: TransactionVersion, first: int) -> None:
    for seed in range(MUTANT_SEEDS):
        transaction_world.run((seed + first) % MUTANT_SEEDS, version)


# With the first seed that is tried: most find it at once.
MUTANTS: list[tuple[Callable[[Patch], None], TransactionVersion, int]] = [
    (_no_verification, V1, 12),
    (_verified_for_ever, V1, 12),
    (_markers_of_any_epoch, V2, 48),
    (_fences_nobody, V1, 6),
    (_gives_an_epoch_twice, V1, 0),
    (_answers_before_it_is_written, V1, 1),
    (_forgets_a_partition, V1, 0),
    (_adds_without_a_record, V1, 4),
    (_goes_on_with_nothing, V1, 0),
    (_never_aborts, V1, 0),
    (_completes_before_the_markers, V1, 57),
]


@pytest.mark.parametrize(
    ("mutant", "version", "first"), MUTANTS, ids=[mutant.__name__ for mutant, _, _ in MUTANTS]
)
def test_a_rule_that_is_forgotten_is_missed(
    mutant: Callable[[Patch], None],
    version: TransactionVersion,
    first: int,
    monkeypatch: Patch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        _run_all(version, first)
