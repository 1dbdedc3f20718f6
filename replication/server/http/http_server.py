"""``HttpService`` answers requests over HTTP; ``HttpServer`` those for health, metrics, state and
the live page.

Meant for a person and a scraper, not for crowds. One thread waits for all connections; each is one
request, which has to come and whose answer has to leave within a time in all, however lively the
peer is meanwhile. The handler of the standard library reads a request that is complete.

Slow peers keep nobody out: a connection too many ends the one that has been slow for longest, and
at the limit of descriptors a spare one is given up for the next request. So a probe of ``/health``,
which comes in one piece and is answered at once, is answered whatever the others do.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import resources
from io import BytesIO
from itertools import islice
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl

from checkpoints.loggers import get_logger
from checkpoints.printable import printable
from logstore.common.errors import ConfigError
from logstore.common.extras import Extra, load
from logstore.common.forks import register
from replication.broker.broker import Broker, BrokerState
from replication.broker.metrics import MoreSamples, collector, no_more
from replication.broker.stages import BrokerStage, stage_of
from replication.common.addresses import is_loopback
from replication.common.limited_log import LimitedLogger
from replication.server.http.state import GroupSnapshot, Selection, cluster_state, select

logger = get_logger(__name__)
limited = LimitedLogger(logger)

MAX_CONNECTIONS = 64
REQUEST_S = 10.0
"""The time in which a request has to come, in all."""
ANSWER_S = 30.0
"""The time in which its answer has to be made and to leave, in all."""
SPARE_S = 1.0
"""Both, for a connection in the place of the spare descriptor."""
PICTURE_S, PICTURE_SHARE = 0.25, 20
"""The state behind the pages is read again after this time, and never for more than a twentieth of
one processor, however many pages and partitions there are."""
BEHIND_MAX = 10
"""The most replicas that are named as out of sync."""
LIMIT_MAX = 500
"""The most rows of one selection."""
PACKED_FROM = 1400
"""More bytes than that are compressed for those who take it; fewer are one packet anyway."""
RETRY_S = 0.1
"""The pause after a connection could not be accepted."""
HEAD_MAX = 1 << 16
_END_OF_HEAD = b"\r\n\r\n"
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
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


class HttpRequest(NamedTuple):
    """``path`` is as it came, percent-encoded, ``query`` without the question mark."""

    method: str
    path: str
    query: str
    content_type: str
    body: bytes


class HttpAnswer(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes


class HttpService:
    """Serves until ``close``; use as a context manager. A subclass says what is served.

    Args:
        host, port: where to listen; port 0 takes a free one (``address`` says which).
        allow_remote: serve on another address than loopback, though there is no login.
    Raises:
        ConfigError: ``host`` is not loopback, and ``allow_remote`` is not set.
        OSError: the address cannot be bound; ``filename`` is the address.
    """

    thread_name = "http-server"
    methods: tuple[str, ...] = ("GET", "HEAD")
    health_is_ours = True
    """``/health`` waits for nobody, and is answered on the thread that waits for connections."""
    body_max = 0
    """Bytes of the body of a request other than GET and HEAD."""

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, allow_remote: bool = False
    ) -> None:
        if not allow_remote and not is_loopback(host):
            raise ConfigError(
                f"the HTTP server has no login, and {host} is not a loopback address; "
                "allow_remote=True serves there all the same"
            )
        self._handle = _handler(self, is_loopback(host))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        """Host and port that are bound."""
        self._spare = socket.socket(family)
        self._open: dict[asyncio.Task[None], socket.socket] = {}
        """The connections, the oldest first."""
        self._incomplete: dict[asyncio.Task[None], None] = {}
        """Those whose request has not come as a whole, the oldest first."""
        self._loop = asyncio.new_event_loop()
        # None waits for another: they start as they are needed.
        self._loop.set_default_executor(ThreadPoolExecutor(MAX_CONNECTIONS, self.thread_name))
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=self.thread_name, daemon=True)
        self._is_closed = self._is_inherited = False
        self._thread.start()
        register(self)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Called on any thread, by several at a time. An exception is answered as a 500."""
        raise NotImplementedError

    def disown(self, pid: int) -> None:
        """See `forks.Inherited`."""
        self._is_inherited = True
        for each in (self._listener, self._spare, *self._open.values()):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Take no more connections, and end those that there are. Idempotent."""
        if self._is_inherited or self._is_closed:
            return
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    # -- connections ---------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # ends all tasks
            runner.run(self._serve())

    async def _serve(self) -> None:
        accepting = asyncio.create_task(self._accept())
        await self._closing.wait()
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        self._listener.close()
        self._spare.close()

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno in _SHORT_OF:
                    await self._accept_at_the_limit()
                else:  # a peer that went away meanwhile
                    await asyncio.sleep(RETRY_S)
                continue
            if len(self._open) >= MAX_CONNECTIONS:
                await self._end_slowest()
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._converse(connection, REQUEST_S, ANSWER_S))
        self._open[task] = connection
        self._incomplete[task] = None
        task.add_done_callback(self._forget)

    async def _end_slowest(self) -> None:
        slowest = next(iter(self._incomplete or self._open))
        slowest.cancel()
        await asyncio.wait([slowest])

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._incomplete.pop(task, None)
        _close(self._open.pop(task))

    async def _accept_at_the_limit(self) -> None:
        """Give the spare descriptor to the next connection, and get one back: from the slowest
        peer, or when this one is answered. Without a connection the system says the same.
        """
        self._spare.close()
        try:
            connection, _ = self._listener.accept()
            connection.setblocking(False)
        except OSError:
            connection = None
        if connection is not None and self._incomplete:
            await self._end_slowest()
            self._begin(connection)
        elif connection is not None:
            try:
                await self._converse(connection, SPARE_S, SPARE_S)
            finally:
                _close(connection)
        with suppress(OSError):  # somebody else took it: again after the next connection
            self._spare = socket.socket(self._listener.family)
        if connection is None:
            await asyncio.sleep(RETRY_S)

    async def _converse(self, connection: socket.socket, request_s: float, answer_s: float) -> None:
        """Take one request, and send its answer."""
        try:
            async with asyncio.timeout(request_s):
                request = await self._receive(connection)
            if (task := asyncio.current_task()) is not None:
                self._incomplete.pop(task, None)
            async with asyncio.timeout(answer_s):
                # Health is never behind another answer.
                is_health = request.partition(b" ")[2].startswith((b"/health ", b"/health?"))
                if is_health and self.health_is_ours:
                    answer = self._handle(request)
                else:
                    answer = await asyncio.to_thread(self._handle, request)
                await self._loop.sock_sendall(connection, answer)
        except (OSError, EOFError, TimeoutError) as error:
            logger.debug("a connection to the HTTP server failed", exc_info=error)
        except Exception:
            limited.exception("a request over HTTP failed")

    async def _receive(self, connection: socket.socket) -> bytes:
        """The head of a request, and as much of its body as is served.

        Raises:
            EOFError: the peer ended it before, or the head is too long.
        """
        received = b""
        while _END_OF_HEAD not in received:
            more = await self._loop.sock_recv(connection, HEAD_MAX)
            received += more
            if not more or len(received.partition(_END_OF_HEAD)[0]) > HEAD_MAX:
                raise EOFError
        head, end, body = received.partition(_END_OF_HEAD)
        size = _body_size(head)
        if not 0 < size <= self.body_max:
            return received
        parts, missing = [head, end, body[:size]], size - len(body)
        while missing > 0:
            more = await self._loop.sock_recv(connection, min(missing, HEAD_MAX))
            if not more:
                raise EOFError
            parts.append(more)
            missing -= len(more)
        return b"".join(parts)


def _body_size(head: bytes) -> int:
    """As the head says; the handler says what is wrong with one that is not clear."""
    lines = head.lower().split(b"\r\n")[1:]
    sizes = {each[15:].strip() for each in lines if each.startswith(b"content-length:")}
    size = sizes.pop() if len(sizes) == 1 else b""
    return int(size) if size.isdigit() and len(size) < 10 else 0


class LivePage(HttpService):
    """The page, and the state that it shows; health and readiness. A subclass knows the brokers."""

    pages: tuple[str, ...] = ("/", "/state", "/health", "/ready", "/metrics")

    def __init__(self, **options: Any) -> None:
        self._page = resources.files(__package__).joinpath("live.html").read_bytes()
        self._picture: dict[str, Any] = {}
        """The last state that was made for selections."""
        self._old_at, self._drawing = 0.0, threading.Lock()
        super().__init__(**options)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        match request.path:
            case "/":
                return HttpAnswer(HTTPStatus.OK, "text/html; charset=utf-8", self._page)
            case "/state":
                return self._state(request.query)
            case "/health":
                return self.health()
            case "/ready":
                return self.ready()
            case "/metrics":
                return self.metrics()
            case _:
                answer = {"error": "no such page", "pages": self.pages}
                return json_answer(HTTPStatus.NOT_FOUND, answer)

    def state(self) -> tuple[dict[str, Any], float]:
        """As of ``cluster_state``, and the seconds of work, without waiting, that it took."""
        raise NotImplementedError

    def health(self) -> HttpAnswer:
        """200 while every broker runs and knows the cluster, else 503."""
        raise NotImplementedError

    def ready(self) -> HttpAnswer:
        """200 while the replicas of every broker are in sync, too."""
        raise NotImplementedError

    def metrics(self) -> HttpAnswer:
        """Those of every broker, as Prometheus text."""
        raise NotImplementedError

    def _state(self, query: str) -> HttpAnswer:
        """All there is now, or a selection of what there was a moment ago: those share it."""
        try:
            wanted = _selection(query)
        except ValueError as error:
            return json_answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        if wanted is None:
            return json_answer(HTTPStatus.OK, self.state()[0])
        with self._drawing:
            if (now := self._loop.time()) >= self._old_at:
                state, took_s = self.state()
                self._picture = state | {"made_ms": round(now * 1000)}
                self._old_at = now + max(PICTURE_S, took_s * PICTURE_SHARE)
            found = self._picture
        return json_answer(HTTPStatus.OK, select(found, wanted))


class HttpServer(LivePage):
    """Health, metrics, the state of some brokers, and the live page; and as ``HttpService``.

    Args:
        brokers: asked at each request, for brokers come and go.
        groups: the consumer groups that they coordinate.
        more_samples: what ``/metrics`` has of each broker beside its own.
        allow_remote: all who reach the port see names of topics and groups.
    """

    def __init__(
        self,
        brokers: Callable[[], Iterable[Broker]],
        groups: Callable[[], Iterable[GroupSnapshot]] = tuple,
        more_samples: MoreSamples = no_more,
        **options: Any,
    ) -> None:
        self._brokers, self._groups, self._more_samples = brokers, groups, more_samples
        super().__init__(**options)

    def state(self) -> tuple[dict[str, Any], float]:
        began = self._loop.time()
        return cluster_state(self._brokers(), self._groups()), self._loop.time() - began

    def health(self) -> HttpAnswer:
        """See ``LivePage``. A load balancer or a container's probe needs no more."""
        states = {
            str(broker.broker_id): broker.state.value
            if broker.metadata.is_complete
            else BrokerState.STARTING.value
            for broker in self._brokers()
        }
        is_well = bool(states) and all(s == BrokerState.RUNNING.value for s in states.values())
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return json_answer(status, {"healthy": is_well, "brokers": states})

    def ready(self) -> HttpAnswer:
        """See ``LivePage``: the next broker may be restarted as far as these are concerned."""
        brokers = [*self._brokers()]
        stages = {str(broker.broker_id): stage_of(broker) for broker in brokers}
        behind = {
            str(broker.broker_id): [
                f"{topic}-{number}"
                for topic, number in islice(broker.metadata.replicas_out_of_sync(), BEHIND_MAX)
            ]
            for broker in brokers
        }
        is_ready = bool(stages) and set(stages.values()) == {BrokerStage.IN_SYNC}
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        answer = {
            "ready": is_ready,
            "brokers": {each: stage.value for each, stage in stages.items()},
            "outOfSync": {each: names for each, names in behind.items() if names},
        }
        return json_answer(status, answer)

    def metrics(self) -> HttpAnswer:
        return metrics_answer(lambda: collector(*self._brokers(), more=self._more_samples))


