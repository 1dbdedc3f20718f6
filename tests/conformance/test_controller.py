"""Kafka's ReplicationControlManagerTest under its names: what a
controller answers to proposals and to elections that somebody asks for. Who leads after an event is
said by ``test_election.py`` and ``test_controller_brokers.py`` of the unit tests."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import AlterPartitionItem, ElectionType
from replication.common.state import RecoveryState, TopicPartition
from tests.support.controllers import T0, Brokers

RECOVERING = RecoveryState.RECOVERING


class TestReplicationControlManager:
    def test_eligible_leader_replicas_effective_min_isr(self) -> None:
        """testEligibleLeaderReplicas_EffectiveMinIsr: at most the number of replicas (R-20)."""
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
        stale = {
            1: b.brokers[1].broker_epoch - 1
        }  # also its own has to be that of its registration
        assert b.alter((1, 2), epochs=stale).error_code is ErrorCode.INELIGIBLE_REPLICA
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

    def test_one_partition_twice_in_a_request(self) -> None:
        b = Brokers()
        b.create()
        topic_id = b.topic().topic_id
        first = AlterPartitionItem(T0, 0, 0, ((1, -1), (2, -1)), topic_id=topic_id)
        second = AlterPartitionItem(T0, 0, 0, ((1, -1), (3, -1)), topic_id=topic_id)
        codes = [r.error_code for r in b.alter_items(1, first, second).partitions]
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
        assert b.partition().isr == (1, 2)

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
