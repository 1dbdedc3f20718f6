"""An internal topic is made by the first who asks, and by then a cluster may only be starting."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.testing import ManualClock
from replication.common.error_codes import ErrorCode
from replication.common.messages import CreateTopicRequest
from replication.coordinators.internal_topic import FIND_WAIT_MS, InternalTopic
from replication.server.config import ServerConfig


class StartingBroker:
    """What an ``InternalTopic`` asks of its broker, with brokers that register by hand."""

    def __init__(self) -> None:
        self.broker_id = 0
        self.live: list[int] = []
        self.asked: list[CreateTopicRequest] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.updated: list[Callable[[], None]] = []
        self.metadata = SimpleNamespace(
            watch=self.updated.append,
            partition_count=lambda topic: 0,
            coordinator_partition=lambda topic, key: None,
            registration=lambda tp: None,
            is_complete=True,
            live_brokers=self.live,
        )
        self.runtime = SimpleNamespace(call_later=self._call_later, clock=ManualClock())

    def _call_later(self, delay_ms: int, task: Callable[[], None]) -> Any:
        self.timers.append((delay_ms, task))
        return SimpleNamespace(cancel=lambda: None)

    def ask_controller(self, request: CreateTopicRequest, reply: object) -> None:
        self.asked.append(request)

    def register(self, broker_id: int) -> None:
        self.live.append(broker_id)
        for look in self.updated:
            look()
        self.pass_for(0)

    def pass_for(self, ms: int) -> None:
        due = [task for delay_ms, task in self.timers if delay_ms <= ms]
        self.timers = [each for each in self.timers if each[0] > ms]
        for task in due:
            task()


@pytest.fixture
def broker() -> StartingBroker:
    return StartingBroker()


def find(broker: StartingBroker) -> list[tuple[ErrorCode, int]]:
    found: list[tuple[ErrorCode, int]] = []
    topic = InternalTopic(broker, "__consumer_offsets", 4, 3, {})  # type: ignore[arg-type]
    topic.find("group", lambda code, leader: found.append((code, leader)))
    return found


def test_the_first_client_waits_for_the_brokers_that_are_to_have_a_replica(
    broker: StartingBroker,
) -> None:
    broker.register(0)
    found = find(broker)
    broker.register(1)
    assert broker.asked == []
    broker.register(2)
    assert [request.replication_factor for request in broker.asked] == [3]
    assert found == []


def test_there_are_fewer_replicas_if_a_broker_stays_away(broker: StartingBroker) -> None:
    broker.register(0)
    broker.register(1)
    found = find(broker)
    broker.pass_for(FIND_WAIT_MS)
    assert [request.replication_factor for request in broker.asked] == [2]
    assert found == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)]


@pytest.mark.parametrize(("brokers", "replicas"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_no_more_replicas_are_waited_for_than_the_cluster_has_brokers(
    brokers: int, replicas: int
) -> None:
    config = ServerConfig().of_cluster(brokers)
    assert config.groups.offsets_topic_replication_factor == replicas
    assert config.transactions.replication_factor == replicas
