"""The short setting of the server's fuzzer, and mistakes that it must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replication.apis import KafkaApis
from replication.common.errors import InvalidRequestError
from replication.protocol import FOR_BROKERS, SERVED, ApiKey
from replication.protocol import messages as wire
from tests.fuzz.server import fuzzed, run

CASES = 1_200


@pytest.mark.slow
def test_hostile_requests_are_answered_or_the_connection_closed():
    with fuzzed() as (kafka, unforeseen):
        asked, wrong = run(kafka, unforeseen, iter(range(CASES)))
    assert wrong == []
    assert set(asked) == {key.name for key in SERVED}


@pytest.mark.slow
def test_hostile_requests_of_a_broker_are_answered_or_the_connection_closed():
    """Whatever it says of topics and brokers, nothing fails that is not foreseen."""
    names = tuple(sorted(key.name for key in FOR_BROKERS))
    with fuzzed() as (kafka, unforeseen):
        asked, wrong = run(kafka, unforeseen, iter(range(CASES)), names)
    assert wrong == []
    assert set(asked) == {*names}


def _raises(error: Exception) -> Callable[..., Any]:
    def handle(received: Any, request: Any, reply: Any) -> None:
        raise error

    return handle


def _answers(*messages: Any) -> Callable[..., Any]:
    def handle(received: Any, request: Any, reply: Any) -> None:
        for message in messages:
            reply(message)

    return handle


MISTAKES = {
    "fails": (_raises(KeyError("t")), "KeyError"),
    "answers twice": (_answers(*[wire.HeartbeatResponse()] * 2), "second answer"),
    "answers another": (_answers(wire.LeaveGroupResponse(members=(1,))), "has no encoding"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_a_handler_shows(mistake: str, monkeypatch: pytest.MonkeyPatch):
    handle, text = MISTAKES[mistake]
    assert text in "".join(_wrong_with(handle, monkeypatch))


def test_an_error_with_a_code_is_no_mistake(monkeypatch: pytest.MonkeyPatch):
    assert _wrong_with(_raises(InvalidRequestError("no")), monkeypatch) == []


def _wrong_with(handle: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    real = KafkaApis.__init__

    def planted(self: KafkaApis, *areas: Any, **options: Any) -> None:
        real(self, *areas, **options)
        self._table[ApiKey.HEARTBEAT] = handle

    monkeypatch.setattr(KafkaApis, "__init__", planted)
    with fuzzed() as (kafka, unforeseen):
        return run(kafka, unforeseen, iter(range(30)), only=("HEARTBEAT",))[1]
