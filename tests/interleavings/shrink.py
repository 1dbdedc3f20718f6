"""The smallest program and schedule that still break the same promise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from tests.interleavings.program import Op, Program, Schedule
from tests.interleavings.run import Result, execute_drawn

_TRIES = 40  # schedules tried for each smaller program: a step removed moves all that follow


class Shrinker:
    """Takes parts away for as long as a failure of the same kind remains.

    Args:
        kind: the kind of the failure that must remain.
        seconds: when to be content with what there is.
    """

    def __init__(self, kind: str, *, strict: bool, seconds: float = 60.0) -> None:
        self._kind = kind
        self._strict = strict
        self._deadline = time.monotonic() + seconds

    def shrink(self, program: Program, schedule: Schedule) -> tuple[Program, Schedule]:
        """A program of which nothing can be left out, under as few switches as possible."""
        best = program, self._recorded(program, schedule) or schedule
        smaller = True
        while smaller and time.monotonic() < self._deadline:
            smaller = False
            for candidate in _smaller(best[0]):
                found = self._search(candidate, best[1])
                if found is not None:
                    best, smaller = (candidate, found), True
                    break
                if time.monotonic() > self._deadline:
                    break
        return best[0], self._fewer_switches(*best)

    def _run(self, program: Program, schedule: Schedule) -> Result | None:
        """The result if it fails in the same way."""
        result = execute_drawn(program, schedule, strict=self._strict)
        return result if result.found is not None and result.found.kind == self._kind else None

    def _recorded(self, program: Program, schedule: Schedule) -> Schedule | None:
        result = self._run(program, schedule)
        if result is None:
            return None
        recorded = Schedule("recorded", result.switches, schedule.fine)
        return recorded if self._run(program, recorded) is not None else None

    def _search(self, program: Program, schedule: Schedule) -> Schedule | None:
        found = self._recorded(program, schedule)
        for seed in range(_TRIES):
            if found is not None or time.monotonic() > self._deadline:
                break
            found = self._recorded(program, Schedule("aimed", (seed, 1 + seed % 3), schedule.fine))
        return found

    def _fewer_switches(self, program: Program, schedule: Schedule) -> Schedule:
        if schedule.kind != "recorded":
            return schedule
        at = 0
        switches = list(schedule.numbers)
        while at < len(switches):
            fewer = Schedule("recorded", tuple(switches[:at] + switches[at + 1 :]), schedule.fine)
            if self._run(program, fewer) is not None:
                del switches[at]
            else:
                at += 1
        return Schedule("recorded", tuple(switches), schedule.fine)


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with one part less, the large parts first."""
    if program.fault is not None:
        yield replace(program, fault=None)
    if program.power_cut is not None:
        yield replace(program, power_cut=None)
    if program.idle_files < 1024:
        yield replace(program, idle_files=1024)
    for at in range(len(program.actors)):
        if len(program.actors) > 1:
            yield replace(program, actors=_without(program.actors, at))
    for length in (8, 4, 2, 1):
        for at in range(0, len(program.setup) - length + 1, length):
            yield replace(program, setup=program.setup[:at] + program.setup[at + length :])
    for index, ops in enumerate(program.actors):
        for at in range(len(ops)):
            if len(ops) > 1:
                yield replace(program, actors=_with(program.actors, index, _without(ops, at)))
    for at, (name, _) in enumerate(program.config):
        if name in ("flush_messages", "preallocate", "index_interval_bytes", "retention_bytes"):
            yield replace(program, config=_without(program.config, at))


def _without(items: tuple, at: int) -> tuple:  # type: ignore[type-arg]
    return items[:at] + items[at + 1 :]


def _with(
    actors: tuple[tuple[Op, ...], ...], index: int, ops: tuple[Op, ...]
) -> tuple[tuple[Op, ...], ...]:
    return (*actors[:index], ops, *actors[index + 1 :])
