"""Makes a failing plan small: first fewer faults, then fewer operations, then smaller ones (delta
debugging). The result breaks the same invariant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from replication.simulator.search.run import run_plan
from replication.simulator.world.plan import Result, SchedulePlan

MAX_RUNS = 600

T = TypeVar("T")


class _Budget(Exception):
    """The budget of runs is used up."""


def shrink(plan: SchedulePlan, max_runs: int = MAX_RUNS) -> tuple[SchedulePlan, Result]:
    """The smallest failing plan found, and its result. ``plan`` itself must fail.

    Raises:
        ValueError: it does not fail.
    """
    first = run_plan(plan)
    if not first.failed:
        raise ValueError(f"the plan of seed {plan.seed} fails nowhere")
    shrinker = _Shrinker(plan, first, max_runs)
    with suppress(_Budget):
        shrinker.run()
    return replace(shrinker.plan, violation=shrinker.result.violations[0]), shrinker.result


def number_of(violation: str) -> str:
    """The invariant that a violation breaks, such as ``I-4``."""
    return violation.split(" ", 1)[0]


class _Shrinker:
    def __init__(self, plan: SchedulePlan, result: Result, max_runs: int) -> None:
        self.plan, self.result = plan, result
        self._wanted = number_of(result.violations[0])
        self._left = max_runs

    def _try(self, plan: SchedulePlan) -> bool:
        """Accept a plan if it fails in the same way."""
        if self._left <= 0:
            raise _Budget
        self._left -= 1
        result = run_plan(plan)
        if not result.failed or number_of(result.violations[0]) != self._wanted:
            return False
        self.plan, self.result = plan, result
        return True

    def run(self) -> None:
        while True:
            before = self.plan
            self._fewer(self.plan.faults, lambda rest: replace(self.plan, faults=rest))
            self._fewer(self.plan.operations, lambda rest: replace(self.plan, operations=rest))
            self._smaller()
            if self.plan == before:
                return

    def _fewer(self, items: Sequence[T], without: Callable[[tuple[T, ...]], SchedulePlan]) -> None:
        """Try to leave out parts, the larger ones first."""
        kept, size = tuple(items), max(1, len(items))
        while size >= 1 and kept:
            at = 0
            while at < len(kept):
                rest = kept[:at] + kept[at + size :]
                if self._try(without(rest)):
                    kept = rest
                else:
                    at += size
            size //= 2

    def _smaller(self) -> None:
        plan = self.plan
        last = max((*(s.at_ms for s in plan.operations), *(f.at_ms for f in plan.faults), 0))
        if last + 50 < plan.duration_ms:
            self._try(replace(plan, duration_ms=last + 50))
        if self.plan.partitions > 1:
            self._try(replace(self.plan, partitions=1))
        for at, step in enumerate(self.plan.operations):
            small = replace(step, records=1, size=min(step.size, 8))
            if step.kind == "produce" and small != step:
                steps = self.plan.operations
                self._try(replace(self.plan, operations=(*steps[:at], small, *steps[at + 1 :])))
        for at, fault in enumerate(self.plan.faults):
            faults = self.plan.faults
            short = replace(fault, duration_ms=fault.duration_ms // 2)
            if fault.duration_ms > 100:
                self._try(replace(self.plan, faults=(*faults[:at], short, *faults[at + 1 :])))
