"""What a server bounds: connections, time, memory, the queue. Time is moved by hand.

Kafka's ``SocketServerTest`` names many of the cases.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading
from contextlib import ExitStack

import pytest

from logstore.common.errors import ConfigError
from logstore.testing import ManualClock
from replication.network import (
    NO_RESPONSE,
    Listener,
    NetworkConfig,
    NetworkServer,
    ReceivedRequest,
    Respond,
    SecurityProtocol,
    Send,
    UserCredentials,
)
from replication.network import acceptor as acceptor_module
from replication.network.framing import SHARED_BYTES
from replication.network.limits import ConnectionQuotas
from tests.support.network import RawClient, connection_count, frame_of, serving, wake
from tests.support.until import until


def echo(request: ReceivedRequest, respond: Respond) -> None:
    respond(Send([struct.pack(">i", request.correlation_id), request.body]))


class Clock(ManualClock):
    def pass_for(self, server: NetworkServer, ms: int) -> None:
        self.advance(ms)
        wake(server)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def is_served(client: RawClient) -> bool:
    try:
        client.send(b"ping")
        return client.receive()[4:] == b"ping"
    except (EOFError, ConnectionError):
        return False


def test_idle_connection(clock: Clock) -> None:
    config = NetworkConfig(connections_max_idle_ms=1000)
    with (
        serving(echo, config, clock=clock) as server,
        RawClient(server) as idle,
        RawClient(server) as busy,
    ):
        assert is_served(idle)
        assert is_served(busy)
        clock.pass_for(server, 900)
        assert is_served(busy)
        clock.pass_for(server, 100)
        assert idle.is_closed()
        assert is_served(busy)
        until(lambda: connection_count(server) == 1)


def test_silence_before_a_login(clock: Clock) -> None:
    """Who may be anybody holds a descriptor no longer than a handshake does."""
    listeners = [Listener("SASL", security_protocol=SecurityProtocol.SASL_PLAINTEXT), Listener()]
    config = NetworkConfig(connections_max_idle_ms=-1, socket_frame_timeout_ms=1000)
    options = {"listeners": listeners, "credentials": UserCredentials({"ann": "secret"})}
    with (
        serving(echo, config, clock=clock, **options) as server,
        RawClient(server, "SASL") as stranger,
        RawClient(server) as other,
    ):
        assert is_served(other)
        until(lambda: connection_count(server) == 2)
        clock.pass_for(server, 1000)
        assert stranger.is_closed()
        assert is_served(other)


def test_who_waits_for_ever_and_goes_away(clock: Clock) -> None:
    """Whether it is gone cannot be seen, so it is treated like one that is quiet."""
    waiting: list[Respond] = []

    def later(request: ReceivedRequest, respond: Respond) -> None:
        waiting.append(respond)

    config = NetworkConfig(connections_max_idle_ms=1000)
    with serving(later, config, clock=clock) as server:
        for _ in range(3):
            with RawClient(server) as client:
                expected = len(waiting) + 1
                client.send(b"ping")
                until(lambda expected=expected: len(waiting) == expected)
        assert connection_count(server) == 3
        clock.pass_for(server, 1000)
        until(lambda: connection_count(server) == 0)
        for respond in waiting:
            respond(NO_RESPONSE)


def test_an_opened_frame_is_closed_before_an_idle_connection(clock: Clock) -> None:
    with (
        serving(echo, clock=clock) as server,
        RawClient(server) as opened,
        RawClient(server) as idle,
    ):
        assert is_served(opened)
        assert is_served(idle)
        opened.socket.sendall(frame_of(b"hello")[:7])
        server_has_it = threading.Event()
        server._processors[0]._post(server_has_it.set)
        server_has_it.wait()
        until(lambda: bool(server._processors[0]._deadlines))
        until(lambda: _opened_frames(server) == 1)
        clock.pass_for(server, 30_000)
        assert opened.is_closed()
        assert is_served(idle)


def _opened_frames(server: NetworkServer) -> int:
    channels = list(server._processors[0]._channels.values())
    return sum(channel.connection.reader.is_inside_frame for channel in channels)


def test_connection_id_reuse() -> None:
    """An id is of one connection for ever, also when descriptor and port come back."""
    seen: list[int] = []

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        seen.append(request.connection.id)
        respond(NO_RESPONSE)

    with serving(handler) as server:
        for n in range(1, 21):
            with RawClient(server) as client:
                client.send(b"")
                until(lambda n=n: len(seen) == n)  # type: ignore[misc]
    assert len(set(seen)) == 20


def test_max_connections_per_ip() -> None:
    config = NetworkConfig(
        max_connections_per_ip=3, max_connections_per_ip_overrides=("127.0.0.9:1",)
    )
    with serving(echo, config) as server, ExitStack() as stack:

        def connect(host: str) -> RawClient:
            return stack.enter_context(RawClient(server, source_address=(host, 0)))

        clients = [connect("127.0.0.1") for _ in range(3)]
        assert all(map(is_served, clients))
        assert connect("127.0.0.1").is_closed()
        assert is_served(connect("127.0.0.9"))
        assert connect("127.0.0.9").is_closed()
        clients[0].close()
        until(lambda: connection_count(server) == 3)
        assert is_served(connect("127.0.0.1"))


def test_max_connections_lets_the_next_one_wait() -> None:
    with (
        serving(echo, NetworkConfig(max_connections=2)) as server,
        RawClient(server) as first,
        RawClient(server) as second,
    ):
        assert is_served(first)
        assert is_served(second)
        with RawClient(server) as third:
            third.send(b"waiting")
            assert is_served(first)
            assert connection_count(server) == 2
            second.close()
            assert third.receive()[4:] == b"waiting"


@pytest.mark.parametrize(
    "bound", [{"max_connections": 2}, {"max_connection_creation_rate": 1}], ids=["count", "rate"]
)
def test_no_bound_for_all_keeps_brokers_out(bound: dict[str, int], clock: Clock) -> None:
    """X-60. Clients wait for their turn, by their listener."""
    listeners = [Listener(), Listener("INTERNAL", is_inter_broker=True)]
    config = NetworkConfig(**bound)
    with (
        serving(echo, config, listeners=listeners, clock=clock) as server,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(RawClient(server)) for _ in range(2)]
        assert all(map(is_served, clients))
        waiting = stack.enter_context(RawClient(server))
        waiting.send(b"waiting")
        for _ in range(3):
            assert is_served(stack.enter_context(RawClient(server, "INTERNAL")))
        assert connection_count(server) == 5
        assert all(map(is_served, clients))


def test_the_only_listener_is_bounded_though_brokers_use_it() -> None:
    listeners = [Listener(is_inter_broker=True)]
    config = NetworkConfig(max_connections=1)
    with serving(echo, config, listeners=listeners) as server, RawClient(server) as first:
        assert is_served(first)
        with RawClient(server) as second:
            second.send(b"waiting")
            assert is_served(first)
            assert connection_count(server) == 1


def test_at_the_bound_nothing_is_accepted() -> None:
    quotas = ConnectionQuotas(NetworkConfig(max_connections=1), lambda: 0)
    assert quotas.wait_ms() == 0
    assert quotas.try_add("a")
    assert quotas.wait_ms() is None
    quotas.remove("a")
    assert quotas.wait_ms() == 0


def test_connection_rate() -> None:
    now = [1_000_000]
    quotas = ConnectionQuotas(NetworkConfig(max_connection_creation_rate=10), lambda: now[0])
    for _ in range(11):
        assert quotas.wait_ms() == 0
        assert quotas.try_add("a")
    assert quotas.wait_ms() == 100
    now[0] += 100
    assert quotas.wait_ms() == 0


def test_connection_rate_per_ip() -> None:
    now = [1_000_000]
    config = NetworkConfig(max_connection_creation_rate_per_ip=10)
    quotas = ConnectionQuotas(config, lambda: now[0])
    assert [quotas.try_add("a") for _ in range(20)].count(True) == 11
    assert quotas.try_add("b")
    now[0] += 100
    assert quotas.try_add("a")
    assert not quotas.try_add("a")
    assert quotas.wait_ms() == 0


def test_connections_that_come_too_fast_are_closed(clock: Clock) -> None:
    config = NetworkConfig(max_connection_creation_rate_per_ip=1)
    with serving(echo, config, clock=clock) as server:
        results = []
        for _ in range(3):
            with RawClient(server) as client:
                results.append(is_served(client))
        assert results == [True, True, False]
        clock.pass_for(server, 1000)
        with RawClient(server) as client:
            assert is_served(client)


@pytest.mark.parametrize("pair", ["", "host", "host:", ":1", "host:-1", "host:²"])
def test_a_malformed_override(pair: str) -> None:
    with pytest.raises(ConfigError):
        ConnectionQuotas(NetworkConfig(max_connections_per_ip_overrides=(pair,)), lambda: 0)


def test_send_action_response_with_throttled_channel(clock: Clock) -> None:
    """testSendActionResponseWithThrottledChannelWhereThrottlingInProgress: the answer leaves at
    once; the next request waits for the end of the throttle (W-234)."""

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        throttle_ms = 500 if request.body == b"much" else 0
        respond(Send([b"done"], throttle_ms=throttle_ms))

    with serving(handler, clock=clock) as server, RawClient(server) as client:
        client.socket.sendall(frame_of(b"much") + frame_of(b"little"))
        assert client.receive() == b"done"
        with RawClient(server) as other:
            other.send(b"")
            assert other.receive() == b"done"
        clock.pass_for(server, 499)
        client.socket.settimeout(0.02)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(30)
        clock.pass_for(server, 1)
        assert client.receive() == b"done"


def test_unmute_channel_with_buffered_receives() -> None:
    """Requests that came with the first one are served though nothing more comes."""
    waiting: list[Respond] = []
    with (
        serving(lambda request, respond: waiting.append(respond)) as server,
        RawClient(server) as client,
    ):
        client.socket.sendall(b"".join(frame_of(b"") for _ in range(5)))
        for n in range(5):
            until(lambda n=n: len(waiting) == n + 1)  # type: ignore[misc]
            waiting[n](Send([bytes([n])]))
            assert client.receive() == bytes([n])


def test_client_disconnection_with_outstanding_receives() -> None:
    """testClientDisconnectionWithOutstandingReceivesProcessedUntilFailedSend: what a client sent
    before it went away is processed, as with acks=0."""
    bodies: list[bytes] = []
    may_go = threading.Event()

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        may_go.wait()
        bodies.append(bytes(request.body))
        respond(NO_RESPONSE)

    with serving(handler) as server:
        with RawClient(server) as client:
            client.socket.sendall(b"".join(frame_of(b"%d" % n, key=20) for n in range(1000)))
        may_go.set()
        until(lambda: len(bodies) == 1000)
        until(lambda: connection_count(server) == 0)
    assert bodies == [b"%d" % n for n in range(1000)]


def test_a_connection_in_process_is_not_looked_at() -> None:
    """Whatever the other side sends, or if it is gone: the network thread sleeps."""
    waiting: list[Respond] = []
    with serving(lambda request, respond: waiting.append(respond)) as server:
        client = RawClient(server)
        client.send(b"")
        until(lambda: bool(waiting))
        (channel,) = server._processors[0]._channels.values()
        client.send(b"")
        until(lambda: channel.interest == 0)
        linger = struct.pack("ii", 1, 0)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()
        until(lambda: channel.interest < 0)
        server.close(grace_ms=0)


def test_a_client_that_reset_the_connection_disturbs_nobody() -> None:
    waiting: list[Respond] = []
    with serving(lambda request, respond: waiting.append(respond)) as server:
        client = RawClient(server)
        client.send(b"")
        until(lambda: bool(waiting))
        linger = struct.pack("ii", 1, 0)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()
        with RawClient(server) as other:
            other.send(b"")
            until(lambda: len(waiting) == 2)
            waiting[1](Send([b"x"]))
            assert other.receive() == b"x"
        waiting[0](Send([b"x"]))
        until(lambda: connection_count(server) == 0)


def test_exception_in_acceptor(caplog: pytest.LogCaptureFixture) -> None:
    """A connection that cannot be set up is dropped; the next one is served."""
    with serving(echo) as server:
        real = server._acceptor._on_accepted
        failures = [OSError("no"), ValueError("no")]

        def fail(*arguments: object) -> None:
            if failures:
                raise failures.pop()
            real(*arguments)  # type: ignore[arg-type]

        server._acceptor._on_accepted = fail
        for _ in range(2):
            with RawClient(server) as client:
                assert client.is_closed()
        with RawClient(server) as client:
            assert is_served(client)
            assert connection_count(server) == 1  # the failed ones are not counted


class _NoDescriptors:
    """A listening socket that fails as one does when descriptors are used up."""

    def __init__(self, real: socket.socket) -> None:
        self._real, self.failures = real, 3

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return self._real.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def test_without_descriptors_connections_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "_SHORTAGE_WAIT_S", 0.001)
    with serving(echo) as server:
        sockets = server._acceptor._sockets
        for descriptor, (listening, listener) in list(sockets.items()):
            sockets[descriptor] = (_NoDescriptors(listening), listener)  # type: ignore[assignment]
        with RawClient(server) as client:
            assert is_served(client)


def test_listen_backlog_size() -> None:
    """Connections that nobody has accepted yet wait in the backlog."""
    config = NetworkConfig(max_connections=1, socket_listen_backlog_size=20)
    with serving(echo, config) as server, RawClient(server) as first, ExitStack() as stack:
        assert is_served(first)
        waiting = [stack.enter_context(RawClient(server)) for _ in range(20)]
        first.close()
        for client in waiting:
            assert is_served(client)
            client.close()


@pytest.fixture
def stuck() -> threading.Event:
    """Set to let handlers go on."""
    return threading.Event()


def test_a_full_queue_stops_the_reading(stuck: threading.Event) -> None:
    """Requests wait in their sockets, and all are answered in the end."""
    running: list[bytes] = []

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        running.append(bytes(request.body))
        stuck.wait()
        echo(request, respond)

    config = NetworkConfig(queued_max_requests=2, num_io_threads=1)
    with serving(handler, config) as server, ExitStack() as stack:
        stack.callback(stuck.set)
        clients = [stack.enter_context(RawClient(server)) for _ in range(10)]
        for n, client in enumerate(clients):
            client.send(b"%d" % n, key=20)
        until(lambda: len(running) == 1 and len(server._requests._queue) == 2)
        processor = server._processors[0]
        until(lambda: (len(processor._unqueued), len(processor._starved)) == (1, 6))
        stuck.set()
        for n, client in enumerate(clients):
            assert client.receive()[4:] == b"%d" % n


def test_the_bytes_of_large_requests_are_bounded(stuck: threading.Event) -> None:
    """Those that get no room wait, small ones are served, and in the end all are answered."""

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        if request.body != b"ping":
            stuck.wait()
        echo(request, respond)

    config = NetworkConfig(queued_max_request_bytes=1 << 20)
    with serving(handler, config) as server, ExitStack() as stack:
        stack.callback(stuck.set)
        clients = [stack.enter_context(RawClient(server)) for _ in range(6)]
        body = bytes(300_000)
        senders = [
            threading.Thread(target=client.send, args=(body,), kwargs={"key": 20})
            for client in clients
        ]
        for sender in senders:
            sender.start()
        until(lambda: bool(server._processors[0]._starved))
        assert server._memory.used <= (1 << 20) + 300_100 + 6 * SHARED_BYTES
        assert is_served(stack.enter_context(RawClient(server)))
        stuck.set()
        for client in clients:
            assert client.receive()[4:] == body
        for sender in senders:
            sender.join()
        until(lambda: server._memory.used == 0)


def test_a_client_that_never_reads_is_closed(clock: Clock) -> None:
    """One answer waits for it, of all that it asked for, and the others are served."""
    asked: list[int] = []

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        if request.body == b"ping":
            echo(request, respond)
            return
        asked.append(request.correlation_id)
        respond(Send([bytes(8 << 20)]))

    with (
        serving(handler, clock=clock) as server,
        RawClient(server) as deaf,
        RawClient(server) as other,
    ):
        deaf.socket.sendall(b"".join(frame_of(b"more", 0, 0, n) for n in range(100)))
        until(lambda: bool(asked))
        assert is_served(other)
        assert len(asked) == 1
        clock.pass_for(server, 59_000)
        assert is_served(other)
        assert connection_count(server) == 2
        clock.pass_for(server, 1001)
        until(lambda: connection_count(server) == 1)
        assert is_served(other)


def test_a_slow_reader_gets_everything_and_disturbs_nobody() -> None:
    body = bytes(range(256)) * (32 << 10)
    with serving(echo) as server, RawClient(server) as slow, RawClient(server) as other:
        slow.send(body)
        size = struct.unpack(">i", slow.read(4))[0]
        data = bytearray()
        while len(data) < size:
            data += slow.read(min(500_000, size - len(data)))
            assert is_served(other)
        assert data[4:] == body
