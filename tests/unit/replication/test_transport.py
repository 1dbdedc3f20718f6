"""``LocalNetwork``: requests between brokers of one process, and the fate of those that wait."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import MetadataRequest, Request, Response, UpdateMetadataResponse
from replication.common.runtime import ThreadRuntime
from replication.common.transport import DEFAULT_TIMEOUT_MS, LocalNetwork, LocalTransport, OnReply
from tests.support.replication import ManualRuntime
from tests.support.until import patience

REQUEST = MetadataRequest()
ANSWER = UpdateMetadataResponse(ErrorCode.NONE)


class Waiting:
    """A broker that answers when the test says so."""

    def __init__(self) -> None:
        self.replies: list[OnReply] = []

    def handle(self, request: Request, reply: OnReply) -> None:
        self.replies.append(reply)


def send(network: LocalNetwork, on_reply: OnReply) -> None:
    LocalTransport(network, 1, ManualRuntime()).send(2, REQUEST, on_reply)


def stage() -> tuple[LocalNetwork, Waiting, list[Response | None]]:
    network, broker, heard = LocalNetwork(), Waiting(), []
    network.bind(2, broker.handle)
    send(network, heard.append)
    return network, broker, heard


def test_an_answer_comes_once() -> None:
    _, broker, heard = stage()
    broker.replies[0](ANSWER)
    broker.replies[0](ANSWER)
    assert heard == [ANSWER]


def test_one_of_two_brokers_that_were_cut_off_is_healed() -> None:
    network, heard = LocalNetwork(), []
    for broker_id in (0, 1, 2):
        network.bind(broker_id, lambda _, reply: reply(ANSWER))
    for link in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)):
        network.cut(*link)
    network.heal(1, cut_off={2})
    for sender, receiver in ((0, 1), (1, 0), (0, 2), (1, 2), (2, 1)):
        LocalTransport(network, sender, ManualRuntime()).send(receiver, REQUEST, heard.append)
    assert heard == [ANSWER, ANSWER, None, None, None]
    network.heal()
    send(network, heard.append)
    assert heard[-1] == ANSWER


def test_nobody_there() -> None:
    heard: list[Response | None] = []
    send(LocalNetwork(), heard.append)
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
    send(network, heard.append)
    assert len(broker.replies) == 1
    broker.replies[0](ANSWER)
    assert heard == [None]
    network.heal()
    send(network, heard.append)
    broker.replies[1](ANSWER)
    assert heard == [None, ANSWER]


def test_an_earlier_incarnation_does_not_answer_for_its_successor() -> None:
    network, broker, heard = stage()
    network.unbind(2)
    network.bind(2, Waiting().handle)
    broker.replies[0](ANSWER)
    assert heard == [None]


def test_the_end_of_one_life_is_not_that_of_the_next() -> None:
    network, earlier, later = LocalNetwork(), Waiting(), Waiting()
    network.bind(2, earlier.handle)
    network.bind(2, later.handle)
    network.unbind(2, earlier.handle)
    assert network.bound == [2]
    network.unbind(2, later.handle)
    assert network.bound == []


# -- exactly once ----------------------------------------------------------------------------------


def timed() -> tuple[ManualRuntime, LocalTransport, Waiting, list[Response | None]]:
    network, broker, runtime = LocalNetwork(), Waiting(), ManualRuntime()
    network.bind(2, broker.handle)
    return runtime, LocalTransport(network, 1, runtime), broker, []


def test_without_an_answer_there_is_none_after_the_timeout() -> None:
    runtime, transport, broker, heard = timed()
    transport.send(2, REQUEST, heard.append, 100)
    runtime.advance(99)
    assert heard == []
    runtime.advance(1)
    assert heard == [None]
    broker.replies[0](ANSWER)
    assert heard == [None]


@pytest.mark.parametrize("end", ["timeout", "gone", "cut"])
def test_who_fails_over_a_missing_answer_keeps_it_from_nobody(end: str) -> None:
    runtime, transport, _, heard = timed()

    def fail(response: Response | None) -> None:
        raise RuntimeError("no")

    for on_reply in (fail, heard.append, fail, heard.append):
        transport.send(2, REQUEST, on_reply, 100)
    network = transport._network
    if end == "timeout":
        runtime.advance(100)
    elif end == "gone":
        network.unbind(2)
    else:
        network.cut(1, 2)
    assert heard == [None, None]


def test_an_answer_in_time_is_the_only_one() -> None:
    runtime, transport, broker, heard = timed()
    transport.send(2, REQUEST, heard.append, 100)
    broker.replies[0](ANSWER)
    runtime.advance(1000)
    assert heard == [ANSWER]


def test_each_request_has_its_own_timeout() -> None:
    runtime, transport, _, _ = timed()
    ended: list[tuple[str, int]] = []

    def send(name: str, timeout_ms: int) -> None:
        transport.send(2, REQUEST, lambda r: ended.append((name, runtime.now_ms())), timeout_ms)

    begun = runtime.now_ms()
    send("slow", 500)
    send("fast", 100)
    runtime.advance(50)
    send("later", 500)
    runtime.advance(DEFAULT_TIMEOUT_MS)
    assert ended == [("fast", begun + 100), ("slow", begun + 500), ("later", begun + 550)]
    assert runtime.next_timer_ms() is None


def test_a_timer_is_not_kept_for_each_request() -> None:
    """Ten thousand answered requests leave one timer, not ten thousand for thirty seconds."""
    runtime, transport, broker, heard = timed()
    for _ in range(100):
        transport.send(2, REQUEST, heard.append)
        broker.replies.pop()(ANSWER)
    assert len(runtime._timers) == 1
    runtime.advance(DEFAULT_TIMEOUT_MS)
    assert runtime.next_timer_ms() is None


def test_a_request_over_which_the_receiver_fails_has_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(request: Request, reply: OnReply) -> None:
        raise OSError("no disk")

    network, heard = LocalNetwork(), []
    network.bind(2, fail)
    send(network, heard.append)
    assert heard == [None]
    assert "broker 2 failed over a request" in caplog.text


def test_a_receiver_that_answers_and_then_fails_has_answered() -> None:
    def fail(request: Request, reply: OnReply) -> None:
        reply(ANSWER)
        raise OSError("afterwards")

    network, heard = LocalNetwork(), []
    network.bind(2, fail)
    send(network, heard.append)
    assert heard == [ANSWER]


@pytest.fixture
def often_switching() -> object:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often_switching")
@pytest.mark.parametrize("end", ["cut", "unbind", "timeout"])
def test_each_request_is_answered_once_whoever_ends_it(end: str) -> None:
    """Senders, the receiver's answers, and what ends a connection, all at the same time."""
    network, runtime = LocalNetwork(), ThreadRuntime("test")
    later = runtime.actor("receiver")
    counts: list[list[int]] = []

    def handle(request: Request, reply: OnReply) -> None:
        later.post(lambda: reply(ANSWER))

    def sending() -> None:
        transport = LocalTransport(network, 1, runtime)
        for _ in range(2000):
            answers = [0]
            counts.append(answers)
            transport.send(2, REQUEST, counter(answers), 1 if end == "timeout" else 30_000)

    def counter(answers: list[int]) -> Callable[[Response | None], None]:
        def heard(response: Response | None) -> None:
            answers[0] += 1

        return heard

    network.bind(2, handle)
    senders = [threading.Thread(target=sending) for _ in range(2)]
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        if end == "cut":
            network.cut(1, 2)
            network.cut(7, 8)
            network.heal()
        elif end == "unbind":
            network.unbind(2)
            network.bind(2, handle)
        assert network.bound in ([2], [])
    done = threading.Event()
    later.post(done.set)
    assert done.wait(patience())
    runtime.close()
    assert len(counts) == 4000
    assert all(answers == [1] for answers in counts)
