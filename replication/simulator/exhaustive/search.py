"""Breadth-first search: the first violation found is reached by the fewest steps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from replication.simulator.exhaustive.properties import Property


class SystemStep(Protocol):
    @property
    def change(self) -> int: ...
    @property
    def text(self) -> str: ...


class System(Protocol):
    """The interface of what is searched, such as `Model`.

    A state is an integer, and a step adds to it.
    """

    def initial(self) -> int: ...
    def canonical(self, key: int) -> int: ...
    def orbit(self, key: int) -> int: ...
    def steps(self, key: int) -> Collection[SystemStep]: ...
    def broken(self, key: int) -> Collection[Property]: ...


class TraceStep(NamedTuple):
    text: str
    key: int  # the state after it


@dataclass(frozen=True, slots=True)
class Violation:
    """The shortest way to a state in which ``violated`` does not hold."""

    violated: Property
    trace: tuple[TraceStep, ...]

    @property
    def depth(self) -> int:
        return len(self.trace)


class SearchProgress(NamedTuple):
    depth: int
    states: int
    generated: int
    frontier: int  # representatives found at this depth


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    states: int  # different ones
    explored: int  # representatives; the other states are these with renamed replicas
    generated: int  # steps from all states, to new states or known ones
    depth: int  # steps to the farthest state found
    complete: bool  # every reachable state within the bounds was seen
    violations: tuple[Violation, ...]  # the first of each property, in the order found


def search(
    system: System,
    *,
    stop_at: Collection[Property] = tuple(Property),
    max_states: int | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
) -> SearchOutcome:
    """Explore until nothing is new, one of ``stop_at`` is violated, or ``max_states`` are known.

    Deterministic. About 140 bytes for each state explored.
    """
    start = system.canonical(system.initial())
    came_from = {start: start}
    frontier = [start]
    broken_at: dict[Property, int] = dict.fromkeys(system.broken(start), start)
    states, generated, depth = system.orbit(start), 0, 0
    stopped = any(p in broken_at for p in stop_at)
    canonical, steps, broken_in = system.canonical, system.steps, system.broken
    while frontier and not stopped:
        found: list[int] = []
        for key in frontier:
            taken = steps(key)
            generated += len(taken) * system.orbit(key)
            for step in taken:
                after = canonical(key + step.change)
                if after in came_from:
                    continue
                came_from[after] = key
                found.append(after)
                states += system.orbit(after)
                for broken in broken_in(after):
                    broken_at.setdefault(broken, after)
                    stopped = stopped or broken in stop_at
            if stopped or (max_states is not None and states >= max_states):
                stopped = True
                break
        frontier = found
        depth += bool(found)
        if progress is not None:
            progress(SearchProgress(depth, states, generated, len(found)))
    violations = tuple(
        Violation(broken, _trace(system, came_from, key)) for broken, key in broken_at.items()
    )
    return SearchOutcome(states, len(came_from), generated, depth, not stopped, violations)


def _trace(system: System, came_from: dict[int, int], key: int) -> tuple[TraceStep, ...]:
    """Forward from the initial state, under one set of names."""
    way = [key]
    while (before := came_from[way[-1]]) != way[-1]:
        way.append(before)
    key, trace = system.initial(), []
    for wanted in reversed(way[:-1]):
        step = next(s for s in system.steps(key) if system.canonical(key + s.change) == wanted)
        key += step.change
        trace.append(TraceStep(step.text, key))
    return tuple(trace)
