"""How many schedules of the simulator one core gets through, with every invariant on."""

from __future__ import annotations

import time
from typing import Any

from replication.simulator.search.search import run_seeds
from replication.simulator.world.plan import SearchOptions

SCHEDULES, ROUNDS = 40, 5
GOAL_SCHEDULES, GOAL_EVENTS = 50, 200


def test_schedules_on_one_core(benchmark: Any, claim: Any) -> None:
    seconds, results = [], []

    def search() -> None:
        begun = time.process_time()
        results[:] = run_seeds(0, SCHEDULES, SearchOptions())
        seconds.append(time.process_time() - begun)

    benchmark.pedantic(search, rounds=ROUNDS, warmup_rounds=1)
    assert not any(result.failed for result in results)
    events = sorted(result.events for result in results)
    of_cpu = min(seconds)
    rate, event_rate = SCHEDULES / of_cpu, sum(events) / of_cpu
    claim(
        what="simulated schedules, all invariants on, one core",
        ours=round(rate, 1),
        unit="a CPU second",
        peer="",
        ratio="",
        goal=f"{GOAL_SCHEDULES} of {GOAL_EVENTS} events and more",
        met=rate >= GOAL_SCHEDULES and events[len(events) // 20] >= GOAL_EVENTS,
        note=f"{events[0]} to {events[-1]} events each, {sum(events) / SCHEDULES:.0f} on average",
    )
    claim(
        what="simulated events, all invariants on, one core",
        ours=round(event_rate),
        unit="a CPU second",
        peer="",
        ratio="",
        goal=f"{GOAL_SCHEDULES * GOAL_EVENTS:,}: {GOAL_SCHEDULES} schedules of {GOAL_EVENTS}",
        met=event_rate >= GOAL_SCHEDULES * GOAL_EVENTS,
    )
