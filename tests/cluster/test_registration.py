"""A broker and its session, where the coordinator's answers get lost; a client with old news."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.client import Client
from replication.common.error_codes import ErrorCode
from replication.common.messages import MetadataRequest, MetadataResponse, TopicPartitionMetadata
from replication.common.state import BrokerRegistration, LiveBroker
from replication.coordination import CoordinatorUnavailableError, nodes, open_coordinator
from replication.embedded.cluster import Cluster

TP = TopicPartition("orders", 0)


class Lossy:
    """A coordinator that carries ``method`` out on ``path`` or not, and gives no answer, once for
    each of the first sessions."""

    def __init__(self, service: Any, method: str, path: str, *, carried_out: bool) -> None:
        self._service = service
        self._method, self._path, self._carried_out = method, path, carried_out
        self.lost = 0
        self.close = service.close

    def connect(self) -> Any:
        session = self._service.connect()
        call = getattr(session, self._method)

        def once(path: str, *args: Any, **options: Any) -> Any:
            if path != self._path or self.lost:
                return call(path, *args, **options)
            self.lost += 1
            if self._carried_out:
                call(path, *args, **options)
            raise CoordinatorUnavailableError(path)

        setattr(session, self._method, once)
        return session


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "carried_out"),
    [
        ("create", nodes.broker_path(1), True),
        ("create", nodes.broker_path(1), False),
        ("watch", nodes.CONTROLLER, False),
    ],
    ids=["registered", "not registered", "not watching"],
)
def test_a_lost_answer_is_made_good(
    tmp_path: Path, method: str, path: str, carried_out: bool
) -> None:
    """R-63: the node of one's own session is one's own; and every broker hears of controllers."""
    store = open_coordinator(f"embedded:{tmp_path}/coordinator")
    service = Lossy(store, method, path, carried_out=carried_out)
    with Cluster(3, tmp_path / "brokers", coordinator=service) as cluster:
        assert service.lost == 1
        session = cluster.session(1)
        node = session.get(nodes.broker_path(1))
        assert node is not None
        assert (node.ephemeral_owner, node.czxid) == (
            session.session_id,
            cluster.broker(1).broker_epoch,
        )
        first = cluster.controller_id
        assert first is not None
        cluster.crash(first)
        cluster.wait_until(
            lambda: (
                cluster.controller_id is not None
                and {cluster.broker(b).controller_id for b in cluster.live_brokers}
                == {cluster.controller_id}
            )
        )


def metadata(leader: int, epoch: int, *, brokers: bool = True) -> MetadataResponse:
    part = TopicPartitionMetadata(TP, ErrorCode.NONE, leader, epoch, (0, 1), (0, 1), ())
    live = tuple(LiveBroker(BrokerRegistration(n), n) for n in (0, 1))
    return MetadataResponse(live if brokers else (), 0, (part,) if brokers else ())


class Told:
    """A transport on which broker n answers ``answers[n]``."""

    def __init__(self, *answers: MetadataResponse) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def send(
        self,
        broker_id: int,
        request: object,
        on_reply: Callable[[Any], None],
        timeout_ms: int = 0,
    ) -> None:
        assert isinstance(request, MetadataRequest)
        self.asked.append(broker_id)
        on_reply(self.answers[broker_id])


def test_a_client_asks_another_broker_each_time_and_keeps_the_newer_leader() -> None:
    """S-11: a broker that is cut off goes on naming itself."""
    transport = Told(metadata(0, 4), metadata(1, 5))
    client = Client(transport, lambda: (0, 1))
    for _ in range(4):
        client.refresh()
    assert sorted(transport.asked) == [0, 0, 1, 1]
    assert client.leader(TP).leader_id == 1


def test_a_client_does_not_believe_a_broker_that_knows_nothing_yet() -> None:
    transport = Told(metadata(0, 0, brokers=False), metadata(1, 5))
    client = Client(transport, lambda: (0, 1))
    for _ in range(2):
        client.refresh()
        assert client.partitions("orders") == [TP]
