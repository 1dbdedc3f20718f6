"""Controllers that die and links that carry one way: scenarios S-25 and S-27 on the stage."""

from __future__ import annotations

import pytest

from replication.common.error_codes import ErrorCode
from tests.scenarios.stage import Stage


@pytest.mark.parametrize("applied", [True, False])
def test_s25_controller_failover_with_requests_in_flight(applied: bool) -> None:
    """The leader asks the next controller the same: applied once, whoever does it."""
    stage = Stage("ABC", controllers="XY")
    stage.kill("C")
    before = stage.now
    assert stage.isr == "AB"
    requests, verdicts = stage.hold_proposals("A"), stage.hold_verdicts("A")
    stage.start("C")
    stage.run(100)
    roles = stage.hold_roles("A")
    assert len(requests.messages) == 1
    if applied:
        requests.deliver()
        assert stage.isr == "ABC"
    assert stage.partition("A").isr.in_flight
    stage.kill("X")
    assert stage.controller == "Y"
    for hold in (requests, verdicts, roles):
        hold.lose_all()
    stage.run(1500)
    assert stage.isr == "ABC"
    assert not stage.partition("A").isr.in_flight
    assert stage.partition("A").isr.committed == stage.now.isr
    assert stage.now.partition_epoch == before.partition_epoch + 1
    assert stage.epoch == before.leader_epoch
    stage.finish()


def test_s25_next_controller_knows_who_stopped_uncleanly() -> None:
    """It elects nobody before it has compared the incarnations with those of the one before."""
    stage = Stage("ABC", controllers="XY", min_isr=2, flush="os")
    stage.fill("A", 5, acks=-1)
    stage.run(450)
    sessions = [stage.machine(name).session for name in "AX"]
    stage.power_loss("X", "A", noticed=False)
    for session in sessions:
        assert session is not None
        stage.cluster.coordinator.expire(session)
        stage.start("A")
        assert stage.is_running("A")
    assert stage.controller == "Y"
    assert stage.leader in ("B", "C")
    stage.finish()
    assert len(stage.values("A")) == 6


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sends", "receives"])
@pytest.mark.parametrize("victim", ["A", "B"])
def test_s27_one_way_partition(victim: str, way: str) -> None:
    """It never heals; leadership settles where both ways are open."""
    stage = Stage("ABC", min_isr=2)
    stage.fill("A", 3, acks=-1)
    stage.isolate(victim, **{way: True})
    for second in range(120):
        stage.run(1000)
        for name in "ABC":
            stage.produce(name, b"%s%d" % (name.encode(), second))
    others = "ABC".replace(victim, "")
    assert stage.leader in others
    assert stage.isr == others
    assert stage.oracle.counters["elections"] <= 2
    elections = stage.oracle.counters["elections"]
    answers = [stage.produce(stage.leader, b"settled%d" % n) for n in range(3)]
    assert {answer.code for answer in answers} == {ErrorCode.NONE}
    stage.run(5000)
    assert stage.oracle.counters["elections"] == elections
    stage.finish()
