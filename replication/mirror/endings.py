"""How transactions end that were open when their cluster was left behind. Pure.

A mirror has each partition up to another moment. So a log may show a transaction as open that its
coordinator ended long ago, or one that the coordinator's log does not know yet. What was decided
is carried out: a commit that the coordinator wrote down, or of which another partition has the
marker. All else is aborted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from checkpoints.types import TopicPartition
from replication.coordinators.transactions.state import (
    MAX_EPOCH,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
)
from replication.coordinators.transactions.transitions import complete, fence

_S = TransactionState
_EPOCHS_KEPT = 64
"""Decisions of one producer: a log is behind its coordinator by no more than a few."""


class Why(Enum):
    """The reason for which a transaction ends as it does."""

    DECIDED = "its coordinator had decided"
    MARKED = "another partition had its marker"
    UNDECIDED = "nothing had been decided"
    UNKNOWN = "no coordinator knows it"


class OpenTransaction(NamedTuple):
    """A transaction that has no end in one log.

    ``marker_ms``: the time of the marker that ended the one before it there; −1 without any.
    """

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    marker_ms: int = -1


class LastMarker(NamedTuple):
    """The last end of a transaction of one producer in one log."""

    is_commit: bool
    producer_epoch: int
    timestamp: int


class DecidedEnd(NamedTuple):
    """What a coordinator wrote down: the markers have this epoch.

    ``partitions`` are not known if compaction has left the last record only. ``time_ms`` is after
    all markers of the transaction before it, and before those of this one.
    """

    commits: bool
    producer_epoch: int
    bumps_epochs: bool
    partitions: frozenset[TopicPartition] | None
    time_ms: int


class Ending(NamedTuple):
    """The end of an open transaction: the marker that its log gets."""

    open: OpenTransaction
    commits: bool
    producer_epoch: int
    transactional_id: str | None
    why: Why


class TransactionHistory:
    """What ``__transaction_state`` says, record after record."""

    def __init__(self) -> None:
        self.known: dict[str, TransactionMetadata] = {}
        self._decisions: dict[int, list[DecidedEnd]] = {}  # by producer ids
        self._names: dict[int, str] = {}

    def apply(self, name: str, metadata: TransactionMetadata | None) -> None:
        """Take in the next record of an id; None deletes it."""
        before = self.known.pop(name, None)
        if metadata is None:
            return
        self.known[name] = metadata
        self._names[metadata.producer_id] = name
        state = metadata.state
        is_told = before is not None and before.state.is_prepared
        if state.is_prepared or (state.is_complete and not is_told):
            decision = DecidedEnd(
                state.commits,
                metadata.producer_epoch,
                metadata.version >= TransactionVersion.TV_2,
                metadata.partitions if state.is_prepared else None,
                _between(metadata),
            )
            kept = self._decisions.setdefault(metadata.producer_id, [])
            kept.append(decision)
            del kept[:-_EPOCHS_KEPT]

    def name_of(self, producer_id: int) -> str | None:
        name = self._names.get(producer_id)
        return name if name in self.known else None

    def decision_of(self, open_: OpenTransaction) -> DecidedEnd | None:
        """What was decided about a transaction; None if that is not known."""
        decisions = self._decisions.get(open_.producer_id, ())
        return next((each for each in decisions if _is_about(each, open_)), None)

    def ongoing(self, open_: OpenTransaction) -> TransactionMetadata | None:
        """The id whose ongoing transaction this is."""
        name = self.name_of(open_.producer_id)
        known = None if name is None else self.known[name]
        is_current = (
            known is not None
            and known.state is _S.ONGOING
            and (known.producer_id, known.producer_epoch)
            == (open_.producer_id, open_.producer_epoch)
        )
        return known if is_current else None


def _between(metadata: TransactionMetadata) -> int:
    """Markers have the clocks of several brokers, so that times far from both ends are best. What
    is over was updated after its markers."""
    if metadata.state.is_complete:
        return metadata.start_ms
    return (metadata.start_ms + metadata.last_update_ms) // 2


def _is_about(decision: DecidedEnd, open_: OpenTransaction) -> bool:
    """Markers have the epoch above that of the batches where ends raise it, or where a coordinator
    fenced the producer. Else all transactions of a producer have one epoch, and it tells whether
    the log has the marker already, by its time."""
    if decision.producer_epoch == open_.producer_epoch + 1:
        return True
    if decision.producer_epoch != open_.producer_epoch:
        return False
    if decision.bumps_epochs:
        # The last epoch of all has none above it.
        return decision.producer_epoch == MAX_EPOCH
    is_there = decision.partitions is None or open_.tp in decision.partitions
    return is_there and open_.marker_ms < decision.time_ms


def _is_end_of(marker: LastMarker, known: TransactionMetadata) -> bool:
    """Whether a marker belongs to the ongoing transaction of an id, and not to one before it."""
    if marker.producer_epoch > known.producer_epoch:
        return True
    if known.version >= TransactionVersion.TV_2:
        return False
    return marker.producer_epoch == known.producer_epoch and marker.timestamp >= known.start_ms


LastMarkers = Mapping[int, Sequence[LastMarker]]
"""The last one in each log that has any, by producer id."""


def committed_somewhere(known: Mapping[str, TransactionMetadata], markers: LastMarkers) -> set[str]:
    """The ids whose ongoing transaction is committed in a partition already."""
    return {
        name
        for name, each in known.items()
        if each.state is _S.ONGOING
        and any(m.is_commit and _is_end_of(m, each) for m in markers.get(each.producer_id, ()))
    }


def _is_committed_later(
    open_: OpenTransaction, known: TransactionMetadata | None, markers: LastMarkers
) -> bool:
    """Whether a log has the commit of a transaction that the coordinator's log does not know yet.
    Only where each end raises the epoch does the marker tell of which one it is."""
    return (
        known is not None
        and known.version >= TransactionVersion.TV_2
        and any(
            each.is_commit and each.producer_epoch == open_.producer_epoch + 1
            for each in markers.get(open_.producer_id, ())
        )
    )


def ending_of(
    open_: OpenTransaction, transactions: TransactionHistory, markers: LastMarkers
) -> Ending:
    """The end of one open transaction."""
    name = transactions.name_of(open_.producer_id)
    decision = transactions.decision_of(open_)
    if decision is not None:
        epoch = max(decision.producer_epoch, open_.producer_epoch)
        return Ending(open_, decision.commits, epoch, name, Why.DECIDED)
    known = transactions.ongoing(open_)
    if known is not None:
        commits = bool(committed_somewhere({known.transactional_id: known}, markers))
        epoch = prepared(known, commits, known.last_update_ms).producer_epoch
        return Ending(open_, commits, epoch, name, Why.MARKED if commits else Why.UNDECIDED)
    if _is_committed_later(open_, transactions.known.get(name or ""), markers):
        return Ending(open_, True, open_.producer_epoch + 1, name, Why.MARKED)
    why = Why.UNKNOWN if name is None else Why.UNDECIDED
    return Ending(open_, False, open_.producer_epoch, name, why)


def prepared(known: TransactionMetadata, commits: bool, now_ms: int) -> TransactionMetadata:
    """An id whose transaction is ongoing, once its end is decided."""
    if not commits:
        return fence(known, now_ms).target
    bumps = known.version >= TransactionVersion.TV_2
    epoch = min(known.producer_epoch + bumps, MAX_EPOCH)
    return known.moved(_S.PREPARE_COMMIT, now_ms, producer_epoch=epoch)


def all_prepared(
    known: Mapping[str, TransactionMetadata], markers: LastMarkers, now_ms: int
) -> dict[str, TransactionMetadata]:
    """The ids whose transaction is ongoing, once its end is decided."""
    committed = committed_somewhere(known, markers)
    return {
        name: prepared(each, name in committed, now_ms)
        for name, each in known.items()
        if each.state is _S.ONGOING
    }


def all_completed(
    known: Mapping[str, TransactionMetadata], now_ms: int
) -> dict[str, TransactionMetadata]:
    """The ids whose transaction is being ended, once each log has its marker."""
    return {name: complete(each, now_ms) for name, each in known.items() if each.state.is_prepared}
