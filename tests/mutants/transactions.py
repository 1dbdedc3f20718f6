"""Broken coordinators of transactions, and logs that believe what they should check."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from logstore.segments.producer_state import ProducerAppend, ProducerStateManager, TransactionCheck
from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import Effect, MarkerWritten, WriteMarkers
from replication.coordinators.groups.shard import GroupShard
from replication.coordinators.transactions import markers, transitions
from replication.coordinators.transactions import shard as shards
from replication.coordinators.transactions.shard import TransactionShard
from replication.coordinators.transactions.state import TransactionMetadata
from replication.coordinators.transactions.transitions import Transition
from replication.replica_manager import transaction_verification
from tests.mutants import MonkeyPatch, mutant


@mutant()
def a_marker_without_an_answer_counts_as_written(patch: MonkeyPatch) -> None:
    reactions = {**markers.REACTIONS, ErrorCode.NETWORK_EXCEPTION: markers.MarkerReaction.WRITTEN}
    patch.setattr(markers, "REACTIONS", reactions)


@mutant(transactions=21)
def ends_are_answered_before_they_are_committed(patch: MonkeyPatch) -> None:
    def write(self: TransactionShard, entry: Any, move: Transition, to: Hashable | None) -> None:
        if to is None or not move.target.state.is_prepared:
            unchanged(self, entry, move, to)
            return
        unchanged(self, entry, move, None)
        self._out.reply(to, move.answer)

    unchanged = TransactionShard._write
    patch.setattr(TransactionShard, "_write", write)


@mutant(transactions=0)
def another_producer_gets_the_same_epoch(patch: MonkeyPatch) -> None:
    def begin(known: TransactionMetadata, *args: Any) -> Any:
        decision = unchanged(known, *args)
        if not isinstance(decision, Transition) or known.producer_epoch < 0:
            return decision
        epoch = known.producer_epoch
        target = replace(decision.target, producer_epoch=epoch)
        return Transition(target, decision.answer._replace(producer_epoch=epoch))

    unchanged = transitions._begin
    patch.setattr(transitions, "_begin", begin)


@mutant()
def producers_of_old_epochs_may_end(patch: MonkeyPatch) -> None:
    def end(known: Any, request: Any, *args: Any) -> Any:
        if known is not None:
            request = request._replace(producer_epoch=known.producer_epoch)
        return unchanged(known, request, *args)

    unchanged = shards.end_transaction
    patch.setattr(shards, "end_transaction", end)


@mutant()
def offsets_in_transactions_do_not_count(patch: MonkeyPatch) -> None:
    patch.setattr(GroupShard, "_end_transaction", lambda self, event: None)


@mutant()
def offsets_in_aborted_transactions_count(patch: MonkeyPatch) -> None:
    def end(self: GroupShard, event: MarkerWritten) -> None:
        unchanged(self, event._replace(is_commit=True))

    unchanged = GroupShard._end_transaction
    patch.setattr(GroupShard, "_end_transaction", end)


@mutant()
def batches_are_not_verified(patch: MonkeyPatch) -> None:
    def ask(self: Any, request: Any, answered: Any) -> None:
        unchanged(self, request, lambda codes: answered(dict.fromkeys(codes, ErrorCode.NONE)))

    manager = transaction_verification.AddPartitionsToTxnManager
    unchanged = manager._ask_coordinator
    patch.setattr(manager, "_ask_coordinator", ask)


@mutant(transactions=0)
def a_new_coordinator_leaves_ends_as_they_are(patch: MonkeyPatch) -> None:
    def on_loaded(self: TransactionShard, now_ms: int) -> list[Effect]:
        return [e for e in unchanged(self, now_ms) if not isinstance(e, WriteMarkers)]

    unchanged = TransactionShard.on_loaded
    patch.setattr(TransactionShard, "on_loaded", on_loaded)


@mutant(transactions=204)
def no_verification(patch: MonkeyPatch) -> None:
    patch.setattr(ProducerAppend, "_check_verified", lambda self, batch: None)


@mutant(transactions=204)
def verified_for_ever(patch: MonkeyPatch) -> None:
    """A marker does not end what was confirmed for its transaction."""

    def update(self: ProducerStateManager, append: ProducerAppend) -> None:
        append.ended_epoch = -1
        original(self, append)

    original = ProducerStateManager.update
    patch.setattr(ProducerStateManager, "update", update)


@mutant(transactions=97)
def markers_of_any_epoch(patch: MonkeyPatch) -> None:
    original = ProducerAppend.__init__

    def init(self: ProducerAppend, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        if self._check is TransactionCheck.NEWER_EPOCH:
            self._check = TransactionCheck.NONE

    patch.setattr(ProducerAppend, "__init__", init)


@mutant(transactions=12)
def a_time_out_keeps_the_epoch(patch: MonkeyPatch) -> None:
    original = transitions.fence

    def fence(known, now_ms):  # type: ignore[no-untyped-def]
        move = original(known, now_ms)
        epoch = known.producer_epoch
        return move._replace(target=replace(move.target, producer_epoch=epoch))

    patch.setattr(transitions, "fence", fence)
    patch.setattr(shards, "fence", fence)


@mutant(transactions=0)
def a_partition_gets_no_marker(patch: MonkeyPatch) -> None:
    original = TransactionShard._mark

    def mark(self, entry, prepared):  # type: ignore[no-untyped-def]
        original(self, entry, replace(prepared, partitions=sorted(prepared.partitions)[:1]))

    patch.setattr(TransactionShard, "_mark", mark)


@mutant(transactions=0)
def adds_without_a_record(patch: MonkeyPatch) -> None:
    original = TransactionShard._write

    def write(self, entry, move, to):  # type: ignore[no-untyped-def]
        if move.target.state.name != "ONGOING":
            original(self, entry, move, to)
            return
        entry.current = move.target
        if to is not None:
            self._out.reply(to, move.answer)

    patch.setattr(TransactionShard, "_write", write)


@mutant(transactions=0)
def never_aborts(patch: MonkeyPatch) -> None:
    patch.setattr(TransactionShard, "_abort_overdue", lambda self, now_ms: None)


@mutant(transactions=125)
def completes_before_the_markers(patch: MonkeyPatch) -> None:
    original = TransactionShard._mark

    def mark(self, entry, prepared):  # type: ignore[no-untyped-def]
        original(self, entry, prepared)
        self._complete(entry, transitions.complete(prepared, prepared.last_update_ms))

    def written(self, token, error_code, now_ms):  # type: ignore[no-untyped-def]
        pass

    patch.setattr(TransactionShard, "_mark", mark)
    patch.setattr(TransactionShard, "_on_markers_written", written)
