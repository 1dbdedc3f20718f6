"""States that differ only in the names of the replicas are one.

No rule prefers a replica: the order of the assignment decides an election only between several
acceptable candidates, and the model offers one at a time. So a run with renamed replicas is a run.
Of all states that renaming makes of a state the search keeps one, the one with the smallest key.
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

from replication.decisions.isr import IsrState
from replication.simulator.exhaustive.state import Control, ModelLeadership, ModelReplica

Names = tuple[int, ...]  # the new id of each replica


def all_names(replicas: int) -> list[Names]:
    """Every way to name them; the first changes nothing."""
    return [*permutations(range(replicas))]


def _isr(isr: tuple[int, ...], names: Names) -> tuple[int, ...]:
    return tuple(sorted(names[r] for r in isr))


def _id(replica: int, names: Names) -> int:
    return names[replica] if replica >= 0 else replica


def renamed_replica(replica: ModelReplica, names: Names) -> ModelReplica:
    isr = replica.isr
    proposed = None if isr.proposed is None else _isr(isr.proposed, names)
    return replica._replace(
        leader=_id(replica.leader, names), isr=IsrState(_isr(isr.committed, names), proposed)
    )


def renamed_control(control: Control, names: Names) -> Control:
    return Control(
        _id(control.leader, names),
        _isr(control.isr, names),
        tuple(
            None
            if past is None
            else ModelLeadership(
                _id(past.leader, names), tuple(_isr(i, names) for i in past.unseen)
            )
            for past in control.leaderships
        ),
    )


class Renaming(NamedTuple):
    """One renaming, as a table from old field to new field, already shifted to its place."""

    controls: list[int]
    replicas: list[list[int]]  # by old id, by number
