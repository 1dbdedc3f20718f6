"""Interleavings of one log: the first few hundred seeds, and those that once failed."""

from __future__ import annotations

import pytest

from tests.interleavings.exhaustive import PAIRS, explore
from tests.interleavings.kept import KEPT
from tests.interleavings.program import draw
from tests.interleavings.run import execute, execute_drawn
from tests.interleavings.strategies import every_way


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600, 150))
def test_the_first_seeds(first: int) -> None:
    """``python -m tests.interleavings`` searches any range of seeds."""
    for seed in range(first, first + 150):
        program, schedule = draw(seed)
        found = execute_drawn(program, schedule).found
        assert found is None, f"{found}\npython -m tests.interleavings --one {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_all_schedules_with_one_preemption(name: str) -> None:
    outcome = explore(PAIRS[name], 1, limit=10_000)
    assert outcome.found is None, f"{outcome.found} at {outcome.switches}"
    assert outcome.complete


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    case = KEPT[name]
    assert execute_drawn(case.program, case.schedule).found is None


def test_a_seed_repeats_exactly() -> None:
    for seed in range(1, 16):
        program, schedule = draw(seed)
        first = execute_drawn(program, schedule, traced=True)
        second = execute_drawn(program, schedule, traced=True)
        assert first.trace == second.trace
        assert (first.steps, first.switches) == (second.steps, second.switches)


def test_every_way_counts_the_schedules() -> None:
    """Two actors of two operations that never meet: one schedule for each place of a switch."""
    program = PAIRS["append, append"]
    seen = set()
    for strategy in every_way(1):
        seen.add(execute(program, strategy).switches)
    assert len(seen) == explore(program, 1, limit=10_000).schedules
