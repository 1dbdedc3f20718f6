"""Elections after losses: scenarios S-18 and S-20 to S-22 on the stage."""

from __future__ import annotations

from itertools import permutations

import pytest

from checkpoints.offset_checkpoint import OffsetCheckpoint
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
)
from replication.common.state import RecoveryState
from replication.simulator.world.scheduler import US_PER_MS
from tests.scenarios.stage import Stage

RETRIABLE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)


def one_in_sync(**options: object) -> Stage:
    """A has 10 records and is alone in the ISR; B has 6 of them and C 4; both are up."""
    stage = Stage("ABC", **options)  # type: ignore[arg-type]
    stage.fill("A", 4, acks=-1)
    stage.kill("C")
    stage.fill("A", 2, acks=-1)
    stage.kill("B")
    stage.fill("A", 4, acks=-1)
    assert (stage.isr, stage.leo("A"), stage.hw("A")) == ("A", 10, 10)
    for name in "BC":
        stage.hold_fetches(name)
        stage.start(name)
    assert (stage.leo("B"), stage.leo("C"), stage.isr) == (6, 4, "A")
    return stage


@pytest.mark.parametrize("elr", [True, False])
def test_s18_no_in_sync_replica_left_unclean_election_off(elr: bool) -> None:
    """No leader, and errors that tell clients to try again, until A returns with everything."""
    stage = one_in_sync(elr=elr)
    stage.kill("A")
    assert not stage.leader
    for name in "BC":
        assert stage.produce(name, b"lost").code in RETRIABLE
        # Followers serve consumers (KIP-392) what they know to be committed, and only that.
        assert stage.consume(name) == (ErrorCode.NONE, [])
    metadata = stage.ask("X", MetadataRequest())
    assert isinstance(metadata, MetadataResponse)
    assert metadata.partitions[0].error_code is ErrorCode.LEADER_NOT_AVAILABLE
    stage.run(2000)
    assert not stage.leader
    stage.start("A")
    assert stage.leader == "A"
    stage.finish()
    assert stage.exempted == []
    assert len(stage.values("B")) == len(stage.values("C")) == 11


def test_s18_no_in_sync_replica_left_unclean_election_on() -> None:
    """The loss is exactly what the elected one did not have, and whoever asks is told."""
    stage = one_in_sync(unclean=True, exempt=("I-1", "I-2"))
    assert stage.exempted == []
    complete = stage.values("A")
    stage.kill("A")
    assert (stage.leader, stage.isr) == ("B", "B")
    assert stage.now.recovery_state is RecoveryState.RECOVERING
    assert any(line.startswith("I-1") for line in stage.exempted)
    assert stage.broker("X").controller.stats.unclean_leader_elections == 1
    part = stage.fetch_as_consumer("B", 10, epoch=stage.epoch, last_epoch=0)
    assert part.diverging_epoch == (0, 6)
    assert stage.consume("B", 10)[0] is ErrorCode.OFFSET_OUT_OF_RANGE
    stage.start("A")
    stage.finish()
    assert stage.values("A") == stage.values("B") == [*complete[:6], b"last"]
    assert stage.now.recovery_state is RecoveryState.RECOVERED


def test_s20_last_replica_standing() -> None:
    """Below the minimum nothing is committed, so who left is complete; the one who stayed and lost
    its memory is not trusted."""
    stage = Stage("CAB", min_isr=2, flush="os")
    stage.fill("C", 3, acks=-1)
    stage.isolate("A")
    stage.run(1000)
    assert stage.isr == "BC"
    stage.fill("C", 3, acks=-1)
    assert stage.hw("C") == 6
    stage.isolate("B")
    stage.run(1000)
    assert (stage.leader, stage.isr, stage.elr) == ("C", "C", "B")
    stage.fill("C", 2)
    assert (stage.leo("C"), stage.hw("C")) == (8, 6)
    stage.power_loss("C")
    assert not stage.leader
    stage.start("C")
    assert stage.leo("C") == 0
    assert (stage.leader, stage.isr) == ("", "")
    stage.heal()
    stage.run(1000)
    assert stage.leader == "B"
    stage.finish()
    assert stage.values("C") == stage.values("A") == [b"1", b"2", b"3", b"4", b"5", b"6", b"last"]


@pytest.mark.parametrize("flush", ["os", "ack"])
@pytest.mark.parametrize("bounced", [False, True], ids=["lease", "bounce"])
def test_s21_leader_that_lost_its_tail_is_not_re_elected(flush: str, bounced: bool) -> None:
    """It comes back before its lease is over, or even before the controller looked."""
    stage = Stage("ABC", flush=flush)
    stage.fill("A", 5, acks=-1)
    stage.flush("A", "B", "C")
    stage.fill("A", 3, acks=-1)
    stage.run(450)
    complete = stage.values("A")
    session, epoch = stage.machine("A").session, stage.epoch
    assert session is not None
    stage.power_loss("A", noticed=False)
    assert stage.leader == "A"
    if bounced:  # the controller stands still until the next incarnation is there
        process = stage.machine("X").process
        assert process is not None
        process.stall(stage.scheduler.now_us + 300 * US_PER_MS)
        stage.cluster.coordinator.expire(session)
        stage.start("A")
        assert stage.is_running("A")
        assert stage.leader == "A"
    else:
        stage.start("A")
    assert stage.leo("A") == (5 if flush == "os" else 8)
    assert not stage.log("A").failed
    stage.run(1500)
    assert stage.leader in ("B", "C")
    assert stage.epoch > epoch
    stage.finish()
    assert stage.oracle.counters["truncations"] == 0
    for name in "ABC":
        assert stage.values(name) == [*complete, b"last"]


@pytest.mark.parametrize("known", [3, None], ids=["3", "none"])
@pytest.mark.parametrize("order", ["".join(p) for p in permutations("ABC")])
def test_s22_whole_cluster_restarts_with_stale_high_watermarks(
    order: str, known: int | None
) -> None:
    """Nobody cuts to it, and a consumer beyond it is asked to wait. The one who died last leads."""
    stage = Stage("ABC", flush="ack", min_isr=2)
    stage.fill("A", 10, acks=-1)
    assert stage.consume("A", 8) == (ErrorCode.NONE, [b"9", b"10"])
    stage.run(450)
    before = stage.values("A")
    stage.power_loss(*order)
    for name in order:
        path = f"/b{stage.ids[name]}/replication-offset-checkpoint"
        disk = stage.machine(name).disk
        if known is None:
            if disk.info(path) is not None:
                disk.remove(path)
                disk.sync_dir(path.rpartition("/")[0])
        else:
            OffsetCheckpoint(path, disk).write({stage.tp: known})
    fetches = stage.hold(None, None, FetchRequest)
    for name in order:
        stage.start(name)
        assert (stage.leo(name), stage.hw(name)) == (10, known or 0)
    leader = stage.leader
    assert leader == order[-1]
    fetches.let_clients = True
    assert stage.consume(leader, 8) == (ErrorCode.NONE, [])
    latest = ListOffsetsRequest((ListOffsetsPartition(stage.tp, -1),))
    answer = stage.ask(leader, latest)
    assert isinstance(answer, ListOffsetsResponse)
    assert answer.partitions[0].error_code is ErrorCode.OFFSET_NOT_AVAILABLE
    fetches.end()
    stage.run(500)
    assert stage.hw(leader) == 10
    assert stage.consume(leader, 8) == (ErrorCode.NONE, [b"9", b"10"])
    stage.finish()
    assert stage.oracle.counters["truncations"] == 0
    for name in order:
        assert stage.values(name) == [*before, b"last"]
