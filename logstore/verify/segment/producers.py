"""A small replay of producers and transactions, segment by segment.

Each segment is read by itself and gives its own ``ProducerFacts``, and ``Replay`` joins them in
order. This is a second implementation of F-182 … F-197, on purpose independent of the log's own.

A log that is opened replays its producers from its log start on. It may have forgotten what only
batches below the log start say, so its producer files may be right with or without that. The
*floor* is the log start. ``late`` is what a log remembers about a transaction that began below it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from logstore.format.header import add_sequence
from logstore.format.index_entry import AbortedTxn
from logstore.format.producer_snapshot import ProducerSnapshotEntry
from logstore.verify.common.batch_rules import Row
from logstore.verify.common.report import UNKNOWN, Problem, error, warning

PRODUCERS_MAX = 50_000
"""How many producers and aborted transactions are kept for a segment, to bound memory."""

_NEVER = 2**63
EPOCH_FELL, COORDINATOR_FELL = -1, -2
"""In the place of the sequence that was due. The second one is of a marker, whose epoch of the
coordinator is in the place of the sequence.
"""


@dataclass(frozen=True, slots=True)
class ProducerFact:
    """The facts in a part of the log about one producer.

    ``last`` is (last sequence, last offset, offset delta) of its last data batch. It is None if
    there is none, or if a marker began a new epoch. ``transaction_late`` is the first batch of its
    open transaction that reaches the floor. ``loose`` means that a marker after ``last`` ended
    nothing, so the producer may have been forgotten before (F-199).
    """

    epoch: int
    timestamp: int
    last: tuple[int, int, int] | None
    began_epoch: bool = False
    coordinator_epoch: int = UNKNOWN
    transaction_first: int = UNKNOWN
    transaction_late: int = UNKNOWN
    ended_transaction: bool = False
    loose: bool = False
    offset: int = UNKNOWN
    """Of its last batch or marker."""


class AbortMarker(NamedTuple):
    """An ABORT marker of a transaction.

    ``first_offset`` is where the transaction began, −1 if that was in an earlier segment or
    nowhere. ``other_first`` is where the oldest other transaction began that was open at the
    marker, as far as the segment shows. ``late`` and ``other_late`` are the same for a log that
    begins at the floor.
    """

    producer_id: int
    first_offset: int
    late: int
    last_offset: int
    other_first: int
    other_late: int
    position: int


class SequencedBatch(NamedTuple):
    """A data batch of an idempotent producer, as far as its sequence is concerned."""

    producer_id: int
    epoch: int
    sequence: int
    offset: int
    position: int

    def jump(self, due: int, previous: int) -> Problem:
        """The sequence does not continue that of the batch at offset ``previous``."""
        if due == EPOCH_FELL:
            message = f"producer {self.producer_id}: epoch {self.epoch}, and a later one in its "
            message += f"batch of offset {previous}"
            return warning("producer-epoch", message, self.position, self.offset)
        if due == COORDINATOR_FELL:
            message = f"producer {self.producer_id}: a marker of coordinator epoch {self.sequence}"
            message += f", and a later one before, up to offset {previous}"
            return warning("producer-epoch", message, self.position, self.offset)
        message = f"producer {self.producer_id}, epoch {self.epoch}: sequence {self.sequence}, "
        message += f"due is {due} behind its batch of offset {previous}"
        return warning("producer-sequence", message, self.position, self.offset)


@dataclass(slots=True)
class ProducerFacts:
    """The producer facts of one segment. ``marks`` holds the state at the offsets of snapshots."""

    floor: int = 0
    producers: dict[int, ProducerFact] = field(default_factory=dict)
    first_markers: dict[int, int] = field(default_factory=dict)
    aborts: list[AbortMarker] = field(default_factory=list)
    following: dict[int, int] = field(default_factory=dict)
    """Offset of an ABORT marker → where the next transaction of another producer begins."""
    marks: dict[int, dict[int, ProducerFact]] = field(default_factory=dict)
    firsts: list[SequencedBatch] = field(default_factory=list)
    """The first data batch of each producer, to be compared with those before."""
    jumps: list[tuple[SequencedBatch, int, int]] = field(default_factory=list)
    """Batches whose sequence jumps, with the one that was due, and the offset of the one before."""
    complete: bool = True
    """False if a batch was unreadable, or if there were more than ``PRODUCERS_MAX``."""
    _open: dict[int, tuple[int, int]] = field(default_factory=dict)
    _waiting: list[AbortMarker] = field(default_factory=list)
    """Aborts that wait for a transaction of another producer.

    ``_only`` is the producer of all of them, if it is the same.
    """
    _only: int = UNKNOWN

    def mark(self, offset: int) -> None:
        self.marks[offset] = dict(self.producers)

    def add(self, row: Row, marker: tuple[bool, int] | None) -> None:
        """Add one batch with a producer. ``marker`` is (is commit, coordinator epoch)."""
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
        first, late = (known.transaction_first, known.transaction_late) if known else (-1, -1)
        if row.is_transactional:
            if first < 0:
                first = row.base_offset
                self._began(row.producer_id, first)
            if late < 0 and row.last_offset >= self.floor:
                late = row.base_offset
            self._open[row.producer_id] = first, late
        self.producers[row.producer_id] = ProducerFact(
            row.producer_epoch,
            row.max_timestamp,
            (sequence, row.last_offset, delta),
            True,
            known.coordinator_epoch if known else UNKNOWN,
            first,
            late,
            known is not None and known.ended_transaction,
            offset=row.last_offset,
        )

    def _began(self, producer_id: int, offset: int) -> None:
        if self._waiting and self._only != producer_id:
            for abort in self._waiting:
                if abort.producer_id != producer_id:
                    self.following[abort.last_offset] = offset
            self._waiting = [abort for abort in self._waiting if abort.producer_id == producer_id]
            self._only = producer_id

    def _add_marker(self, row: Row, is_commit: bool, coordinator_epoch: int) -> None:
        producer_id = row.producer_id
        known = self.producers.get(producer_id)
        first, late = self._open.pop(producer_id, (UNKNOWN, UNKNOWN))
        self.first_markers.setdefault(producer_id, row.last_offset)
        if not is_commit:
            others = self._open.values()
            abort = AbortMarker(
                producer_id,
                first,
                late,
                row.last_offset,
                min((one for one, _ in others), default=UNKNOWN),
                min((one for _, one in others if one >= 0), default=UNKNOWN),
                row.position,
            )
            self.aborts.append(abort)
            self._only = producer_id if self._only == producer_id or not self._waiting else UNKNOWN
            self._waiting.append(abort)
        same_epoch = known is not None and known.epoch == row.producer_epoch
        if known is not None and coordinator_epoch < known.coordinator_epoch:
            place = row.producer_epoch, coordinator_epoch, row.base_offset, row.position
            marker = SequencedBatch(producer_id, *place)
            self.jumps.append((marker, COORDINATOR_FELL, known.offset))
        self.producers[producer_id] = ProducerFact(
            row.producer_epoch,
            row.max_timestamp,
            known.last if known and same_epoch else None,
            known is not None and (known.began_epoch or not same_epoch),
            coordinator_epoch,
            UNKNOWN,
            UNKNOWN,
            True,
            first < 0,
            row.last_offset,
        )


class Replay:
    """Producer state over the segments of a partition, in order."""

    def __init__(self, floor: int = 0, *, known: bool = True) -> None:
        self.floor = floor
        self.producers: dict[int, ProducerFact] = {}
        self.known = known
        """False if transactions may be open that began before everything that was read (F-196)."""

    def seed(self, entries: Iterable[ProducerSnapshotEntry]) -> None:
        """Start from the snapshot at the base of the first segment."""
        for e in entries:
            first = e.current_txn_first_offset
            self.producers[e.producer_id] = ProducerFact(
                e.producer_epoch,
                e.timestamp,
                _last_of(e),
                True,
                e.coordinator_epoch,
                first,
                first if first >= self.floor else UNKNOWN,
            )

    def joined(self, facts: dict[int, ProducerFact]) -> dict[int, ProducerFact]:
        """The state after a part of the log with these ``facts``."""
        state = dict(self.producers)
        for producer_id, fact in facts.items():
            before = state.get(producer_id)
            if before is not None:
                if fact.last is None and not fact.began_epoch and before.epoch == fact.epoch:
                    fact = replace(fact, last=before.last)
                if before.transaction_first >= 0 and not fact.ended_transaction:
                    late = before.transaction_late
                    fact = replace(
                        fact,
                        transaction_first=before.transaction_first,
                        transaction_late=late if late >= 0 else fact.transaction_late,
                    )
                if fact.coordinator_epoch < 0:
                    fact = replace(fact, coordinator_epoch=before.coordinator_epoch)
            state[producer_id] = fact
        return state

    def advance(self, facts: ProducerFacts) -> None:
        self.producers = self.joined(facts.producers) if facts.complete else {}
        self.known = self.known and facts.complete

    def jumps(self, facts: ProducerFacts) -> Iterator[Problem]:
        """Sequences of a segment that do not continue those before. Call it before ``advance``.

        Only a batch at or above the floor proves which sequence is due. An older batch may have
        been forgotten, and then any sequence is accepted (F-184).
        """
        if not facts.complete:
            return
        for first in facts.firsts:
            before = self.producers.get(first.producer_id)
            if before is None or before.last is None or before.last[0] < 0:
                continue
            sequence, offset, _ = before.last
            due = add_sequence(sequence, 1) if before.epoch == first.epoch else 0
            due = EPOCH_FELL if 0 <= first.epoch < before.epoch else due
            if offset >= self.floor and first.sequence != due:
                yield first.jump(due, offset)
        for batch, due, previous in facts.jumps:
            if previous >= self.floor:
                yield batch.jump(due, previous)

    def check_aborted(self, facts: ProducerFacts, found: Sequence[AbortedTxn]) -> Iterator[Problem]:
        """Compare the transaction index of the next segment with its ABORT markers, one by one
        (F-121 … F-123).

        Unless all is ``known``, transactions may have begun before everything that was read. Then
        their first offset and stable offset are not known, nor whether a marker ended a transaction
        at all. A transaction that began below the floor may have been forgotten.
        """
        entries = {entry.last_offset: (index, entry) for index, entry in enumerate(found)}
        carried = {
            producer_id: (fact.transaction_first, fact.transaction_late)
            for producer_id, fact in self.producers.items()
            if fact.transaction_first >= 0
        }
        for abort in facts.aborts:
            first, late, last = abort.first_offset, abort.late, abort.last_offset
            if facts.first_markers[abort.producer_id] == last:
                first, before = carried.get(abort.producer_id, (first, UNKNOWN))
                late = before if before >= 0 else late
            if first < 0:
                continue  # no transaction was open: no entry (F-195)
            index, entry = entries.pop(last, (UNKNOWN, None))
            if entry is None:
                if late >= 0:
                    message = f"no entry for the transaction of producer {abort.producer_id} that "
                    message += f"the log aborts at offset {last}"
                    yield error("txnindex-entries", message, offset=last)
                continue
            others = [
                began
                for producer_id, began in carried.items()
                if producer_id != abort.producer_id
                and facts.first_markers.get(producer_id, _NEVER) > last
            ]
            others.append((abort.other_first, abort.other_late))
            stable = min((one for one, _ in others if one >= 0), default=last + 1)
            stable_max = min((one for _, one in others if one >= 0), default=last + 1)
            first_max = late if late >= 0 else last - 1
            first_min, stable_min = (first, stable) if self.known else (0, 0)
            fits = first_min <= entry.first_offset <= first_max
            # A follower appends several batches at once, and counts a transaction that begins after
            # the marker among the open ones (F-123).
            if entry.last_stable_offset != facts.following.get(last, UNKNOWN) or stable_max <= last:
                fits = fits and stable_min <= entry.last_stable_offset <= stable_max
            if not fits or entry.producer_id != abort.producer_id:
                right = abort.producer_id, first, last, stable
                message = f"{tuple(entry)}, the log says {right} (producer, first, last offset, "
                message += "last stable offset)"
                yield error("txnindex-offsets", message, 34 * index, last)
        markers = set() if self.known else {(a.producer_id, a.last_offset) for a in facts.aborts}
        for last, (index, entry) in sorted(entries.items()):
            if (entry.producer_id, last) not in markers:
                message = f"an aborted transaction that ends at {last}: the log has none"
                yield error("txnindex-entries", message, 34 * index, last)


def _last_of(entry: ProducerSnapshotEntry) -> tuple[int, int, int] | None:
    if entry.last_offset < 0:
        return None
    return entry.last_sequence, entry.last_offset, entry.offset_delta


def check_snapshot(
    offset: int,
    entries: Iterable[ProducerSnapshotEntry],
    state: dict[int, ProducerFact],
    exact: bool,
    floor: int = 0,
    whole: bool = False,
) -> Iterator[Problem]:
    """Entries lie below the snapshot's offset and agree with a replay of the log (F-126).

    A producer may be missing on either side: snapshots forget expired ones (F-199), and a log
    forgets what retention removed. Unless ``exact``, producers may have been active before
    everything that was read, so only producers that the log has are compared. What lies below the
    floor may have been forgotten. ``whole``: every batch since offset 0 was read, so that the
    log has each producer, and shows of some that are missing that they did not expire.
    """
    known: dict[int, ProducerSnapshotEntry] = {}
    for index, e in enumerate(entries):
        position = 10 + 46 * index
        name = f"producer {e.producer_id}"
        twice, known[e.producer_id] = e.producer_id in known, e
        if _is_impossible(e):
            message = f"{tuple(e)} is no state of a producer"
            yield error("snapshot-form", message, position, e.last_offset)
            continue
        if twice:
            message = f"{name}: a second entry, which is the one that counts"
            yield warning("snapshot-producer", message, position, e.last_offset)
        if max(e.last_offset, e.current_txn_first_offset) >= offset:
            message = f"{name}: last offset {e.last_offset} or open transaction "
            message += f"{e.current_txn_first_offset} is not below the snapshot's offset {offset}"
            yield error("snapshot-form", message, position, e.last_offset)
            continue
        fact = state.get(e.producer_id)
        if fact is None:
            if whole:
                message = f"{name}: the log has nothing of it below {offset}"
                yield warning("snapshot-producer", message, position, e.last_offset)
            continue
        last = _last_of(e)
        lasts = [fact.last]
        if fact.last is None and not exact:
            lasts = [last]
        elif fact.last is not None and (fact.loose or fact.last[1] < floor):
            lasts.append(None)
        # A producer that expired and came back has no coordinator until its next marker.
        coordinators = (UNKNOWN, fact.coordinator_epoch)
        is_known = exact or fact.coordinator_epoch >= 0
        if e.producer_epoch != fact.epoch or last not in lasts:
            message = f"{name}: epoch {e.producer_epoch} and last batch {last} (sequence, offset, "
            message += f"delta), the log has {fact.epoch} and {fact.last}"
            yield warning("snapshot-producer", message, position, e.last_offset)
        elif e.timestamp != fact.timestamp:
            message = f"{name}: timestamp {e.timestamp}, the log has {fact.timestamp}"
            yield warning("snapshot-producer", message, position, e.last_offset)
        elif is_known and e.coordinator_epoch not in coordinators:
            message = f"{name}: coordinator epoch {e.coordinator_epoch}, the log has "
            yield warning(
                "snapshot-producer", message + str(fact.coordinator_epoch), position, e.last_offset
            )
        elif exact and not _may_be_open_since(e.current_txn_first_offset, fact):
            message = f"{name}: transaction open since {e.current_txn_first_offset}, "
            message += f"by the log since {fact.transaction_first}"
            yield warning("snapshot-transaction", message, position, e.current_txn_first_offset)
    if whole:
        yield from _check_missing(offset, known, state, floor)


def _is_impossible(e: ProducerSnapshotEntry) -> bool:
    none = min(e.last_sequence, e.last_offset, e.timestamp, e.coordinator_epoch)
    batch = e.last_offset >= 0 and not 0 <= e.offset_delta <= e.last_offset
    return min(e.producer_id, e.producer_epoch) < 0 or batch or none < UNKNOWN


def _check_missing(
    offset: int,
    known: Mapping[int, ProducerSnapshotEntry],
    state: Mapping[int, ProducerFact],
    floor: int,
) -> Iterator[Problem]:
    """Producers that the snapshot lacks though they had not expired (F-199).

    Nobody expires inside a transaction. All others do by their last timestamp and at once, so that
    none is gone while one is still there that has written nothing since and has an older timestamp.
    """
    still = [
        (fact.offset, fact.timestamp)
        for producer_id, e in known.items()
        if (fact := state.get(producer_id)) and fact.transaction_first < 0
        if (fact.epoch, fact.timestamp) == (e.producer_epoch, e.timestamp)
    ]
    still.sort()
    oldest = list(accumulate((timestamp for _, timestamp in still), min))
    expired, opened = list[int](), list[int]()
    for producer_id, fact in state.items():
        if producer_id in known or fact.offset < floor:
            continue
        before = bisect_left(still, (fact.offset,))
        if fact.transaction_first >= 0:
            opened += [producer_id] if fact.transaction_late == fact.transaction_first else []
        elif before and oldest[before - 1] <= fact.timestamp:
            expired.append(producer_id)
    for rule, missing, why in (
        ("snapshot-transaction", opened, "in a transaction"),
        ("snapshot-producer", expired, "younger than another one that is not missing"),
    ):
        if missing:
            message = f"producer {missing[0]} is missing, though {why} at {offset}"
            message += f"; and {len(missing) - 1} more" if len(missing) > 1 else ""
            yield warning(rule, message, offset=offset)


def _may_be_open_since(offset: int, fact: ProducerFact) -> bool:
    """``offset`` is −1 for no transaction."""
    first, late = fact.transaction_first, fact.transaction_late
    if first < 0 or late == first:
        return offset == first
    if late < 0:  # all of it lies below the floor
        return offset < 0 or offset >= first
    return first <= offset <= late
