"""What clients did in transactions and what they saw, and whether Kafka's promises hold in it.

After the manner of Elle: a history in, anomalies out, each with the values that show it. Values are
unique in a history, so each one that is read names the transaction that wrote it. Checked is what
Kafka promises and no more: transactions are atomic and their order in a partition is one for all,
but two of them may have different orders in two partitions.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from checkpoints.types import TopicPartition

Value = bytes


class Fate(Enum):
    """What a client knows of its transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # it asked for the commit, and heard nothing that settles it


class Anomaly(Enum):
    """Jepsen's names, where it has one for it, are in brackets."""

    ABORTED_READ = "a value of an aborted transaction was read as committed [G1a]"
    LOST_WRITE = "a committed value is not there [lost-write]"
    TORN = "a transaction is there in part"
    DUPLICATE = "a value is there twice [duplicate]"
    INVENTED = "a value was read that nobody wrote"
    REORDERED = "values of one producer are not in the order in which it sent them"
    DISAGREEMENT = "two reads of one offset differ [inconsistent-offsets]"
    SKIPPED = "a reader went past a value that is there [poll-skip]"
    CYCLE = "transactions read from each other in a circle [G1c]"
    SENT_BACK = "a later value of a producer got an earlier offset [nonmonotonic-send]"
    POLLED_BACK = "a member's polls went back [nonmonotonic-poll]"
    UNSEEN = "no member of the group read a value that is there [unseen]"
    OFFSET_BACK = "a committed offset of the group went back"
    STALE = "what had ended before was not seen by what began later [realtime]"


class Finding(NamedTuple):
    anomaly: Anomaly
    what: str


@dataclass
class Transaction:
    """One, in the order of its client's life.

    Attributes:
        producer: who sent it; transactions of one producer follow each other.
        writes: what was sent, in order.
        reads: committed values that it was made from, whose positions it commits.
        began: when it was sent, and ``ended`` when its fate was known, on one monotonic clock.
        offsets: of the writes that were acknowledged at one.
    """

    producer: str
    writes: list[tuple[TopicPartition, Value]] = field(default_factory=list)
    reads: list[Value] = field(default_factory=list)
    fate: Fate = Fate.UNKNOWN
    began: float = -math.inf
    ended: float = math.inf
    offsets: dict[Value, int] = field(default_factory=dict)


class Read(NamedTuple):
    """A record as one poll gave it."""

    tp: TopicPartition
    offset: int
    value: Value


