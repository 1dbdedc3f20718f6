"""What looks at whole clusters: the supervisor, and the simulator with its invariants."""

from __future__ import annotations

import pytest

from checkpoints.types import TopicPartition
from replication.simulator.search.run import run_plan
from replication.simulator.world.plan import Operation, SchedulePlan
from replication.supervisor.cluster_state import (
    BrokerView,
    ClusterHealth,
    PartitionView,
    merged_partitions,
    next_restart,
)
from tests.growth.work import Act, Case, check, for_cases

BROKERS = (0, 1, 2)


def merge(size: int) -> Act:
    replicas = [{"broker": broker} for broker in BROKERS]
    rows = [
        {
            "topic": "orders",
            "partition": number,
            "leader": 0,
            "leader_epoch": 0,
            "min_isr": 2,
            "replicas": replicas,
            "isr": BROKERS,
        }
        for number in range(size)
    ]
    return lambda: merged_partitions([{"partitions": rows}] * len(BROKERS))


def why_no_restart(size: int) -> Act:
    """No broker may be restarted, for each partition has lost a replica."""
    partitions = (
        PartitionView(TopicPartition("orders", number), 0, BROKERS, (0, 1), 2)
        for number in range(size)
    )
    view = ClusterHealth(tuple(BrokerView(broker) for broker in BROKERS), tuple(partitions))
    return lambda: next_restart(BROKERS, view)


@for_cases(Case("merge what brokers say", merge), Case("why no broker may restart", why_no_restart))
def test_a_supervisor_costs_what_it_looks_at(case: Case) -> None:
    check(case)


def schedule(operations: int) -> Act:
    """An operation each 20 ms, and no faults: twice as many are twice as many events."""
    steps = tuple(
        Operation(20 * at, "consume" if at % 4 == 3 else "produce") for at in range(operations)
    )
    plan = SchedulePlan(
        seed=1,
        truncation="fetch",
        flush="ack",
        brokers=3,
        partitions=1,
        min_isr=2,
        idempotent=(True,),
        faults=(),
        operations=steps,
        duration_ms=20 * operations,
    )

    def act() -> None:
        assert not run_plan(plan).failed

    return act


@pytest.mark.slow
@for_cases(Case("schedules", schedule, smallest=10))
def test_a_schedule_costs_what_happens_in_it(case: Case) -> None:
    check(case)
