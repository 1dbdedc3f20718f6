"""Metadata: topics that are missing, and made on the way (W-22, W-23)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from logstore.common.errors import LogstoreError
from logstore.format.filenames import CLUSTER_METADATA
from replication.apis.metadata import MAX_CREATIONS
from replication.common.error_codes import ErrorCode
from replication.common.messages import CreateTopicRequest, Request
from replication.common.transport import OnReply
from replication.controller import topics as topics_of_controller
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.served import connect, new_name, served
from tests.support.wire_client import WireClient

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def ask(client: WireClient, *names: str, create: bool = True, version: int = 9) -> dict[str, int]:
    kind = wire.MetadataRequest
    request = kind(tuple(kind.MetadataRequestTopic(name=name) for name in names), create)
    topics = client.ask(ApiKey.METADATA, version, request).topics
    assert [topic.name for topic in topics] == list(dict.fromkeys(names))
    return {topic.name: topic.error_code for topic in topics}


class Creations:
    """Requests for new topics that a broker sends to the controller, held back."""

    def __init__(self, kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[tuple[CreateTopicRequest, OnReply]] = []
        self._broker = kafka.broker(0)
        self._ask = self._broker.ask_controller
        monkeypatch.setattr(self._broker, "ask_controller", self._take)

    def _take(self, request: Request, reply: OnReply) -> None:
        if isinstance(request, CreateTopicRequest):
            self.held.append((request, reply))
        else:
            self._ask(request, reply)

    @property
    def names(self) -> list[str]:
        return [request.topic for request, _ in self.held]

    def go_on(self) -> None:
        for request, reply in self.held:
            self._ask(request, reply)
        self.held.clear()


@pytest.fixture
def asker(kafka: ServedCluster) -> Iterator[WireClient]:
    with connect(kafka, 0) as connected:
        yield connected


@pytest.fixture
def creations(kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Creations]:
    held = Creations(kafka, monkeypatch)
    yield held
    for _, reply in held.held:
        reply(None)


def test_a_missing_topic_keeps_nobody_waiting(
    kafka: ServedCluster, asker: WireClient, creations: Creations
) -> None:
    """W-23. The controller does not answer, and what is asked behind it on the connection is
    answered all the same."""
    (there,) = kafka.create_topic(new_name())
    name = new_name()
    assert ask(asker, name, there.topic) == {name: UNKNOWN, there.topic: ErrorCode.NONE}
    assert ask(asker, there.topic) == {there.topic: ErrorCode.NONE}
    assert creations.names == [name]
    creations.go_on()
    kafka.wait_until(lambda: ask(asker, name) == {name: ErrorCode.NONE}, "it is there")
    assert kafka.broker(0).metadata.partition_count(name) == 2  # the broker's default


def test_is_made_once_however_many_ask(
    kafka: ServedCluster, asker: WireClient, creations: Creations
) -> None:
    """W-23: often, twice in one request, by many at once, and once more after a refusal."""
    name = new_name()
    for _ in range(20):
        ask(asker, name, name)
    assert creations.names == [name]

    def ask_too(_: int) -> dict[str, int]:
        with connect(kafka, 0) as client:
            return ask(client, name)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask_too, range(8))) == [{name: UNKNOWN}] * 8
    assert creations.names == [name]
    (_, reply), *_ = creations.held
    creations.held.clear()
    reply(None)
    ask(asker, name)
    assert creations.names == [name]
    creations.go_on()
    kafka.wait_until(lambda: ask(asker, name) == {name: ErrorCode.NONE}, "it is there")


def test_only_so_many_are_on_their_way(asker: WireClient, creations: Creations) -> None:
    """W-23. Names cost nothing, and topics do."""
    names = [new_name() for _ in range(MAX_CREATIONS + 5)]
    ask(asker, *names)
    assert creations.names == names[:MAX_CREATIONS]
    for _, reply in creations.held[:7]:
        reply(None)
    creations.held.clear()
    ask(asker, *names)
    assert len(creations.held) == 7


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("__consumer_offsets", UNKNOWN),
        (CLUSTER_METADATA, UNKNOWN),
    ],
)
def test_what_is_not_made_by_asking(
    asker: WireClient, creations: Creations, name: str, code: ErrorCode
) -> None:
    assert ask(asker, name, create=True) == {name: code}
    assert creations.names == []


class TestTheLogOfTheQuorum:
    """``__cluster_metadata`` is no topic: every broker would refuse to keep a log of that name."""

    @pytest.mark.parametrize("validate_only", [True, False])
    @pytest.mark.parametrize("replicas", [(), ((0, (0,)),)])
    def test_is_not_created(
        self, client: WireClient, validate_only: bool, replicas: tuple[Any, ...]
    ) -> None:
        kind = wire.CreateTopicsRequest
        count = -1 if replicas else 1
        assigned = tuple(kind.CreatableReplicaAssignment(*each) for each in replicas)
        topic = kind.CreatableTopic(CLUSTER_METADATA, count, count, assigned)
        request = kind((topic,), 30_000, validate_only)
        (answer,) = client.ask(ApiKey.CREATE_TOPICS, 7, request).topics
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert ask(client, CLUSTER_METADATA) == {CLUSTER_METADATA: UNKNOWN}

    def test_is_not_created_in_process(self, kafka: ServedCluster) -> None:
        with pytest.raises(LogstoreError, match=CLUSTER_METADATA):
            kafka.create_topic(CLUSTER_METADATA)

    def test_one_of_an_earlier_version_can_be_deleted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its partitions have no log anywhere, so there is nothing that its deletion waits for."""
        with served(2) as kafka, connect(kafka) as client:
            monkeypatch.setattr(topics_of_controller, "CLUSTER_METADATA", "")
            request = CreateTopicRequest(CLUSTER_METADATA, 1, 2)
            kafka.broker(0).ask_controller(request, lambda response: None)
            topic_id = kafka.broker(0).metadata.topic_id
            kafka.wait_until(lambda: topic_id(CLUSTER_METADATA) is not None, "it is known")
            monkeypatch.undo()
            delete = wire.DeleteTopicsRequest(topic_names=(CLUSTER_METADATA,), timeout_ms=30_000)
            (answer,) = client.ask(ApiKey.DELETE_TOPICS, 5, delete).responses
            assert answer.error_code == ErrorCode.NONE
            kafka.wait_until(lambda: topic_id(CLUSTER_METADATA) is None, "it is gone")
