"""The promises of transactions: each is there whole or not at all, in order, and what was copied
from one partition to others agrees with the offset that was committed for it.

Values are unique, so each record names the transaction that wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from checkpoints.types import TopicPartition
from logstore.format.control import parse_marker
from logstore.format.header import BatchHeader
from logstore.format.reader import batch_records
from replication.simulator.oracle.validations import ReplicaContent

NO_SOURCE = -1

Place: TypeAlias = tuple[str, int, int, int, int]
"""Transactional id, how many producer ids it had before, epoch, number of the transaction, number
in it."""


class CommitPhase(Enum):
    """The progress of a transaction's client with its commit."""

    NOT_ASKED = "not asked for"
    ASKED = "asked for"  # it may be committed or not, now or later
    ANSWERED = "answered"


@dataclass(slots=True)
class ClientTransaction:
    """One transaction.

    Attributes:
        identity: producer id and epoch; later ones of the transactional id have fenced it.
        writes: in the order of sending.
    """

    number: int
    transactional_id: str
    identity: tuple[int, int]
    phase: CommitPhase = CommitPhase.NOT_ASKED
    writes: list[tuple[TopicPartition, bytes]] = field(default_factory=list)

    def write(self, tp: TopicPartition, source: int) -> bytes:
        """Begin a write; ``source`` is the offset of the record that it is a copy of."""
        value = b"%d.%d@%d" % (self.number, len(self.writes), source)
        self.writes.append((tp, value))
        return value


def _parts(value: bytes) -> tuple[int, int, int]:
    """The transaction, the number of the write in it, and the offset of its source."""
    number, _, rest = value.partition(b".")
    at, _, source = rest.partition(b"@")
    return int(number), int(at), int(source)


class TransfersOracle:
    """Checks all transactions of a schedule.

    Args:
        source: the partition whose records are copied.
        found: takes a violation.
    """

    def __init__(self, source: TopicPartition, found: Callable[[str], None]) -> None:
        self._source = source
        self._found = found
        self._all: list[ClientTransaction] = []
        self._seen: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        self._given: dict[tuple[int, int], tuple[str, int]] = {}
        self._ids: dict[str, list[int]] = {}  # producer ids by transactional id, in their order

    def begin(self, transactional_id: str, identity: tuple[int, int]) -> ClientTransaction:
        transaction = ClientTransaction(len(self._all), transactional_id, identity)
        self._all.append(transaction)
        return transaction

    def given(self, identity: tuple[int, int], transactional_id: str, life: int) -> None:
        """A process has a producer id and epoch, which nobody else gets (W-152)."""
        ids = self._ids.setdefault(transactional_id, [])
        if identity[0] not in ids:
            ids.append(identity[0])
        owner = transactional_id, life
        if self._given.setdefault(identity, owner) != owner:
            self._found(f"W-152 {identity} is given to {self._given[identity]} and {owner}")

    def saw(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        """The reader of committed records gets a record; its offsets rise."""
        seen = self._seen.setdefault(tp, [])
        if seen and offset <= seen[-1][0]:
            self._found(f"I-6 {tp}: {offset} is read after {seen[-1][0]}")
        seen.append((offset, value))
        self.check_committed(tp, offset, value)

    def check_committed(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        """A record that is shown as committed is one whose commit was asked for."""
        transaction = self._all[_parts(value)[0]]
        if transaction.phase is CommitPhase.NOT_ASKED or (tp, value) not in transaction.writes:
            self._found(f"W-154 {tp}: {value!r} is read at {offset}; its commit is not asked for")

    def validate(self, contents: Mapping[TopicPartition, ReplicaContent], copied: int) -> None:
        """At the end: what the logs say.

        Args:
            copied: the committed offset of the group that copies.
        """
        logs = {tp: self._committed(tp, content) for tp, content in contents.items()}
        for tp, log in logs.items():
            for offset, value in log:
                self.check_committed(tp, offset, value)
            if self._seen.get(tp, []) != log:
                self._found(f"I-6 {tp}: the reader saw {self._seen.get(tp)}, committed is {log}")
            self._check_order(tp, [self._place(value) for _, value in log])
        self._check_atomic(logs)
        self._check_copies(logs, copied)

    def _committed(self, tp: TopicPartition, content: ReplicaContent) -> list[tuple[int, bytes]]:
        """The records of committed transactions, as their markers say."""
        open_: dict[int, list[tuple[int, bytes]]] = {}
        found: list[tuple[int, bytes]] = []
        for batch in content.batches:
            assert isinstance(batch, BatchHeader)
            records = list(batch_records(content.data, batch))
            if not batch.is_control:
                open_.setdefault(batch.producer_id, []).extend(
                    (record.offset, bytes(record.value or b"")) for record in records
                )
                continue
            marker = parse_marker(records[0].key, records[0].value)
            ended = open_.pop(batch.producer_id, [])
            if marker is not None and marker.is_commit:
                found += ended
        if open_:
            self._found(f"I-24 {tp}: transactions have no end: {open_}")
        return sorted(found)

    def _place(self, value: bytes) -> Place:
        """The place of a write among those of its transactional id."""
        number, at, _ = _parts(value)
        transaction = self._all[number]
        name, (producer_id, epoch) = transaction.transactional_id, transaction.identity
        return name, self._ids[name].index(producer_id), epoch, number, at

    def _check_order(self, tp: TopicPartition, keys: list[Place]) -> None:
        last: dict[str, Place] = {}
        for key in keys:
            before = last.get(key[0])
            if before is not None and key <= before:
                self._found(f"I-20 {tp}: {key} comes after {before}")
            last[key[0]] = key

    def _check_atomic(self, logs: Mapping[TopicPartition, list[tuple[int, bytes]]]) -> None:
        there = {(tp, value) for tp, log in logs.items() for _, value in log}
        for each in self._all:
            missing = [write for write in each.writes if write not in there]
            if each.phase is CommitPhase.ANSWERED and missing:
                self._found(f"W-154 {each.transactional_id} has committed, and {missing} is lost")
            elif missing and len(missing) < len(each.writes):
                self._found(f"W-154 {each.transactional_id}: {missing} of {each.writes} is lost")

    def _check_copies(
        self, logs: Mapping[TopicPartition, list[tuple[int, bytes]]], copied: int
    ) -> None:
        """Each committed record below the committed offset has one copy, in order; no other has
        one (W-158)."""
        sources = [offset for offset, _ in logs[self._source] if offset < copied]
        copies: list[int] = []
        for tp, log in logs.items():
            here = [source for _, value in log if (source := _parts(value)[2]) != NO_SOURCE]
            if here != sorted(here):
                self._found(f"W-158 {tp}: copies are out of order: {here}")
            copies += here
        if sorted(copies) != sources:
            self._found(f"W-158 copied up to {copied} are {sorted(copies)}, and there is {sources}")

    def counts(self) -> Iterator[tuple[str, int]]:
        for phase in CommitPhase:
            yield (
                f"coordinated commits {phase.value}",
                sum(each.phase is phase for each in self._all),
            )
