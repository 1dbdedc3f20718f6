"""Topics under a controller: creation, the spread of replicas, deletion, reassignment."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.errors import ResponseError
from replication.common.messages import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    CreateTopicRequest,
    Request,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    TopicResponse,
)
from replication.common.state import NO_LEADER, TopicAssignment, TopicPartition
from replication.common.transport import OnReply
from replication.controller.topics import spread
from replication.coordination import nodes
from tests.support.cases import for_each
from tests.support.controllers import PAUSE_MS, T0, Brokers


def stops_of(b: Brokers, broker: int) -> list[StopReplicaPartition]:
    requests = b.brokers[broker].requests_of(StopReplicaRequest)
    return [part for r in requests if isinstance(r, StopReplicaRequest) for part in r.partitions]


class TestCreation:
    def test_spread_over_the_brokers(self) -> None:
        b = Brokers(4)
        assert b.ask(CreateTopicRequest("t", 8, 3)) == TopicResponse(ErrorCode.NONE)
        for number, replicas in b.topic().partitions.items():
            now = b.partition(TopicPartition("t", number))
            assert now[:5] == (replicas, replicas, replicas[0], 0, 0)
        assert Counter(r[0] for r in b.topic().partitions.values()) == dict.fromkeys(b.ids, 2)
        assert b.controller.stats.global_partition_count == 8

    def test_the_defaults_of_the_broker(self) -> None:
        b = Brokers(config={"num.partitions": 3, "default.replication.factor": 2})
        assert b.ask(CreateTopicRequest("t", -1, -1)) == TopicResponse(ErrorCode.NONE)
        assert [len(r) for r in b.topic().partitions.values()] == [2, 2, 2]

    def test_the_same_seed_gives_the_same_topic(self) -> None:
        topics = []
        for _ in range(2):
            b = Brokers()
            b.ask(CreateTopicRequest("t", 5, 2))
            topics.append(b.topic())
        assert topics[0] == topics[1]

    @for_each(
        "request_, error",
        [
            (CreateTopicRequest("t"), ErrorCode.TOPIC_ALREADY_EXISTS),
            (CreateTopicRequest("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (CreateTopicRequest(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (CreateTopicRequest("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (CreateTopicRequest("dotted_name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (CreateTopicRequest("n", 0), ErrorCode.INVALID_PARTITIONS),
            (CreateTopicRequest("n", -2), ErrorCode.INVALID_PARTITIONS),
            (CreateTopicRequest("n", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
            (CreateTopicRequest("n", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
            (CreateTopicRequest("n", assignment=()), ErrorCode.INVALID_PARTITIONS),
            (
                CreateTopicRequest("n", assignment=((1, 1),)),
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ),
            (CreateTopicRequest("n", assignment=((),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (
                CreateTopicRequest("n", assignment=((1, 2), (1,))),
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ),
            (CreateTopicRequest("n", assignment=((9,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (CreateTopicRequest("n", config={"no.such.key": "1"}), ErrorCode.INVALID_CONFIG),
            (
                CreateTopicRequest("n", config={"min.insync.replicas": "0"}),
                ErrorCode.INVALID_CONFIG,
            ),
        ],
    )
    def test_refusals_change_nothing(self, request_: CreateTopicRequest, error: ErrorCode) -> None:
        b = Brokers()
        b.create()
        b.create("dotted.name")
        before = b.admin.children(nodes.TOPICS)
        response = b.ask(request_)
        assert isinstance(response, TopicResponse)
        assert response.error_code is error
        assert b.admin.children(nodes.TOPICS) == before

    def test_to_validate_is_to_change_nothing(self) -> None:
        b = Brokers()
        before = b.admin.children(nodes.TOPICS)
        good = b.ask(CreateTopicRequest("t", 3, 2, validate_only=True))
        bad = b.ask(CreateTopicRequest("t", 3, 9, validate_only=True))
        assert isinstance(good, TopicResponse)
        assert isinstance(bad, TopicResponse)
        assert good.error_code is ErrorCode.NONE
        assert bad.error_code is ErrorCode.INVALID_REPLICATION_FACTOR
        assert b.admin.children(nodes.TOPICS) == before

    def test_dead_brokers_are_known_but_somebody_must_lead(self) -> None:
        b = Brokers()
        b.kill(3)
        response = b.ask(CreateTopicRequest("n", assignment=((3,),)))
        assert isinstance(response, TopicResponse)
        assert response.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        b.create(assignment=((3, 2),))
        now = b.partition()
        assert (now.replicas, now.isr, now.leader) == ((3, 2), (2,), 2)
        b.start(3)
        assert b.brokers[3].told[T0] == now

    def test_a_topic_made_by_another_hand_is_begun_at_the_next_term(self) -> None:
        """Also one whose creation stopped between two steps, of Kafka's or of ours."""
        b = Brokers()
        _make_topic(b, ((2, 3), (3, 2)))
        second = TopicPartition("t", 1)
        b.admin.create(nodes.partition_path(T0), parents=True)
        b.kill(1)
        assert b.partition()[:5] == ((2, 3), (2, 3), 2, 0, 0)
        assert b.partition(second)[:5] == ((3, 2), (3, 2), 3, 0, 0)
        assert b.brokers[2].told[second] == b.partition(second)

    def test_partitions_wait_for_the_first_live_replica(self) -> None:
        b = Brokers()
        _make_topic(b, ((3,), (2,)))
        b.kill(3)
        b.kill(1)
        assert b.controller.stats.offline_partitions_count == 1
        b.start(3)
        assert b.partition().leader == 3
        assert b.controller.stats.offline_partitions_count == 0


