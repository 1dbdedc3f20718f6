"""What a broker asks of the controller ends at the broker that it asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from replication import ServedCluster, connect
from replication.apis import controller_requests
from replication.apis.common.broker_requests import BrokerPeers
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    CreateTopicRequest,
    Request,
    TopicResponse,
)
from replication.common.transport import OnReply
from replication.controller import Controller
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.support.served import BROKERS, WITH_BROKERS, new_name, served
from tests.support.served import connect as wire_client

E = ErrorCode


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(2, **WITH_BROKERS) as brokers:
        yield brokers


@pytest.fixture
def over_tcp(kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Has brokers ask each other over TCP. Gives the ids of those that were asked to make a
    topic."""
    endpoints = [
        f"{each.host}:{each.port}"
        for broker_id in kafka.broker_ids
        for each in kafka.broker(broker_id).endpoints
        if each.listener == BROKERS
    ]
    with connect(",".join(endpoints)) as client:
        client.refresh()
        asked: list[int] = []

        def send(
            broker_id: int, request: Request, on_reply: OnReply, timeout_ms: int = 30_000
        ) -> None:
            if isinstance(request, CreateTopicRequest):
                asked.append(broker_id)
                client.transport.send(broker_id, request, on_reply, timeout_ms)
            else:
                local(broker_id, request, on_reply, timeout_ms)

        for broker_id in kafka.broker_ids:
            transport = kafka.broker(broker_id).transport
            local = transport.send
            monkeypatch.setattr(transport, "send", send)
        yield asked
        monkeypatch.undo()


def created(
    kafka: ServedCluster, broker_id: int, name: str, timeout_ms: int, factor: int = 2
) -> wire.CreateTopicsResponse.CreatableTopicResult:
    kind = wire.CreateTopicsRequest
    request = kind((kind.CreatableTopic(name, 3, factor),), timeout_ms)
    with closing(wire_client(kafka, broker_id)) as client:
        (topic,) = client.ask(ApiKey.CREATE_TOPICS, 7, request).topics
    return topic


def create(kafka: ServedCluster, broker_id: int, name: str, timeout_ms: int) -> ErrorCode:
    return ErrorCode(created(kafka, broker_id, name, timeout_ms).error_code)


def test_a_topic_is_usable_where_it_was_asked_for(
    kafka: ServedCluster, over_tcp: list[int]
) -> None:
    """The broker that is asked waits, and the controller does not."""
    controller = kafka.controller_id
    assert controller is not None
    name = new_name()
    assert create(kafka, 1 - controller, name, 10_000) is E.NONE
    assert over_tcp == [controller]
    assert len(kafka.broker(1 - controller).metadata.partitions_of(name)) == 3
    assert create(kafka, 1 - controller, name, 10_000) is E.TOPIC_ALREADY_EXISTS


def test_a_refusal_comes_with_its_reason(kafka: ServedCluster, over_tcp: list[int]) -> None:
    controller = kafka.controller_id
    assert controller is not None
    name = new_name()
    forwarded, direct = (created(kafka, n, name, 1000, 9) for n in (1 - controller, controller))
    assert over_tcp == [controller, controller]
    assert forwarded == direct
    assert forwarded.error_code == E.INVALID_REPLICATION_FACTOR
    assert "9" in (forwarded.error_message or "")


def test_two_brokers_that_take_each_other_for_the_controller(
    kafka: ServedCluster, over_tcp: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Controller, "active", False)
    other = property(lambda broker: 1 - broker.broker_id)
    monkeypatch.setattr(Broker, "controller_id", other)
    assert create(kafka, 0, new_name(), 100) is E.NOT_CONTROLLER
    assert over_tcp
    assert set(over_tcp) == {1}  # and 1 has asked nobody


def test_a_client_may_come_by_the_listener_of_brokers(kafka: ServedCluster) -> None:
    """It is told what a client is told."""
    controller = kafka.controller_id
    assert controller is not None
    kind = wire.CreateTopicsRequest
    request = kind((kind.CreatableTopic(new_name(), 3, 2),), 10_000)
    with wire_client(kafka, 1 - controller, listener=BROKERS) as client:
        (topic,) = client.ask(ApiKey.CREATE_TOPICS, 7, request).topics
    assert (topic.error_code, topic.num_partitions) == (E.NONE, 3)
    assert topic.configs


def test_only_a_broker_forwards(kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-62: what a broker has judged is not judged again, such as whether topics may be deleted."""
    kind = wire.DeleteTopicsRequest
    request = kind((kind.DeleteTopicState("a"),), timeout_ms=1000, forwarded=True)
    for listener, is_broker in ((None, True), (BROKERS, False)):
        if not is_broker:
            monkeypatch.setattr(BrokerPeers, "admits", lambda self, connection, broker_id: False)
        with wire_client(kafka, listener=listener) as client:
            (topic,) = client.ask(ApiKey.DELETE_TOPICS, 6, request).responses
        assert topic.error_code == E.CLUSTER_AUTHORIZATION_FAILED


def test_the_next_controller_is_found(
    kafka: ServedCluster, over_tcp: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = kafka.controller_id
    assert controller is not None
    asker = kafka.broker(1 - controller)
    monkeypatch.setattr(asker.membership, "controller_id", asker.broker_id)
    assert create(kafka, asker.broker_id, new_name(), 10_000) is E.NONE
    assert over_tcp[0] == asker.broker_id
    assert over_tcp[-1] == controller


def test_a_broker_that_stops_gives_no_answer(
    kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the process: whether it has done what it was asked is not known."""

    def handle(broker: Broker, request: Request, reply: OnReply) -> None:
        reply(None)

    kind = wire.DeleteTopicsRequest
    request = kind(
        (kind.DeleteTopicState("a"), kind.DeleteTopicState("b")), timeout_ms=1000, forwarded=True
    )
    with wire_client(kafka, listener=BROKERS) as client:
        monkeypatch.setattr(Broker, "handle", handle)
        with pytest.raises(ConnectionError):
            client.ask(ApiKey.DELETE_TOPICS, 6, request)


def test_several_topics_in_one_request(
    kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our brokers ask for one; each has its answer in its place, and there is a limit."""
    asked = []

    def handle(broker: Broker, request: Request, reply: OnReply) -> None:
        asked.append(request)
        reply(TopicResponse(E.NONE))

    monkeypatch.setattr(controller_requests, "MAX_CHANGES", 3)
    kind = wire.CreateTopicsRequest
    config = kind.CreatableTopicConfig("retention.ms", None)
    topics = [kind.CreatableTopic(name, 3, 2) for name in "abcd"]
    topics[1] = topics[1]._replace(configs=(config,))
    with wire_client(kafka, listener=BROKERS) as client:
        monkeypatch.setattr(Broker, "handle", handle)
        response = client.ask(ApiKey.CREATE_TOPICS, 7, kind(tuple(topics), 1000, forwarded=True))
    found = {topic.name: ErrorCode(topic.error_code) for topic in response.topics}
    assert found == {"a": E.NONE, "b": E.INVALID_CONFIG, "c": E.NONE, "d": E.POLICY_VIOLATION}
    assert asked == [CreateTopicRequest("a", 3, 2), CreateTopicRequest("c", 3, 2)]
