"""``ClusterPage``: the live page of brokers in processes of their own (X-158). Each has a page, and
this one shows all of them, from what they say there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from http import HTTPStatus
from typing import Any, NamedTuple

from replication.server.http.http_server import HttpAnswer, LivePage, json_answer
from replication.server.http.merged import SILENT, STARTING, merged_state, read_state
from replication.supervisor.cluster_file import BrokerEntry

ANSWER_S = 1.0
"""The time in which a broker has to answer, in all."""
STATE_MAX, WORD_MAX = 64 << 20, 1 << 16
"""Bytes of an answer: a state with 100,000 partitions has 60 MB; health and readiness."""
_CHUNK = 1 << 18


class _Answer(NamedTuple):
    is_ok: bool
    body: bytes


class ClusterPage(LivePage):
    """Page, state, health and readiness of all brokers; and as ``HttpService``. All are asked at
    once, and one that does not answer holds an answer up for ``ANSWER_S`` at most.

    Args:
        brokers: called at each request, on any thread, for brokers come and go.
    """

    thread_name = "cluster-page"
    health_is_ours = False
    pages = ("/", "/state", "/health", "/ready")

    def __init__(self, brokers: Callable[[], Sequence[BrokerEntry]], **options: Any) -> None:
        self._brokers = brokers
        super().__init__(**options)

    def state(self) -> tuple[dict[str, Any], float]:
        """The work of the brokers is about as much as that of reading what they say."""
        answers = self._ask("/state", STATE_MAX)
        began = self._loop.time()
        states = {broker_id: _state(broker_id, answer) for broker_id, answer in answers.items()}
        return merged_state(states), self._loop.time() - began

    def health(self) -> HttpAnswer:
        is_well, stages, _ = self._words("/health")
        return _all_of("healthy", is_well, {"brokers": stages})

    def ready(self) -> HttpAnswer:
        is_ready, stages, behind = self._words("/ready")
        return _all_of("ready", is_ready, {"brokers": stages, "outOfSync": behind})

    def metrics(self) -> HttpAnswer:
        """None: a scraper asks each broker, and so hears of one that does not answer."""
        where = [f"http://{each.http}/metrics" for each in self._brokers()]
        text = "each broker has its own metrics"
        return json_answer(HTTPStatus.NOT_FOUND, {"error": text, "pages": where})

    def _words(self, path: str) -> tuple[bool, dict[str, str], dict[str, list[str]]]:
        """Whether every broker answers with 200; the stage of each, and what is not in sync."""
        answers = self._ask(path, WORD_MAX)
        words = {broker_id: _word(broker_id, answer) for broker_id, answer in answers.items()}
        return (
            bool(words) and all(is_well for is_well, _, _ in words.values()),
            {str(broker_id): stage for broker_id, (_, stage, _) in words.items()},
            {str(broker_id): behind for broker_id, (_, _, behind) in words.items() if behind},
        )

    def _ask(self, path: str, most: int) -> dict[int, _Answer | None]:
        """The answer of each broker; None for one that has none in time."""
        brokers = self._brokers()

        async def all_at_once() -> list[_Answer | None]:
            return await asyncio.gather(*(_get(each, path, most) for each in brokers))

        try:
            found = asyncio.run_coroutine_threadsafe(all_at_once(), self._loop).result()
        except CancelledError:  # by `close`
            found = [None] * len(brokers)
        return {each.broker_id: answer for each, answer in zip(brokers, found, strict=True)}


async def _get(broker: BrokerEntry, path: str, most: int) -> _Answer | None:
    request = f"GET {path} HTTP/1.1\r\nHost: {broker.http}\r\nConnection: close\r\n\r\n"
    received = bytearray()
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(*broker.addresses[-1])
            try:
                writer.write(request.encode())
                while more := await reader.read(_CHUNK):
                    received += more
                    if len(received) > most:
                        return None
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return None
    head, end, body = bytes(received).partition(b"\r\n\r\n")
    version, _, status = head.partition(b" ")
    is_answer = end and version.startswith(b"HTTP/1.")
    return _Answer(status.startswith(b"200 "), body) if is_answer else None


def _state(broker_id: int, answer: _Answer | None) -> dict[str, Any] | None:
    if answer is None or not answer.is_ok:
        return None
    try:
        return read_state(broker_id, answer.body)
    except ValueError:
        return None


def _word(broker_id: int, answer: _Answer | None) -> tuple[bool, str, list[str]]:
    """Whether all is well with a broker, how far it is, and which of its replicas are behind."""
    key = str(broker_id)
    if answer is None:
        return False, SILENT, []
    try:
        found = json.loads(answer.body)
        if not found["brokers"]:
            return False, STARTING, []
        behind = [str(each) for each in found.get("outOfSync", {}).get(key, ())]
        return answer.is_ok, str(found["brokers"][key]), behind
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False, SILENT, []  # somebody else has its port


def _all_of(name: str, is_well: bool, rest: dict[str, Any]) -> HttpAnswer:
    status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    return json_answer(status, {name: is_well, **rest})


__all__ = ["ANSWER_S", "ClusterPage"]
