"""In-sync replicas: scenarios S-11 to S-17 and S-19 on the stage.

Of S-15 the refused change is ``test_a_refused_one_is_taken_back`` in
conformance/test_partition.py; of S-19 the answer NOT_ENOUGH_REPLICAS_AFTER_APPEND is
``test_committed_and_then_too_few`` in unit/replication/test_delayed.py.
"""

from __future__ import annotations

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownResponse,
    ElectionType,
    ElectLeadersRequest,
    FetchRequest,
    FetchResponse,
    UpdateMetadataRequest,
)
from tests.scenarios.stage import Stage

SHRINK_MS = 1500  # in it a leader has noticed that a follower does not fetch


def test_s11_zombie_leader_keeps_its_producers() -> None:
    """It acknowledges no acks=all, its high watermark stands still, and what it wrote is cut."""
    stage = Stage("ABC")
    stage.produce("A", b"m0")
    stage.run(450)
    epoch = stage.epoch
    stage.isolate("A")
    stage.run(1000)
    assert (stage.leader, stage.isr) == ("B", "BC")
    assert stage.epoch > epoch
    assert stage.partition("A").is_leader
    one = stage.produce("A", b"a1", acks=1)
    none = stage.produce("A", b"a0", acks=0)
    every = stage.produce("A", b"a2")
    assert stage.produce("B", b"b1").code is ErrorCode.NONE
    stage.run(SHRINK_MS)
    assert (one.code, none.code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert every.code is ErrorCode.REQUEST_TIMED_OUT
    assert stage.partition("A").isr.in_flight  # it proposes to go on alone
    stage.produce("A", b"a3", acks=1)
    assert (stage.hw("A"), stage.leo("A")) == (1, 5)
    assert stage.consume("A", 1) == (ErrorCode.NONE, [])
    verdicts = stage.hold_verdicts("A")
    stage.heal_links()
    stage.run(1500)
    codes = [r.partitions[0].error_code for r in verdicts.contents if r.partitions]
    assert set(codes) <= {ErrorCode.FENCED_LEADER_EPOCH}
    assert codes
    assert stage.isr in ("BC", "ABC")
    stage.finish()
    assert stage.values("A") == stage.values("B") == [b"m0", b"b1", b"last"]


def test_s12_zombie_leaders_isr_change() -> None:
    """A change is judged by the epochs it was made under; until then the union of both ISRs
    counts."""
    stage = Stage("BAC")
    stage.cluster.network.socket_timeout_ms = 30_000
    stage.kill("B")
    assert stage.leader == "A"
    stage.start("B")
    stage.until_quiet()
    requests = [stage.hold(name, "A", FetchRequest) for name in "BC"]
    answers = [stage.hold("A", name, FetchResponse) for name in "BC"]
    roles, proposals = stage.hold_roles("A"), stage.hold_proposals("A")
    stage.produce("A", b"a1", acks=1)
    stage.run(SHRINK_MS)
    old = proposals.contents[0].partitions[0]
    assert [stage.names[r] for r, _ in old.new_isr] == ["A"]
    stage.produce("A", b"a2", acks=1)
    assert stage.hw("A") == 0  # the union of {A, B, C} and {A}
    prefer = ElectLeadersRequest(ElectionType.PREFERRED, (stage.tp,))
    stage.ask("X", prefer)
    assert stage.leader == "B"
    for hold in requests:
        hold.end()
    lagging = stage.hold_fetches("C")
    silent = stage.hold("B", "C", FetchResponse)
    stage.produce("B", b"b1", acks=1)
    stage.run(SHRINK_MS)
    assert stage.isr == "B"  # B has changed the ISR itself
    before = stage.now

    verdicts = stage.hold_verdicts("A")
    proposals.repeat()
    proposals.repeat()
    codes = [verdict.partitions[0].error_code for verdict in verdicts.contents]
    assert codes == [ErrorCode.FENCED_LEADER_EPOCH] * 2
    leader = stage.broker("B")
    for leader_epoch, partition_epoch, code in (
        (before.leader_epoch, before.partition_epoch - 1, ErrorCode.INVALID_UPDATE_VERSION),
        (before.leader_epoch, before.partition_epoch + 1, ErrorCode.NOT_CONTROLLER),
        (before.leader_epoch + 1, before.partition_epoch, ErrorCode.NOT_CONTROLLER),
    ):
        members = ((leader.broker_id, leader.broker_epoch), (stage.ids["C"], -1))
        topic_id = leader.metadata.topic_id(stage.tp.topic)
        item = AlterPartitionItem(
            stage.tp, leader_epoch, partition_epoch, members, topic_id=topic_id
        )
        request = AlterPartitionRequest(leader.broker_id, leader.broker_epoch, (item,))
        answer = stage.ask("X", request)
        assert isinstance(answer, AlterPartitionResponse)
        assert answer.partitions[0].error_code is code
    assert stage.now == before
    assert stage.hw("A") == 0
    for hold in (lagging, silent, roles, *answers):
        hold.end()
    stage.finish()


def test_s13_election_during_an_in_flight_isr_expansion() -> None:
    """Who may have joined the ISR already may be elected: its log end counts."""
    stage = Stage("ACB")
    stage.kill("C")
    assert stage.isr == "AB"
    proposals = stage.hold_proposals("A")
    verdicts = stage.hold_verdicts("A")
    stage.start("C")
    stage.run(200)
    (proposal,) = proposals.contents
    assert stage.letters(r for r, _ in proposal.partitions[0].new_isr) == "ABC"
    roles = stage.hold_roles("A")
    stage.hold_fetches("C")
    stage.hold("A", "C", FetchResponse)
    written = [stage.produce("A", b"%d" % n, timeout_ms=5000) for n in range(10)]
    assert (stage.leo("A"), stage.leo("B"), stage.leo("C")) == (10, 10, 0)
    assert stage.hw("A") == 0
    proposals.deliver()
    assert stage.isr == "ABC"
    assert verdicts.messages
    assert roles.messages
    stage.run(200)
    assert stage.hw("A") == 0
    assert {answer.code for answer in written} == {None}
    stage.kill("A")
    assert stage.leader == "C"
    stage.finish()


@pytest.mark.parametrize("caught_up", [False, True], ids=["too soon", "caught up"])
def test_s14_isr_expansion_before_the_leaders_own_epoch_start(caught_up: bool) -> None:
    """A new leader's high watermark lags behind what was committed before it (T-F1, KAFKA-7128)."""
    stage = Stage("ABC", min_isr=2)
    stage.fill("A", 5)
    stage.run(450)
    assert stage.hw("B") == 5
    answers = stage.hold("A", "B", FetchResponse)
    stage.fill("A", 1)  # C has it; the answer to B is on its way
    assert (stage.leo("C"), stage.leo("B")) == (6, 5)
    stage.kill("C")
    stage.fill("A", 4)
    answers.drop()
    stage.run(150)
    answers.deliver()
    assert (stage.leo("B"), stage.hw("B"), stage.hw("A"), stage.isr) == (10, 5, 10, "AB")
    stage.kill("A")
    assert (stage.leader, stage.isr) == ("B", "B")
    assert (stage.hw("B"), stage.partition("B").epoch_start_offset) == (5, 10)
    to_c = stage.hold("B", "C", FetchResponse)
    stage.start("C")
    stage.run(100)
    known = stage.partition("B").progress_of(stage.ids["C"])
    assert known is not None
    assert known.log_end == 6
    assert not stage.partition("B").isr.in_flight
    assert stage.isr == "B"
    if caught_up:
        to_c.end()
        stage.run(100)
        assert (stage.leo("C"), stage.isr) == (10, "BC")
    stage.kill("B")
    assert stage.leader == ("C" if caught_up else "")
    stage.finish()
    assert len(stage.values("C")) == 11


@pytest.mark.parametrize("returns", [False, True], ids=["lags", "returns"])
def test_s15_isr_shrink_high_watermark_waits_then_moves(returns: bool) -> None:
    """It moves with the controller's answer, without another fetch; one proposal at a time."""
    stage = Stage("ABC")
    stage.cluster.network.socket_timeout_ms = 30_000
    stage.fill("A", 4)
    stage.run(450)
    fetches, to_c = stage.hold_fetches("C"), stage.hold("A", "C", FetchResponse)
    answers = [stage.produce("A", b"m%d" % n, timeout_ms=30_000) for n in range(3)]
    assert (stage.leo("B"), stage.hw("A")) == (7, 4)
    proposals, verdicts = stage.count(AlterPartitionRequest), stage.hold_verdicts("A")
    roles = stage.hold_roles("A")
    stage.run(SHRINK_MS)
    assert stage.isr == "AB"
    answers.append(stage.produce("A", b"m3", timeout_ms=30_000))
    assert (stage.leo("B"), stage.hw("A")) == (8, 4)
    if returns:
        fetches.end()
        to_c.end()
    stage.run(5000)
    assert len(proposals) == 1
    if returns:
        assert (stage.leo("C"), stage.hw("A")) == (8, 8)
    else:
        assert stage.hw("A") == 4
        assert {answer.code for answer in answers} == {None}
    quiet = stage.hold_fetches("B")
    verdicts.deliver()
    assert stage.hw("A") == 8
    assert {answer.code for answer in answers} == {ErrorCode.NONE}
    assert not stage.partition("A").isr.in_flight or returns
    for hold in (quiet, roles, verdicts, fetches, to_c):
        hold.end()
    stage.finish()


def test_s16_stale_expansion_admits_a_wiped_replica() -> None:
    """The change names the incarnation that had caught up (T-F2)."""
    stage = Stage("AB")
    stage.kill("B")
    stage.fill("A", 5)
    proposals, verdicts = stage.hold_proposals("A"), stage.hold_verdicts("A")
    stage.start("B")
    stage.run(200)
    assert (stage.leo("B"), stage.isr) == (5, "A")
    (proposal,) = proposals.contents
    epochs = dict(proposal.partitions[0].new_isr)
    assert epochs[stage.ids["B"]] == stage.broker("B").broker_epoch
    stage.kill("B")
    stage.machine("B").disk.wipe()
    stage.hold_fetches("B")
    stage.start("B")
    assert stage.is_running("B")
    proposals.deliver()
    (verdict,) = verdicts.contents
    assert verdict.partitions[0].error_code is ErrorCode.INELIGIBLE_REPLICA
    assert stage.isr == "A"
    stage.kill("A")
    assert not stage.leader
    stage.finish()
    assert len(stage.values("B")) == 6


@pytest.mark.parametrize("news", [False, True], ids=["stale", "fresh"])
def test_s17_stopping_replica_does_not_rejoin(news: bool) -> None:
    """C is caught up and in controlled shutdown, which its leader knows or does not know yet."""
    stage = Stage("ABC")
    stage.kill("C")
    stage.fill("A", 3)
    fetches = stage.hold_fetches("C")
    stage.start("C")
    fetches.deliver()  # the records; the next one would make it a member
    assert (stage.leo("C"), stage.isr) == (3, "AB")
    proposals, verdicts = stage.count(AlterPartitionRequest), stage.hold_verdicts("A")
    metadata = stage.hold("X", "A", UpdateMetadataRequest)
    stage.hold("X", "C", ControlledShutdownResponse)
    if news:
        metadata.end()
    stage.hold("A", "C", FetchResponse)
    stage.begin_stop("C")
    fetches.deliver()
    known = stage.partition("A").progress_of(stage.ids["C"])
    assert known is not None
    assert known.log_end == 3
    if news:
        assert not proposals
        stage.fill("A", 1)
        assert (stage.leo("B"), stage.leo("C"), stage.hw("A")) == (4, 3, 4)
    else:
        assert len(proposals) == 1
        verdict = verdicts.deliver()
        assert verdict.partitions[0].error_code is ErrorCode.INELIGIBLE_REPLICA
        assert not stage.partition("A").isr.in_flight
        stage.run(300)
        assert len(proposals) == 1
    assert stage.isr == "AB"
    stage.finish()


def test_s19_minimum_in_sync_replicas() -> None:
    """Refused before the append; unknown after it; and never visible below the minimum (T-E2)."""
    stage = Stage("ABC", min_isr=2)
    stage.cluster.network.socket_timeout_ms = 5000
    stage.kill("C")
    stage.hold_fetches("B")
    stage.hold("A", "B", FetchResponse)
    after = stage.produce("A", b"after", timeout_ms=2000)
    stage.kill("B")
    assert stage.isr == "A"
    before = stage.produce("A", b"before")
    assert before.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert stage.leo("A") == 1
    assert stage.produce("A", b"one", acks=1).code is ErrorCode.NONE
    stage.run(2500)
    # Below the minimum the high watermark stands still: acks=all waits for it in vain.
    assert after.code is ErrorCode.REQUEST_TIMED_OUT
    assert (stage.leo("A"), stage.hw("A")) == (2, 0)
    assert stage.consume("A") == (ErrorCode.NONE, [])
    stage.finish()
    assert stage.values("A") == [b"after", b"one", b"last"]
