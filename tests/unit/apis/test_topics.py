"""Topics are made, grown and deleted over the wire, on a broker that is not the controller."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.apis.common import waits
from replication.apis.configs import ConfigSource
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.messages import DeleteTopicRequest
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.served import codes_of, connect, new_name, served
from tests.support.until import until
from tests.support.wire_client import WireClient

Create = wire.CreateTopicsRequest
Delete = wire.DeleteTopicsRequest
Grow = wire.CreatePartitionsRequest
NO_ID = uuid.UUID(int=0)


def creatable(
    name: str, partitions: int = 1, factor: int = 1, *replicas: tuple[int, ...], **config: Any
) -> wire.CreateTopicsRequest.CreatableTopic:
    return Create.CreatableTopic(
        name,
        partitions,
        factor,
        tuple(Create.CreatableReplicaAssignment(at, each) for at, each in enumerate(replicas)),
        tuple(
            Create.CreatableTopicConfig(key.replace("_", "."), value)
            for key, value in config.items()
        ),
    )


def create(
    client: WireClient,
    *topics: wire.CreateTopicsRequest.CreatableTopic,
    version: int = 7,
    timeout_ms: int = 30_000,
    validate_only: bool = False,
) -> tuple[wire.CreateTopicsResponse.CreatableTopicResult, ...]:
    request = Create(topics, timeout_ms, validate_only)
    response: wire.CreateTopicsResponse = client.ask(ApiKey.CREATE_TOPICS, version, request)
    return response.topics


class TestCreateTopics:
    @pytest.mark.parametrize("version", range(2, 8))
    def test_answers_when_the_leaders_are_known(
        self, kafka: ServedCluster, client: WireClient, version: int
    ) -> None:
        name = new_name()
        (made,) = create(client, creatable(name, 3, 2), version=version)
        assert (made.name, made.error_code, made.error_message) == (name, ErrorCode.NONE, None)
        request = wire.MetadataRequest((wire.MetadataRequest.MetadataRequestTopic(name=name),))
        (topic,) = client.ask(ApiKey.METADATA, 12, request).topics
        assert codes_of(topic.partitions) == [ErrorCode.NONE] * 3
        assert [len(part.replica_nodes) for part in topic.partitions] == [2, 2, 2]
        if version >= 5:
            assert (made.num_partitions, made.replication_factor) == (3, 2)
        if version >= 7:
            assert made.topic_id == topic.topic_id != NO_ID

    def test_says_what_the_broker_chose(self, client: WireClient) -> None:
        (made,) = create(client, creatable(new_name(), -1, -1, retention_bytes="77"))
        assert (made.num_partitions, made.replication_factor) == (2, 1)
        assert made.configs is not None
        found = {each.name: (each.value, each.config_source) for each in made.configs}
        assert found["retention.bytes"] == ("77", ConfigSource.TOPIC)
        assert found["retention.ms"] == ("1000000", ConfigSource.STATIC_BROKER)
        assert found["segment.bytes"] == (str(1 << 30), ConfigSource.DEFAULT)

    def test_assigns_replicas_as_asked(self, kafka: ServedCluster, client: WireClient) -> None:
        name = new_name()
        (made,) = create(client, creatable(name, -1, -1, (2, 0), (1, 2)))
        assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 2, 2)
        metadata = kafka.broker(0).metadata  # told after the answer
        known = until(lambda: metadata.registration(TopicPartition(name, 1)))
        assert known.replicas == (1, 2)

    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            (creatable("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable("n", 0), ErrorCode.INVALID_PARTITIONS),
            (creatable("n", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
            (creatable("n", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
            (creatable("n", 2, -1, (0,)), ErrorCode.INVALID_REQUEST),
            (creatable("n", -1, -1, (0, 0)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (creatable("n", -1, -1, (9,)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (creatable("n", retention_ms="x"), ErrorCode.INVALID_CONFIG),
            (creatable("n", no_such="1"), ErrorCode.INVALID_CONFIG),
            (creatable("n", retention_ms=None), ErrorCode.INVALID_CONFIG),
            (creatable("n", 10_001), ErrorCode.POLICY_VIOLATION),
        ],
    )
    def test_refuses_one_and_makes_the_other(
        self, client: WireClient, topic: wire.CreateTopicsRequest.CreatableTopic, code: ErrorCode
    ) -> None:
        bad, good = create(client, topic, creatable(new_name()))
        assert (bad.name, bad.error_code) == (topic.name, code)
        assert bad.error_message
        assert (bad.topic_id, bad.num_partitions) == (NO_ID, -1)
        assert good.error_code == ErrorCode.NONE

    def test_says_how_far_it_is(self, client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
        """Once the client waits no longer; what there is goes on."""
        monkeypatch.setattr(Broker, "knows_leader", lambda self, tp: tp.partition == 1)
        name = new_name()
        (late,) = create(client, creatable(name, 3), timeout_ms=100)
        grown = client.ask(
            ApiKey.CREATE_PARTITIONS, 3, Grow((Grow.CreatePartitionsTopic(name, 4, None),), 100)
        )
        for answer, count in ((late, 3), (grown.results[0], 4)):
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert f" of {count} partitions are known in time; " in str(answer.error_message)

    def test_partitions_are_numbered_from_zero(self, client: WireClient) -> None:
        topic = creatable(new_name(), -1, -1, (0,), (1,))
        gap = tuple(each._replace(partition_index=3) for each in topic.assignments[1:])
        topic = topic._replace(assignments=topic.assignments[:1] + gap)
        (bad,) = create(client, topic)
        assert bad.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    def test_a_name_that_is_taken(self, client: WireClient) -> None:
        name = new_name()
        create(client, creatable(name))
        (again,) = create(client, creatable(name))
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS

    @pytest.mark.parametrize(
        ("name", "code"),
        [("a b", ErrorCode.INVALID_TOPIC_EXCEPTION), (None, ErrorCode.TOPIC_ALREADY_EXISTS)],
    )
    def test_a_bad_name_comes_before_bad_numbers(
        self, client: WireClient, name: str | None, code: ErrorCode
    ) -> None:
        taken = new_name()
        create(client, creatable(taken))
        (bad,) = create(client, creatable(name or taken, 1, -1, (0, 0), retention_ms=None))
        assert bad.error_code == code

    def test_a_name_that_stands_twice(self, kafka: ServedCluster, client: WireClient) -> None:
        name = new_name()
        (both,) = create(client, creatable(name), creatable(name, 3))
        assert (both.name, both.error_code) == (name, ErrorCode.INVALID_REQUEST)
        assert kafka.broker(0).metadata.topic_id(name) is None

    def test_to_validate_is_to_change_nothing(
        self, kafka: ServedCluster, client: WireClient
    ) -> None:
        name = new_name()
        (good,) = create(client, creatable(name, -1, 3), validate_only=True)
        (bad,) = create(client, creatable(name, 1, 9), validate_only=True)
        assert (good.error_code, good.topic_id) == (ErrorCode.NONE, NO_ID)
        assert (good.num_partitions, good.replication_factor) == (2, 3)
        assert bad.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        (made,) = create(client, creatable(name))
        assert made.error_code == ErrorCode.NONE

    def test_nothing_asked_nothing_answered(self, client: WireClient) -> None:
        assert create(client) == ()


class TestDeleteTopics:
    @pytest.mark.parametrize("version", range(1, 7))
    def test_by_name(self, kafka: ServedCluster, client: WireClient, version: int) -> None:
        name, missing = new_name(), new_name()
        (made,) = create(client, creatable(name, 2, 2))
        if version >= 6:
            request = Delete((Delete.DeleteTopicState(name), Delete.DeleteTopicState(missing)))
        else:
            request = Delete(topic_names=(name, missing))
        request = request._replace(timeout_ms=30_000)
        gone, unknown = client.ask(ApiKey.DELETE_TOPICS, version, request).responses
        assert (gone.name, gone.error_code) == (name, ErrorCode.NONE)
        assert gone.topic_id == (made.topic_id if version >= 6 else NO_ID)
        assert unknown.name == missing
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        kafka.wait_until(lambda: kafka.broker(0).metadata.topic_id(name) is None, "it is gone")

    def test_the_name_is_free_at_once(self, client: WireClient) -> None:
        name = new_name()
        ids = set()
        for _ in range(3):
            (made,) = create(client, creatable(name, 20, 2))
            assert made.error_code == ErrorCode.NONE
            ids.add(made.topic_id)
            request = Delete((Delete.DeleteTopicState(name),), timeout_ms=30_000)
            assert codes_of(client.ask(ApiKey.DELETE_TOPICS, 6, request).responses) == [0]
        assert len(ids) == 3

    def test_by_id(self, client: WireClient) -> None:
        name = new_name()
        (made,) = create(client, creatable(name))
        other = uuid.UUID(int=made.topic_id.int ^ 1)
        request = Delete(
            (
                Delete.DeleteTopicState(None, made.topic_id),
                Delete.DeleteTopicState(None, other),
                Delete.DeleteTopicState(None, NO_ID),
                Delete.DeleteTopicState("x", uuid.UUID(int=7)),
            ),
            timeout_ms=30_000,
        )
        found = client.ask(ApiKey.DELETE_TOPICS, 6, request).responses
        assert codes_of(found) == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
        ]
        assert (found[0].name, found[0].topic_id) == (name, made.topic_id)
        assert (found[1].name, found[1].topic_id) == (None, other)

    def test_a_copy_that_comes_late_finds_another_topic(
        self, kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The controller is told of the id, so the next topic of the name is safe."""
        name = new_name()
        sent: list[Any] = []
        broker = kafka.broker(0)
        ask = broker.ask_controller

        def note(request: Any, *rest: Any) -> None:
            sent.append(request)
            ask(request, *rest)

        monkeypatch.setattr(broker, "ask_controller", note)
        with connect(kafka, 0) as client:
            (made,) = create(client, creatable(name))
            request = Delete(topic_names=(name,), timeout_ms=30_000)
            client.ask(ApiKey.DELETE_TOPICS, 5, request)
            (again,) = create(client, creatable(name))
        assert isinstance(sent[1], DeleteTopicRequest)
        assert (sent[1].topic, sent[1].topic_id) == (None, made.topic_id)
        assert kafka.broker(0).metadata.topic_id(name) == again.topic_id

    def test_a_topic_twice(self, kafka: ServedCluster, client: WireClient) -> None:
        name = new_name()
        create(client, creatable(name))
        request = Delete(topic_names=(name, name), timeout_ms=30_000)
        found = client.ask(ApiKey.DELETE_TOPICS, 5, request).responses
        assert codes_of(found) == [ErrorCode.INVALID_REQUEST]
        assert until(lambda: kafka.broker(0).metadata.topic_id(name)) is not None

    @pytest.mark.parametrize(
        ("version", "code"),
        [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)],
    )
    def test_where_it_is_not_allowed(self, version: int, code: ErrorCode) -> None:
        with (
            served(1, {"delete.topic.enable": "false"}) as kafka,
            connect(kafka) as client,
        ):
            kafka.create_topic("t")
            request = Delete(topic_names=("t",), timeout_ms=30_000)
            assert codes_of(client.ask(ApiKey.DELETE_TOPICS, version, request).responses) == [code]
            assert kafka.broker(0).metadata.topic_id("t") is not None