class History:
    """Collects from several threads."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.reads: dict[str, list[Read]] = defaultdict(list)  # by reader, as they came
        self._lock = threading.Lock()

    def begin(self, producer: str) -> Transaction:
        transaction = Transaction(producer)
        with self._lock:
            self.transactions.append(transaction)
        return transaction

    def saw(self, reader: str, reads: Iterable[Read]) -> None:
        """Each reader goes through a partition once, from its beginning."""
        with self._lock:
            self.reads[reader] += reads

    @property
    def counts(self) -> Counter[Fate]:
        return Counter(transaction.fate for transaction in self.transactions)


Log = Mapping[TopicPartition, Sequence[tuple[int, Value]]]
"""What readers of committed records find in the end: (offset, value) of each partition."""


def check(history: History, log: Log) -> list[Finding]:
    """All anomalies of a history that has come to rest: no transaction is open any more."""
    return [
        *_check_log(history, log),
        *_check_order(history, log),
        *_check_readers(history, log),
        *_check_circles(history),
    ]


def _writers(history: History) -> dict[Value, Transaction]:
    return {value: each for each in history.transactions for _, value in each.writes}


def _check_log(history: History, log: Log) -> Iterator[Finding]:
    writers = _writers(history)
    there: set[tuple[TopicPartition, Value]] = set()
    for tp, records in log.items():
        for offset, value in records:
            writer = writers.get(value)
            where = f"{value!r} at {tp} offset {offset}"
            if writer is None or (tp, value) not in writer.writes:
                yield Finding(Anomaly.INVENTED, where)
            elif writer.fate is Fate.ABORTED:
                yield Finding(Anomaly.ABORTED_READ, where)
            if (tp, value) in there:
                yield Finding(Anomaly.DUPLICATE, where)
            there.add((tp, value))
    for each in history.transactions:
        missing = [write for write in each.writes if write not in there]
        if each.fate is Fate.COMMITTED and missing:
            yield Finding(Anomaly.LOST_WRITE, f"{each.producer}: {missing}")
        if each.fate is Fate.UNKNOWN and 0 < len(missing) < len(each.writes):
            yield Finding(Anomaly.TORN, f"{each.producer}: {missing} of {each.writes}")


def _check_order(history: History, log: Log) -> Iterator[Finding]:
    sent: dict[Value, tuple[str, int]] = {}
    numbers: Counter[str] = Counter()
    for each in history.transactions:
        for _, value in each.writes:
            sent[value] = each.producer, numbers[each.producer]
            numbers[each.producer] += 1
    for tp, records in log.items():
        last: dict[str, int] = {}
        for offset, value in records:
            if value not in sent:
                continue
            producer, number = sent[value]
            if number < last.get(producer, -1):
                yield Finding(Anomaly.REORDERED, f"{value!r} at {tp} offset {offset}")
            last[producer] = max(number, last.get(producer, -1))


def _check_readers(history: History, log: Log) -> Iterator[Finding]:
    writers = _writers(history)
    for reader, reads in history.reads.items():
        seen: dict[TopicPartition, list[Read]] = defaultdict(list)
        for read in reads:
            seen[read.tp].append(read)
            writer = writers.get(read.value)
            if writer is not None and writer.fate is Fate.ABORTED:
                yield Finding(Anomaly.ABORTED_READ, f"{reader}: {read}")
        for tp, own in seen.items():
            found = dict(log.get(tp, ()))
            for read in own:
                if found.get(read.offset) != read.value:
                    yield Finding(
                        Anomaly.DISAGREEMENT,
                        f"{reader}: {read}, in the end {found.get(read.offset)!r}",
                    )
            offsets = [read.offset for read in own]
            if offsets != sorted(set(offsets)):
                yield Finding(Anomaly.REORDERED, f"{reader} of {tp}: offsets go back")
            skipped = sorted(
                offset for offset in found if offset <= max(offsets) and offset not in set(offsets)
            )
            if skipped:
                yield Finding(Anomaly.SKIPPED, f"{reader} of {tp}: {skipped[:10]}")


def _check_circles(history: History) -> Iterator[Finding]:
    """Who reads what another wrote comes after it, and after its own producer's earlier ones."""
    writers = _writers(history)
    before: dict[int, set[int]] = defaultdict(set)
    last_of: dict[str, int] = {}
    numbers = {id(each): number for number, each in enumerate(history.transactions)}
    for number, one in enumerate(history.transactions):
        if one.producer in last_of:
            before[number].add(last_of[one.producer])
        last_of[one.producer] = number
        for value in one.reads:
            if value in writers:
                before[number].add(numbers[id(writers[value])])
    after: dict[int, list[int]] = defaultdict(list)
    for number, needs in before.items():
        for each in needs:
            after[each].append(number)
    waits = {number: len(needs) for number, needs in before.items()}
    free = [number for number in range(len(history.transactions)) if not waits.get(number)]
    for number in free:  # grows
        for following in after[number]:
            waits[following] -= 1
            if not waits[following]:
                free.append(following)
    if len(free) < len(history.transactions):
        left = {number for number, needs in waits.items() if needs}
        producers = sorted({history.transactions[number].producer for number in left})
        yield Finding(Anomaly.CYCLE, f"among {producers}")


def check_copies(history: History, source: Log, log: Log) -> list[Finding]:
    """Of transactions that copy: each value of ``source`` was copied by exactly one that counts."""
    there = {value for records in log.values() for _, value in records}
    copied: Counter[Value] = Counter()
    for each in history.transactions:
        if each.writes and all(value in there for _, value in each.writes):
            copied.update(each.reads)
    wanted = Counter(value for records in source.values() for _, value in records)
    return [
        *(Finding(Anomaly.DUPLICATE, f"{v!r} copied") for v, n in copied.items() if n > 1),
        *(Finding(Anomaly.LOST_WRITE, f"{v!r} not copied") for v in wanted - copied),
        *(Finding(Anomaly.INVENTED, f"{v!r} copied") for v in copied - wanted if not wanted[v]),
    ]
