"""What operators ask over the wire: elections, moves, directories, producers, the cluster."""

from __future__ import annotations

import os
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.served import batch, connect, leader_client, new_name, produce, served
from tests.support.until import until
from tests.support.wire_client import WireClient

Elect = wire.ElectLeadersRequest
Move = wire.AlterPartitionReassignmentsRequest
Moves = wire.ListPartitionReassignmentsRequest
Pages = wire.DescribeTopicPartitionsRequest
PREFERRED, UNCLEAN = 0, 1


def assigned(kafka: ServedCluster, *replicas: int) -> TopicPartition:
    (tp,) = kafka.create_topic(new_name(), assignment=[replicas])
    return tp


class TestElectLeaders:
    def test_the_preferred_replica_leads_again(
        self, kafka: ServedCluster, client: WireClient
    ) -> None:
        tp = assigned(kafka, 2, 1)
        kafka.restart(2)
        kafka.wait_for_isr(tp, [1, 2])
        response = client.ask(ApiKey.ELECT_LEADERS, 2, elect(PREFERRED, tp))
        assert response.error_code == ErrorCode.NONE
        ((result,),) = (each.partition_result for each in response.replica_election_results)
        assert result.error_code in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
        kafka.wait_until(lambda: kafka.leader(tp) == 2, "the preferred replica leads")

    def test_each_partition_has_its_code(self, kafka: ServedCluster, client: WireClient) -> None:
        tp, unknown = assigned(kafka, 1), TopicPartition(new_name(), 0)
        response = client.ask(ApiKey.ELECT_LEADERS, 2, elect(PREFERRED, tp, unknown))
        assert results(response) == {
            tp: ErrorCode.ELECTION_NOT_NEEDED,
            unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }

    def test_of_all_only_those_are_named_that_were_not_in_order(
        self, kafka: ServedCluster, client: WireClient
    ) -> None:
        kafka.elect_preferred()
        response = client.ask(ApiKey.ELECT_LEADERS, 1, Elect(PREFERRED, None))
        assert (response.error_code, response.replica_election_results) == (0, ())

    def test_other_kinds_of_election(self, client: WireClient) -> None:
        response = client.ask(ApiKey.ELECT_LEADERS, 2, Elect(7, None))
        assert response.error_code == ErrorCode.INVALID_REQUEST


def elect(kind: int, *tps: TopicPartition) -> wire.ElectLeadersRequest:
    return Elect(kind, tuple(Elect.TopicPartitions(tp.topic, (tp.partition,)) for tp in tps))


def results(response: wire.ElectLeadersResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(each.topic, part.partition_id): part.error_code
        for each in response.replica_election_results
        for part in each.partition_result
    }


