"""A server and real sockets: order, backpressure, limits, bad input, and the end."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from logstore.storage.file_slice import FileSlice, live_slices
from logstore.testing import ManualClock
from replication.network import (
    CLOSE,
    NO_RESPONSE,
    Listener,
    NetworkConfig,
    NetworkServer,
    ReceivedRequest,
    Respond,
    Send,
)
from replication.network.connection import Connection, ConnectionState
from replication.network.metrics import ListenerMetrics
from replication.network.requests import ConnectionInfo
from replication.network.transport_layer import MAX_TURN_BYTES
from tests.support.leftovers import nothing_left
from tests.support.network import RawClient, frame_of, parse_header, serving
from tests.support.until import until

SLOW = 20  # an API for handler threads; below 10 are quick ones


def echo(request: ReceivedRequest, respond: Respond) -> None:
    respond(Send([struct.pack(">i", request.correlation_id), request.body]))


def echo_later(request: ReceivedRequest, respond: Respond) -> None:
    """From a thread that is neither network nor handler."""
    threading.Thread(target=echo, args=(request, respond)).start()


@pytest.mark.parametrize("handler", [echo, echo_later])
@pytest.mark.parametrize("key", [0, SLOW])
def test_pipelined_requests_are_answered_in_order(handler: object, key: int) -> None:
    with serving(handler) as server, RawClient(server) as client:  # type: ignore[arg-type]
        client.socket.sendall(
            b"".join(frame_of(b"x" * n, key if n % 3 else 0, 0, n) for n in range(100))
        )
        for n in range(100):
            assert client.receive() == struct.pack(">i", n) + b"x" * n


@pytest.mark.parametrize("key", [0, SLOW])
def test_a_large_request_and_its_answer(key: int) -> None:
    body = os.urandom(1 << 20) * 10
    with serving(echo) as server, RawClient(server) as client:
        client.send(body, key=key)
        client.send(b"after", key=key)
        assert client.receive()[4:] == body
        assert client.receive()[4:] == b"after"


def slice_of(path: Path, position: int, size: int) -> FileSlice:
    with path.open("rb") as file:
        return FileSlice(str(path), file.fileno(), position, size)


def test_an_answer_with_files(tmp_path: Path) -> None:
    """W-49: a file is held until it has been sent."""
    path = tmp_path / "segment"
    data = os.urandom(1 << 20) * 5
    path.write_bytes(data)

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        slices = [slice_of(path, 3, len(data) - 5), slice_of(path, 0, 0)]
        respond(Send([b"head", slices[0], b"middle", slices[1], b"end"]))

    before = live_slices()
    with serving(handler) as server, RawClient(server) as client:
        for _ in range(2):
            client.send(b"")
            assert client.receive() == b"head" + data[3:-2] + b"middle" + b"end"
            until(lambda: live_slices() == before)


def test_a_file_that_became_shorter_closes_the_connection(tmp_path: Path) -> None:
    """W-49: its length is on the wire already."""
    path = tmp_path / "segment"
    path.write_bytes(bytes(1000))
    part = slice_of(path, 0, 1001)
    with serving(lambda request, respond: respond(Send([b"x", part]))) as server:
        with RawClient(server) as client:
            client.send(b"")
            with pytest.raises(EOFError):
                client.receive()
        until(lambda: part.fileno() < 0)


def test_no_response_and_close() -> None:
    def handler(request: ReceivedRequest, respond: Respond) -> None:
        answers = {0: NO_RESPONSE, 1: CLOSE, 2: Send([b"two"])}
        respond(answers[request.api_key])

    with serving(handler) as server, RawClient(server) as client:
        client.socket.sendall(frame_of(b"", 0) + frame_of(b"", 0) + frame_of(b"", 2))
        assert client.receive() == b"two"
        client.send(b"", key=1)
        assert client.is_closed()


@pytest.mark.parametrize("key", [0, SLOW])
def test_a_handler_that_fails_closes_its_connection_only(key: int) -> None:
    def handler(request: ReceivedRequest, respond: Respond) -> None:
        if request.body == b"bad":
            raise ValueError("bad")
        echo(request, respond)

    with serving(handler) as server, RawClient(server) as bad, RawClient(server) as good:
        bad.send(b"bad", key=key)
        assert bad.is_closed()
        good.send(b"good", key=key)
        assert good.receive()[4:] == b"good"


def test_a_second_answer_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def handler(request: ReceivedRequest, respond: Respond) -> None:
        respond(Send([b"first"]))
        respond(Send([b"second"]))

    with serving(handler) as server, RawClient(server) as client:
        for _ in range(2):
            client.send(b"")
            assert client.receive() == b"first"
    assert "answered twice" in caplog.text


def test_a_quick_api_that_turns_slow_leaves_the_network_thread() -> None:
    """It comes back when it has been quick elsewhere for a while."""
    clock = ManualClock()
    threads: list[str] = []
    work_ms = [21]

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        threads.append(threading.current_thread().name.split("-")[1])
        clock.advance(work_ms[0])
        echo(request, respond)

    with serving(handler, clock=clock) as server, RawClient(server) as client:
        for key in (0, 0, 1):
            client.send(b"", key=key)
            client.receive()
        work_ms[0] = 0
        clock.advance(1000)
        client.send(b"", key=0)
        client.receive()
    assert threads == ["network", "io", "network", "network"]


@pytest.mark.parametrize("started", [True, False])
def test_threads_and_descriptors_come_back(started: bool) -> None:
    with nothing_left():
        for _ in range(3):
            server = NetworkServer(
                [Listener(), Listener("OTHER")],
                echo,
                NetworkConfig(num_network_threads=3),
                parse_header=parse_header,
                serves=lambda key, version, listener: True,
            )
            epolls = [each._epoll for each in server._processors]
            if started:
                server.start()
                with RawClient(server) as client, RawClient(server, "OTHER") as other:
                    for each in (client, other):
                        each.send(b"x", key=SLOW)
                        each.receive()
                    server.close()
            server.close()
            assert all(epoll.closed for epoll in epolls)


def test_graceful_close() -> None:
    """Kafka's testGracefulClose: what is in process is answered, what is quiet is closed."""
    waiting: list[Respond] = []
    with (
        serving(lambda request, respond: waiting.append(respond)) as server,
        RawClient(server) as busy,
        RawClient(server) as quiet,
    ):
        busy.send(b"")
        until(lambda: bool(waiting))
        closing = threading.Thread(target=server.close)
        closing.start()
        assert quiet.is_closed()
        waiting[0](Send([b"late"]))
        assert busy.receive() == b"late"
        assert busy.is_closed()
        closing.join()


