"""The search can see: each of these broken logs is found within the seeds of one test run."""

from __future__ import annotations

import pytest

from tests.interleavings.exhaustive import PAIRS, explore
from tests.interleavings.mutants import MUTANTS
from tests.interleavings.program import draw
from tests.interleavings.run import execute_drawn

SEEDS = 1500
PAIR_OF = {
    "closed_files_read_on": "append, close",
    "cut_before_published": "read, truncate and append",
    "failure_forgotten": "flush beside one that fails",
    "live_size": "available bytes, append",
    "cut_not_told": "follow, truncate and append",
    "no_flush_lock": "flush, roll",
    "no_structure_lock": "retention, retention",
    "roll_slips_in": "roll, truncate",
}
"""Mutants that two actors show soonest; the others are found by the first seeds."""


def _find(name: str) -> str:
    """What breaks, and where; empty when nothing does."""
    if name in PAIR_OF:
        outcome = explore(PAIRS[PAIR_OF[name]], 1, limit=2_000)
        return f"{outcome.found} in schedule {outcome.schedules}" if outcome.found else ""
    for seed in range(1, SEEDS):
        program, schedule = draw(seed)
        found = execute_drawn(program, schedule).found
        if found is not None:
            return f"{found} with seed {seed}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    found = _find(name)
    assert found
    print(found)
