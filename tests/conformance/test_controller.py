"""Cases of Kafka's PartitionChangeBuilderTest, ReplicationControlManagerTest and
ControllerIntegrationTest under their names."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import AlterPartitionItem, ElectionType, LeaderAndIsrRequest
from replication.common.state import NO_LEADER, PartitionRegistration, RecoveryState, TopicPartition
from replication.coordination import nodes
from replication.decisions.election import Mode, change, elect
from tests.support.controllers import T0, Brokers

RECOVERING = RecoveryState.RECOVERING
FOO = PartitionRegistration((2, 1, 3), (2, 1, 3), 1, 100, 200)
BAZ = PartitionRegistration((2, 1, 3), (1, 3), 3, 100, 200)
OFFLINE = PartitionRegistration((2, 1, 3), (3,), NO_LEADER, 100, 200)


def not_3(broker: int) -> bool:
    return broker != 3


@pytest.mark.parametrize("elr", [False, True])
class TestPartitionChangeBuilder:
    @pytest.mark.parametrize(
        ("now", "isr", "mode", "leader", "unclean"),
        [
            (FOO, (2, 1, 3), Mode.PREFERRED, 2, False),
            (FOO, (2, 1, 3), Mode.ONLINE, 1, False),
            (FOO, (2, 1, 3), Mode.UNCLEAN, 1, False),
            (FOO, (1, 3), Mode.ONLINE, 1, False),
            (FOO, (1, 3), Mode.UNCLEAN, 1, False),
            (FOO, (3,), Mode.ONLINE, NO_LEADER, False),
            (FOO, (3,), Mode.UNCLEAN, 2, True),
            (FOO._replace(replicas=(2, 1, 3, 4)), (4,), Mode.UNCLEAN, 4, False),
        ],
    )
    def test_elect_leader(
        self,
        elr: bool,
        now: PartitionRegistration,
        isr: tuple[int, ...],
        mode: Mode,
        leader: int,
        unclean: bool,
    ) -> None:
        """testElectLeader."""
        found = elect(now.replicas, isr, now.elr, now.leader, now.last_known_leader, not_3, mode)
        assert found == (leader, unclean)

    @pytest.mark.parametrize("mode", [Mode.PREFERRED, Mode.ONLINE, Mode.UNCLEAN])
    def test_elect_leader_stays(self, elr: bool, mode: Mode) -> None:
        """testElectLeader, testNoChange: the preferred replica is not in sync."""
        assert change(BAZ, lambda r: True, min_isr=2, elr_enabled=elr, mode=mode) is BAZ

    def test_no_change(self, elr: bool) -> None:
        """testNoChange."""
        for mode in (Mode.ONLINE, Mode.UNCLEAN):
            assert change(FOO, not_3, min_isr=2, elr_enabled=elr, mode=mode) is FOO

    @pytest.mark.parametrize("isr", [(2, 1), (2, 1, 3, 4)])
    def test_isr_change_doesnt_bump_leader_epoch(self, elr: bool, isr: tuple[int, ...]) -> None:
        """testIsrChangeDoesntBumpLeaderEpoch, testTriggerLeaderEpochBumpIfNeeded."""
        now = FOO._replace(replicas=(2, 1, 3, 4))
        after = change(now, not_3, min_isr=2, elr_enabled=elr, isr=isr)
        assert after == now._replace(isr=isr, partition_epoch=201)

    def test_isr_change_and_leader_change(self, elr: bool) -> None:
        """testIsrChangeAndLeaderChange."""
        after = change(FOO, not_3, min_isr=2, elr_enabled=elr, isr=(2, 3))
        assert after[:5] == ((2, 1, 3), (2, 3), 2, 101, 201)

    def test_reassignment_rearranges_replicas(self, elr: bool) -> None:
        """testReassignmentRearrangesReplicas."""
        after = change(FOO, not_3, min_isr=2, elr_enabled=elr, replicas=(3, 2, 1))
        assert after == FOO._replace(replicas=(3, 2, 1), partition_epoch=201)

    def test_unclean_leader_election(self, elr: bool) -> None:
        """testUncleanLeaderElection."""
        after = change(FOO, not_3, min_isr=2, elr_enabled=elr, mode=Mode.UNCLEAN, isr=(3,))
        if elr:  # 2 and 1 left the ISR in this very step; they are trusted only without an ISR
            assert after.elr == ()
        assert after[:6] == ((2, 1, 3), (2,), 2, 101, 201, RECOVERING)
        after = change(OFFLINE, lambda r: r == 1, min_isr=2, elr_enabled=elr, mode=Mode.UNCLEAN)
        assert after[:6] == ((2, 1, 3), (1,), 1, 101, 201, RECOVERING)

    def test_change_in_leadership_does_not_change_recovery_state(self, elr: bool) -> None:
        """testChangeInLeadershipDoesNotChangeRecoveryState."""
        now = PartitionRegistration((1, 2, 3), (1,), 1, 100, 200, RECOVERING)
        offline = change(now, lambda r: False, min_isr=2, elr_enabled=elr, isr=())
        assert (offline.leader, offline.recovery_state) == (NO_LEADER, RECOVERING)
        online = change(offline, lambda r: True, min_isr=2, elr_enabled=elr)
        assert (online.leader, online.isr, online.recovery_state) == (1, (1,), RECOVERING)

    def test_unclean_sets_leader_recovering_state(self, elr: bool) -> None:
        """testUncleanSetsLeaderRecoveringState."""
        now = PartitionRegistration((1, 2, 3), (2, 3), NO_LEADER, 100, 200)
        after = change(now, lambda r: r == 1, min_isr=2, elr_enabled=elr, mode=Mode.UNCLEAN)
        assert (after.leader, after.isr, after.recovery_state) == (1, (1,), RECOVERING)

    def test_stopped_leader_is_demoted(self, elr: bool) -> None:
        """testStoppedLeaderIsDemotedAfterReassignmentCompletesEvenIfNoNewEligibleLeaders."""
        now = PartitionRegistration((2, 3, 0, 1), (0, 1), 0, 0, 0)
        after = change(
            now, lambda r: False, min_isr=2, elr_enabled=elr, isr=(2, 3), replicas=(2, 3)
        )
        assert after[:4] == ((2, 3), (2, 3), NO_LEADER, 1)

    @pytest.mark.parametrize(
        ("isr", "old_elr", "target", "unclean", "elr_after"),
        [
            ((1, 2, 3, 4), (), (1, 2), (), (3, 4)),  # IsrShrinkBelowMinISR
            ((1, 2), (3,), (1, 2, 3), (), ()),  # IsrExpandAboveMinISR
            ((1,), (3,), (1, 4), (), (3,)),  # IsrAddNewMemberNotInELR
            ((1,), (2, 3), None, (3,), (2,)),  # RemoveUncleanShutdownReplicasFromElr
        ],
    )
    def test_eligible_leader_replicas(
        self,
        elr: bool,
        isr: tuple[int, ...],
        old_elr: tuple[int, ...],
        target: tuple[int, ...] | None,
        unclean: tuple[int, ...],
        elr_after: tuple[int, ...],
    ) -> None:
        """testEligibleLeaderReplicas_IsrShrinkBelowMinISR, …_IsrExpandAboveMinISR,
        …_IsrAddNewMemberNotInELR, …_RemoveUncleanShutdownReplicasFromElr."""
        now = PartitionRegistration((1, 2, 3, 4), isr, 1, 100, 200, elr=old_elr)
        after = change(
            now,
            not_3,
            min_isr=3,
            elr_enabled=elr,
            mode=Mode.PREFERRED,
            isr=target,
            unclean_replicas=unclean,
        )
        assert after.elr == (elr_after if elr else ())
        assert (after.isr, after.leader, after.leader_epoch) == (target or isr, 1, 100)


class TestReplicationControlManager:
    def test_eligible_leader_replicas_unclean_shutdown(self) -> None:
        """testEligibleLeaderReplicas_UncleanShutdown: unclean brokers leave ISR and ELR."""
        b = Brokers(4)
        b.create(assignment=((2, 3, 4),), min_insync_replicas="3")
        b.kill(4)
        b.kill(3)
        assert (b.partition().isr, b.partition().elr) == ((2,), (4, 3))
        b.start(3, clean=False)
        assert (b.partition().isr, b.partition().elr) == ((2,), (4,))
        b.bounce(2, clean=False)
        now = b.partition()
        assert (now.isr, now.elr, now.leader) == ((), (4,), NO_LEADER)
        b.start(4)
        assert (b.partition().leader, b.partition().isr) == (4, (4,))

    def test_eligible_leader_replicas_shrink_and_expand_isr(self) -> None:
        """testEligibleLeaderReplicas_ShrinkAndExpandIsr."""
        b = Brokers()
        b.create(min_insync_replicas="2")
        b.alter((1, 2))
        assert b.partition().elr == ()
        b.alter((1,))
        assert b.partition().elr == (2,)
        b.alter((1, 3))
        assert b.partition().elr == ()

    def test_eligible_leader_replicas_effective_min_isr(self) -> None:
        """testEligibleLeaderReplicas_EffectiveMinIsr: bounded by the number of replicas."""
        b = Brokers()
        b.create(assignment=((1, 2),), min_insync_replicas="5")
        assert b.partition().elr == ()
        b.alter((1,))
        assert b.partition().elr == (2,)
        b.alter((1, 2))
        assert b.partition().elr == ()

    def test_invalid_alter_partition_requests(self) -> None:
        """testInvalidAlterPartitionRequests, testAlterPartitionHandleUnknownTopicIdOrName."""
        b = Brokers()
        b.create()
        for changes, error in (
            ({"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
            ({"partition_epoch": 1}, ErrorCode.NOT_CONTROLLER),
            ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
            ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ):
            assert b.alter((1, 2), **changes).error_code is error
        assert b.alter((1, 2), sender=2).error_code is ErrorCode.INVALID_REQUEST
        assert b.alter((2, 3)).error_code is ErrorCode.INVALID_REQUEST
        assert b.alter((1,), recovery_state=RECOVERING).error_code is ErrorCode.INVALID_REQUEST
        assert b.partition().partition_epoch == 0
        topic_id = b.topic().topic_id
        item = AlterPartitionItem(TopicPartition("t", 7), 0, 0, ((1, -1),), topic_id=topic_id)
        (result,) = b.alter_items(1, item).partitions
        assert result.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert b.alter((1, 2), topic_id=UUID(int=7)).error_code is ErrorCode.UNKNOWN_TOPIC_ID
        assert b.alter((1, 2), topic_id=None).error_code is ErrorCode.UNKNOWN_TOPIC_ID
        assert b.partition().partition_epoch == 0

    def test_a_proposal_for_a_topic_that_is_gone_is_not_for_its_successor(self) -> None:
        """testAlterPartitionHandleUnknownTopicIdOrName."""
        b = Brokers()
        b.create()
        late = AlterPartitionItem(
            T0,
            0,
            0,
            tuple((r, b.brokers[r].broker_epoch) for r in (1, 2)),
            topic_id=b.topic().topic_id,
        )
        b.delete()
        b.create()
        (result,) = b.alter_items(1, late).partitions
        assert (result.error_code, result.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, late.topic_id)
        assert b.partition().isr == (1, 2, 3)
        new = late._replace(topic_id=b.topic().topic_id)
        answers = b.alter_items(1, late, new).partitions
        assert [a.error_code for a in answers] == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE]
        assert [a.topic_id for a in answers] == [late.topic_id, new.topic_id]
        assert b.partition().isr == (1, 2)

    def test_a_leader_that_registered_anew_proposes_again(self) -> None:
        """Also its own epoch in the proposal has to be that of its registration."""
        b = Brokers()
        b.create()
        stale = {1: b.brokers[1].broker_epoch - 1}
        assert b.alter((1, 2), epochs=stale).error_code is ErrorCode.INELIGIBLE_REPLICA
        assert b.alter((1, 2)).error_code is ErrorCode.NONE

    def test_one_partition_twice_in_a_request(self) -> None:
        b = Brokers()
        b.create()
        topic_id = b.topic().topic_id
        first = AlterPartitionItem(T0, 0, 0, ((1, -1), (2, -1)), topic_id=topic_id)
        second = AlterPartitionItem(T0, 0, 0, ((1, -1), (3, -1)), topic_id=topic_id)
        codes = [r.error_code for r in b.alter_items(1, first, second).partitions]
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
        assert b.partition().isr == (1, 2)

    def test_alter_partition_should_reject_brokers_with_stale_epoch(self) -> None:
        """testAlterPartitionShouldRejectBrokersWithStaleEpoch (S-16, T-F2)."""
        b = Brokers()
        b.create(assignment=((1, 2),))
        b.alter((1,))
        seen = b.brokers[2].broker_epoch
        b.bounce(2, clean=False)
        result = b.alter((1, 2), epochs={2: seen})
        assert result.error_code is ErrorCode.INELIGIBLE_REPLICA
        assert b.alter((1, 2), epochs={2: -1}).error_code is ErrorCode.NONE

    def test_alter_partition_should_reject_fenced_brokers(self) -> None:
        """testAlterPartitionShouldRejectFencedBrokers."""
        b = Brokers()
        b.create()
        b.kill(3)
        assert b.alter((1, 2, 3)).error_code is ErrorCode.INELIGIBLE_REPLICA

    def test_alter_partition_should_reject_shutting_down_broker(self) -> None:
        """testAlterPartitionShouldRejectShuttingDownBrokers (S-17)."""
        b = Brokers()
        b.create()
        b.shut_down(3)
        assert b.partition().isr == (1, 2)
        assert b.alter((1, 2, 3)).error_code is ErrorCode.INELIGIBLE_REPLICA

    def test_a_request_of_an_earlier_incarnation(self) -> None:
        """R-52."""
        b = Brokers()
        b.create()
        b.brokers[1].broker_epoch -= 1
        assert b.alter_items(1).error_code is ErrorCode.STALE_BROKER_EPOCH

    @pytest.mark.parametrize("elr", ["true", "false"])
    def test_elect_unclean_leaders(self, elr: str) -> None:
        """testElectUncleanLeaders."""
        b = Brokers(4, config={"eligible.leader.replicas.enable": elr})
        b.create(assignment=((2, 3), (3, 2), (4, 1)))
        second, third = TopicPartition("t", 1), TopicPartition("t", 2)
        missing = TopicPartition("t", 9)
        b.kill(3)
        b.kill(2)
        kind = ElectionType.UNCLEAN
        assert b.elect(kind, T0) == {T0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
        b.start(3)
        assert b.elect(kind, T0, second, third, missing) == {
            T0: ErrorCode.NONE,
            second: ErrorCode.NONE,
            third: ErrorCode.ELECTION_NOT_NEEDED,
            missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        for tp in (T0, second):
            now = b.partition(tp)
            assert (now.leader, now.isr, now.recovery_state) == (3, (3,), RECOVERING)
        assert b.elect(kind) == {}
        assert b.controller.stats.unclean_leader_elections == 2

    def test_elect_preferred_leaders(self) -> None:
        """testElectPreferredLeaders, testPreferredElectionDoesNotTriggerUncleanElection."""
        b = Brokers()
        b.create(assignment=((2, 1), (1, 2), (3, 1)), unclean_leader_election_enable="true")
        second, third = TopicPartition("t", 1), TopicPartition("t", 2)
        b.kill(3)
        b.kill(2)
        b.start(2)
        kind = ElectionType.PREFERRED
        assert b.elect(kind, T0, second, third) == {
            T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            second: ErrorCode.ELECTION_NOT_NEEDED,
            third: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        }
        b.alter((1, 2))
        assert b.elect(kind) == {
            T0: ErrorCode.NONE,
            third: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        }
        assert b.partition().leader == 2
        assert b.partition().recovery_state is RecoveryState.RECOVERED


class TestControllerIntegration:
    def test_empty_cluster(self) -> None:
        """testEmptyCluster: the first broker is the controller, of epoch 1."""
        b = Brokers(1)
        assert (b.controller.active, b.controller.epoch) == (True, 1)

    def test_controller_epoch_persists_when_all_brokers_down(self) -> None:
        """testControllerEpochPersistsWhenAllBrokersDown."""
        b = Brokers(1)
        b.kill(1)
        node = b.admin.get(nodes.CONTROLLER_EPOCH)
        assert node is not None
        assert nodes.decode_controller_epoch(node.data) == 1
        assert b.admin.get(nodes.CONTROLLER) is None
        b.start(1)
        assert b.controller.epoch == 2

    def test_controller_detects_bounced_brokers(self) -> None:
        """testControllerDetectsBouncedBrokers: new roles go out, with a new leader epoch."""
        b = Brokers(2)
        b.create(assignment=((1, 2),))
        before = b.partition()
        requests = len(b.brokers[2].requests)
        b.bounce(2)
        assert b.partition().isr == (1,)
        news = b.brokers[2].requests[requests:]
        assert isinstance(news[0], LeaderAndIsrRequest)
        b.bounce(1, clean=True)
        assert b.partition().leader_epoch > before.leader_epoch

    def test_auto_preferred_replica_leader_election(self) -> None:
        """testAutoPreferredReplicaLeaderElection."""
        b = Brokers(2, config={"leader.imbalance.check.interval.seconds": 1})
        b.create(assignment=((2, 1),))
        b.bounce(2)
        b.alter((1, 2))
        b.settle(1000)
        assert b.partition().leader == 2

    def test_leader_and_isr_when_entire_isr_offline(self) -> None:
        """testLeaderAndIsrWhenEntireIsrOfflineAndUncleanLeaderElectionDisabled, …Enabled."""
        for unclean, leader in (("false", NO_LEADER), ("true", 3)):
            b = Brokers()
            b.create(assignment=((2, 3),), unclean_leader_election_enable=unclean)
            b.kill(3)
            b.kill(2)
            b.start(3)
            assert b.partition().leader == leader
