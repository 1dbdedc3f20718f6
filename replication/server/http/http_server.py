"""``GET`` of health, metrics, state and the live page, on the standard library's HTTP server.

Meant for a person and a scraper, not for crowds: each connection has a thread, their number is
bounded, and a connection that sends nothing is closed.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Self

from checkpoints.loggers import get_logger
from logstore.common.errors import ConfigError
from logstore.common.extras import Extra, load
from logstore.common.forks import register
from replication.broker.broker import Broker, BrokerState
from replication.broker.metrics import MoreSamples, collector, no_more
from replication.common.limited_log import LimitedLogger
from replication.server.http.state import GroupSnapshot, cluster_state

logger = get_logger(__name__)
limited = LimitedLogger(logger)

MAX_CONNECTIONS = 64
IDLE_S = 15.0
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # The page is one file; nothing else may be loaded, from here or from anywhere.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
}


class HttpServer:
    """Serves until ``close``; use as a context manager.

    Args:
        brokers: asked at each request, for brokers come and go.
        groups: the consumer groups that they coordinate.
        more_samples: what ``/metrics`` has of each broker beside its own.
        host, port: where to listen; port 0 takes a free one (``address`` says which).
        allow_remote: serve on another address than loopback. There is no login: all who reach the
            port see names of topics and groups.
    Raises:
        ConfigError: ``host`` is not loopback, and ``allow_remote`` is not set.
        OSError: the address cannot be bound; ``filename`` is the address.
    """

    def __init__(
        self,
        brokers: Callable[[], Iterable[Broker]],
        groups: Callable[[], Iterable[GroupSnapshot]] = tuple,
        more_samples: MoreSamples = no_more,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allow_remote: bool = False,
    ) -> None:
        if not allow_remote and not _is_loopback(host):
            raise ConfigError(
                f"the HTTP server has no login, and {host} is not a loopback address; "
                "allow_remote=True serves there all the same"
            )
        self._brokers, self._groups, self._more_samples = brokers, groups, more_samples
        try:
            self._server = _Server((host, port), _handler(self._answer, _is_loopback(host)))
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="http-server", daemon=True
        )
        self._thread.start()
        self._is_inherited = False
        register(self)

    def disown(self, pid: int) -> None:
        """See `forks.Inherited`."""
        self._is_inherited = True
        self._server.disown()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are bound."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Take no more connections, and end those that there are. Idempotent."""
        if self._is_inherited:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server.end_connections()
        self._thread.join()

    # -- what is served ------------------------------------------------------------------------

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body."""
        match path:
            case "/":
                page = resources.files(__package__).joinpath("live.html").read_bytes()
                return HTTPStatus.OK, "text/html; charset=utf-8", page
            case "/state":
                return _json(HTTPStatus.OK, cluster_state(self._brokers(), self._groups()))
            case "/health":
                return self._health()
            case "/metrics":
                return self._metrics()
            case _:
                paths = ["/", "/state", "/health", "/metrics"]
                return _json(HTTPStatus.NOT_FOUND, {"error": "no such page", "pages": paths})

    def _health(self) -> tuple[HTTPStatus, str, bytes]:
        """200 while every broker here runs and knows the cluster, else 503. A load balancer or a
        container's probe needs no more."""
        states = {
            str(broker.broker_id): broker.state.value
            if broker.metadata.is_complete
            else BrokerState.STARTING.value
            for broker in self._brokers()
        }
        is_well = bool(states) and all(s == BrokerState.RUNNING.value for s in states.values())
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(status, {"healthy": is_well, "brokers": states})

    def _metrics(self) -> tuple[HTTPStatus, str, bytes]:
        try:
            library: Any = load("prometheus_client", Extra.METRICS, "metrics over HTTP")
            registry = library.CollectorRegistry()
            registry.register(collector(*self._brokers(), more=self._more_samples))
        except ConfigError as error:
            return _json(HTTPStatus.NOT_IMPLEMENTED, {"error": str(error)})
        body: bytes = library.generate_latest(registry)
        return HTTPStatus.OK, str(library.CONTENT_TYPE_LATEST), body


def _json(status: HTTPStatus, value: Any) -> tuple[HTTPStatus, str, bytes]:
    return status, "application/json", json.dumps(value).encode()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(ThreadingHTTPServer):
    """Closes what it cannot serve now, so that a flood of connections costs no threads."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()  # of the set
        self._closed = False
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            has_room = not self._closed and len(self._open) < MAX_CONNECTIONS
            if has_room:
                self._open.add(request)
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.discard(request)

    def disown(self) -> None:
        """In a forked child, close the copies of the descriptors."""
        for each in (self.socket, *self._open):
            each.close()

    def end_connections(self) -> None:
        """Close all connections, even while an answer is being sent."""
        with self._lock:
            self._closed = True
            for connection in self._open:
                with suppress(OSError):  # its thread was faster
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away is no news; anything else is."""
        logger.debug("a connection to the HTTP server failed", exc_info=True)


def _handler(
    answer: Callable[[str], tuple[HTTPStatus, str, bytes]],
    only_local: bool,
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "logstore"
        sys_version = ""
        timeout = IDLE_S

        def do_GET(self) -> None:
            self._send(is_head=False)

        def do_HEAD(self) -> None:
            self._send(is_head=True)

        def _send(self, *, is_head: bool) -> None:
            path = self.path.partition("?")[0]
            if not self._is_meant():
                status, kind, body = _json(HTTPStatus.MISDIRECTED_REQUEST, {"error": "wrong host"})
            else:
                try:
                    status, kind, body = answer(path)
                except Exception:
                    limited.exception("GET %s failed", path)
                    status, kind, body = _json(
                        HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "see the log"}
                    )
            self.send_response(status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if not is_head:
                self.wfile.write(body)

        def _is_meant(self) -> bool:
            """Another site's page may make a browser ask us under that site's name (DNS
            rebinding); on loopback only our own names count."""
            host = self.headers.get("Host", "")
            if not only_local:
                return True
            name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
            return _is_loopback(name.strip("[]"))

        def log_message(self, format: str, *args: Any) -> None:
            logger.debug("%s: %s", self.client_address[0], format % args)

    return Handler