def _make_topic(b: Brokers, replicas: tuple[tuple[int, ...], ...]) -> None:
    """The first step of a creation, by another hand."""
    topic = TopicAssignment(UUID(int=7), dict(enumerate(replicas)), {})
    b.admin.create(nodes.topic_path("t"), nodes.encode_topic(topic))


class TestSpread:
    @for_each("seed", range(20))
    @for_each("count, factor", [(1, 1), (3, 2), (5, 3), (5, 5)])
    def test_is_even(self, seed: int, count: int, factor: int) -> None:
        brokers = [10 * i for i in range(count)]
        assigned = spread(4 * count, factor, brokers, Random(seed))
        assert all(len(set(replicas)) == factor for replicas in assigned)
        assert Counter(r[0] for r in assigned) == dict.fromkeys(brokers, 4)
        load = Counter(broker for replicas in assigned for broker in replicas)
        assert max(load.values()) - min(load.values()) <= 4 * factor
        assert sum(load.values()) == 4 * count * factor

    def test_as_kafka_documents_it(self) -> None:
        """AdminUtils: ten partitions, three replicas, brokers 0 to 4; start and shift 0."""

        class Zero(Random):
            def randrange(self, *args: object, **kwargs: object) -> int:
                return 0

        rows = spread(10, 3, range(5), Zero())
        assert rows == [
            (0, 1, 2),
            (1, 2, 3),
            (2, 3, 4),
            (3, 4, 0),
            (4, 0, 1),
            (0, 2, 3),
            (1, 3, 4),
            (2, 4, 0),
            (3, 0, 1),
            (4, 1, 2),
        ]

    def test_refuses_what_cannot_be(self) -> None:
        with pytest.raises(ResponseError) as caught:
            spread(1, 1, [], Random(0))
        assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


OLD_GONE, NEW_STAYS = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR


