"""The public TLA+ models of Kafka's replication, as written, on plain sets and tuples.

An oracle that shares nothing with the rules of the project: ``hachikuji/kafka-specification``,
modules ``Kip320``, ``Kip279``, ``Kip101``, ``KafkaTruncateToHighWatermark``. A follower becomes one
and cuts its log in one step, a replica sees into the others, and each ISR change is immediate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from replication.simulator.exhaustive import Bounds, Property

NONE = -1
Entry = tuple[int, int]  # id, epoch


class Request(NamedTuple):
    leader: int
    epoch: int
    isr: frozenset[int]


class View(NamedTuple):
    hw: int
    epoch: int
    leader: int
    isr: frozenset[int]


class Whole(NamedTuple):
    quorum: Request
    requests: frozenset[Request]
    logs: tuple[tuple[Entry, ...], ...]
    views: tuple[View, ...]
    next_id: int


class Step(NamedTuple):
    change: int
    text: str


Cut = Callable[[Whole, int, int], int]  # (state, leader, follower) -> where the follower cuts


def cut_kip279(s: Whole, leader: int, follower: int) -> int:
    pairs = enumerate(zip(s.logs[follower], s.logs[leader], strict=False), 1)
    return max((end for end, (a, b) in pairs if a == b), default=0)


def cut_kip101(s: Whole, leader: int, follower: int) -> int:
    if not s.logs[follower]:
        return 0
    epoch, log = s.logs[follower][-1][1], s.logs[leader]
    if not log:
        return s.views[follower].hw
    if log[-1][1] == epoch:
        return len(log)
    return next((o for o, entry in enumerate(log) if entry[1] > epoch), s.views[follower].hw)


def cut_to_high_watermark(s: Whole, leader: int, follower: int) -> int:
    return s.views[follower].hw


class Published:
    """``search.System``: states numbered as they turn up."""

    def __init__(self, bounds: Bounds, cut: Cut, *, fenced: bool) -> None:
        self.bounds, self.cut, self.fenced = bounds, cut, fenced
        self.ids = range(bounds.replicas)
        self.values: list[Whole] = []
        self.numbers: dict[Whole, int] = {}

    def initial(self) -> int:
        view = View(0, NONE, NONE, frozenset())
        n, everyone = len(self.ids), frozenset(self.ids)
        quorum = Request(NONE, NONE, everyone)
        return self.number(Whole(quorum, frozenset(), ((),) * n, (view,) * n, 0))

    def number(self, s: Whole) -> int:
        if s not in self.numbers:
            self.numbers[s] = len(self.values)
            self.values.append(s)
        return self.numbers[s]

    def canonical(self, key: int) -> int:
        return key

    def orbit(self, key: int) -> int:
        return 1

    def steps(self, key: int) -> list[Step]:
        return [Step(self.number(after) - key, "") for after in self.successors(self.values[key])]

    def successors(self, s: Whole) -> Iterator[Whole]:
        yield from self.controller(s)
        for me in self.ids:
            yield from self.become(s, me)
            if s.views[me].leader == me:
                yield from self.lead(s, me)
            yield from self.fetch(s, me)

    def controller(self, s: Whole) -> Iterator[Whole]:
        leader, epoch, isr = s.quorum
        if epoch == self.bounds.max_epoch:
            return
        updates = [(new, isr) for new in isr if new != leader]
        for gone in self.ids:
            if gone == leader:
                updates.append((NONE, isr if isr == {gone} else isr - {gone}))
            elif gone in isr:
                updates.append((leader, isr - {gone}))
        for update in updates:
            request = Request(update[0], epoch + 1, update[1])
            yield s._replace(quorum=request, requests=s.requests | {request})

    def become(self, s: Whole, me: int) -> Iterator[Whole]:
        view = s.views[me]
        for leader, epoch, isr in sorted(s.requests, key=lambda r: r.epoch):
            if epoch <= view.epoch or leader == NONE:  # it quantifies over replicas only
                continue
            log, hw = s.logs[me], view.hw
            if leader != me:
                if self.fenced and s.views[leader][1:3] != (epoch, leader):
                    continue
                end = self.cut(s, leader, me)
                if end > len(log):  # the published model has no such step
                    continue
                log, hw = log[:end], min(hw, end)
            yield self.with_replica(s, me, View(hw, epoch, leader, isr), log)

    def with_replica(self, s: Whole, me: int, view: View, log: tuple[Entry, ...]) -> Whole:
        return s._replace(
            views=(*s.views[:me], view, *s.views[me + 1 :]),
            logs=(*s.logs[:me], log, *s.logs[me + 1 :]),
        )

    def follows(self, s: Whole, leader: int, follower: int) -> bool:
        """The leader is known to think that it leads."""
        a, b = s.views[leader], s.views[follower]
        return b.leader == leader and (not self.fenced or a.epoch == b.epoch)

    def lead(self, s: Whole, me: int) -> Iterator[Whole]:
        view, log = s.views[me], s.logs[me]
        if s.next_id < self.bounds.records and len(log) < self.bounds.log_size:
            after = self.with_replica(s, me, view, (*log, (s.next_id, view.epoch)))
            yield after._replace(next_id=s.next_id + 1)
        reached = all(self.follows(s, me, r) and len(s.logs[r]) > view.hw for r in view.isr)
        if reached and view.hw < (len(log) if self.fenced else self.bounds.log_size):
            yield self.with_replica(s, me, view._replace(hw=view.hw + 1), log)
        if (s.quorum.leader, s.quorum.epoch) != (me, view.epoch):
            return
        wanted = [view.isr - {r} for r in view.isr - {me} if self.may_leave(s, me, r)]
        wanted += [view.isr | {r} for r in self.ids if r not in view.isr and self.joins(s, me, r)]
        for isr in wanted:
            after = self.with_replica(s, me, view._replace(isr=isr), log)
            yield after._replace(quorum=s.quorum._replace(isr=isr))

    def may_leave(self, s: Whole, me: int, replica: int) -> bool:
        return not self.follows(s, me, replica) or len(s.logs[replica]) < len(s.logs[me])

    def joins(self, s: Whole, me: int, replica: int) -> bool:
        hw, log = s.views[me].hw, s.logs[me]
        if not self.follows(s, me, replica) or len(s.logs[replica]) < hw:
            return False
        if not self.fenced:
            return hw <= len(log)
        return hw == len(log) or (hw < len(log) and log[hw][1] == s.views[me].epoch)

    def fetch(self, s: Whole, me: int) -> Iterator[Whole]:
        leader, log = s.views[me].leader, s.logs[me]
        if leader in (me, NONE) or s.views[leader].leader != leader:
            return
        source = s.logs[leader]
        if self.follows(s, leader, me) and len(log) < len(source):
            hw = min(s.views[leader].hw, len(log) + 1)
            yield self.with_replica(s, me, s.views[me]._replace(hw=hw), (*log, source[len(log)]))

    def broken(self, key: int) -> list[Property]:
        s, broken = self.values[key], []
        for me, view in enumerate(s.views):
            if view.leader == me:
                for isr, name in (
                    (view.isr, Property.WEAK_ISR),
                    (s.quorum.isr, Property.STRONG_ISR),
                ):
                    wanted = s.logs[me][: view.hw]
                    held = all(s.logs[r][: view.hw] == wanted for r in isr)
                    if len(wanted) < view.hw or not held:
                        broken.append(name)
        return broken