def test_close_ends_though_a_request_is_never_answered(tmp_path: Path) -> None:
    waiting: list[Respond] = []
    with (
        serving(lambda request, respond: waiting.append(respond)) as server,
        RawClient(server) as client,
    ):
        client.send(b"")
        until(lambda: bool(waiting))
        server.close(grace_ms=10)
        assert client.is_closed()
        (tmp_path / "segment").write_bytes(b"too late")
        part = slice_of(tmp_path / "segment", 0, 8)
        waiting[0](Send([part]))
        assert part.fileno() < 0  # nobody sends it, but it is released


class _Fast:
    """A reader that takes all that it is given."""

    def __init__(self) -> None:
        self.calls = 0

    def send(self, parts: object, head_offset: int) -> int:
        self.calls += 1
        return MAX_TURN_BYTES


def test_one_reader_does_not_keep_the_network_thread() -> None:
    """An answer of 10 MiB leaves in turns, and others are served between them."""
    with serving(echo) as server:
        processor = server._processors[0]
        info = ConnectionInfo(-1, "127.0.0.1", 1, Listener())
        connection = Connection(info, server._rules, 0)
        connection.state, connection.number = ConnectionState.IN_PROCESS, 1
        connection.answer(Send([bytes(10 * MAX_TURN_BYTES)]), 1, 0)
        fast = _Fast()
        channel = SimpleNamespace(connection=connection, transport=fast, metrics=ListenerMetrics())
        processor._send(channel)  # type: ignore[arg-type]
        assert fast.calls == 1
        assert connection.state is ConnectionState.SENDING