class TestReassignments:
    def test_a_partition_moves(self, kafka: ServedCluster, client: WireClient) -> None:
        tp = assigned(kafka, 0, 1)
        with leader_client(kafka, tp) as producer:
            produce(producer, tp, batch(b"x"))
        assert self._move(client, tp, (2, 1)) == ErrorCode.NONE
        kafka.wait_until(lambda: self._replicas(kafka, tp) == (2, 1), "the replicas moved")
        kafka.wait_until(lambda: self._ongoing(client, tp) == (), "the move is over")
        kafka.wait_for_isr(tp, [1, 2])

    def test_a_move_that_is_under_way(self, client: WireClient, kafka: ServedCluster) -> None:
        tp = assigned(kafka, 0, 1)
        kafka.crash(2)
        try:
            kafka.wait_until(lambda: not kafka.broker(0).metadata.is_alive(2), "2 is dead")
            with connect(kafka, 0) as asking:
                assert self._move(asking, tp, (0, 2)) == ErrorCode.NONE
                (topic,) = self._ongoing(asking, tp)
                (part,) = topic.partitions
                assert (topic.name, part.partition_index) == tp
                assert (part.adding_replicas, part.removing_replicas) == ((2,), (1,))
                assert set(part.replicas) == {0, 1, 2}
                assert self._ongoing(asking, TopicPartition(tp.topic, 9)) == ()
                assert self._move(asking, tp, None) == ErrorCode.NONE
                assert self._ongoing(asking, tp) == ()
        finally:
            kafka.start(2)

    @pytest.mark.parametrize(
        ("replicas", "code"),
        [
            ((7,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ],
    )
    def test_refusals(
        self, kafka: ServedCluster, client: WireClient, replicas: Any, code: ErrorCode
    ) -> None:
        tp = assigned(kafka, 0)
        assert self._move(client, tp, replicas) == code
        assert self._replicas(kafka, tp) == (0,)

    def test_of_what_is_not_there(self, client: WireClient) -> None:
        tp = TopicPartition(new_name(), 0)
        assert self._move(client, tp, (1,)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    @staticmethod
    def _move(client: WireClient, tp: TopicPartition, replicas: tuple[int, ...] | None) -> int:
        part = Move.ReassignablePartition(tp.partition, replicas)
        request = Move(topics=(Move.ReassignableTopic(tp.topic, (part,)),))
        response = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        assert response.error_code == ErrorCode.NONE
        ((result,),) = (each.partitions for each in response.responses)
        code: int = result.error_code
        return code

    @staticmethod
    def _ongoing(client: WireClient, tp: TopicPartition) -> Any:
        topic = Moves.ListPartitionReassignmentsTopics(tp.topic, (tp.partition,))
        response = client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, Moves(topics=(topic,)))
        assert response.error_code == ErrorCode.NONE
        return response.topics

    @staticmethod
    def _replicas(kafka: ServedCluster, tp: TopicPartition) -> tuple[int, ...]:
        known = kafka.broker(0).metadata.registration(tp)
        assert known is not None
        return known.replicas


class TestDescribeLogDirs:
    @pytest.mark.parametrize("version", range(1, 6))
    def test_every_partition_with_its_size(self, kafka: ServedCluster, version: int) -> None:
        tp = assigned(kafka, 1)
        records = batch(b"x" * 100)
        with connect(kafka, 1) as client:
            produce(client, tp, records)
            topic = wire.DescribeLogDirsRequest.DescribableLogDirTopic(tp.topic, (0,))
            for topics in ((topic,), None):
                request = wire.DescribeLogDirsRequest(topics)
                response = client.ask(ApiKey.DESCRIBE_LOG_DIRS, version, request)
                (result,) = response.results
                assert result.error_code == ErrorCode.NONE
                assert result.log_dir == os.path.abspath(kafka.log_dirs(1)[0])
                found = {topic.name: topic for topic in result.topics}
                (part,) = found[tp.topic].partitions
                assert (part.partition_index, part.partition_size) == (0, len(records))
                assert (part.offset_lag, part.is_future_key) == (0, False)
                if topics is not None:
                    assert len(result.topics) == 1

    def test_a_directory_that_failed(self) -> None:
        with served(1, log_dirs_per_broker=2) as kafka, connect(kafka) as client:
            good, bad = kafka.log_dirs(0)
            manager = kafka.broker(0).log_manager
            manager._directories.fail(bad, _failure(bad))
            request = wire.DescribeLogDirsRequest(None)
            response = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, request)
            assert {each.log_dir: each.error_code for each in response.results} == {
                os.path.abspath(good): ErrorCode.NONE,
                os.path.abspath(bad): ErrorCode.KAFKA_STORAGE_ERROR,
            }


class TestAlterReplicaLogDirs:
    """X-156."""

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_replica_moves(self, version: int) -> None:
        with served(1, log_dirs_per_broker=2) as kafka, connect(kafka) as client:
            (tp,) = kafka.create_topic("t")
            produce(client, tp, batch(b"x" * 100))
            places = {os.path.abspath(path) for path in kafka.log_dirs(0)}

            def place() -> str:
                request = wire.DescribeLogDirsRequest(None)
                results = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, request).results
                (found,) = (
                    each.log_dir
                    for each in results
                    for topic in each.topics
                    for part in topic.partitions
                    if topic.name == "t" and not part.is_future_key
                )
                return str(found)

            (target,) = places - {place()}
            assert alter(client, version, {target: [tp]}) == {tp: ErrorCode.NONE}
            until(lambda: place() == target, "the replica is there")
            assert alter(client, version, {target: [tp]}) == {tp: ErrorCode.NONE}
            produce(client, tp, batch(b"more"))
            assert len(kafka.read_all("t")[0]) == 2

    def test_each_partition_has_its_code(self) -> None:
        with served(1, log_dirs_per_broker=2) as kafka, connect(kafka) as client:
            (tp,) = kafka.create_topic("t")
            new, long = TopicPartition("new", 3), TopicPartition("x" * 240, 0)
            place = os.path.abspath(kafka.log_dirs(0)[1])
            found = alter(client, 2, {place: [new, long], "/nowhere": [tp]})
            assert found == {
                new: ErrorCode.REPLICA_NOT_AVAILABLE,
                long: ErrorCode.INVALID_TOPIC_EXCEPTION,
                tp: ErrorCode.LOG_DIR_NOT_FOUND,
            }
            kafka.create_topic("new", 4)
            log = kafka.broker(0).log_manager.get("new", 3)
            assert os.path.dirname(log.directory) == place


