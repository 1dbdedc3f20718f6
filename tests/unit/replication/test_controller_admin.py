"""Topics that grow, are configured, and are deleted by id: what the controller answers and does."""

from __future__ import annotations

from uuid import uuid4

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AlterableConfig,
    AlterConfigOp,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    IncrementalAlterConfigsRequest,
    Request,
    TopicResponse,
)
from replication.common.state import NO_LEADER, TopicPartition
from replication.controller.topics import MAX_PARTITIONS
from replication.coordination import nodes
from tests.support.cases import for_each
from tests.support.controllers import PAUSE_MS, T0, Brokers

T1, T2 = TopicPartition("t", 1), TopicPartition("t", 2)
MIN_ISR, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
THROTTLED = "leader.replication.throttled.replicas"
E, OP = ErrorCode, AlterConfigOp


def code_of(b: Brokers, request: Request) -> ErrorCode:
    response = b.ask(request)
    assert isinstance(response, TopicResponse)
    return response.error_code


def grow(total: int, *assignment: tuple[int, ...]) -> CreatePartitionsRequest:
    return CreatePartitionsRequest("t", total, assignment or None)


def configure(*configs: AlterableConfig) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest("t", configs)


class TestDeletionById:
    def test_a_late_copy_does_not_meet_the_next_topic_of_the_name(self) -> None:
        b = Brokers()
        b.create()
        request = DeleteTopicRequest(topic_id=b.topic().topic_id)
        assert code_of(b, request) is E.NONE
        b.create()
        before = b.topic()
        assert code_of(b, request) is E.UNKNOWN_TOPIC_ID
        assert b.topic() == before
        assert b.admin.children(nodes.DELETE_TOPICS) == []
        assert b.partition().leader != NO_LEADER
        b.check()

    @pytest.mark.parametrize("both", [True, False])
    def test_name_or_id_and_not_both(self, both: bool) -> None:
        b = Brokers()
        b.create()
        request = DeleteTopicRequest("t", b.topic().topic_id) if both else DeleteTopicRequest()
        assert code_of(b, request) is E.INVALID_REQUEST
        assert b.admin.children(nodes.DELETE_TOPICS) == []

    def test_what_is_not_there(self) -> None:
        b = Brokers()
        assert code_of(b, DeleteTopicRequest("t")) is E.UNKNOWN_TOPIC_OR_PARTITION
        assert code_of(b, DeleteTopicRequest(topic_id=uuid4())) is E.UNKNOWN_TOPIC_ID


