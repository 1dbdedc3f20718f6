"""The checks see what they are for, and nothing where nothing is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from checkpoints.types import TopicPartition
from tests.processes.checks import (
    Commit,
    EndRead,
    Poll,
    check_commits,
    check_polls,
    check_realtime,
    check_sends,
    cycles,
    dependencies,
    read_circles,
    registers,
)
from tests.support.cases import for_each
from tests.support.transactional_histories import Anomaly, Fate, Finding, History, Read

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Seen:
    """Three records of one producer, two members that read them, a look at the end of each."""

    def __init__(self) -> None:
        self.history = History()
        self.log = {A: [(0, b"0"), (1, b"1"), (2, b"2")]}
        for number in range(3):
            each = self.history.begin("p")
            each.fate = Fate.COMMITTED
            each.writes, each.offsets = [(A, b"%d" % number)], {b"%d" % number: number}
            each.began, each.ended = number * 10.0, number * 10.0 + 5
        reads = [Read(A, offset, value) for offset, value in self.log[A]]
        self.polls = [
            Poll("m", 1, 30.0, 31.0, (reads[0], reads[1])),
            Poll("n", 2, 40.0, 41.0, (reads[1],)),  # m left, and had committed 1
            Poll("n", 2, 42.0, 43.0, (reads[2],)),
        ]
        self.commits = [Commit("m", A, 1, 32.0, 33.0), Commit("n", A, 3, 44.0, 45.0)]
        self.ends = [EndRead(A, 1, 6.0, 7.0), EndRead(A, 2, 12.0, 13.0), EndRead(A, 3, 26.0, 27.0)]

    def findings(self) -> Iterator[Finding]:
        yield from check_sends(self.history, self.log)
        yield from check_polls(self.polls, self.log)
        yield from check_commits(self.commits, self.polls)
        yield from check_realtime(registers(self.history, self.log, self.ends))


def test_all_is_well() -> None:
    assert list(Seen().findings()) == []


def _acknowledged_elsewhere(seen: Seen) -> None:
    seen.history.transactions[1].offsets[b"1"] = 7


def _sent_back(seen: Seen) -> None:
    seen.log[A] = [(0, b"0"), (1, b"2"), (2, b"1")]
    seen.history.transactions[1].offsets[b"1"] = 2
    seen.history.transactions[2].offsets[b"2"] = 1


def _back_in_a_poll(seen: Seen) -> None:
    seen.polls[0] = seen.polls[0]._replace(reads=seen.polls[0].reads[::-1])


def _back_to_an_earlier_poll(seen: Seen) -> None:
    seen.polls[2] = seen.polls[2]._replace(reads=seen.polls[0].reads)


def _skipped(seen: Seen) -> None:
    seen.polls[0] = seen.polls[0]._replace(reads=(seen.polls[0].reads[0], seen.polls[2].reads[0]))


def _unseen(seen: Seen) -> None:
    del seen.polls[2]


def _another_value(seen: Seen) -> None:
    seen.polls[2] = seen.polls[2]._replace(reads=(Read(A, 2, b"x"),))


def _committed_back(seen: Seen) -> None:
    seen.commits.append(Commit("n", A, 2, 46.0, 47.0))


def _begun_below_the_commit(seen: Seen) -> None:
    seen.commits[0] = seen.commits[0]._replace(offset=2)


def _ordered_against_time(seen: Seen) -> None:
    seen.history.transactions[0].began, seen.history.transactions[0].ended = 60.0, 61.0
    seen.ends.clear()


def _end_without_what_was_acknowledged(seen: Seen) -> None:
    seen.ends[2] = seen.ends[2]._replace(end=2)


def _end_before_it_was_sent(seen: Seen) -> None:
    seen.ends[0] = seen.ends[0]._replace(end=3)


def _end_that_goes_back(seen: Seen) -> None:
    seen.history.transactions[2].offsets.clear()  # nobody heard of it
    seen.ends.append(EndRead(A, 2, 28.0, 29.0))


@for_each(
    "spoil, anomaly",
    [
        (_acknowledged_elsewhere, Anomaly.DISAGREEMENT),
        (_sent_back, Anomaly.SENT_BACK),
        (_back_in_a_poll, Anomaly.POLLED_BACK),
        (_back_to_an_earlier_poll, Anomaly.POLLED_BACK),
        (_skipped, Anomaly.SKIPPED),
        (_unseen, Anomaly.UNSEEN),
        (_another_value, Anomaly.DISAGREEMENT),
        (_committed_back, Anomaly.OFFSET_BACK),
        (_begun_below_the_commit, Anomaly.OFFSET_BACK),
        (_ordered_against_time, Anomaly.STALE),
        (_end_without_what_was_acknowledged, Anomaly.STALE),
        (_end_before_it_was_sent, Anomaly.STALE),
        (_end_that_goes_back, Anomaly.STALE),
    ],
)
def test_each_is_found(spoil: Callable[[Seen], None], anomaly: Anomaly) -> None:
    seen = Seen()
    spoil(seen)
    assert anomaly in {finding.anomaly for finding in seen.findings()}


def _transactions(*each: tuple[list[tuple[TopicPartition, bytes]], list[bytes]]) -> History:
    history = History()
    for number, (writes, reads) in enumerate(each):
        made = history.begin(f"p{number}")
        made.writes, made.reads, made.fate = writes, reads, Fate.COMMITTED
    return history


def test_g0_two_writers_in_two_orders() -> None:
    """Which Kafka allows: so it is no finding of ``read_circles``."""
    history = _transactions(([(A, b"a"), (B, b"b")], []), ([(A, b"c"), (B, b"d")], []))
    log = {A: [(0, b"a"), (1, b"c")], B: [(0, b"d"), (1, b"b")]}
    edges = dependencies(history, log)
    found = cycles(edges)
    assert (found["G0"], found["G1c"], found["G-single"]) == ([[0, 1]], [], [])
    assert read_circles(edges) == []


def test_g1c_each_reads_from_the_other() -> None:
    history = _transactions(([(A, b"a")], [b"b"]), ([(B, b"b")], [b"a"]))
    edges = dependencies(history, {A: [(0, b"a")], B: [(0, b"b")]})
    assert cycles(edges)["G1c"]
    assert read_circles(edges) == [[0, 1]]


def test_g_single_half_of_a_transaction_is_read() -> None:
    """The reader saw 1 of the second writer, and of its 2 not yet anything."""
    history = _transactions(([(A, b"0")], []), ([(A, b"1"), (B, b"2")], []), ([], [b"0", b"2"]))
    log = {A: [(0, b"0"), (1, b"1")], B: [(0, b"2")]}
    found = cycles(dependencies(history, log))
    assert (found["G0"], found["G1c"]) == ([], [])
    assert len(found["G-single"]) == 1


def test_no_circle_in_a_chain() -> None:
    history = _transactions(([(A, b"0")], []), ([(B, b"1")], [b"0"]), ([], [b"1"]))
    edges = dependencies(history, {A: [(0, b"0")], B: [(0, b"1")]})
    assert not any(cycles(edges).values())
