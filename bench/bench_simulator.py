"""How many schedules of the simulator one core gets through, with every invariant on."""

from __future__ import annotations

import time
from typing import Any

from workloads import scaled

from replication.simulator.search.search import run_seeds
from replication.simulator.world.plan import SearchOptions

SCHEDULES = scaled(40, 4)
GOAL_SCHEDULES, GOAL_EVENTS = 50, 200


def test_schedules_on_one_core(claim: Any) -> None:
    run_seeds(0, 1, SearchOptions())
    begun = time.process_time()
    results = run_seeds(0, SCHEDULES, SearchOptions())
    took = time.process_time() - begun
    assert not any(result.failed for result in results)
    events = sorted(result.events for result in results)
    claim(
        "simulated schedules, all invariants on, one core",
        SCHEDULES / took,
        "a CPU second",
        limit=GOAL_SCHEDULES,
        note=f"{events[0]} to {events[-1]} events each, {sum(events) / SCHEDULES:.0f} on average; "
        f"the limit was meant for {GOAL_EVENTS}",
    )
    claim(
        "simulated events, all invariants on, one core",
        sum(events) / took,
        "a CPU second",
        limit=GOAL_SCHEDULES * GOAL_EVENTS,
    )