class TestDeletion:
    def test_replicas_go_first_then_the_nodes(self) -> None:
        b = Brokers()
        b.create(assignment=((1, 2), (2, 3)))
        b.brokers[3].deaf = True
        assert b.delete() is ErrorCode.NONE
        assert {s.tp for s in stops_of(b, 2)} == {T0, TopicPartition("t", 1)}
        assert {(s.leader_epoch, s.delete) for s in stops_of(b, 2)} == {(EPOCH_DURING_DELETE, True)}
        assert stops_of(b, 2)[0].topic_id == b.topic().topic_id
        assert b.brokers[1].metadata[T0].leader == LEADER_DURING_DELETE
        assert b.admin.children(nodes.DELETE_TOPICS) == ["t"]
        b.brokers[3].deaf = False
        b.settle(PAUSE_MS)
        for path in (nodes.TOPICS, nodes.DELETE_TOPICS, nodes.TOPIC_CONFIGS):
            assert b.admin.children(path) == []
        assert not any(broker.told for broker in b.brokers.values())
        assert b.controller.stats.global_topic_count == 0

    def test_nothing_is_decided_about_it_any_more(self) -> None:
        b = Brokers()
        b.create(assignment=((2, 3),))
        b.brokers[3].deaf = True
        b.delete()
        before = b.partition()
        assert b.alter((2,)).error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert b.ask(CreateTopicRequest("t")).error_code is ErrorCode.TOPIC_ALREADY_EXISTS  # type: ignore[union-attr]
        b.kill(2)
        assert b.partition() == before
        assert b.controller.stats.offline_partitions_count == 0

    def test_a_dead_replica_is_waited_for_over_terms(self) -> None:
        b = Brokers()
        b.create(assignment=((2, 3),))
        b.kill(3)
        assert b.delete() is ErrorCode.NONE
        assert b.delete() is ErrorCode.NONE  # as often as one likes
        assert b.admin.children(nodes.TOPICS) == ["t"]
        b.kill(1)
        assert b.admin.children(nodes.TOPICS) == ["t"]
        assert T0 not in b.brokers[2].told
        b.start(3)
        assert b.admin.children(nodes.TOPICS) == []
        b.create(assignment=((2, 3),))
        assert b.partition()[:5] == ((2, 3), (2, 3), 2, 0, 0)

    def test_an_unknown_topic(self) -> None:
        assert Brokers(1).delete("nothing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_a_replica_in_a_failed_directory_holds_it_up_until_the_broker_returns(self) -> None:
        b = Brokers()
        b.create(assignment=((2, 3),))
        b.brokers[3].failed = {T0}
        b.delete()
        assert b.admin.children(nodes.TOPICS) == ["t"]
        b.brokers[3].failed = set()
        b.bounce(3)
        assert b.admin.children(nodes.TOPICS) == []

    def test_a_topic_that_cannot_be_read_stays_marked(self) -> None:
        """It is deleted as soon as somebody has mended its node; meanwhile nobody is told that
        what he names is all there is."""
        b = Brokers()
        b.create(assignment=((2, 3),))
        b.brokers[3].deaf = True
        b.delete()
        node = b.admin.get(nodes.topic_path("t"))
        assert node is not None
        b.admin.set(nodes.topic_path("t"), b"{")
        b.kill(1)
        b.brokers[3].deaf = False
        b.settle(PAUSE_MS)
        assert b.admin.children(nodes.DELETE_TOPICS) == ["t"]
        assert b.brokers[3].logs
        assert b.brokers[3].strays == []
        b.admin.set(nodes.topic_path("t"), node.data)
        b.kill(2)
        b.start(2)
        assert b.admin.children(nodes.TOPICS) == []
        b.check()

    def test_a_change_of_the_isr_is_of_the_topic_whose_id_it_names(self) -> None:
        """All else agrees: who sends it leads again, in the same epochs."""
        b = Brokers()
        b.create(assignment=((2, 3),))
        old = b.topic().topic_id
        assert b.delete() is ErrorCode.NONE
        b.create(assignment=((2, 3),))
        now = b.partition()
        for topic_id in (old, None):
            assert b.alter((2,), topic_id=topic_id).error_code is ErrorCode.UNKNOWN_TOPIC_ID
            assert b.partition() == now
        assert b.alter((2,)).error_code is ErrorCode.NONE
        assert b.partition().isr == (2,)

    def test_an_answer_for_an_earlier_topic_of_the_name_confirms_nothing(self) -> None:
        b = Brokers()
        b.create(assignment=((2, 3),))
        b.brokers[3].deaf = True
        b.reassign((2,))
        b.delete()  # nobody waits for 3, which has no replica of it any more
        b.create(assignment=((2, 3),))
        new = b.topic().topic_id
        assert b.delete() is ErrorCode.NONE
        b.brokers[3].failed = {T0}
        b.brokers[3].deaf = False
        b.settle(PAUSE_MS)
        assert b.topic().topic_id == new
        b.brokers[3].failed = set()
        b.settle(20 * PAUSE_MS)
        assert b.admin.children(nodes.TOPICS) == []
        assert b.brokers[3].logs == {}

    def test_a_late_stop_of_an_earlier_topic_confirms_nothing(self) -> None:
        """The next topic of the name waits for its own replica, which is still there."""
        b = Brokers()
        b.create(assignment=((2, 3),))
        held: list[OnReply] = []
        send = b.send

        def slow(broker: int, request: Request, on_reply: OnReply, timeout_ms: int = 0) -> None:
            if broker == 3 and isinstance(request, StopReplicaRequest):
                held.append(on_reply)
            else:
                send(broker, request, on_reply, timeout_ms)

        b.send = slow  # type: ignore[method-assign]
        b.reassign((2,))
        b.delete()  # nobody waits for 3, which is on its way to stop
        b.create(assignment=((2, 3),))
        new = b.topic().topic_id
        assert b.delete() is ErrorCode.NONE
        for count in (1, 2):
            assert (len(held), b.topic().topic_id) == (count, new)
            held[-1](StopReplicaResponse(ErrorCode.NONE, ((T0, ErrorCode.NONE),)))
            b.settle()
        assert b.admin.children(nodes.TOPICS) == []

    @for_each("codes", [(OLD_GONE, NEW_STAYS), (NEW_STAYS, OLD_GONE)])
    def test_one_answer_for_two_topics_of_the_name(self, codes: tuple[ErrorCode, ...]) -> None:
        """It names the partition only, so both are gone only if it says so twice."""
        b = Brokers()
        b.create(assignment=((2, 3),))
        b.brokers[3].deaf = True
        b.reassign((2,))
        b.delete()
        b.create(assignment=((2, 3),))
        new = b.topic().topic_id
        assert b.delete() is ErrorCode.NONE
        send = b.send

        def both(broker: int, request: Request, on_reply: OnReply, timeout_ms: int = 0) -> None:
            if broker == 3 and isinstance(request, StopReplicaRequest) and stays:
                said = tuple((T0, code) for code in codes[: len(request.partitions)])
                on_reply(StopReplicaResponse(ErrorCode.NONE, said))
            else:
                send(broker, request, on_reply, timeout_ms)

        stays = True
        b.send = both  # type: ignore[method-assign]
        b.brokers[3].deaf = False
        b.settle(PAUSE_MS)
        assert b.topic().topic_id == new
        stays = False
        b.settle(20 * PAUSE_MS)
        assert b.admin.children(nodes.TOPICS) == []

    def test_many_partitions_take_several_transactions(self) -> None:
        b = Brokers(1)
        b.create(assignment=((1,),) * 500)
        assert b.delete() is ErrorCode.NONE
        assert b.admin.children(nodes.TOPICS) == []


class TestReassignment:
    def test_grows_then_completes_with_the_isr(self) -> None:
        """R-62: targets first, then those to remove, until all targets are in sync."""
        b = Brokers(4)
        b.create(assignment=((1, 2),))
        assert b.reassign((3, 4)) is ErrorCode.NONE
        assert b.topic().partitions[0] == (3, 4, 1, 2)
        assert (b.topic().adding, b.topic().removing) == ({0: (3, 4)}, {0: (1, 2)})
        now = b.partition()
        assert (now.leader, now.isr, now.leader_epoch) == (1, (1, 2), 1)
        assert b.brokers[4].told[T0] == now
        assert b.alter((1, 2, 3)).error_code is ErrorCode.NONE
        assert b.alter((1, 2, 3, 4)).error_code is ErrorCode.NEW_LEADER_ELECTED
        now = b.partition()
        assert (now.replicas, now.isr, now.leader, now.leader_epoch) == ((3, 4), (3, 4), 3, 2)
        assert (b.topic().adding, b.topic().removing) == ({}, {})
        for broker in (1, 2):
            assert [s[:3] for s in stops_of(b, broker)] == [(T0, 2, True)]
            assert T0 not in b.brokers[broker].told

    def test_more_replicas(self) -> None:
        b = Brokers()
        b.create(assignment=((1, 2),))
        assert b.reassign((1, 2, 3)) is ErrorCode.NONE
        assert b.topic().adding == {0: (3,)}
        b.alter((1, 2, 3))
        assert b.topic().adding == {}
        assert b.partition().leader == 1

    def test_fewer_replicas_and_another_order_are_done_at_once(self) -> None:
        b = Brokers()
        b.create()
        assert b.reassign((3, 1)) is ErrorCode.NONE
        now = b.partition()
        assert (now.replicas, now.leader, now.isr, now.leader_epoch) == ((3, 1), 1, (1, 3), 1)
        assert b.reassign((1, 3)) is ErrorCode.NONE
        assert b.partition().replicas == (1, 3)
        assert b.topic().removing == {}

    def test_giving_it_up(self) -> None:
        b = Brokers()
        b.create(assignment=((1, 2),))
        assert b.reassign(None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        b.reassign((1, 3))
        assert b.reassign(None) is ErrorCode.NONE
        now = b.partition()
        assert (now.replicas, now.isr) == ((1, 2), (1, 2))
        assert (b.topic().adding, b.topic().removing) == ({}, {})
        assert [s.tp for s in stops_of(b, 3)] == [T0]

    @pytest.mark.parametrize("target", [None, (3, 1)])
    @pytest.mark.parametrize("alive", [True, False])
    def test_the_only_one_that_has_everything_stays(
        self, target: tuple[int, ...] | None, alive: bool
    ) -> None:
        """Its replica would be deleted, and what is committed with it."""
        b = Brokers(4)
        b.create(assignment=((2, 3),))
        b.reassign((4, 1))
        b.alter((2, 3, 4))
        b.alter((2, 4))
        b.kill(2)
        assert b.partition().isr == (4,)
        if not alive:
            b.kill(4)
        before, topic = b.partition(), b.topic()
        assert b.reassign(target) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert (b.partition(), b.topic()) == (before, topic)
        assert not stops_of(b, 4)
        if alive:
            b.check()
            b.alter((4, 3))
            assert b.reassign(target) is ErrorCode.NONE
            assert 4 not in b.partition().replicas

    def test_a_replica_whose_broker_is_down_goes_when_it_is_back(self) -> None:
        """Nobody remembers it: it is not among all that the broker should have."""
        b = Brokers(4)
        b.create(assignment=((1, 2, 3),))
        b.kill(3)
        b.reassign((1, 2, 4))
        b.alter((1, 2, 4))
        old = b.topic().topic_id
        b.start(3)
        assert b.brokers[3].strays == [(T0, old)]
        b.check()

    def test_the_name_can_be_placed_again_where_a_replica_was_left(self) -> None:
        b = Brokers(4)
        b.create(assignment=((1, 2, 3),))
        b.kill(3)
        b.reassign((1, 2))
        old = b.topic().topic_id
        b.delete()
        b.create(assignment=((1, 2, 3),))
        b.start(3)
        assert b.brokers[3].strays == [(T0, old)]
        assert b.brokers[3].logs == {T0: b.topic().topic_id}
        b.check()

    def test_one_that_could_not_be_told_goes_under_the_next_controller(self) -> None:
        b = Brokers(4)
        b.create(assignment=((2, 3, 4),))
        b.brokers[4].deaf = True
        b.reassign((2, 3))
        b.kill(1)
        b.brokers[4].deaf = False
        b.settle(PAUSE_MS)
        assert b.brokers[4].logs == {}
        b.check()

    def test_goes_on_under_the_next_controller(self) -> None:
        b = Brokers(4)
        b.create(assignment=((2, 3),))
        b.reassign((3, 4))
        b.kill(1)
        assert b.topic().adding == {0: (4,)}
        b.alter((2, 3, 4))
        assert b.partition().replicas == (3, 4)

    def test_does_not_complete_where_no_target_can_lead(self) -> None:
        b = Brokers()
        b.create(assignment=((1, 2),))
        b.brokers[3].failed = {T0}
        b.reassign((3,))
        assert b.alter((1, 2, 3)).error_code is ErrorCode.NONE
        now = b.partition()
        assert (now.leader, now.replicas) == (1, (3, 1, 2))
        assert b.topic().removing == {0: (1, 2)}

    def test_one_that_is_ready_completes_when_a_controller_takes_over(self) -> None:
        """Written into the topic's node by another hand, as Kafka's older tools do."""
        b = Brokers()
        b.create(assignment=((2, 3),))
        moving = b.topic()._replace(removing={0: (2,)})
        b.admin.set(nodes.topic_path("t"), nodes.encode_topic(moving))
        b.kill(1)
        assert b.partition()[:4] == ((3,), (3,), 3, 1)
        assert b.topic().removing == {}

    def test_a_late_stop_cannot_hit_a_replica_that_is_back(self) -> None:
        """Joining begins a leader epoch, above the one in the StopReplica."""
        b = Brokers()
        b.create()
        b.reassign((1, 2))
        (stop,) = stops_of(b, 3)
        b.reassign((1, 2, 3))
        assert b.brokers[3].told[T0].leader_epoch > stop.leader_epoch

    @pytest.mark.parametrize("target", [(), (1, 1), (9,)])
    def test_refusals(self, target: tuple[int, ...]) -> None:
        b = Brokers()
        b.create()
        assert b.reassign(target) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        missing = TopicPartition("t", 9)
        assert b.reassign((1,), missing) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert b.partition().partition_epoch == 0

    def test_a_target_that_dies_holds_it_up(self) -> None:
        b = Brokers()
        b.create(assignment=((1,),))
        b.reassign((3,))
        b.kill(3)
        now = b.partition()
        assert (now.leader, now.isr) == (1, (1,))
        assert now.leader != NO_LEADER
        b.start(3)
        b.alter((1, 3))
        assert (b.partition().leader, b.partition().replicas) == (3, (3,))
