"""Requests that are answered before they are taken apart, beside those that are not."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from logstore.testing import ManualClock
from replication.network import (
    ConnectionInfo,
    FastPath,
    Listener,
    NetworkConfig,
    ReceivedRequest,
    Respond,
    SecurityProtocol,
    Send,
    UserCredentials,
)
from replication.network.spinning import Spin
from tests.support.network import RawClient, frame_of, serving
from tests.support.until import until

KEY, VERSION = 3, 1
USERS = UserCredentials({"alice": "secret"})


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Both:
    """A fast path and a handler, which say who has answered."""

    def __init__(self, answer: Callable[[], bytes | Callable[[Respond], None] | None]) -> None:
        self._answer = answer
        self.taken: list[tuple[bytes, int, int]] = []

    def fast(
        self, frame: memoryview, version: int, correlation_id: int, connection: ConnectionInfo
    ) -> bytes | Callable[[Respond], None] | None:
        self.taken.append((bytes(frame), version, correlation_id))
        return self._answer()

    def handler(self, request: ReceivedRequest, respond: Respond) -> None:
        respond(Send([b"plain ", request.body]))

    @property
    def paths(self) -> dict[int, FastPath]:
        return {KEY: self.fast}


def test_a_whole_frame_is_answered() -> None:
    both = Both(lambda: framed(b"fast"))
    with serving(both.handler, fast_paths=both.paths) as server, RawClient(server) as client:
        for number in range(3):
            client.send(b"x", correlation_id=number)
            assert client.receive() == b"fast"
        client.send(b"x", key=KEY + 1)
        assert client.receive() == b"plain x"
        until(lambda: len(server.metrics().apis) == 2)
        metrics = server.metrics()
    assert both.taken == [(frame_of(b"x", KEY, VERSION, n), VERSION, n) for n in range(3)]
    assert metrics.apis[KEY].versions == {VERSION: 3}
    assert metrics.apis[KEY].errors == {}
    (listener,) = metrics.listeners.values()
    assert listener.bytes_in == 4 * len(frame_of(b"x"))
    assert listener.bytes_out == 3 * 8 + 4 + len(b"plain x")


def test_the_thread_looks_on_after_its_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after those of the handler: fetches are large, or wait."""
    looks = 0

    def look(spin: Spin, inbox: object) -> list[tuple[int, int]]:
        nonlocal looks
        looks += 1
        return []

    monkeypatch.setattr(Spin, "look", look)
    both = Both(lambda: framed(b"fast"))
    with serving(both.handler, fast_paths=both.paths) as server, RawClient(server) as client:
        for number in range(3):
            client.send(b"x", key=KEY + 1, correlation_id=number)
            assert client.receive() == b"plain x"
        assert looks == 0
        client.send(b"x")
        assert client.receive() == b"fast"
        until(lambda: looks == 1)


def test_what_it_does_not_take_goes_on() -> None:
    both = Both(lambda: None)
    with serving(both.handler, fast_paths=both.paths) as server, RawClient(server) as client:
        for _ in range(2):
            client.send(b"x")
            assert client.receive() == b"plain x"
    assert len(both.taken) == 2


@pytest.mark.parametrize("is_fast", [True, False])
def test_pipelined_and_cut_frames_are_answered_in_order(is_fast: bool) -> None:
    """Each is tried once, wherever the pieces end."""
    frames = [frame_of(bytes([n]) * n, KEY + n % 7 // 6, correlation_id=n) for n in range(60)]
    sent = b"".join(frames)
    both = Both(lambda: framed(b"fast") if is_fast else None)
    with serving(both.handler, fast_paths=both.paths) as server, RawClient(server) as client:
        at = 0
        for size in (1, 3, 4, 13, 100, 300, 301, 302, len(sent)):
            client.socket.sendall(sent[at : at + size])
            at += size
        for n in range(len(frames)):
            is_other = n % 7 == 6 or not is_fast
            assert client.receive() == (b"plain " + bytes([n]) * n if is_other else b"fast")
    assert [n for _, _, n in both.taken] == [n for n in range(len(frames)) if n % 7 < 6]
    assert all(frame == frames[n] for frame, _, n in both.taken)


@pytest.mark.parametrize("is_late", [False, True])
def test_another_answer_is_sent_and_its_errors_counted(is_late: bool) -> None:
    """At once, or by another thread."""

    def wrong(respond: Respond) -> None:
        answer = Send([b"wr", b"ong"], errors=(7,))
        if is_late:
            threading.Thread(target=respond, args=(answer,)).start()
        else:
            respond(answer)

    both = Both(lambda: wrong)
    with serving(both.handler, fast_paths=both.paths) as server, RawClient(server) as client:
        for _ in range(2):
            client.send(b"x")
            assert client.receive() == b"wrong"
        until(lambda: server.metrics().apis[KEY].errors == {7: 2})
        assert server.metrics().apis[KEY].versions == {VERSION: 2}


def test_an_answer_that_the_socket_does_not_take_at_once() -> None:
    body = bytes(range(256)) * (1 << 14)
    both = Both(lambda: framed(body))
    with serving(both.handler, fast_paths=both.paths) as server, RawClient(server) as client:
        for _ in range(2):
            client.send(b"x")
            assert client.receive() == body
        until(lambda: server.metrics().apis[KEY].versions == {VERSION: 2})
        (listener,) = server.metrics().listeners.values()
        assert listener.bytes_out == 2 * (4 + len(body))


def test_a_fault_of_it_closes_one_connection() -> None:
    def fail() -> bytes:
        raise RuntimeError("a fault")

    both = Both(fail)
    with (
        serving(both.handler, fast_paths=both.paths) as server,
        RawClient(server) as client,
        RawClient(server) as other,
    ):
        client.send(b"x")
        with pytest.raises(EOFError):
            client.receive()
        other.send(b"x", key=KEY + 1)
        assert other.receive() == b"plain x"


def test_not_before_a_login() -> None:
    both = Both(lambda: framed(b"fast"))
    listener = Listener(security_protocol=SecurityProtocol.SASL_PLAINTEXT)
    options: dict[str, Any] = {"listeners": [listener], "credentials": USERS}
    options["fast_paths"] = both.paths
    with serving(both.handler, **options) as server, RawClient(server, listener.name) as client:
        client.send(b"x")
        with pytest.raises(EOFError):
            client.receive()
    assert not both.taken


def test_not_above_the_largest_request() -> None:
    both = Both(lambda: framed(b"fast"))
    config = NetworkConfig(socket_request_max_bytes=100)
    with (
        serving(both.handler, config, fast_paths=both.paths) as server,
        RawClient(server) as client,
    ):
        client.send(bytes(200))
        with pytest.raises(EOFError):
            client.receive()
    assert not both.taken


def test_one_that_turns_slow_leaves_the_network_thread() -> None:
    clock, work_ms = ManualClock(), [21]

    def slowly() -> bytes:
        clock.advance(work_ms[0])
        return framed(b"fast")

    both, answers = Both(slowly), []
    with (
        serving(both.handler, fast_paths=both.paths, clock=clock) as server,
        RawClient(server) as client,
    ):
        for _ in range(2):
            client.send(b"x")
            answers.append(client.receive())
        work_ms[0] = 0
        clock.advance(1000)
        client.send(b"x")
        answers.append(client.receive())
    assert answers == [b"fast", b"plain x", b"fast"]
