"""The sockets of a broker (Kafka's ``SocketServer``)."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence

from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import ConfigError
from logstore.common.forks import register
from replication.network.acceptor import Acceptor
from replication.network.authentication import Authenticator
from replication.network.config import BY_CERTIFICATE, NetworkConfig
from replication.network.connection import Connection, Rules
from replication.network.limits import ConnectionQuotas, MemoryPool
from replication.network.listeners import Listener, refuse_open_listeners
from replication.network.metrics import ApiMetrics, ListenerMetrics, NetworkMetrics
from replication.network.processor import Processor
from replication.network.request_channel import RequestChannel
from replication.network.requests import (
    ConnectionInfo,
    FastPath,
    PeerCertificate,
    ReceivedRequest,
    RequestHandler,
)
from replication.network.transport_layer import PlaintextTransportLayer, TransportLayer
from replication.protocol import (
    SERVED,
    SERVED_TO_BROKERS,
    ApiKey,
    RequestHeader,
    parse_request_header,
)
from replication.security.credentials import Credentials

_connection_ids = itertools.count()
_SERVED, _SERVED_TO_BROKERS = (
    frozenset((int(key), version) for key, versions in table.items() for version in versions.each())
    for table in (SERVED, SERVED_TO_BROKERS)
)


def client_auth(config: NetworkConfig, listener: Listener) -> str:
    """``ssl.client.auth`` of a listener: brokers that are known by their certificates show them,
    whatever clients do elsewhere (X-63)."""
    is_theirs = listener.is_inter_broker and config.broker_identity == BY_CERTIFICATE
    return "required" if is_theirs else config.ssl_client_auth


def never_quick(request: ReceivedRequest) -> bool:
    return False


def is_served(api_key: int, api_version: int, listener: Listener) -> bool:
    """Whether the listener's table has the version. ApiVersions may come in any version, because a
    client learns the others from it (W-11).
    """
    served = _SERVED_TO_BROKERS if listener.is_inter_broker else _SERVED
    return (api_key, api_version) in served or api_key == ApiKey.API_VERSIONS


class NetworkServer:
    """Listeners, network threads and handler threads.

    The sockets are bound when it is made, so that ``bound_addresses`` can be registered before the
    first request can come; ``start`` lets them be served.

    Args:
        handler: given each request, and how to answer it: once, from any thread. If it raises, the
            connection is closed.
        is_quick: whether a request is usually answered at once, without waiting for a disk; its
            handler runs on the network thread. Others go to handler threads.
        credentials: who may log in on listeners with SASL.
        allow_plaintext: plain text on addresses that other machines reach; they may all read and
            write everything.
        parse_header, serves: see ``Rules``.

    Raises:
        ConfigError: a listener cannot be served so, or is open to others without leave.
        OSError: an address cannot be bound; ``filename`` is the address. Nothing is left open.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        handler: RequestHandler,
        config: NetworkConfig | None = None,
        *,
        parse_header: Callable[[memoryview], RequestHeader] = parse_request_header,
        serves: Callable[[int, int, Listener], bool] = is_served,
        is_quick: Callable[[ReceivedRequest], bool] = never_quick,
        credentials: Credentials | None = None,
        allow_plaintext: bool = False,
        name: str = "kafka",
        clock: Clock | None = None,
    ) -> None:
        self._config = config = config or NetworkConfig()
        self._clock = clock = clock or SystemClock()
        if not allow_plaintext:
            refuse_open_listeners(listeners)
        protocols = [listener.security_protocol for listener in listeners]
        if any(protocol.has_sasl for protocol in protocols) and credentials is None:
            raise ConfigError("a listener with SASL takes credentials")
        self._make_tls = {
            listener.name: _maker_of_tls(config, client_auth(config, listener))
            for listener in listeners
            if listener.security_protocol.has_tls
        }
        handler = Authenticator(handler, config, credentials)
        self._memory = MemoryPool(config.queued_max_request_bytes, self._resume)
        self._rules = Rules(config, self._memory, parse_header, serves)
        self._requests = RequestChannel(
            name,
            handler,
            self._memory,
            config.queued_max_requests,
            config.num_io_threads,
            clock,
            self._resume,
        )
        self._quotas = ConnectionQuotas(config, self._now_ms)
        sockets = _bind_all(listeners, config)
        self._bound = {listener.name: each.getsockname()[:2] for each, listener in sockets}
        self._acceptor = Acceptor(f"{name}-acceptor", sockets, self._quotas, self._accepted)
        self._processors = [
            Processor(
                f"{name}-network-{number}",
                self._rules,
                handler,
                is_quick,
                self._requests,
                clock,
                self._closed,
            )
            for number in range(config.num_network_threads)
        ]
        self._next_processor = itertools.cycle(self._processors)
        self._started = False
        self._is_closed = False
        register(self)

    def disown(self, pid: int) -> None:
        """See `forks.Inherited`. Otherwise the addresses stay taken, and clients without an end of
        their connections, as long as a child lives."""
        if not self._is_closed:
            self._is_closed = True
            self._acceptor.disown()
            for processor in self._processors:
                processor.disown()

    @property
    def bound_addresses(self) -> dict[str, tuple[str, int]]:
        """Host and port by the name of the listener."""
        return dict(self._bound)

    def metrics(self) -> NetworkMetrics:
        """The numbers so far; from any thread."""
        apis: dict[int, ApiMetrics] = {}
        listeners: dict[str, ListenerMetrics] = {name: ListenerMetrics() for name in self._bound}
        for processor in self._processors:
            for key, api in processor.metrics.apis.copy().items():
                apis.setdefault(key, ApiMetrics()).add(api)
            for name, listener in processor.listeners.copy().items():
                listeners[name].add(listener)
        return NetworkMetrics(
            apis,
            listeners,
            dict(self._quotas.refused),
            self._requests.size,
            self._memory.used,
            max(0, self._config.queued_max_request_bytes),
        )

    def start(self, fast_paths: Mapping[int, FastPath] | None = None) -> None:
        """Serve. ``fast_paths``: shorter ways past the handler, by API key."""
        self._started = True
        self._rules.fast_paths.update(fast_paths or {})
        for processor in self._processors:
            processor.start()
        self._acceptor.start()

    def close(self, grace_ms: int = 30_000) -> None:
        """Accept no more, answer the requests in process within ``grace_ms``, and close the rest.

        Not to be called from a handler. Idempotent; threads and descriptors are given back.
        """
        if self._is_closed:
            return
        self._is_closed = True
        end_ns = SystemClock.monotonic_ns() + grace_ms * 1_000_000
        self._acceptor.close()
        for processor in self._processors:
            if self._started:
                processor.stop()
            else:
                processor.discard()
        if self._started:
            for processor in self._processors:
                if not processor.join(_seconds_until(end_ns)):
                    processor.abort()
                    processor.join()
        self._requests.close(max(1.0, _seconds_until(end_ns)))

    def __enter__(self) -> NetworkServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _accepted(self, connected: socket.socket, listener: Listener, host: str, port: int) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._config.socket_send_buffer_bytes > 0:
            connected.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.socket_send_buffer_bytes
            )
        info = ConnectionInfo(next(_connection_ids), host, port, listener)
        if listener.security_protocol.has_sasl:
            info.is_logged_in = False
        connection = Connection(info, self._rules, self._now_ms())
        transport: TransportLayer = PlaintextTransportLayer(connected)
        make_tls = self._make_tls.get(listener.name)
        if make_tls is not None:
            connection.begin_handshake(self._now_ms())
            transport = make_tls(connected, connection.end_handshake)
        next(self._next_processor).add(transport, connection)

    def _closed(self, connection: Connection) -> None:
        self._quotas.remove(connection.info.peer_host)
        self._acceptor.wake()

    def _resume(self) -> None:
        for processor in self._processors:
            processor.resume()