class TestGrowth:
    def test_new_partitions_are_led_and_told(self) -> None:
        b = Brokers()
        b.create(assignment=((1, 2, 3),), retention_ms="7")
        topic = b.topic()
        assert b.grow(3) is E.NONE
        grown = b.topic()
        assert (grown.topic_id, grown.config) == (topic.topic_id, topic.config)
        assert grown.partitions[0] == topic.partitions[0]
        assert [replicas[0] for _, replicas in sorted(grown.partitions.items())] == [1, 2, 3]
        for tp in (T1, T2):
            replicas = grown.partitions[tp.partition]
            assert b.partition(tp)[:5] == (replicas, replicas, replicas[0], 0, 0)
        assert b.controller.stats.global_partition_count == 3
        b.check()

    def test_as_kafka_goes_on_with_the_spread(self) -> None:
        """AdminUtils with five brokers: the leaders go on in turn, the distance is that of the
        place of the first leader and grows where the turn is over."""
        b = Brokers(5)
        b.create(assignment=((2, 3, 4),))
        assert b.grow(6) is E.NONE
        listed = [replicas for _, replicas in sorted(b.topic().partitions.items())]
        assert listed == [(2, 3, 4), (3, 5, 1), (4, 1, 2), (5, 2, 3), (1, 3, 4), (2, 5, 1)]

    def test_an_assignment_is_taken_as_it_is(self) -> None:
        b = Brokers()
        b.create(assignment=((1, 2),))
        assert b.grow(3, (3, 1), (2, 3)) is E.NONE
        assert b.topic().partitions == {0: (1, 2), 1: (3, 1), 2: (2, 3)}
        b.check()

    @for_each(
        "request_, error",
        [
            (CreatePartitionsRequest("n", 2), E.UNKNOWN_TOPIC_OR_PARTITION),
            (grow(2), E.INVALID_PARTITIONS),
            (grow(1), E.INVALID_PARTITIONS),
            (grow(0), E.INVALID_PARTITIONS),
            (grow(-(2**31)), E.INVALID_PARTITIONS),
            (grow(MAX_PARTITIONS + 1), E.POLICY_VIOLATION),
            (grow(2**31 - 1), E.POLICY_VIOLATION),
            (grow(4, (1, 2)), E.INVALID_REPLICA_ASSIGNMENT),
            (grow(3, (1, 2), (2, 3)), E.INVALID_REPLICA_ASSIGNMENT),
            (grow(3, (1, 1)), E.INVALID_REPLICA_ASSIGNMENT),
            (grow(3, (1, 9)), E.INVALID_REPLICA_ASSIGNMENT),
            (grow(3, (1, 2, 3)), E.INVALID_REPLICA_ASSIGNMENT),
            (grow(4, (1, 2), (3,)), E.INVALID_REPLICA_ASSIGNMENT),
            (grow(3, ()), E.INVALID_REPLICA_ASSIGNMENT),
        ],
    )
    def test_refusals_change_nothing(self, request_: Request, error: ErrorCode) -> None:
        b = Brokers()
        b.create(assignment=((1, 2), (2, 3)))
        before = b.admin.get(nodes.topic_path("t"))
        assert code_of(b, request_) is error
        assert b.admin.get(nodes.topic_path("t")) == before

    def test_not_with_fewer_live_brokers_than_replicas(self) -> None:
        b = Brokers()
        b.create()
        b.kill(3)
        assert b.grow(2) is E.INVALID_REPLICATION_FACTOR

    def test_not_while_a_partition_moves(self) -> None:
        b = Brokers(4)
        b.create()
        assert b.reassign((1, 2, 4)) is E.NONE
        assert b.grow(2) is E.REASSIGNMENT_IN_PROGRESS
        assert b.reassign(None) is E.NONE
        assert b.grow(2) is E.NONE

    def test_not_what_is_being_deleted(self) -> None:
        b = Brokers()
        b.create()
        b.brokers[3].deaf = True
        b.delete()
        assert b.grow(2) is E.INVALID_TOPIC_EXCEPTION
        assert b.configure(AlterableConfig(MIN_ISR, "1")) is E.UNKNOWN_TOPIC_OR_PARTITION

    def test_validated_only(self) -> None:
        b = Brokers()
        b.create()
        before = b.tree_nodes()
        assert b.grow(2, validate_only=True) is E.NONE
        assert b.grow(1, validate_only=True) is E.INVALID_PARTITIONS
        key = AlterableConfig(MIN_ISR, "2")
        assert b.configure(key, validate_only=True) is E.NONE
        assert b.configure(key._replace(value="0"), validate_only=True) is E.INVALID_CONFIG
        assert b.tree_nodes() == before

    def test_nobody_waits_and_it_is_done_all_the_same(self) -> None:
        """The node of the topic was written; its partitions were not begun."""
        b = Brokers()
        b.create()
        topic = b.topic()
        grown = topic._replace(partitions={0: (1, 2, 3), 1: (2, 3, 1)})
        b.admin.set(nodes.topic_path("t"), nodes.encode_topic(grown))
        b.kill(1)
        assert b.partition(T1).leader == 2
        b.check()

    def test_creation_has_the_same_limit(self) -> None:
        b = Brokers()
        request = CreateTopicRequest("t", MAX_PARTITIONS + 1)
        assert code_of(b, request) is E.POLICY_VIOLATION
        many = CreateTopicRequest("t", assignment=((1,),) * (MAX_PARTITIONS + 1))
        assert code_of(b, many) is E.POLICY_VIOLATION


