"""Requests for the controller that came to another broker, or to none."""

from __future__ import annotations

import pytest

from replication.broker.controller_channel import ControllerChannel, Forwarding
from replication.common.error_codes import ErrorCode
from replication.common.messages import CreateTopicRequest, Response, TopicResponse
from tests.support.replication import ManualRuntime, RecordingTransport

REQUEST = CreateTopicRequest("t")
DONE = TopicResponse(ErrorCode.NONE)
ELSEWHERE = TopicResponse(ErrorCode.NOT_CONTROLLER)
TIMEOUT_MS = 1000


class Asking:
    """One request on its way. ``controller`` is where it is thought to be."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.transport = RecordingTransport()
        self.controller: int | None = 1
        self.looks = 0
        self.answers: list[Response | None] = []
        channel = ControllerChannel(
            self.runtime, self.transport, lambda: self.controller, self._look, TIMEOUT_MS
        )
        actor = self.runtime.actor("broker")
        Forwarding(self.runtime, actor, channel, TIMEOUT_MS).forward(REQUEST, self.answers.append)
        self.runtime.run_until_idle()

    def _look(self) -> None:
        self.looks += 1

    @property
    def asked(self) -> list[int]:
        """The brokers that have the request and have not answered it."""
        return [sent.broker_id for sent in self.transport.sent]

    def reply(self, response: Response | None) -> None:
        self.transport.reply(response)
        self.runtime.run_until_idle()


def test_the_answer_of_the_controller() -> None:
    a = Asking()
    assert a.asked == [1]
    a.reply(DONE)
    assert a.answers == [DONE]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_refusal_is_the_clients_to_judge(code: ErrorCode) -> None:
    a = Asking()
    a.reply(TopicResponse(code))
    a.runtime.advance(10 * TIMEOUT_MS)
    assert a.answers == [TopicResponse(code)]
    assert a.asked == []


@pytest.mark.parametrize("answer", [ELSEWHERE, None], ids=["not the controller", "no answer"])
def test_a_controller_that_moved_is_found(answer: Response | None) -> None:
    a = Asking()
    a.controller = 2
    a.reply(answer)
    assert (a.answers, a.looks) == ([], 1)
    a.runtime.advance(100)
    assert a.asked == [2]
    a.reply(DONE)
    assert a.answers == [DONE]


def test_without_any_it_ends_with_the_time() -> None:
    a = Asking()
    a.controller = None
    a.reply(ELSEWHERE)
    a.runtime.advance(TIMEOUT_MS - 1)
    assert a.answers == []
    a.runtime.advance(TIMEOUT_MS)
    assert a.answers == [None]
    a.runtime.advance(10 * TIMEOUT_MS)
    assert a.answers == [None]
    assert a.asked == []


def test_one_that_is_elected_meanwhile() -> None:
    a = Asking()
    a.controller = None
    a.reply(None)
    a.runtime.advance(TIMEOUT_MS // 2)
    a.controller = 3
    a.runtime.advance(TIMEOUT_MS // 4)
    assert a.asked == [3]
    a.reply(DONE)
    assert a.answers == [DONE]