class TestCreatePartitions:
    def test_grows(self, kafka: ServedCluster, client: WireClient) -> None:
        name = new_name()
        create(client, creatable(name))
        topic = Grow.CreatePartitionsTopic(name, 3, (_brokers(1), _brokers(2)))
        (grown,) = client.ask(ApiKey.CREATE_PARTITIONS, 3, Grow((topic,), 30_000, False)).results
        assert (grown.name, grown.error_code, grown.error_message) == (name, ErrorCode.NONE, None)
        tps = kafka.broker(0).metadata.partitions_of(name)
        leaders = [kafka.wait_for_leader(tp) for tp in tps]
        assert leaders[1:] == [1, 2]

    def test_refuses(self, kafka: ServedCluster, client: WireClient) -> None:
        name, missing, twice = new_name(), new_name(), new_name()
        create(client, creatable(name, 2), creatable(twice))
        kind = Grow.CreatePartitionsTopic
        topics = (kind(name, 2, None), kind(missing, 3, None), kind(twice, 3, None))
        request = Grow((*topics, kind(twice, 4, None)), 30_000, False)
        found = client.ask(ApiKey.CREATE_PARTITIONS, 3, request).results
        assert {each.name: each.error_code for each in found} == {
            name: ErrorCode.INVALID_PARTITIONS,
            missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            twice: ErrorCode.INVALID_REQUEST,
        }
        assert len(until(lambda: kafka.broker(0).metadata.partitions_of(twice))) == 1

    def test_to_validate_is_to_change_nothing(
        self, kafka: ServedCluster, client: WireClient
    ) -> None:
        name = new_name()
        create(client, creatable(name))
        topic = Grow.CreatePartitionsTopic(name, 3, None)
        (found,) = client.ask(ApiKey.CREATE_PARTITIONS, 3, Grow((topic,), 30_000, True)).results
        assert found.error_code == ErrorCode.NONE
        assert len(until(lambda: kafka.broker(0).metadata.partitions_of(name))) == 1


