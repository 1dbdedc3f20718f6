"""An internal topic is made by the first who asks, and by then a cluster may only be starting."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from checkpoints.types import TopicPartition
from logstore.testing import ManualClock
from replication.apis.configs import broker_configs
from replication.common.error_codes import ErrorCode
from replication.common.messages import CreateTopicRequest, Response, TopicResponse
from replication.common.state import NO_LEADER
from replication.common.transport import OnReply
from replication.coordinators.coordinator import InternalTopic
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.config import ServerConfig
from tests.support.served import connect, find_coordinator, served
from tests.support.until import until

NAME = "__consumer_offsets"
TP = TopicPartition(NAME, 0)


class Asked:
    """What an ``InternalTopic`` asks of its broker, which is broker 0; the controller is the
    test."""

    def __init__(self) -> None:
        self.broker_id = 0
        self.creations: list[CreateTopicRequest] = []
        self.replies: list[OnReply] = []
        self.leader: int | None = None  # once the topic is there
        self.alive = {0, 1}
        self.ready = True
        self.metadata = SimpleNamespace(
            coordinator_partition=lambda topic, key: None if self.leader is None else TP,
            partition_count=lambda topic: 0 if self.leader is None else 1,
            registration=lambda tp: SimpleNamespace(leader=self.leader) if tp == TP else None,
            is_alive=lambda broker_id: broker_id in self.alive,
        )
        self.runtime = SimpleNamespace(clock=ManualClock())
        self.topic = InternalTopic(
            self,  # type: ignore[arg-type]
            NAME,
            1,
            3,
            {},
            lambda partition: self.ready,
        )

    def ask_controller(self, request: CreateTopicRequest, reply: OnReply) -> None:
        self.creations.append(request)
        self.replies.append(reply)

    def find(self) -> int:
        return self.topic.find("group")


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_is_made_once_however_many_ask(asked: Asked) -> None:
    assert [asked.find() for _ in range(100)] == [NO_LEADER] * 100
    assert [each.replication_factor for each in asked.creations] == [3]


@pytest.mark.parametrize(
    "answer", [None, TopicResponse(ErrorCode.INVALID_REPLICATION_FACTOR, "3 replicas, 2 brokers")]
)
def test_is_never_made_with_less_and_the_log_says_so_once(
    asked: Asked, answer: Response | None, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-115. It is tried again with each search, and said once a minute."""
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert asked.find() == NO_LEADER
            asked.replies.pop()(answer)
    assert [each.replication_factor for each in asked.creations] == [3] * 5
    (line,) = caplog.messages
    assert line.startswith(f"topic {NAME} is not created: ")
    assert answer is None or line.endswith("INVALID_REPLICATION_FACTOR 3 replicas, 2 brokers")


def test_one_that_exists_is_not_made_again(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        asked.find()
        asked.replies.pop()(TopicResponse(ErrorCode.TOPIC_ALREADY_EXISTS))
        asked.leader = 1
        assert asked.find() == 1
    assert len(asked.creations) == 1
    assert caplog.messages == []


def test_is_not_found_where_nobody_leads_or_is_ready(asked: Asked) -> None:
    asked.leader = 0
    asked.ready = False
    assert asked.find() == NO_LEADER
    asked.ready = True
    assert asked.find() == 0
    asked.leader = 1
    asked.ready = False
    assert asked.find() == 1  # whether another broker is ready is not known here
    asked.alive.discard(1)
    assert asked.find() == NO_LEADER
    assert asked.creations == []


@pytest.mark.parametrize(
    ("brokers", "own", "replicas"),
    [(1, {}, 1), (2, {}, 2), (3, {}, 3), (5, {}, 3), (1, {"3": 3}, 3)],
)
def test_how_many_replicas_a_small_cluster_has(
    brokers: int, own: dict[str, int], replicas: int
) -> None:
    """It is a default, so what somebody has asked for stays."""
    keys = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
    properties = {key: value for value in own.values() for key in keys}
    config = ServerConfig.from_properties(properties).of_cluster(brokers)
    assert config.groups.offsets_topic_replication_factor == replicas
    assert config.transactions.replication_factor == replicas
    entries = {each.name: each for each in broker_configs(config)}
    assert [entries[key].value for key in keys] == [str(replicas)] * 2  # and operators see it


def test_brokers_that_are_down_do_not_lower_it() -> None:
    """KIP-115, from end to end: while one of three is down no coordinator is found, and the topic
    has all three replicas as soon as it is back."""
    with served(3) as kafka, connect(kafka, 0) as client:
        kafka.stop(2)
        request = wire.FindCoordinatorRequest("g", 0)
        for _ in range(3):
            answer = client.ask(ApiKey.FIND_COORDINATOR, 3, request)
            assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)
        assert kafka.broker(0).metadata.topic_id(NAME) is None
        kafka.start(2)
        find_coordinator(client, "g")
        for partition in range(4):
            tp, metadata = TopicPartition(NAME, partition), kafka.broker(0).metadata
            known = until(lambda tp=tp, metadata=metadata: metadata.registration(tp))
            assert sorted(known.replicas) == [0, 1, 2]