def _maker_of_tls(
    config: NetworkConfig, auth: str
) -> Callable[[socket.socket, Callable[[PeerCertificate], None]], TransportLayer]:
    # Imported here because it takes 5 ms, and few servers need it.
    from replication.network.tls import TlsTransportLayer
    from replication.security.tls import server_context

    context = server_context(config, auth)
    return lambda connected, on_handshake: TlsTransportLayer(connected, context, on_handshake)


def _bind_all(
    listeners: Iterable[Listener], config: NetworkConfig
) -> list[tuple[socket.socket, Listener]]:
    sockets: list[tuple[socket.socket, Listener]] = []
    address = ""
    try:
        for listener in listeners:
            address = f"{listener.host}:{listener.port}"
            family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
            listening = socket.socket(family, socket.SOCK_STREAM)
            sockets.append((listening, listener))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if config.socket_receive_buffer_bytes > 0:  # connections inherit it
                listening.setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes
                )
            listening.bind((listener.host, listener.port))
            listening.listen(config.socket_listen_backlog_size)
            listening.setblocking(False)
    except BaseException as error:
        for listening, _ in sockets:
            listening.close()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, address) from error
        raise
    return sockets


def _seconds_until(end_ns: int) -> float:
    return max(0, end_ns - SystemClock.monotonic_ns()) / 1e9
