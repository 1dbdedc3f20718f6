"""How many schedules of the simulator one core gets through, with every invariant on."""

from __future__ import annotations

import time
from typing import Any

import pytest
from workloads import ROUNDS, rates, scaled, timed

from replication.simulator.search.search import run_seeds
from replication.simulator.world.plan import SearchOptions

SCHEDULES = scaled(40, 4)
GOAL_SCHEDULES, GOAL_EVENTS = 50, 200
GOAL_RATE = 44_900  # half as many again as when schedules were a third as long


@pytest.mark.benchmark(timer=time.process_time)
def test_schedules_on_one_core(benchmark: Any, claim: Any) -> None:
    results = benchmark.pedantic(
        run_seeds, (0, SCHEDULES, SearchOptions()), rounds=ROUNDS, warmup_rounds=1
    )
    took = timed(benchmark)
    assert not any(result.failed for result in results)
    events = sorted(result.events for result in results)
    claim(
        "simulated schedules, all invariants on, one core",
        rates(SCHEDULES, took),
        "a CPU second",
        limit=GOAL_SCHEDULES,
        note=f"{events[0]} to {events[-1]} events each, {sum(events) / SCHEDULES:.0f} on average; "
        f"the limit was meant for {GOAL_EVENTS}",
    )
    claim(
        "simulated events, all invariants on, one core",
        rates(sum(events), took),
        "a CPU second",
        limit=GOAL_RATE,
    )
