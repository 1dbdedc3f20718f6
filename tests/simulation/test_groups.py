"""Groups in the simulator: a few schedules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from replication.simulator.search.run import run_seed
from replication.simulator.search.search import run_seeds
from replication.simulator.world.plan import SearchOptions

OPTIONS = SearchOptions(groups=True, events=80)


@pytest.mark.slow
def test_a_group_on_brokers_that_fail() -> None:
    """``logstore simulate --groups --schedules N`` runs as many as are asked for."""
    seen: Counter[str] = Counter()
    for result in run_seeds(0, 4, OPTIONS):
        assert result.violations == [], f"seed {result.seed}"
        seen.update(result.counters)
    for what in ("group commits", "group offsets read", "group assignments", "elections"):
        assert seen[what], f"no schedule met {what!r}"


@pytest.mark.slow
def test_static_members_without_faults() -> None:
    """They keep their assignment over a restart, and fence each other."""
    options = replace(OPTIONS, faults=("none",), events=150)
    seen: Counter[str] = Counter()
    for seed in range(40):
        result = run_seed(seed, options)
        assert result.violations == [], f"seed {seed}"
        seen.update(result.counters)
        if seen["assignments kept over a restart"] and seen["static members fenced"]:
            return
    raise AssertionError(seen)
