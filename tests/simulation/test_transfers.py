"""Transactions in the simulator: a few schedules, and broken coordinators that it must see.

``logstore simulate --transactions --schedules N`` runs as many as are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.log.writing.writer import LogWriter
from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import Effect, MarkerWritten, Reply, WriteMarkers
from replication.coordinators.groups.shard import GroupShard
from replication.coordinators.transactions import markers, state, transitions
from replication.coordinators.transactions import shard as shards
from replication.coordinators.transactions.requests import Answer, EndTransaction
from replication.coordinators.transactions.shard import TransactionShard
from replication.coordinators.transactions.state import TransactionMetadata, TransactionState
from replication.coordinators.transactions.transitions import Move
from replication.replica_manager import transaction_verification
from replication.simulator.search.run import run_seed
from replication.simulator.world.plan import SearchOptions
from tests.simulation.test_groups import commits_are_answered_before_they_are_committed

TRIES = 40  # schedules until something rare must have happened
LONG_TRIES = 400
OPTIONS = SearchOptions(transactions=True, events=80)


WANTED = frozenset(
    {
        "coordinated commits answered",
        "coordinated commits asked for",
        "coordinated commits not asked for",
        "transactions that copy",
        "transactions abandoned",
        "transactional producers fenced",
        "committed records read",
        "elections",
    }
)


@pytest.mark.slow
def test_transactions_on_brokers_that_fail() -> None:
    """Schedule after schedule, until everything has happened."""
    seen: Counter[str] = Counter()
    for seed in range(TRIES):
        result = run_seed(seed, OPTIONS)
        assert result.violations == [], f"seed {seed}"
        seen.update(result.counters)
        if +seen >= Counter(WANTED):
            break
    assert not WANTED - (+seen).keys()


def test_a_seed_repeats_its_run() -> None:
    options = replace(OPTIONS, events=20, groups=True)
    assert run_seed(7, options) == run_seed(7, options)


@pytest.mark.slow
def test_producers_that_have_used_all_epochs_get_another_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_few_epochs(monkeypatch)
    results = [run_seed(seed, OPTIONS) for seed in range(3)]
    assert [result.violations for result in results] == [[], [], []]
    assert any(result.counters.get("producer ids used up") for result in results)


def use_few_epochs(patch: pytest.MonkeyPatch, most: int = 3) -> None:
    for module in (state, transitions):
        patch.setattr(module, "LAST_CLIENT_EPOCH", most)
    patch.setattr(transitions, "MAX_EPOCH", most + 1)


# -- mutants ------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def a_partition_gets_no_marker(patch: pytest.MonkeyPatch) -> None:
    def mark(self: TransactionShard, entry: Any, prepared: TransactionMetadata) -> list[Effect]:
        (effect,) = unchanged(self, entry, prepared)
        assert isinstance(effect, WriteMarkers)
        return [effect._replace(partitions=effect.partitions[: max(1, prepared.timeout_ms % 2)])]

    unchanged = TransactionShard._mark
    patch.setattr(TransactionShard, "_mark", mark)


def a_marker_without_an_answer_counts_as_written(patch: pytest.MonkeyPatch) -> None:
    reactions = {**markers.REACTIONS, ErrorCode.NETWORK_EXCEPTION: markers.MarkerReaction.WRITTEN}
    patch.setattr(markers, "REACTIONS", reactions)


def ends_are_answered_before_they_are_committed(patch: pytest.MonkeyPatch) -> None:
    def write(self: TransactionShard, entry: Any, move: Move, to: Hashable | None) -> list[Effect]:
        if to is None or not move.target.state.is_prepared:
            return unchanged(self, entry, move, to)
        return [*unchanged(self, entry, move, None), Reply(to, move.answer)]

    unchanged = TransactionShard._write
    patch.setattr(TransactionShard, "_write", write)


def _fence_under_the_same_epoch(known: TransactionMetadata, now_ms: int) -> Move:
    return Move(
        known.moved(TransactionState.PREPARE_ABORT, now_ms),
        Answer(ErrorCode.CONCURRENT_TRANSACTIONS),
    )


def a_time_out_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shards, "fence", _fence_under_the_same_epoch)


def another_producer_gets_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    def begin(known: TransactionMetadata, *args: Any) -> Any:
        decision = unchanged(known, *args)
        if not isinstance(decision, Move) or known.producer_epoch < 0:
            return decision
        epoch = known.producer_epoch
        target = replace(decision.target, producer_epoch=epoch)
        return Move(target, decision.answer._replace(producer_epoch=epoch))

    unchanged = transitions._begin
    patch.setattr(transitions, "_begin", begin)


def producers_of_old_epochs_may_end(patch: pytest.MonkeyPatch) -> None:
    def end(known: Any, request: EndTransaction, *args: Any) -> Any:
        if known is not None:
            request = request._replace(producer_epoch=known.producer_epoch)
        return unchanged(known, request, *args)

    unchanged = shards.end_transaction
    patch.setattr(shards, "end_transaction", end)


def offsets_in_transactions_do_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupShard, "_end_transaction", lambda self, event: None)


def offsets_in_aborted_transactions_count(patch: pytest.MonkeyPatch) -> None:
    def end(self: GroupShard, event: MarkerWritten) -> None:
        unchanged(self, event._replace(is_commit=True))

    unchanged = GroupShard._end_transaction
    patch.setattr(GroupShard, "_end_transaction", end)


def readers_go_past_open_transactions(patch: pytest.MonkeyPatch) -> None:
    def refresh(self: LogWriter) -> None:
        self._first_unstable = -1

    patch.setattr(LogWriter, "_refresh_unstable_locked", refresh)


def batches_are_not_verified(patch: pytest.MonkeyPatch) -> None:
    def answered(self: Any, codes: dict[TopicPartition, ErrorCode]) -> None:
        unchanged(self, dict.fromkeys(codes, ErrorCode.NONE))

    unchanged = transaction_verification._Question._answered
    patch.setattr(transaction_verification._Question, "_answered", answered)


def a_new_coordinator_leaves_ends_as_they_are(patch: pytest.MonkeyPatch) -> None:
    def on_loaded(self: TransactionShard, now_ms: int) -> list[Effect]:
        return [e for e in unchanged(self, now_ms) if not isinstance(e, WriteMarkers)]

    unchanged = TransactionShard.on_loaded
    patch.setattr(TransactionShard, "on_loaded", on_loaded)


MUTANTS: list[Patch] = [
    a_partition_gets_no_marker,
    a_time_out_keeps_the_epoch,
    another_producer_gets_the_same_epoch,
    offsets_in_transactions_do_not_count,
    offsets_in_aborted_transactions_count,
    readers_go_past_open_transactions,
]
"""One schedule in five or more shows each."""
RARE: list[Patch] = [
    a_marker_without_an_answer_counts_as_written,
    ends_are_answered_before_they_are_committed,
    commits_are_answered_before_they_are_committed,
    producers_of_old_epochs_may_end,
    batches_are_not_verified,
    a_new_coordinator_leaves_ends_as_they_are,
]
"""``python -m tests.simulation.test_transfers`` looks for them; one needs some 80 schedules."""


def first_found(schedules: int) -> tuple[int, list[str]]:
    for seed in range(schedules):
        found = run_seed(seed, OPTIONS).violations
        if found:
            return seed, found
    return -1, []


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_a_mutant_is_seen(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    _, found = first_found(TRIES)
    assert any(each.startswith(("W-", "I-6", "I-24")) for each in found), found


def main() -> int:
    missed = 0
    for mutant in (*MUTANTS, *RARE):
        with pytest.MonkeyPatch.context() as patch:
            mutant(patch)
            seed, found = first_found(LONG_TRIES)
        print(f"{mutant.__name__}: {f'seed {seed}: {found[0]}' if found else 'not seen'}")
        missed += not found
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