def _brokers(*ids: int) -> wire.CreatePartitionsRequest.CreatePartitionsAssignment:
    return Grow.CreatePartitionsAssignment(ids)


def test_without_a_controller_admin_requests_say_so() -> None:
    """After ``request.timeout.ms``: until then one may be elected."""
    with (
        served(1, {"request.timeout.ms": 200}) as kafka,
        connect(kafka) as client,
    ):
        kafka.broker(0).controller.stop()
        kafka.wait_until(lambda: kafka.controller_id is None, "nobody is controller")
        (made,) = create(client, creatable("t"))
        assert made.error_code == ErrorCode.NOT_CONTROLLER


def test_beside_a_busy_controller_admin_requests_time_out() -> None:
    """There is one: only its answer is late. What it has not begun by then it leaves."""
    free = threading.Event()
    with (
        served(1, {"request.timeout.ms": 200}) as kafka,
        connect(kafka) as client,
    ):
        (made,) = create(client, creatable("there"))
        assert made.error_code == ErrorCode.NONE
        kafka.broker(0).controller._actor.post(lambda: free.wait(30) and None)
        try:
            (made,) = create(client, creatable("t"))
            deletion = Delete(topic_names=("there",), timeout_ms=200)
            growth = Grow((Grow.CreatePartitionsTopic("there", 3, None),), 200, False)
            found = [
                made.error_code,
                *codes_of(client.ask(ApiKey.DELETE_TOPICS, 5, deletion).responses),
                *codes_of(client.ask(ApiKey.CREATE_PARTITIONS, 3, growth).results),
            ]
        finally:
            free.set()
        assert found == [ErrorCode.REQUEST_TIMED_OUT] * 3


def test_only_so_many_are_changed(client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """W-237. What is refused without the controller counts, too."""
    monkeypatch.setattr(waits, "MAX_CHANGES", 2)
    names = [new_name() for _ in range(3)]
    one, two, many = ErrorCode.NONE, ErrorCode.INVALID_CONFIG, ErrorCode.POLICY_VIOLATION
    bad = creatable(names[1], **{"segment.bytes": "1"})
    asked = creatable(names[0]), bad, creatable(names[2])
    assert codes_of(create(client, *asked)) == [one, two, many]
    assert codes_of(create(client, *asked[2:])) == [ErrorCode.NONE]
    resources = tuple(
        wire.IncrementalAlterConfigsRequest.AlterConfigsResource(2, name, ()) for name in names
    )
    altered = client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, wire.IncrementalAlterConfigsRequest(resources, False)
    )
    assert codes_of(altered.responses) == [one, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, many]
