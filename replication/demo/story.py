"""The acts, one after the other, into one outcome."""

from __future__ import annotations

import time

from logstore.demo import story as act_one
from logstore.demo.show import Show
from replication.demo import failover as act_two
from replication.demo.directory import prepare
from replication.demo.outcome import DemoOutcome


def run(
    directory: str, records: int, partitions: int, seed: int, show: Show, *, spark: bool = True
) -> DemoOutcome:
    """Run all acts. Raises only for bad input. What could not be proven is in ``faults``."""
    started = time.perf_counter()
    outcome = DemoOutcome(directory, records, seed)
    places = prepare(directory)
    sent = act_one.run(outcome, places.single, partitions, show)
    if not outcome.faults:
        act_two.run(outcome, places, sent, show)
    if spark and not outcome.faults:
        from replication.demo import analysis as act_three  # needs more than the acts before it

        act_three.run(outcome, places, sent, show)
    outcome.seconds = time.perf_counter() - started
    return outcome
