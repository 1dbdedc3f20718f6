"""How transactions end whose cluster was left behind (X-181)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.coordinators.transactions.state import (
    MAX_EPOCH,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
)
from replication.mirror.endings import (
    LastMarker,
    OpenTransaction,
    TransactionHistory,
    Why,
    all_completed,
    all_prepared,
    ending_of,
)

S = TransactionState
A, B = TopicPartition("a", 0), TopicPartition("b", 0)
ID, NAME = 7, "name"
OPEN = OpenTransaction(A, ID, 3, 100, 3_900)
V1, V2 = TransactionVersion.TV_0, TransactionVersion.TV_2


def state(
    kind: S, epoch: int = 3, version: TransactionVersion = V2, **more: Any
) -> TransactionMetadata:
    partitions = frozenset() if kind.is_complete or kind is S.EMPTY else frozenset({A, B})
    known = TransactionMetadata(NAME, ID, 60_000, 6_000, epoch, kind, partitions, 4_000)
    return replace(known, version=version, **more)


def told(*states: TransactionMetadata) -> TransactionHistory:
    found = TransactionHistory()
    for each in states:
        found.apply(NAME, each)
    return found


def end(
    *states: TransactionMetadata,
    open_: OpenTransaction = OPEN,
    markers: Sequence[LastMarker] = (),
) -> tuple[bool, int, Why]:
    found = ending_of(open_, told(*states), {ID: markers})
    return found.commits, found.producer_epoch, found.why


@pytest.mark.parametrize(("version", "epoch"), [(V1, 3), (V2, 4)])
@pytest.mark.parametrize("later", [S.PREPARE_COMMIT, S.COMPLETE_COMMIT])
def test_a_commit_that_was_decided_is_carried_out(
    version: TransactionVersion, epoch: int, later: S
) -> None:
    states = [state(S.ONGOING, version=version), state(S.PREPARE_COMMIT, epoch, version)]
    if later is S.COMPLETE_COMMIT:
        states.append(state(later, epoch, version))
    assert end(*states) == (True, epoch, Why.DECIDED)
    assert end(states[-1]) == (True, epoch, Why.DECIDED)  # compaction left the last one


@pytest.mark.parametrize(("version", "epoch"), [(V1, 3), (V2, 4), (V1, 4)])
def test_an_abort_that_was_decided_is_carried_out(version: TransactionVersion, epoch: int) -> None:
    """Under protocol 1 the coordinator's own abort has the next epoch."""
    ongoing = state(S.ONGOING, version=version)
    assert end(ongoing, state(S.PREPARE_ABORT, epoch, version)) == (False, epoch, Why.DECIDED)


@pytest.mark.parametrize("version", [V1, V2])
def test_what_nobody_decided_is_aborted_in_the_next_epoch(version: TransactionVersion) -> None:
    assert end(state(S.ONGOING, version=version)) == (False, 4, Why.UNDECIDED)
    last = state(S.ONGOING, MAX_EPOCH, version)
    open_ = OPEN._replace(producer_epoch=MAX_EPOCH)
    assert end(last, open_=open_) == (False, MAX_EPOCH, Why.UNDECIDED)


def test_what_no_coordinator_knows_is_aborted() -> None:
    assert end() == (False, 3, Why.UNKNOWN)
    deleted = told(state(S.ONGOING))
    deleted.apply(NAME, None)
    assert ending_of(OPEN, deleted, {}).why is Why.UNKNOWN


def test_a_marker_elsewhere_tells_of_a_commit() -> None:
    """The mirror has another partition up to a later moment than the coordinator's."""
    ongoing = state(S.ONGOING)
    assert end(ongoing, markers=[LastMarker(True, 4, 6_500)]) == (True, 4, Why.MARKED)
    assert end(ongoing, markers=[LastMarker(True, 3, 6_500)]) == (
        False,
        4,
        Why.UNDECIDED,
    )  # earlier
    assert end(ongoing, markers=[LastMarker(False, 4, 6_500)]) == (False, 4, Why.UNDECIDED)


def test_under_protocol_1_the_time_of_a_marker_tells_of_which_transaction_it_is() -> None:
    ongoing = state(S.ONGOING, version=V1)
    assert end(ongoing, markers=[LastMarker(True, 3, 4_001)]) == (True, 3, Why.MARKED)
    assert end(ongoing, markers=[LastMarker(True, 3, 3_999)]) == (False, 4, Why.UNDECIDED)


def test_a_log_behind_its_coordinator_gets_the_end_of_its_own_transaction() -> None:
    states = [
        state(S.PREPARE_COMMIT, 4),
        state(S.COMPLETE_COMMIT, 4),
        replace(state(S.ONGOING, 4), partitions=frozenset({B})),
        state(S.PREPARE_ABORT, 5),
        state(S.COMPLETE_ABORT, 5),
        state(S.EMPTY, 6),
    ]
    assert end(*states) == (True, 4, Why.DECIDED)
    assert end(*states, open_=OPEN._replace(producer_epoch=4)) == (False, 5, Why.DECIDED)


def test_a_coordinator_behind_a_log_does_not_decide_of_a_later_transaction() -> None:
    ended = [state(S.PREPARE_COMMIT, 3), state(S.COMPLETE_COMMIT, 3)]
    assert end(*ended) == (False, 3, Why.UNDECIDED)
    assert end(*ended, markers=[LastMarker(True, 4, 9_000)]) == (True, 4, Why.MARKED)
    v1 = [state(S.PREPARE_COMMIT, 3, V1), state(S.COMPLETE_COMMIT, 3, V1)]
    later = OPEN._replace(marker_ms=6_001)  # the log has the end of that one
    assert end(*v1, open_=later) == (False, 3, Why.UNDECIDED)
    assert end(*v1, open_=later, markers=[LastMarker(True, 4, 9_000)]) == (False, 3, Why.UNDECIDED)
    assert end(*v1, open_=OPEN._replace(tp=TopicPartition("c", 0))) == (False, 3, Why.UNDECIDED)


def test_ids_are_over_afterwards() -> None:
    def ended(known: TransactionMetadata, *markers: LastMarker) -> TransactionMetadata | None:
        decided = all_prepared({NAME: known}, {ID: markers}, 9_000)
        return all_completed({NAME: known, **decided}, 9_000).get(NAME)

    aborted = ended(state(S.ONGOING))
    assert aborted is not None
    assert (aborted.state, aborted.producer_epoch, aborted.partitions) == (
        S.COMPLETE_ABORT,
        4,
        frozenset(),
    )
    committed = ended(state(S.ONGOING), LastMarker(True, 4, 6_500))
    assert committed is not None
    assert (committed.state, committed.producer_epoch) == (S.COMPLETE_COMMIT, 4)
    of_v1 = ended(state(S.ONGOING, version=V1), LastMarker(True, 3, 6_500))
    assert of_v1 is not None
    assert (of_v1.state, of_v1.producer_epoch) == (S.COMPLETE_COMMIT, 3)
    prepared = ended(state(S.PREPARE_COMMIT, 4))
    assert prepared is not None
    assert (prepared.state, prepared.producer_epoch) == (S.COMPLETE_COMMIT, 4)
    rotated = ended(state(S.PREPARE_COMMIT, MAX_EPOCH, next_producer_id=9))
    assert rotated is not None
    assert (rotated.producer_id, rotated.producer_epoch) == (9, 0)
    for over in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
        assert ended(state(over)) is None