class TestConfiguration:
    def test_it_is_written_and_told_without_another_epoch(self) -> None:
        b = Brokers()
        b.create(assignment=((1, 2, 3), (2, 3, 1)), retention_ms="7")
        before = b.partition()
        keys = AlterableConfig("segment.bytes", "100"), AlterableConfig(MIN_ISR, "2")
        assert b.configure(*keys) is E.NONE
        wanted = {"retention.ms": "7", "segment.bytes": "100", MIN_ISR: "2"}
        assert b.topic().config == wanted
        assert all(b.brokers[i].configs[tp] == wanted for i in b.ids for tp in (T0, T1))
        assert b.partition() == before
        removed = AlterableConfig("retention.ms", operation=OP.DELETE)
        assert b.configure(removed) is E.NONE
        assert "retention.ms" not in b.topic().config
        b.check()

    def test_lists_grow_and_shrink(self) -> None:
        b = Brokers()
        b.create()

        def change(key: str, value: str, operation: AlterConfigOp) -> str | None:
            assert b.configure(AlterableConfig(key, value, operation)) is E.NONE
            return b.topic().config.get(key)

        assert change("cleanup.policy", "compact", OP.APPEND) == "delete,compact"
        assert change("cleanup.policy", "compact,delete", OP.APPEND) == "delete,compact"
        assert change("cleanup.policy", "delete", OP.SUBTRACT) == "compact"
        assert change("cleanup.policy", "compact", OP.SUBTRACT) == ""  # nothing is removed
        assert change(THROTTLED, "0:1,0:2", OP.APPEND) == "0:1,0:2"
        assert change(THROTTLED, "0:1", OP.SUBTRACT) == "0:2"

    @for_each(
        "configs, error",
        [
            ((AlterableConfig("no.such.key", "1"),), E.INVALID_CONFIG),
            ((AlterableConfig(MIN_ISR, "0"),), E.INVALID_CONFIG),
            ((AlterableConfig(MIN_ISR, "many"),), E.INVALID_CONFIG),
            ((AlterableConfig(MIN_ISR, "1_0"),), E.INVALID_CONFIG),
            ((AlterableConfig(MIN_ISR, 2),), E.INVALID_CONFIG),  # type: ignore[arg-type]
            ((AlterableConfig(MIN_ISR, "2", OP.APPEND),), E.INVALID_CONFIG),
            ((AlterableConfig("cleanup.policy", 5, OP.APPEND),), E.INVALID_CONFIG),  # type: ignore[arg-type]
            ((AlterableConfig(THROTTLED, "here"),), E.INVALID_CONFIG),
            ((AlterableConfig(MIN_ISR),), E.INVALID_REQUEST),
            ((AlterableConfig(MIN_ISR, "2"), AlterableConfig(MIN_ISR, "3")), E.INVALID_REQUEST),
            # One that is right beside one that is not: neither of them.
            ((AlterableConfig(MIN_ISR, "2"), AlterableConfig("flush.ms", "x")), E.INVALID_CONFIG),
        ],
    )
    def test_refusals_change_nothing(
        self, configs: tuple[AlterableConfig, ...], error: ErrorCode
    ) -> None:
        b = Brokers()
        b.create()
        before = b.tree_nodes()
        assert b.configure(*configs) is error
        assert b.tree_nodes() == before
        assert code_of(b, configure(AlterableConfig(MIN_ISR, "2"))) is E.NONE

    def test_an_unknown_topic(self) -> None:
        b = Brokers()
        assert b.configure(AlterableConfig(MIN_ISR, "2")) is E.UNKNOWN_TOPIC_OR_PARTITION

    def test_unclean_elections_are_held_as_soon_as_they_are_allowed(self) -> None:
        b = Brokers(4)
        b.create(assignment=((2, 3),))
        b.kill(3)
        b.kill(2)
        b.start(3, clean=False)
        assert b.partition().leader == NO_LEADER
        assert b.configure(AlterableConfig(UNCLEAN, "true")) is E.NONE
        assert b.partition().leader == 3
        b.check()

    def test_nobody_stays_eligible_when_fewer_replicas_are_enough(self) -> None:
        """Leader 2 alone may commit from now on: what 3 has is no longer all (KIP-966)."""
        b = Brokers(4)
        b.create(assignment=((2, 3),), min_insync_replicas="2")
        b.kill(3)
        assert (b.partition().isr, b.partition().elr) == ((2,), (3,))
        told = [*b.brokers[2].requests]
        assert b.configure(AlterableConfig(MIN_ISR, "1")) is E.NONE
        assert (b.partition().isr, b.partition().elr) == ((2,), ())
        assert len(b.brokers[2].requests) > len(told)
        b.kill(2)
        b.start(3)
        assert b.partition().leader == NO_LEADER

    def test_who_proposes_an_isr_hears_by_which_minimum_it_was_judged(self) -> None:
        """The leader has not heard yet that it is higher; its former follower stays eligible."""
        b = Brokers(4)
        b.create(assignment=((2, 3),))
        b.brokers[2].deaf = True
        b.configure(AlterableConfig(MIN_ISR, "2"))
        result = b.alter((2,))
        assert (result.isr, result.min_isr) == ((2,), 2)
        assert b.partition().elr == (3,)
        b.brokers[2].deaf = False
        b.settle(PAUSE_MS)
        b.check()

    def test_who_was_down_hears_of_it_when_it_is_back(self) -> None:
        b = Brokers()
        b.create()
        b.kill(3)
        b.configure(AlterableConfig("retention.ms", "9"))
        b.start(3)
        assert b.brokers[3].configs[T0] == {"retention.ms": "9"}

    def test_a_topic_without_a_node_of_its_configuration(self) -> None:
        b = Brokers()
        b.create()
        b.admin.delete(nodes.topic_config_path("t"))
        b.kill(1)
        assert b.configure(AlterableConfig("retention.ms", "9")) is E.NONE
        assert b.topic().config == {"retention.ms": "9"}
