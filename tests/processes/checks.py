"""What Jepsen's tests of Kafka look for, beside what ``transactional_histories`` finds.

A record that is sent outside of a transaction is a transaction of one write: acknowledged is
committed, and everything else unknown.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from checkpoints.types import TopicPartition
from tests.support.transactional_histories import (
    Anomaly,
    Finding,
    History,
    Log,
    Read,
    Transaction,
)


class Poll(NamedTuple):
    """What one poll of a member of a group gave.

    Attributes:
        assignment: counts how often the member was given partitions, over all members.
    """

    member: str
    assignment: int
    began: float
    ended: float
    reads: tuple[Read, ...]


class Commit(NamedTuple):
    """An offset that the group's coordinator acknowledged."""

    member: str
    tp: TopicPartition
    offset: int
    began: float
    ended: float


class EndRead(NamedTuple):
    """Which offset the next record of a partition would get, as a broker said."""

    tp: TopicPartition
    end: int
    began: float
    ended: float


def check_sends(history: History, log: Log) -> Iterator[Finding]:
    """Offsets that were acknowledged: what is there in the end, and rising for each producer."""
    found = {tp: dict(records) for tp, records in log.items()}
    last: dict[tuple[str, TopicPartition], int] = {}
    for each in history.transactions:
        for tp, value in each.writes:
            offset = each.offsets.get(value)
            if offset is None:
                continue
            if found.get(tp, {}).get(offset) != value:
                there = found.get(tp, {}).get(offset)
                what = f"{value!r} was acknowledged at {tp} offset {offset}, there is {there!r}"
                yield Finding(Anomaly.DISAGREEMENT, what)
            if offset <= last.get((each.producer, tp), -1):
                yield Finding(Anomaly.SENT_BACK, f"{value!r} at {tp} offset {offset}")
            last[each.producer, tp] = offset


def check_polls(polls: Iterable[Poll], log: Log) -> Iterator[Finding]:
    """Within one poll, and from one to the next of the same assignment."""
    found = {tp: dict(records) for tp, records in log.items()}
    offsets = {tp: [offset for offset, _ in records] for tp, records in log.items()}
    last: dict[tuple[str, int, TopicPartition], int] = {}
    seen: set[tuple[TopicPartition, int]] = set()
    for poll in polls:
        within: set[TopicPartition] = set()
        for read in poll.reads:
            key = poll.member, poll.assignment, read.tp
            kind = "int" if read.tp in within else "ext"
            where = f"{kind}-poll of {poll.member}: {read.tp} offset {read.offset}"
            within.add(read.tp)
            seen.add((read.tp, read.offset))
            if found.get(read.tp, {}).get(read.offset) != read.value:
                there = found.get(read.tp, {}).get(read.offset)
                yield Finding(Anomaly.DISAGREEMENT, f"{where}: {read.value!r}, then {there!r}")
            before = last.get(key)
            last[key] = read.offset
            if before is None:
                continue
            if read.offset <= before:
                yield Finding(Anomaly.POLLED_BACK, f"{where} after {before}")
            own = offsets.get(read.tp, [])
            if skipped := own[bisect_left(own, before + 1) : bisect_left(own, read.offset)]:
                yield Finding(Anomaly.SKIPPED, f"{where} after {before}: {skipped[:10]}")
    for tp, records in log.items():
        unseen = [offset for offset, _ in records if (tp, offset) not in seen]
        if unseen:
            yield Finding(Anomaly.UNSEEN, f"{len(unseen)} of {tp}: {unseen[:10]}")


