"""A small replay of producers and transactions, segment by segment.

Segments are read apart from each other: each gives its own ``ProducerFacts``, and ``Replay`` joins
them in order. A second telling of F-182 … F-197, on purpose apart from the log's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from logstore.format.header import add_sequence
from logstore.format.index_entry import AbortedTransaction
from logstore.format.producer_snapshot import ProducerSnapshotEntry
from logstore.verify.common.batch_rules import Row
from logstore.verify.common.report import UNKNOWN, Problem, error, warning

PRODUCERS_MAX = 50_000
"""Producers, and aborted transactions, kept per segment: what bounds the memory of a check."""


@dataclass(frozen=True, slots=True)
class ProducerFact:
    """What a stretch of the log tells of one producer. ``last`` is its last data batch: (last
    sequence, last offset, offset delta); None when it has none, or a marker began a new epoch.
    """

    epoch: int
    timestamp: int
    last: tuple[int, int, int] | None
    began_epoch: bool = False
    coordinator_epoch: int = UNKNOWN
    transaction_first: int = UNKNOWN
    ended_transaction: bool = False


class Abort(NamedTuple):
    """An ABORT marker. ``first_offset`` is −1 when the transaction began in an earlier segment or
    nowhere; ``other_first`` is that of the oldest other one open then, as far as was seen."""

    producer_id: int
    first_offset: int
    last_offset: int
    other_first: int
    position: int


@dataclass(slots=True)
class ProducerFacts:
    """What one segment tells. ``marks``: the state at offsets where a snapshot wants comparing."""

    producers: dict[int, ProducerFact] = field(default_factory=dict)
    first_markers: dict[int, int] = field(default_factory=dict)
    aborts: list[Abort] = field(default_factory=list)
    marks: dict[int, dict[int, ProducerFact]] = field(default_factory=dict)
    complete: bool = True
    """False when a batch was unreadable, or there were more than ``PRODUCERS_MAX``."""
    _open: dict[int, int] = field(default_factory=dict)

    def mark(self, offset: int) -> None:
        self.marks[offset] = dict(self.producers)

    def add(self, row: Row, marker: tuple[bool, int] | None) -> None:
        """Take in one batch with a producer; ``marker`` is (is commit, coordinator epoch)."""
        if not self.complete:
            return
        if row.is_control:
            if marker is not None:
                self._add_marker(row, *marker)
        else:
            self._add_data(row)
        self.complete = max(len(self.producers), len(self.aborts)) <= PRODUCERS_MAX

    def _add_data(self, row: Row) -> None:
        known = self.producers.get(row.producer_id)
        delta = row.last_offset - row.base_offset
        sequence = UNKNOWN if row.base_sequence < 0 else add_sequence(row.base_sequence, delta)
        first = known.transaction_first if known else UNKNOWN
        if row.is_transactional and first < 0:
            first = self._open[row.producer_id] = row.base_offset
        self.producers[row.producer_id] = ProducerFact(
            row.producer_epoch,
            row.max_timestamp,
            (sequence, row.last_offset, delta),
            True,
            known.coordinator_epoch if known else UNKNOWN,
            first,
            known is not None and known.ended_transaction,
        )

    def _add_marker(self, row: Row, is_commit: bool, coordinator_epoch: int) -> None:
        producer_id = row.producer_id
        first = self._open.pop(producer_id, UNKNOWN)
        self.first_markers.setdefault(producer_id, row.last_offset)
        if not is_commit:
            other = min(self._open.values(), default=UNKNOWN)
            self.aborts.append(Abort(producer_id, first, row.last_offset, other, row.position))
        known = self.producers.get(producer_id)
        same_epoch = known is not None and known.epoch == row.producer_epoch
        self.producers[producer_id] = ProducerFact(
            row.producer_epoch,
            row.max_timestamp,
            known.last if known and same_epoch else None,
            known is not None and (known.began_epoch or not same_epoch),
            coordinator_epoch,
            UNKNOWN,
            True,
        )


class Replay:
    """Producer state over the segments of a partition, in order."""

    def __init__(self, *, known: bool = True) -> None:
        self.producers: dict[int, ProducerFact] = {}
        self.known = known
        """False when transactions that began before what was read may be open (F-196)."""

    def seed(self, entries: Iterable[ProducerSnapshotEntry]) -> None:
        """Start from the snapshot at the base of the first segment."""
        for e in entries:
            last = (e.last_sequence, e.last_offset, e.offset_delta) if e.last_offset >= 0 else None
            self.producers[e.producer_id] = ProducerFact(
                e.producer_epoch, e.timestamp, last, True, e.coordinator_epoch,
                e.current_txn_first_offset,
            )  # fmt: skip

    def joined(self, facts: dict[int, ProducerFact]) -> dict[int, ProducerFact]:
        """The state after a stretch that told ``facts``."""
        state = dict(self.producers)
        for producer_id, fact in facts.items():
            before = state.get(producer_id)
            if before is not None:
                if fact.last is None and not fact.began_epoch and before.epoch == fact.epoch:
                    fact = replace(fact, last=before.last)
                if before.transaction_first >= 0 and not fact.ended_transaction:
                    fact = replace(fact, transaction_first=before.transaction_first)
                if fact.coordinator_epoch < 0:
                    fact = replace(fact, coordinator_epoch=before.coordinator_epoch)
            state[producer_id] = fact
        return state

    def advance(self, facts: ProducerFacts) -> None:
        self.producers = self.joined(facts.producers) if facts.complete else {}
        self.known = self.known and facts.complete

    def aborted(self, facts: ProducerFacts) -> Iterator[tuple[Abort, AbortedTransaction]]:
        """The entries that the transaction index of the segment must have (F-121 … F-123)."""
        carried = {
            producer_id: fact.transaction_first
            for producer_id, fact in self.producers.items()
            if fact.transaction_first >= 0
        }
        for abort in facts.aborts:
            first = abort.first_offset
            if facts.first_markers[abort.producer_id] == abort.last_offset:
                first = carried.get(abort.producer_id, first)
            if first < 0:
                continue  # no transaction was open: no entry (F-195)
            others = [
                other
                for producer_id, other in carried.items()
                if producer_id != abort.producer_id
                and facts.first_markers.get(producer_id, 2**63) > abort.last_offset
            ]
            if abort.other_first >= 0:
                others.append(abort.other_first)
            stable = min(others, default=abort.last_offset + 1)
            yield abort, AbortedTransaction(abort.producer_id, first, abort.last_offset, stable)


def check_snapshot(
    offset: int,
    entries: Iterable[ProducerSnapshotEntry],
    state: dict[int, ProducerFact],
    exact: bool,
) -> Iterator[Problem]:
    """Entries lie below the snapshot's offset and agree with a replay of the log (F-126).

    A producer may be missing on either side: snapshots forget expired ones (F-199), and a log
    forgets what retention removed. Unless ``exact``, there may be more before all that was read:
    only a producer's last batch is compared, where the log has it.
    """
    for index, e in enumerate(entries):
        position = 10 + 46 * index
        name = f"producer {e.producer_id}"
        if max(e.last_offset, e.current_txn_first_offset) >= offset:
            message = f"{name}: last offset {e.last_offset} or open transaction "
            message += f"{e.current_txn_first_offset} is not below the snapshot's offset {offset}"
            yield error("F-126", position, e.last_offset, message)
            continue
        fact = state.get(e.producer_id)
        if fact is None or (fact.last is None and not exact):
            continue
        last = (e.last_sequence, e.last_offset, e.offset_delta) if e.last_offset >= 0 else None
        if (e.producer_epoch, last) != (fact.epoch, fact.last):
            message = f"{name}: epoch {e.producer_epoch} and last batch {last} (sequence, offset, "
            message += f"delta), the log has {fact.epoch} and {fact.last}"
            yield warning("F-182", position, e.last_offset, message)
        elif exact and (e.current_txn_first_offset < 0) != (fact.transaction_first < 0):
            message = f"{name}: transaction open since {e.current_txn_first_offset}, "
            message += f"by the log since {fact.transaction_first}"
            yield warning("F-193", position, e.current_txn_first_offset, message)


def check_aborted(
    expected: Iterable[tuple[Abort, AbortedTransaction]],
    found: list[AbortedTransaction],
    facts: ProducerFacts,
    exact: bool,
) -> Iterator[Problem]:
    """The transaction index against the ABORT markers of its segment, one by one.

    Unless ``exact``, transactions may have begun before all that was read: their first offset and
    stable offset cannot be told, nor whether a marker ended one at all.
    """
    entries = {entry.last_offset: (index, entry) for index, entry in enumerate(found)}
    for abort, wanted in expected:
        index, entry = entries.pop(abort.last_offset, (UNKNOWN, None))
        if entry is None:
            message = f"no entry for the transaction of producer {wanted.producer_id} that the "
            message += f"log aborts at offset {wanted.last_offset}"
            yield error("F-122", UNKNOWN, wanted.last_offset, message)
        elif entry != wanted and (exact or not _plausible(entry, wanted)):
            message = f"{tuple(entry)}, the log says {tuple(wanted)} (producer, first, last offset"
            message += ", last stable offset)"
            yield error("F-121", 34 * index, wanted.last_offset, message)
    markers = set() if exact else {(a.producer_id, a.last_offset) for a in facts.aborts}
    for last_offset, (index, entry) in sorted(entries.items()):
        if (entry.producer_id, last_offset) not in markers:
            message = f"an aborted transaction that ends at {last_offset}: the log has none"
            yield error("F-122", 34 * index, last_offset, message)


def _plausible(entry: AbortedTransaction, wanted: AbortedTransaction) -> bool:
    return (
        entry.producer_id == wanted.producer_id
        and entry.first_offset <= wanted.first_offset
        and entry.last_stable_offset <= wanted.last_stable_offset
    )