def metrics_answer(make_collector: Callable[[], Any]) -> HttpAnswer:
    """What a collector says now, as Prometheus text."""
    try:
        library: Any = load("prometheus_client", Extra.METRICS, "metrics over HTTP")
        registry = library.CollectorRegistry()
        registry.register(make_collector())
    except ConfigError as error:
        return json_answer(HTTPStatus.NOT_IMPLEMENTED, {"error": str(error)})
    body: bytes = library.generate_latest(registry)
    return HttpAnswer(HTTPStatus.OK, str(library.CONTENT_TYPE_LATEST), body)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.recv(HEAD_MAX)  # what is left unread would take the answer with it
    connection.close()


def json_answer(status: HTTPStatus, value: Any) -> HttpAnswer:
    return HttpAnswer(status, "application/json", json.dumps(value).encode())


def _selection(query: str) -> Selection | None:
    """The selection that a query asks for; None if none of it is known here.

    Raises:
        ValueError: a value is none.
    """
    given = parse_qsl(query, keep_blank_values=True, max_num_fields=10)
    values = {name: value for name, value in given if name in Selection._fields}
    text = values.pop("text", None)
    for name, value in values.items():
        if not (value.isascii() and value.isdigit() and len(value) < 10):
            raise ValueError(f"{name} is to be a number from 0 on")
    numbers: Any = {name: int(value) for name, value in values.items()}
    if numbers.get("limit", 0) > LIMIT_MAX:
        raise ValueError(f"limit is to be at most {LIMIT_MAX}")
    return Selection((text or "").strip(), **numbers) if numbers or text is not None else None


