"""From a received request to its handler, and from its message to the bytes of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from checkpoints.loggers import get_logger
from replication.apis.api_versions import ApiVersionsApi
from replication.apis.common.broker_requests import OF_BROKERS, WHOEVER_COMES, BrokerPeers
from replication.apis.common.handlers import Handler, Handlers
from replication.apis.common.refusals import refusal
from replication.common.error_codes import ErrorCode, error_code_of
from replication.common.limited_log import LimitedLogger
from replication.network import (
    CLOSE,
    NO_RESPONSE,
    ClientQuota,
    ClientQuotas,
    ConnectionInfo,
    Direction,
    ReceivedRequest,
    Respond,
    Send,
)
from replication.network.requests import Quiet
from replication.protocol import (
    FOR_BROKERS,
    SERVED_TO_BROKERS,
    ApiKey,
    MalformedMessageError,
    VersionRange,
    error_codes,
    request_decoder,
    response_encoder,
    response_header,
)
from replication.protocol import messages as wire
from replication.protocol.buffers import size_of

logger = get_logger(__name__)
limited = LimitedLogger(logger)

_DIRECTIONS = {ApiKey.PRODUCE: Direction.PRODUCE, ApiKey.FETCH: Direction.FETCH}


INLINE_BYTES = 32 << 10
"""The size of a request that is answered on the network thread: a batch as producers make them by
default fits, with what is around it. Checking the records of a larger one takes its time."""

INLINE = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.FETCH,
        ApiKey.HEARTBEAT,
        ApiKey.METADATA,
        ApiKey.PRODUCE,
    }
)
"""A change of threads would cost these more than their work does."""


def _is_about_the_broker(received: ReceivedRequest, request: Any) -> bool:
    """Whether a broker can answer that does not know the cluster yet: which versions it serves, and
    whose it is, which is what a broker asks first."""
    if received.api_key == ApiKey.METADATA and received.connection.listener.is_inter_broker:
        return bool(received.api_version > 0 and request.topics == ())  # in version 0: all
    return received.api_key == ApiKey.API_VERSIONS


def is_quick(received: ReceivedRequest) -> bool:
    """Whether a request is usually answered, or left to wait, within a fraction of a ms.

    An append may sync its log, and a read may meet a cold disk. The network notices that an API is
    slow, and hands it to other threads for a while.
    """
    return received.api_key in INLINE and received.body.nbytes <= INLINE_BYTES


class _Route:
    """The shared part of all requests of one API in one version."""

    __slots__ = ("api_key", "broker_of", "decode", "encode", "handler", "quota", "version")

    def __init__(
        self, api_key: ApiKey, version: int, handler: Handler, quota: ClientQuota | None
    ) -> None:
        self.api_key, self.version = api_key, version
        self.handler, self.quota = handler, quota
        self.broker_of = OF_BROKERS.get(api_key)
        self.decode = request_decoder(api_key, version)
        self.encode = response_encoder(api_key, version)


class KafkaApis:
    """The handler of a ``NetworkServer``. Safe from any thread.

    Args:
        areas: tables of handlers. No key may be in two of them; a key in none is neither
            advertised nor served.
        quotas: of clients; none by default.
        peers: who is taken for a broker.
        is_ready: whether clients are served. A broker that has just started knows no topic before a
            controller's request, and would call each one unknown. It closes the connection instead,
            and every client asks again. Brokers are served before: one of them is the controller.
    """

    def __init__(
        self,
        *areas: Handlers,
        quotas: ClientQuotas | None = None,
        peers: BrokerPeers = WHOEVER_COMES,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        table = _put_together(areas)
        self._peers, self._is_ready = peers, is_ready
        self._quotas = {
            key: quota
            for key, direction in _DIRECTIONS.items()
            if quotas is not None and (quota := quotas.of(direction)) is not None
        }
        self._served = {key: SERVED_TO_BROKERS[key] for key in table if key in SERVED_TO_BROKERS}
        table[ApiKey.API_VERSIONS] = ApiVersionsApi([*table, ApiKey.API_VERSIONS]).api_versions
        self._served[ApiKey.API_VERSIONS] = SERVED_TO_BROKERS[ApiKey.API_VERSIONS]
        self._table = table
        self._routes: dict[tuple[int, int], _Route] = {}  # made when they are first met

    @property
    def served(self) -> dict[ApiKey, VersionRange]:
        """The APIs that are answered to brokers, and in which versions."""
        return dict(self._served)

    def handle(self, received: ReceivedRequest, respond: Respond) -> None:
        """Have a request answered: ``respond`` is called once, now or later, from any thread.

        The connection is closed for what cannot be answered in its own schema: an unknown key, a
        version that is not served, a body that cannot be parsed (W-7). What only a broker may ask
        is refused to others (W-212); APIs for brokers alone are not known on other listeners.
        """
        key, version = received.api_key, received.api_version
        if key in FOR_BROKERS and not received.connection.listener.is_inter_broker:
            logger.info("%s asks for API %s, which is for brokers", received.client_id, key)
            respond(CLOSE)
            return
        route = self._routes.get((key, version))
        if route is None:
            route = self._new_route(received, respond)
            if route is None:
                return
        try:
            request = route.decode(received.body, 0)
        except MalformedMessageError as error:
            logger.info("%s: %s", received.client_id, error)
            respond(CLOSE)
            return
        reply = _OneReply(route, received.correlation_id, respond)
        broker_id = None if route.broker_of is None else route.broker_of(version, request)
        if broker_id is None:
            if not self._is_ready() and not _is_about_the_broker(received, request):
                reply(CLOSE)
                return
        elif not self._peers.admits(received.connection, broker_id):
            if received.connection.listener.is_inter_broker:  # they have shown who they are
                _warn_of(received.connection, broker_id)
            if self._is_ready():
                reply.refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            else:
                reply(CLOSE)
            return
        if route.quota is not None and broker_id is None:  # a follower has throttles
            reply.charge = _charge(route.quota, received)
        try:
            route.handler(received, request, reply)
        except Exception as error:
            what = "%s %s of %s failed: %s", route.api_key.name, version, received.client_id, error
            if error_code_of(error) is ErrorCode.UNKNOWN_SERVER_ERROR:
                limited.exception(*what, about=route.api_key)
            else:  # not logged as a fault, because a client can ask for it at will
                logger.info(*what)
            reply.refuse(request, error_code_of(error))

    def _new_route(self, received: ReceivedRequest, respond: Respond) -> _Route | None:
        """The route of a request that is the first of its kind; None if it is answered already."""
        key, version = received.api_key, received.api_version
        served = self._served.get(key)
        if served is None:
            logger.info("%s asks for API %s, which is not served", received.client_id, key)
            respond(CLOSE)
            return None
        api_key = ApiKey(key)
        if served.first <= version <= served.last:
            route = _Route(api_key, version, self._table[api_key], self._quotas.get(api_key))
            self._routes[key, version] = route
            return route
        if api_key is ApiKey.API_VERSIONS:
            encode = response_encoder(api_key, 0)
            header = response_header(api_key, 0, received.correlation_id)
            respond(Send([header, *encode(ApiVersionsApi.unsupported(served))]))
        else:
            respond(CLOSE)
        return None


def _warn_of(connection: ConnectionInfo, broker_id: int) -> None:
    who, text = connection.principal, "broker %d: %s at %s is not believed to be it"
    limited.warning(text, broker_id, who, connection.peer_host, about=(who, broker_id))


def _charge(quota: ClientQuota, received: ReceivedRequest) -> Callable[[Any], int]:
    """Count produced bytes as they came and fetched ones as they leave. Returns ms to throttle."""
    client_id, size = received.client_id, received.body.nbytes

    def charge(message: Any) -> int:
        sent = _records_in(message) if isinstance(message, wire.FetchResponse) else size
        return quota.record(client_id, sent)

    return charge


def _records_in(message: wire.FetchResponse) -> int:
    """The bytes of records in an answer."""
    return sum(
        size_of(partition.records)
        for topic in message.responses
        for partition in topic.partitions
        if partition.records is not None
    )


def _put_together(areas: Iterable[Handlers]) -> dict[ApiKey, Handler]:
    table: dict[ApiKey, Handler] = {}
    for area in areas:
        twice = table.keys() & area.keys()
        if twice:
            raise ValueError(f"two handlers for {sorted(twice)}")
        table.update(area)
    return table


class _OneReply:
    """Encodes the answer of one request. Only the first call counts: a handler that fails after it
    has answered is only logged."""

    __slots__ = ("_correlation_id", "_is_open", "_respond", "_route", "charge")

    def __init__(self, route: _Route, correlation_id: int, respond: Respond) -> None:
        self._route = route
        self._correlation_id = correlation_id  # and nothing of the body: its bytes may go
        self._respond = respond
        self._is_open = [None]
        self.charge: Callable[[Any], int] | None = None  # to a quota: for how many ms it throttles

    def __call__(self, message: Any) -> None:
        """``message``: of the protocol, or ``NO_RESPONSE`` or ``CLOSE``."""
        if self._claim():
            self._send(message)
        else:
            limited.error("a second answer to API %s was dropped", self._route.api_key)

    def refuse(self, request: Any, code: ErrorCode) -> None:
        """Answer with the code where the schema has a place for it, else close (W-235)."""
        if self._claim():
            route = self._route
            self._send(refusal(route.api_key, route.version, request, code))

    def _claim(self) -> bool:
        """True for the first caller only, of any thread."""
        try:
            self._is_open.pop()
        except IndexError:
            return False
        return True

    def _send(self, message: Any) -> None:
        respond, route = self._respond, self._route
        throttle_ms = 0 if self.charge is None else self.charge(message)
        if isinstance(message, Quiet):
            respond(Send([], throttle_ms) if throttle_ms and message is NO_RESPONSE else message)
            return
        if throttle_ms:
            message = message._replace(throttle_time_ms=throttle_ms)
        try:
            body = route.encode(message)
        except Exception:
            limited.exception("an answer to API %s has no encoding", route.api_key)
            respond(CLOSE)
            return
        header = response_header(route.api_key, route.version, self._correlation_id)
        throttle_ms = getattr(message, "throttle_time_ms", 0)
        respond(Send([header, *body], throttle_ms, errors=error_codes(message)))
