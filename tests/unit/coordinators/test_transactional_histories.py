"""The checker of transactional histories finds each anomaly, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable

from checkpoints.types import TopicPartition
from tests.support.cases import for_each
from tests.support.transactional_histories import (
    Anomaly,
    Fate,
    History,
    Log,
    Read,
    Transaction,
    check,
    check_copies,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def history() -> History:
    """Two producers; the second one reads what the first one wrote."""
    made = History()
    for producer, writes, reads, fate in (
        ("p", [(A, b"1"), (B, b"2")], [], Fate.COMMITTED),
        ("p", [(A, b"3")], [], Fate.ABORTED),
        ("q", [(A, b"4"), (B, b"5")], [b"1"], Fate.UNKNOWN),
        ("p", [(A, b"6")], [], Fate.COMMITTED),
    ):
        each = made.begin(producer)
        each.writes, each.reads, each.fate = writes, reads, fate
    made.saw("r", [Read(A, 0, b"1"), Read(A, 3, b"4")])
    return made


def log() -> dict[TopicPartition, list[tuple[int, bytes]]]:
    return {A: [(0, b"1"), (3, b"4"), (7, b"6")], B: [(0, b"2"), (2, b"5")]}


def anomalies(made: History, found: Log) -> set[Anomaly]:
    return {finding.anomaly for finding in check(made, found)}


def test_a_history_in_which_all_is_well() -> None:
    assert check(history(), log()) == []


def test_what_nobody_heard_of_may_be_missing_as_a_whole() -> None:
    made, found = history(), log()
    made.reads.clear()
    del found[A][1], found[B][1]
    assert check(made, found) == []


def _aborted(made: History, found: Log) -> None:
    found[A].insert(1, (1, b"3"))  # type: ignore[attr-defined]
    made.reads.clear()


def _lost(made: History, found: Log) -> None:
    del found[A][2]  # type: ignore[attr-defined]


def _torn(made: History, found: Log) -> None:
    del found[B][1]  # type: ignore[attr-defined]


def _twice(made: History, found: Log) -> None:
    found[B].append((9, b"5"))  # type: ignore[attr-defined]


def _invented(made: History, found: Log) -> None:
    found[B].append((9, b"7"))  # type: ignore[attr-defined]


def _in_another_partition(made: History, found: Log) -> None:
    found[B].append((9, b"6"))  # type: ignore[attr-defined]


def _reordered(made: History, found: Log) -> None:
    found[A][:] = [(0, b"6"), (3, b"4"), (7, b"1")]  # type: ignore[index]
    made.reads.clear()


def _disagreed(made: History, found: Log) -> None:
    made.reads["r"][1] = Read(A, 3, b"6")


def _skipped(made: History, found: Log) -> None:
    made.reads["r"][1] = Read(A, 7, b"6")


def _read_aborted(made: History, found: Log) -> None:
    made.reads["r"].insert(1, Read(A, 1, b"3"))


def _circle(made: History, found: Log) -> None:
    made.transactions[0].reads = [b"4"]


def _back(made: History, found: Log) -> None:
    made.reads["r"].reverse()


@for_each(
    "spoil, anomaly",
    [
        (_aborted, Anomaly.ABORTED_READ),
        (_read_aborted, Anomaly.ABORTED_READ),
        (_lost, Anomaly.LOST_WRITE),
        (_torn, Anomaly.TORN),
        (_twice, Anomaly.DUPLICATE),
        (_invented, Anomaly.INVENTED),
        (_in_another_partition, Anomaly.INVENTED),
        (_reordered, Anomaly.REORDERED),
        (_back, Anomaly.REORDERED),
        (_disagreed, Anomaly.DISAGREEMENT),
        (_skipped, Anomaly.SKIPPED),
        (_circle, Anomaly.CYCLE),
    ],
)
def test_each_anomaly_is_found(spoil: Callable[[History, Log], None], anomaly: Anomaly) -> None:
    made, found = history(), log()
    spoil(made, found)
    assert anomaly in anomalies(made, found)


def test_copies() -> None:
    made = History()
    made.transactions = [
        Transaction("e", [(B, b"c1")], [b"1"], Fate.COMMITTED),
        Transaction("e", [(B, b"c2")], [b"2"], Fate.ABORTED),
    ]
    source, copies = {A: [(0, b"1")]}, {B: [(0, b"c1")]}
    assert check_copies(made, source, copies) == []
    assert [f.anomaly for f in check_copies(made, {A: [*source[A], (1, b"2")]}, copies)] == [
        Anomaly.LOST_WRITE
    ]
    made.transactions.append(Transaction("e", [(B, b"c1")], [b"1"], Fate.COMMITTED))
    assert [f.anomaly for f in check_copies(made, source, copies)] == [Anomaly.DUPLICATE]
