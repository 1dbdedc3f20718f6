"""The states that can follow a state, and the properties that a state breaks.

A state is one integer. Its fields of ``FIELD_BITS`` are, from the low end, the replicas, the
written records and the controller. A field is the number of a value in a table. A step depends on a
few fields only, so it is computed once for each combination of them (by the rules themselves,
``steps`` and ``controller``) and remembered. The search then only does look-ups.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple, TypeVar

from replication.decisions.isr import IsrState
from replication.decisions.truncation import FETCH_RULE, TruncationRule
from replication.simulator.exhaustive import controller, steps
from replication.simulator.exhaustive.decisions import ModelDecisions
from replication.simulator.exhaustive.properties import (
    Property,
    control_broken,
    holds_committed,
    logs_match,
    reaches,
    replica_type_ok,
)
from replication.simulator.exhaustive.state import (
    Bounds,
    Control,
    ModelPhase,
    ModelReplica,
    ModelTable,
    State,
)
from replication.simulator.exhaustive.symmetry import (
    Renaming,
    all_names,
    renamed_control,
    renamed_replica,
)

K = TypeVar("K")
V = TypeVar("V")
FIELD_BITS = 20
FIELD = (1 << FIELD_BITS) - 1


class ModelStep(NamedTuple):
    """``state + change`` is the next state, wherever the step is possible."""

    change: int
    text: str


class _LeaderMoves(NamedTuple):
    steps: tuple[ModelStep, ...]
    proposals: tuple[tuple[int, ...], ...]


_Ends = tuple[int, int]  # a follower's log end, as it counts for the watermark and for joining


class Model:
    """The protocol within ``bounds``, under a truncation rule.

    Args:
        asynchronous_isr: a change of the ISR takes three steps with anything in between, instead of
            one: the leader proposes it, the controller decides, the leader learns it.
        symmetry: take states that differ only in the names of the replicas as one (``symmetry``).
    """

    def __init__(
        self,
        bounds: Bounds,
        rule: TruncationRule = FETCH_RULE,
        *,
        asynchronous_isr: bool = False,
        symmetry: bool = True,
    ) -> None:
        if min(bounds.replicas, bounds.log_size, bounds.records) < 1 or bounds.max_epoch < 0:
            raise ValueError(f"nothing to explore within {bounds}")
        self.bounds, self.rule = bounds, rule
        self._decide = ModelDecisions()
        self._ids = range(bounds.replicas)
        self._shifts = [FIELD_BITS * i for i in self._ids]
        self._written_shift = FIELD_BITS * bounds.replicas
        self._written_mask = FIELD << self._written_shift
        self._control_shift = self._written_shift + FIELD_BITS
        self.asynchronous_isr = asynchronous_isr
        self._names = all_names(bounds.replicas)[: None if symmetry else 1]
        self._renamings = [Renaming([], [[] for _ in self._ids]) for _ in self._names]
        # By the numbers of replica and control values.
        self._leader: list[int] = []
        self._epoch: list[int] = []
        self._replica_ok: list[bool] = []
        self._control_broken: list[list[Property]] = []
        # The smallest field that renaming makes of it, and the renamings that do.
        self._best: list[tuple[int, tuple[tuple[list[int], ...], ...]]] = []
        self._replicas: ModelTable[ModelReplica] = ModelTable(FIELD, self._on_replica)
        self._controls: ModelTable[Control] = ModelTable(FIELD, self._on_control)
        # Remembered results, by numbers.
        self._decided: dict[int, tuple[ModelStep, ...]] = {}
        self._delivered: dict[tuple[int, int, int, int], tuple[ModelStep, ...]] = {}
        self._written: dict[tuple[int, int, int], tuple[ModelStep, ...]] = {}
        self._asked: dict[tuple[int, int, int], tuple[ModelStep, ...]] = {}
        self._ends: dict[tuple[int, int], _Ends] = {}
        self._led: dict[tuple[int, int, tuple[_Ends, ...]], _LeaderMoves] = {}
        self._altered: dict[tuple[int, int, int, tuple[int, ...]], tuple[ModelStep, ...]] = {}
        self._pairs: dict[tuple[int, int], tuple[bool, bool, bool]] = {}

    def _on_replica(self, number: int, replica: ModelReplica) -> None:
        self._leader.append(replica.leader)
        self._epoch.append(replica.leader_epoch)
        self._replica_ok.append(replica_type_ok(replica, self.bounds))
        for renaming in self._renamings:  # check the room first: renaming may find new values
            for fields in renaming.replicas:
                fields.append(0)
        for names, renaming in zip(self._names, self._renamings, strict=True):
            new = self._replicas.number(renamed_replica(replica, names))
            for old_id, fields in enumerate(renaming.replicas):
                fields[number] = new << self._shifts[names[old_id]]

    def _on_control(self, number: int, control: Control) -> None:
        self._control_broken.append(control_broken(control, self.bounds))
        self._best.append((0, ()))
        for renaming in self._renamings:
            renaming.controls.append(0)
        for names, renaming in zip(self._names, self._renamings, strict=True):
            new = self._controls.number(renamed_control(control, names))
            renaming.controls[number] = new << self._control_shift
        lowest = min(r.controls[number] for r in self._renamings)
        chosen = [r for r in self._renamings if r.controls[number] == lowest]
        self._best[number] = lowest, tuple(tuple(r.replicas) for r in chosen)

    # -- states --------------------------------------------------------------------------------

    def initial(self) -> int:
        """The state without a leader, with all replicas in the ISR and empty logs."""
        return self.encode(
            State(Control(-1, tuple(self._ids)), 0, (ModelReplica(),) * len(self._ids))
        )

    def encode(self, state: State) -> int:
        key = self._controls.number(state.control) << self._control_shift
        key += state.written << self._written_shift
        for replica, shift in zip(state.replicas, self._shifts, strict=True):
            key += self._replicas.number(replica) << shift
        return key

    def decode(self, key: int) -> State:
        return State(
            self._controls.values[key >> self._control_shift],
            key >> self._written_shift & FIELD,
            tuple(self._replicas.values[key >> shift & FIELD] for shift in self._shifts),
        )

    def canonical(self, key: int) -> int:
        """The smallest key that renaming the replicas makes of it."""
        lowest, renamings = self._best[key >> self._control_shift]
        return lowest + (key & self._written_mask) + min(self._renamed(key, renamings))

    def orbit(self, key: int) -> int:
        """Count the different states that renaming makes of it."""
        fields = self._renamed(key, self._best[key >> self._control_shift][1])
        return len(self._names) // fields.count(min(fields))

    def _renamed(self, key: int, renamings: tuple[tuple[list[int], ...], ...]) -> list[int]:
        numbers = [key >> shift & FIELD for shift in self._shifts]
        if len(numbers) == 3:  # as below, for the usual case
            a, b, c = numbers
            return [x[a] + y[b] + z[c] for x, y, z in renamings]
        return [
            sum([fields[n] for fields, n in zip(renaming, numbers, strict=True)])
            for renaming in renamings
        ]

    # -- steps ---------------------------------------------------------------------------------

    def steps(self, key: int) -> list[ModelStep]:
        """Every step that leads to another state, in a fixed order."""
        ids = self._ids
        control = key >> self._control_shift
        written = key >> self._written_shift & FIELD
        numbers = [key >> shift & FIELD for shift in self._shifts]
        leader_of, epochs = self._leader, [self._epoch[n] for n in numbers]
        found: list[tuple[ModelStep, ...]] = [_known(self._decided, control, self._decide_on)]
        for me in ids:
            others = [e for i, e in enumerate(epochs) if i != me]
            lowest = min(others, default=self.bounds.max_epoch)
            place = (control, me, numbers[me], lowest)
            found.append(_known(self._delivered, place, self._deliver))
        for me in ids:
            number = numbers[me]
            leader = leader_of[number]
            if leader == me:
                found.append(_known(self._written, (me, number, written), self._write))
                ends = tuple([_known(self._ends, (number, n), self._end) for n in numbers])
                moves = _known(self._led, (me, number, ends), self._lead)
                found.append(moves.steps)
                for isr in moves.proposals:
                    asked = (control, me, number, isr)
                    found.append(_known(self._altered, asked, self._alter))
            elif leader >= 0 and leader_of[numbers[leader]] == leader:
                found.append(_known(self._asked, (me, number, numbers[leader]), self._ask))
        return [*chain.from_iterable(found)]

    def _change(
        self, me: int, before: int, after: ModelReplica, text: str
    ) -> tuple[ModelStep, ...]:
        """The step of one replica; none if it stays the same."""
        number = self._replicas.number(after)
        return (ModelStep(number - before << self._shifts[me], text),) if number != before else ()

    def _control_change(self, before: int, after: Control) -> int:
        return self._controls.number(after) - before << self._control_shift

    def _decide_on(self, number: int) -> tuple[ModelStep, ...]:
        control = self._controls.values[number]
        found: dict[int, str] = {}
        for after, reason in controller.decisions_of(control, len(self._ids), self._decide):
            if after is not control and after.leader_epoch <= self.bounds.max_epoch:
                found.setdefault(self._control_change(number, after), reason)
        return tuple(ModelStep(change, text) for change, text in found.items())

    def _deliver(self, place: tuple[int, int, int, int]) -> tuple[ModelStep, ...]:
        control_number, me, number, lowest = place
        control, replica = self._controls.values[control_number], self._replicas.values[number]
        found = []
        for delivery in controller.deliverable(control, me, replica.leader_epoch):
            leader, epoch, isr, _ = delivery
            if leader == me:
                after = steps.lead(replica, me, epoch, isr)
                news = "it leads" if epoch > replica.leader_epoch else "its ISR changed"
                text = f"{me} learns that {news}, epoch {epoch}, ISR {members(isr)}"
            else:
                after = steps.follow(replica, leader, epoch, self.rule)
                whom = f"{leader} leads" if leader >= 0 else "nobody leads"
                text = f"{me} learns that {whom}, epoch {epoch}{_cut_text(replica, after)}"
            rest = controller.taken(control, me, delivery, min(lowest, epoch))
            change = self._control_change(control_number, rest)
            change += self._replicas.number(after) - number << self._shifts[me]
            found.append(ModelStep(change, text))
        return tuple(found)

    def _write(self, place: tuple[int, int, int]) -> tuple[ModelStep, ...]:
        me, number, written = place
        replica = self._replicas.values[number]
        if written == self.bounds.records or replica.log.end_offset == self.bounds.log_size:
            return ()
        after = steps.write(replica, written)
        [step] = self._change(me, number, after, f"{me} appends {after.log.records[-1]}")
        return (step._replace(change=step.change + (1 << self._written_shift)),)

    def _ask(self, place: tuple[int, int, int]) -> tuple[ModelStep, ...]:
        me, number, leader_number = place
        replica, leader = self._replicas.values[number], self._replicas.values[leader_number]
        ask = steps.fetch if replica.phase is ModelPhase.FETCHING else steps.ask_where_to_cut
        after = ask(replica, leader, self.rule, self._decide)
        if after is None:
            return ()
        text = f"{me} asks {replica.leader}{_cut_text(replica, after)}"
        if after.log.end_offset > replica.log.end_offset:
            text = f"{me} fetches {after.log.records[-1]} from {replica.leader}"
        if after.high_watermark > replica.high_watermark:
            text += f", high watermark {after.high_watermark}"
        return self._change(me, number, after, text)

    def _end(self, pair: tuple[int, int]) -> _Ends:
        leader, follower = (self._replicas.values[n] for n in pair)
        decide = self._decide
        commit, join = (
            steps.known_end(leader, follower, check, self.rule, decide)
            for check in (decide.epoch_to_commit, decide.epoch_to_join)
        )
        return commit, join

    def _lead(self, place: tuple[int, int, tuple[_Ends, ...]]) -> _LeaderMoves:
        me, number, ends = place
        leader = self._replicas.values[number]
        to_commit = {i: commit for i, (commit, _) in enumerate(ends)}
        to_join = {i: join for i, (_, join) in enumerate(ends)}
        after = steps.advance(leader, me, to_commit, self._decide, len(self._ids))
        text = f"{me} moves the high watermark to {after.high_watermark}"
        found = self._change(me, number, after, text)
        wanted = steps.proposals(leader, me, to_join, self._decide)
        if not self.asynchronous_isr:
            return _LeaderMoves(found, tuple(wanted))
        for isr in wanted:
            pending = leader._replace(isr=IsrState(leader.isr.committed, isr))
            text = f"{me} proposes to change {_isr_change(leader.isr.committed, isr)}"
            found += self._change(me, number, pending, text)
        sent = leader.isr.proposed
        return _LeaderMoves(found, () if sent is None else (sent,))

    def _alter(self, place: tuple[int, int, int, tuple[int, ...]]) -> tuple[ModelStep, ...]:
        """Have the controller judge a proposal. A refused leader waits for new metadata (R-39)."""
        control_number, me, number, isr = place
        control, replica = self._controls.values[control_number], self._replicas.values[number]
        after = controller.altered(
            control, me, replica.leader_epoch, isr, len(self._ids), self._decide
        )
        if after is None or after is control or after.leader_epoch > self.bounds.max_epoch:
            return ()
        change = 0
        text = f"controller accepts the ISR {members(isr)} of {me}"
        answers = (after.leader, after.leader_epoch) == (me, replica.leader_epoch)
        if answers and not self.asynchronous_isr:  # the leader gets its answer at once
            latest = controller.Delivery(me, after.leader_epoch, isr, after.unseen_count - 1)
            after = controller.taken(after, me, latest, lowest_epoch=-1)
            leader = replica._replace(isr=IsrState(isr))
            change = self._replicas.number(leader) - number << self._shifts[me]
            text = f"{me} changes {_isr_change(replica.isr.committed, isr)}"
        return (ModelStep(change + self._control_change(control_number, after), text),)

    # -- properties ----------------------------------------------------------------------------

    def broken(self, key: int) -> list[Property]:
        """The properties that do not hold in a state."""
        control_number = key >> self._control_shift
        control = self._controls.values[control_number]
        numbers = [key >> shift & FIELD for shift in self._shifts]
        broken = self._control_broken[control_number]
        if not all(map(self._replica_ok.__getitem__, numbers)):
            broken = [Property.TYPE_OK, *broken]
        for me, number in enumerate(numbers):
            pairs = [_known(self._pairs, (number, n), self._pair) for n in numbers]
            holds, reached, match = zip(*pairs, strict=True)
            if self._leader[number] == me:
                own_isr = self._replicas.values[number].isr.maximal
                if not all(map(holds.__getitem__, own_isr)):
                    broken = [*broken, Property.WEAK_ISR]
                if not all(map(holds.__getitem__, control.isr)):
                    broken = [*broken, Property.STRONG_ISR]
                current = control.leader == me and control.leader_epoch == self._epoch[number]
                if current and not all(map(reached.__getitem__, control.isr)):
                    broken = [*broken, Property.VALID_HIGH_WATERMARK]
            if not all(match):
                broken = [*broken, Property.LOG_MATCHING]
        return broken

    def _pair(self, pair: tuple[int, int]) -> tuple[bool, bool, bool]:
        a, b = (self._replicas.values[n] for n in pair)
        return holds_committed(a, b), reaches(a, b), logs_match(a, b)


def _known(memory: dict[K, V], place: K, work: Callable[[K], V]) -> V:
    value = memory.get(place)
    if value is None:
        value = memory[place] = work(place)
    return value


def _cut_text(before: ModelReplica, after: ModelReplica) -> str:
    gone = before.log.records[after.log.end_offset :]
    return f", cuts {' '.join(map(str, gone))}" if gone else ""


def _isr_change(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    return f"the ISR from {members(before)} to {members(after)}"


def members(isr: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, isr)) + "}"