def check_commits(commits: Sequence[Commit], polls: Iterable[Poll]) -> Iterator[Finding]:
    """A commit that began after another one had ended is not below it, and whoever takes a
    partition over does not begin below what was committed before."""
    by_tp: dict[TopicPartition, list[Commit]] = defaultdict(list)
    for each in commits:
        by_tp[each.tp].append(each)
    highest = {
        tp: HighestBefore([(each.ended, each.offset) for each in own]) for tp, own in by_tp.items()
    }
    for tp, own in by_tp.items():
        for each in own:
            if each.offset < highest[tp](each.began):
                was = highest[tp](each.began)
                what = f"{each.member} committed {each.offset} of {tp}, after {was}"
                yield Finding(Anomaly.OFFSET_BACK, what)
    begun: set[tuple[str, int, TopicPartition]] = set()
    assigned: dict[tuple[str, int], float] = {}
    for poll in polls:
        since = assigned.setdefault((poll.member, poll.assignment), poll.began)
        for read in poll.reads:
            key = poll.member, poll.assignment, read.tp
            if key in begun:
                continue
            begun.add(key)
            was = highest[read.tp](since) if read.tp in highest else -1
            if read.offset < was:
                what = f"{poll.member} began {read.tp} at {read.offset}, {was} was committed"
                yield Finding(Anomaly.OFFSET_BACK, what)


class HighestBefore:
    """The highest offset of what had ended before a time; -1 if nothing had."""

    def __init__(self, points: list[tuple[float, int]]) -> None:
        points.sort()
        self._times = [time for time, _ in points]
        self._highest = [-1]
        for _, offset in points:
            self._highest.append(max(offset, self._highest[-1]))

    def __call__(self, time: float) -> int:
        return self._highest[bisect_left(self._times, time)]


class Register(NamedTuple):
    """One partition as a register of its next offset: what porcupine checks, too.

    Attributes:
        writes: (offset, began, ended) of every record that is there in the end.
    """

    writes: list[tuple[int, float, float]]
    reads: list[EndRead]


def registers(
    history: History, log: Log, ends: Iterable[EndRead]
) -> dict[TopicPartition, Register]:
    writers: dict[tuple[TopicPartition, bytes], Transaction] = {
        write: each for each in history.transactions for write in each.writes
    }
    found = {tp: Register([], []) for tp in log}
    for tp, records in log.items():
        for offset, value in records:
            each = writers.get((tp, value))
            if each is not None:
                # What is there although nobody heard of it may have come at any later time.
                known = each.ended if value in each.offsets else math.inf
                found[tp].writes.append((offset, each.began, known))
    for end in ends:
        if end.tp in found:
            found[end.tp].reads.append(end)
    return found


def check_realtime(registers: Mapping[TopicPartition, Register]) -> Iterator[Finding]:
    """The order of a partition is that of real time: linearizability, of which a log is the simple
    case, since its offsets say in what order everything was."""
    for tp, register in registers.items():
        writes = sorted(register.writes)
        latest_began = -math.inf  # of those with lower offsets
        for offset, began, ended in writes:
            if ended < latest_began:
                what = f"{tp} offset {offset} had ended before one below it began"
                yield Finding(Anomaly.STALE, what)
            latest_began = max(latest_began, began)
        offsets = [offset for offset, _, _ in writes]
        begins = [-math.inf]  # the latest of those below
        for _, began, _ in writes:
            begins.append(max(begins[-1], began))
        highest = HighestBefore([(ended, offset) for offset, _, ended in writes])
        for read in register.reads:
            if highest(read.began) >= read.end:
                what = f"{tp} ended at {read.end}, but {highest(read.began)} was acknowledged"
                yield Finding(Anomaly.STALE, what)
            if begins[bisect_left(offsets, read.end)] > read.ended:
                what = f"{tp} ended at {read.end} before a record below it was sent"
                yield Finding(Anomaly.STALE, what)
        ordered = sorted(register.reads, key=lambda each: each.ended)
        before = HighestBefore([(each.ended, each.end) for each in ordered])
        for read in ordered:
            if read.end < before(read.began):
                what = f"{tp} ended at {read.end}, and at {before(read.began)} before"
                yield Finding(Anomaly.STALE, what)


# -- transactions that depend on each other --------------------------------------------------------

WW, WR, RW = "ww", "wr", "rw"
Edges = dict[tuple[int, int], set[str]]


