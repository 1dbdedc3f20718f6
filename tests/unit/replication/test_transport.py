"""``LocalNetwork``: requests between brokers of one process, and the fate of those that wait."""

from __future__ import annotations

from replication.error_codes import ErrorCode
from replication.messages import MetadataRequest, Request, Response, UpdateMetadataResponse
from replication.transport import LocalNetwork, LocalTransport, OnReply

REQUEST = MetadataRequest()
ANSWER = UpdateMetadataResponse(ErrorCode.NONE)


class Waiting:
    """A broker that answers when the test says so."""

    def __init__(self) -> None:
        self.replies: list[OnReply] = []

    def handle(self, request: Request, reply: OnReply) -> None:
        self.replies.append(reply)


def stage() -> tuple[LocalNetwork, Waiting, list[Response | None]]:
    network, broker, heard = LocalNetwork(), Waiting(), []
    network.bind(2, broker.handle)
    LocalTransport(network, 1).send(2, REQUEST, heard.append)
    return network, broker, heard


def test_an_answer_comes_once() -> None:
    _, broker, heard = stage()
    broker.replies[0](ANSWER)
    broker.replies[0](ANSWER)
    assert heard == [ANSWER]


def test_nobody_there() -> None:
    heard: list[Response | None] = []
    LocalTransport(LocalNetwork(), 1).send(2, REQUEST, heard.append)
    assert heard == [None]


def test_a_broker_that_goes_away_resets_its_connections() -> None:
    network, broker, heard = stage()
    network.unbind(2)
    assert heard == [None]
    broker.replies[0](ANSWER)
    assert heard == [None]
    assert network.bound == []


def test_a_cut_in_either_direction_fails_what_waits() -> None:
    for link in ((1, 2), (2, 1)):
        network, _, heard = stage()
        network.cut(*link)
        assert heard == [None]


def test_another_link_is_not_touched() -> None:
    network, broker, heard = stage()
    network.cut(3, 2)
    broker.replies[0](ANSWER)
    assert heard == [ANSWER]


def test_a_one_way_cut_lets_the_request_through_and_loses_the_answer() -> None:
    network, broker, heard = LocalNetwork(), Waiting(), []
    network.bind(2, broker.handle)
    network.cut(2, 1)
    LocalTransport(network, 1).send(2, REQUEST, heard.append)
    assert len(broker.replies) == 1
    broker.replies[0](ANSWER)
    assert heard == [None]
    network.heal()
    LocalTransport(network, 1).send(2, REQUEST, heard.append)
    broker.replies[1](ANSWER)
    assert heard == [None, ANSWER]


def test_an_earlier_incarnation_does_not_answer_for_its_successor() -> None:
    network, broker, heard = stage()
    network.unbind(2)
    network.bind(2, Waiting().handle)
    broker.replies[0](ANSWER)
    assert heard == [None]