def alter(
    client: WireClient, version: int, wanted: dict[str, list[TopicPartition]]
) -> dict[TopicPartition, int]:
    kind = wire.AlterReplicaLogDirsRequest
    dirs = tuple(
        kind.AlterReplicaLogDir(
            path, tuple(kind.AlterReplicaLogDirTopic(tp.topic, (tp.partition,)) for tp in tps)
        )
        for path, tps in wanted.items()
    )
    results = client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, kind(dirs)).results
    return {
        TopicPartition(topic.topic_name, part.partition_index): part.error_code
        for topic in results
        for part in topic.partitions
    }


def _failure(path: str) -> Any:
    from logstore.common.errors import StorageFailedError

    return StorageFailedError(path, "write", "made for a test")


class TestDescribeProducers:
    def test_what_is_remembered_of_a_producer(self, kafka: ServedCluster) -> None:
        tp = assigned(kafka, 0, 1)
        unknown = TopicPartition(new_name(), 0)
        records = batch(b"x", b"y", producer_id=4000, producer_epoch=3, base_sequence=0)
        request = self._request(tp, unknown)
        with leader_client(kafka, tp) as client:
            assert not produce(client, tp, records).error_code
            response = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request)
        first, second = (topic.partitions[0] for topic in response.topics)
        assert (first.error_code, first.error_message) == (ErrorCode.NONE, None)
        (producer,) = first.active_producers
        assert (producer.producer_id, producer.producer_epoch) == (4000, 3)
        assert (producer.last_sequence, producer.current_txn_start_offset) == (1, -1)
        assert producer.last_timestamp > 0
        assert second.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_the_order_is_that_of_the_request(self, client: WireClient) -> None:
        """Each topic and partition stands once, and a topic without partitions too."""
        kind = wire.DescribeProducersRequest.TopicRequest
        asked = (kind("b", (2, 0, 2)), kind("a", ()), kind("b", (1, 0)))
        request = wire.DescribeProducersRequest(asked)
        response = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request)
        found = [(e.name, [p.partition_index for p in e.partitions]) for e in response.topics]
        assert found == [("b", [2, 0, 1]), ("a", [])]

    def test_only_the_leader_answers(self, kafka: ServedCluster) -> None:
        tp = assigned(kafka, 0, 1)
        for broker in (1, 2):
            with connect(kafka, broker) as client:
                response = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, self._request(tp))
            (part,) = response.topics[0].partitions
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    @staticmethod
    def _request(*tps: TopicPartition) -> wire.DescribeProducersRequest:
        kind = wire.DescribeProducersRequest
        return kind(tuple(kind.TopicRequest(tp.topic, (tp.partition,)) for tp in tps))