def dependencies(history: History, log: Log) -> Edges:
    """Adya's three: who wrote after whom, who read from whom, who read what another one wrote over
    (a reader of a partition comes before whoever wrote the next record of it)."""
    wrote = {
        value: (tp, number)
        for number, each in enumerate(history.transactions)
        for tp, value in each.writes
    }
    edges: Edges = defaultdict(set)

    def add(one: int, other: int, kind: str) -> None:
        if one != other:
            edges[one, other].add(kind)

    next_writer: dict[bytes, int] = {}
    for records in log.values():
        known = [value for _, value in records if value in wrote]
        for value, following in pairwise(known):
            next_writer[value] = wrote[following][1]
            add(wrote[value][1], next_writer[value], WW)
    for number, each in enumerate(history.transactions):
        last = {wrote[value][0]: value for value in each.reads if value in wrote}
        for value in each.reads:
            if value in wrote:
                add(wrote[value][1], number, WR)
        for value in last.values():
            if value in next_writer:
                add(number, next_writer[value], RW)
    return edges


def cycles(edges: Edges) -> dict[str, list[list[int]]]:
    """G0: writes alone; G1c: writes and reads, of these at least one; G-single: exactly one
    anti-dependency. Each as the numbers of the transactions of one shortest circle a component.

    Kafka promises none of them but G1c of reads alone: transactions write as they go, so two of
    them may have different orders in two partitions."""
    found: dict[str, list[list[int]]] = {"G0": [], "G1c": [], "G-single": []}
    graphs = {kinds: _graph(edges, kinds) for kinds in (frozenset({WW}), frozenset({WW, WR}))}
    for component in _components(graphs[frozenset({WW})]):
        found["G0"].append(sorted(component))
    both = graphs[frozenset({WW, WR})]
    places = {each: n for n, component in enumerate(_components(both)) for each in component}
    for (one, other), kinds in edges.items():
        is_inside = one in places and places[one] == places.get(other)
        if WR in kinds and is_inside and (path := _path(both, other, one)):
            found["G1c"].append([one, *path])
        if RW in kinds and (path := _path(both, other, one)):
            found["G-single"].append([one, *path])
    return found


def read_circles(edges: Edges) -> list[list[int]]:
    """Of G1c those that Kafka rules out: transactions that read from each other."""
    return [sorted(each) for each in _components(_graph(edges, frozenset({WR})))]


def _graph(edges: Edges, kinds: frozenset[str]) -> dict[int, list[int]]:
    graph: dict[int, list[int]] = defaultdict(list)
    for (one, other), found in edges.items():
        if found & kinds:
            graph[one].append(other)
            graph.setdefault(other, [])
    return graph


def _path(graph: Mapping[int, list[int]], start: int, goal: int) -> list[int]:
    """A shortest one, its ends with it; empty without one."""
    came: dict[int, int | None] = {start: None}
    queue = [start]
    for each in queue:
        if each == goal:
            path: list[int] = []
            step: int | None = each
            while step is not None:
                path.append(step)
                step = came[step]
            return path[::-1]
        for more in graph.get(each, ()):
            if more not in came:
                came[more] = each
                queue.append(more)
    return []


def _components(graph: Mapping[int, list[int]]) -> list[list[int]]:
    """Strongly connected ones of more than one, by Kosaraju, without recursion."""
    order: list[int] = []
    seen: set[int] = set()
    for root in graph:
        stack = [(root, iter(graph[root]))] if root not in seen else []
        seen.add(root)
        while stack:
            node, more = stack[-1]
            for each in more:
                if each not in seen:
                    seen.add(each)
                    stack.append((each, iter(graph[each])))
                    break
            else:
                order.append(node)
                stack.pop()
    back: dict[int, list[int]] = defaultdict(list)
    for one, others in graph.items():
        for other in others:
            back[other].append(one)
    components, taken = [], set()
    for root in reversed(order):
        if root in taken:
            continue
        component, queue = [], [root]
        taken.add(root)
        while queue:
            node = queue.pop()
            component.append(node)
            for each in back[node]:
                if each not in taken:
                    taken.add(each)
                    queue.append(each)
        if len(component) > 1:
            components.append(component)
    return components
