"""What happens in a schedule besides faults of brokers, disks and the network."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from logstore.common.types import TopicPartition
from logstore.format.batch import encode_batch
from replication.common.messages import FetchPartitionResponse, FetchResponse
from replication.simulator.faults.triggers import CALLS, REGISTERS, STANDS, WRITTEN
from replication.simulator.oracle.oracle_log import OracleEntry
from replication.simulator.search.run import run_plan
from replication.simulator.world.network import with_flipped_header
from replication.simulator.world.plan import Operation, PlannedFault, SchedulePlan

WRITES = tuple(Operation(ms, "produce", ms % 2) for ms in range(20, 1800, 60))


def plan(*faults: PlannedFault, operations: tuple[Operation, ...] = ()) -> SchedulePlan:
    steps = tuple(sorted((*WRITES, *operations), key=lambda step: step.at_ms))
    return SchedulePlan(5, "fetch", "ack", 3, 1, 2, (False, True), faults, steps, 2200)


@pytest.mark.parametrize("moment", CALLS)
@pytest.mark.parametrize("kind", ["lost-call", "lost-answer"])
def test_an_answer_is_lost_in_its_moment(kind: str, moment: str) -> None:
    """A broker and a controller die, so that others stand, register and elect."""
    faults = (
        PlannedFault(0, kind, moment=moment),
        PlannedFault(100, "kill", 0, 30),
        PlannedFault(900, "controller-crash", -1, 30),
    )
    result = run_plan(plan(*faults))
    assert result.violations == []
    assert result.counters[kind] == 1


@pytest.mark.slow
@pytest.mark.parametrize("amount", [0.0, 1.0, 2.0], ids=["before", "after", "in the write"])
@pytest.mark.parametrize("moment", [STANDS, REGISTERS, WRITTEN])
def test_the_coordinator_crashes_in_a_call(moment: str, amount: float) -> None:
    faults = (
        PlannedFault(0, "coordinator-crash", -1, 60, amount, moment=moment),
        PlannedFault(100, "kill", 0, 30),
        PlannedFault(900, "controller-crash", -1, 30),
    )
    result = run_plan(plan(*faults))
    assert result.violations == []
    assert result.counters["coordinator-crash"] == 1


def test_all_sessions_end_with_the_coordinators_process() -> None:
    result = run_plan(plan(PlannedFault(100, "coordinator-crash", -1, 50)), keep_trace=True)
    assert result.violations == []
    assert result.counters["coordinator-crash"] == 1
    assert any("the coordinator is back" in line for line in result.trace or [])


def test_transactions_end_and_a_topic_has_two_lives() -> None:
    more = (
        Operation(100, "transaction", size=1),
        Operation(300, "transaction", size=3),
        Operation(200, "make-anew"),
        Operation(900, "make-anew", 1, size=1),
        *(Operation(ms, "produce-anew") for ms in range(400, 1900, 90)),
        *(Operation(ms, "consume", ms % 2, records=2) for ms in range(100, 1900, 150)),
    )
    result = run_plan(replace(plan(operations=more), racks=True))
    assert result.violations == []
    counters = result.counters
    assert counters["transactions committing"] == counters["transactions aborting"] == 1
    assert counters["topics made"] == 2
    assert counters["topics deleted"] == 1
    assert counters["writes to a topic made anew"] > 3


def test_replicas_are_moved_while_one_of_them_is_down() -> None:
    moves = tuple(Operation(ms, "reassign", size=ms) for ms in (150, 700, 1300))
    result = run_plan(plan(PlannedFault(100, "kill", 1, 900), operations=moves))
    assert result.violations == []
    assert result.counters["reassign NONE"] == 3


def test_only_a_leader_epoch_is_flipped() -> None:
    batch = bytes(encode_batch([(None, b"value")], leader_epoch=3))
    part = FetchPartitionResponse(TopicPartition("t", 0), records=batch)
    (flipped,) = with_flipped_header(FetchResponse((part,)), random.Random(1)).partitions
    changed = [n for n, (a, b) in enumerate(zip(batch, flipped.records, strict=True)) if a != b]
    assert len(changed) == 1
    assert changed[0] in (12, 13, 14)


def test_a_story_tells_of_batches_in_words() -> None:
    entry = OracleEntry(base=3, last=5, epoch=2, crc=0xABC)
    assert f"{entry}" == "batch [3, 5] of epoch 2 with CRC 00000abc"