class TestDescribeCluster:
    @pytest.mark.parametrize("version", range(3))
    def test_brokers_and_controller(
        self, kafka: ServedCluster, client: WireClient, version: int
    ) -> None:
        response = client.ask(ApiKey.DESCRIBE_CLUSTER, version, wire.DescribeClusterRequest())
        assert response.error_code == ErrorCode.NONE
        assert response.cluster_id == kafka.broker(0).log_manager.cluster_id
        assert response.controller_id == kafka.controller_id
        assert [each.broker_id for each in response.brokers] == [0, 1, 2]
        assert [each.port for each in response.brokers] == [
            kafka.broker(n).endpoints[0].port for n in range(3)
        ]

    @pytest.mark.parametrize(
        ("kind", "code"),
        [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
    )
    def test_other_endpoints(self, client: WireClient, kind: int, code: ErrorCode) -> None:
        request = wire.DescribeClusterRequest(endpoint_type=kind)
        assert client.ask(ApiKey.DESCRIBE_CLUSTER, 1, request).error_code == code


class TestDescribeTopicPartitions:
    def test_pages(self, kafka: ServedCluster, client: WireClient) -> None:
        names = sorted(new_name("page") for _ in range(3))
        for name in names:
            kafka.create_topic(name, 2)
        found, cursor, pages = [], None, 0
        while True:
            request = Pages(tuple(map(Pages.TopicRequest, names)), 3, cursor)
            response = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
            part_count = 0
            for topic in response.topics:
                assert topic.error_code == ErrorCode.NONE
                assert topic.topic_id == kafka.broker(0).metadata.topic_id(topic.name)
                part_count += len(topic.partitions)
                found += [(topic.name, part.partition_index) for part in topic.partitions]
            assert 0 < part_count <= 3
            pages += 1
            if response.next_cursor is None:
                break
            cursor = Pages.Cursor(*response.next_cursor)
        assert found == [(name, number) for name in names for number in range(2)]
        assert pages == 2

    @pytest.mark.parametrize("limit", range(1, 9))
    def test_pages_of_any_size_have_each_partition_once(
        self, kafka: ServedCluster, client: WireClient, limit: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """W-237: and a page looks at no more topics than it needs, and the one behind it."""
        names = sorted([f"{new_name('any')}-{size}" for size in (1, 3, 2, 1)] + ["missing"])
        for name in names:
            if name != "missing":
                kafka.create_topic(name, int(name[-1]))
        looked: list[int] = []
        for broker_id in kafka.broker_ids:
            metadata = kafka.broker(broker_id).metadata
            kafka.wait_until(
                lambda: all(metadata.partition_count(n) for n in names if n != "missing"),  # noqa: B023
                "all are known",
            )
            describe = metadata.describe
            monkeypatch.setattr(
                metadata,
                "describe",
                lambda asked, *more, describe=describe: (
                    looked.append(len(asked.topics or ())) or describe(asked, *more)
                ),
            )
        found, cursor = [], None
        while True:
            request = Pages(tuple(map(Pages.TopicRequest, names)), limit, cursor)
            response = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
            found += [
                (topic.name, part.partition_index)
                for topic in response.topics
                for part in topic.partitions
            ]
            if response.next_cursor is None:
                break
            cursor = Pages.Cursor(*response.next_cursor)
        assert found == [
            (name, number) for name in names if name != "missing" for number in range(int(name[-1]))
        ]
        assert max(looked) <= limit + 2  # a topic that is missing has no partition to count

    def test_what_is_not_there(self, client: WireClient) -> None:
        request = Pages((Pages.TopicRequest(new_name()), Pages.TopicRequest("a b")))
        topics = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request).topics
        assert {topic.name: topic.error_code for topic in topics} == {
            request.topics[0].name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }

    def test_a_cursor_is_at_a_topic_that_is_asked_for(
        self, kafka: ServedCluster, client: WireClient
    ) -> None:
        name = assigned(kafka, 0).topic
        for cursor in (Pages.Cursor("zzz", 0), Pages.Cursor(name, -1)):
            request = Pages((Pages.TopicRequest(name),), 10, cursor)
            (topic,) = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request).topics
            assert (topic.name, topic.error_code) == (name, ErrorCode.INVALID_REQUEST)

    def test_all_topics(self, kafka: ServedCluster, client: WireClient) -> None:
        tp = assigned(kafka, 0, 1)
        topics = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, Pages()).topics
        found = {topic.name: topic for topic in topics}
        (part,) = found[tp.topic].partitions
        assert (part.leader_id, part.replica_nodes) == (0, (0, 1))
        assert sorted(part.isr_nodes) == [0, 1]
        assert (part.eligible_leader_replicas, part.last_known_elr) == ((), ())