class _Handler(BaseHTTPRequestHandler):
    """One request, from its bytes to those of its answer."""

    protocol_version = "HTTP/1.1"
    server_version = "logstore"
    sys_version = ""

    def __init__(
        self, service: HttpService, only_local: bool, request: bytes, written: BytesIO
    ) -> None:
        self._service, self._only_local = service, only_local
        self.rfile, self.wfile = BytesIO(request), written
        self.client_address = ("", 0)
        for method in service.methods:
            setattr(self, f"do_{method}", self._send)
        self.handle_one_request()

    def _send(self) -> None:
        if not self._is_meant():
            answer = json_answer(HTTPStatus.MISDIRECTED_REQUEST, {"error": "wrong host"})
        elif (problem := self._problem()) is not None:
            answer = json_answer(problem, {"error": problem.phrase})
        else:
            path, _, query = self.path.partition("?")
            kind = self.headers.get("Content-Type", "")
            request = HttpRequest(self.command, path, query, kind, self.rfile.read())
            try:
                answer = self._service.answer(request)
            except Exception:
                limited.exception("%s %s failed", self.command, path)
                answer = json_answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "see the log"})
        status, kind, body = answer
        is_packed = len(body) > PACKED_FROM and "gzip" in self.headers.get("Accept-Encoding", "")
        if is_packed:
            body = gzip.compress(body, compresslevel=1)
        self.send_response(status)
        if is_packed:
            self.send_header("Content-Encoding", "gzip")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _problem(self) -> HTTPStatus | None:
        """Say why the body is not read; that of GET and HEAD is of no interest."""
        if self.command in ("GET", "HEAD"):
            return None
        sizes = self.headers.get_all("Content-Length", ["0"])
        if "Transfer-Encoding" in self.headers or len(set(sizes)) > 1:
            return HTTPStatus.LENGTH_REQUIRED
        if not (sizes[0].isascii() and sizes[0].isdigit()):
            return HTTPStatus.BAD_REQUEST
        is_large = int(sizes[0][:10]) > self._service.body_max
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_large else None

    def _is_meant(self) -> bool:
        """Another site's page may make a browser ask us under that site's name (DNS
        rebinding); on loopback only our own names count."""
        host = self.headers.get("Host", "")
        if not self._only_local:
            return True
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return is_loopback(name.strip("[]"))

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s", printable(format % args))


def _handler(service: HttpService, only_local: bool) -> Callable[[bytes], bytes]:
    """From a request to the bytes of its answer."""

    def handle(request: bytes) -> bytes:
        written = BytesIO()
        _Handler(service, only_local, request, written)
        return written.getvalue()

    return handle
