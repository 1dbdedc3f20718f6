"""Stories and moments: what chance alone brings about too rarely."""

from __future__ import annotations

import random

import pytest

from replication.simulator.faults.fault_templates import STORIES, StoryStage
from replication.simulator.faults.triggers import (
    CONTROLLER,
    GROWS,
    JOINER,
    MOMENTS,
    SENDER,
    SHRINKS,
    with_roles,
)
from replication.simulator.search.plan_generator import draw_plan
from replication.simulator.search.run import run_plan
from replication.simulator.world.fault_kinds import GROUPS
from replication.simulator.world.plan import Operation, PlannedFault, SchedulePlan, SearchOptions


def story_plan(*faults: PlannedFault) -> SchedulePlan:
    """A follower is cut off until it leaves the ISR, and joins again."""
    cut = PlannedFault(10, "partition", 2, 700, others=(0, 1))
    writes = tuple(Operation(ms, "produce") for ms in range(20, 1600, 80))
    return SchedulePlan(1, "fetch", "ack", 3, 1, 2, (False,), (cut, *faults), writes, 2000)


@pytest.mark.parametrize("tell", STORIES, ids=lambda story: story.__name__)
def test_a_story_is_a_plan_that_can_be_kept(tell: object) -> None:
    assert callable(tell)
    for seed in range(20):
        stage = StoryStage(random.Random(seed), (0, 1, 2), 2, 2, 50)
        tell(stage)
        assert stage.faults or stage.operations
        assert all(fault.at_ms >= 50 for fault in stage.faults)
        assert {fault.moment for fault in stage.faults} <= {"", *MOMENTS}
        plan = SchedulePlan(
            1, "fetch", "os", 3, 1, 2, (False,), tuple(stage.faults), (), stage.end_ms
        )
        assert SchedulePlan.from_json(plan.to_json()) == plan


def test_only_wanted_kinds_of_faults_are_in_a_plan() -> None:
    for seed in range(60):
        kinds = {fault.kind for fault in draw_plan(seed, SearchOptions(faults=("net",))).faults}
        assert kinds <= {*GROUPS["net"]}


@pytest.mark.parametrize("moment", [GROWS, SHRINKS])
@pytest.mark.parametrize(
    "kind", ["message-loss", "message-delay", "message-twice", "connection-reset"]
)
def test_s12_s25_a_message_is_struck_in_its_moment(moment: str, kind: str) -> None:
    result = run_plan(story_plan(PlannedFault(0, kind, -1, 900, moment=moment)), keep_trace=True)
    assert result.violations == []
    assert result.counters[kind] == 1
    assert any(f"at: {moment}: AlterPartitionRequest" in line for line in result.trace or [])


def test_s16_who_joins_the_isr_is_wiped_in_that_moment() -> None:
    wipe = PlannedFault(0, "wiped-disk", JOINER, 20, moment=GROWS)
    result = run_plan(story_plan(wipe), keep_trace=True)
    assert result.violations == []
    assert result.counters["wiped-disk"] == 1
    assert any("wiped-disk broker 2" in line for line in result.trace or [])


def test_roles_become_brokers() -> None:
    fault = PlannedFault(0, "partition", SENDER, 10, others=(CONTROLLER, -1, 2))
    assert fault.names_roles
    met = with_roles(fault, {SENDER: 1, CONTROLLER: 0})
    assert met == PlannedFault(0, "partition", 1, 10, others=(0, -1, 2))
    assert with_roles(fault, {CONTROLLER: 0}) is None
