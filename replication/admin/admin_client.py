"""Asks the right brokers of a cluster: its controller, coordinators of groups, leaders.

What is asked of several topics, groups or partitions goes to each broker in one request. Each of
them has its own answer (``Answered``), so what fails for one says nothing of the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, Self, TypeVar

from checkpoints.types import TopicPartition
from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import LogstoreError
from replication.common.error_codes import ErrorCode, error_name
from replication.common.state import NO_LEADER
from replication.protocol import ApiKey, UnencodableMessageError, VersionRange
from replication.protocol import messages as wire
from replication.security.config import ClientConfig
from replication.wire.access import ClusterAccess
from replication.wire.calls import Translation
from replication.wire.lane import WHICH_VERSIONS, LaneError, OpenCall, common_version, versions_in
from replication.wire.transport import TcpTransport

LATEST, EARLIEST = -1, -2  # in place of a timestamp
_SEVERAL_COORDINATORS = 4  # from this version on one request may ask for several
_OF_GROUPS = 0
_BACKOFF_S = 0.1
_PATIENCE_S = 60.0  # after the time-out of a request, which would be a bug
# Nothing was done, and the same question may get another answer soon.
AGAIN = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
)

K = TypeVar("K")


class Answered(NamedTuple):
    """The answer of a broker about one topic, group or partition; ``code`` 0 is success."""

    code: int
    message: str | None = None
    value: Any = None

    def __str__(self) -> str:
        name = error_name(self.code)
        message = (self.message or "").removeprefix(f"{name}: ")
        return f"{name}: {message}" if message else name


class WireError(LogstoreError):
    """A broker cannot be asked: it does not answer, or not as the protocol says.

    ``code`` is BROKER_NOT_AVAILABLE if it was not asked; else nobody knows what it has done.
    """

    def __init__(self, reason: str, code: ErrorCode = ErrorCode.NETWORK_EXCEPTION) -> None:
        super().__init__(reason)
        self.code = code


class WireConnection:
    """One broker as an ``AdminClient`` asks it: a request goes out, its answer comes back."""

    def __init__(self, transport: TcpTransport, broker_id: int, timeout_ms: int) -> None:
        self.broker_id = broker_id
        self._transport, self._timeout_ms = transport, timeout_ms
        self._versions: Mapping[int, VersionRange] | None = None

    @property
    def versions(self) -> Mapping[int, VersionRange]:
        """Those of the broker, by API.

        Raises:
            WireError
        """
        if self._versions is None:
            answer = self._exchange(ApiKey.API_VERSIONS, WHICH_VERSIONS, None, 0)
            self._versions = versions_in(answer)
        return self._versions

    def version(self, api_key: ApiKey, at_most: int | None = None) -> int:
        """The latest version that both sides have, up to ``at_most``.

        Raises:
            WireError: UNSUPPORTED_VERSION: the broker is too old, or too new, for what is asked.
        """
        try:
            return common_version(self.versions, api_key, at_most)
        except LaneError as error:
            raise WireError(str(error), ErrorCode.UNSUPPORTED_VERSION) from None

    def call(self, api_key: ApiKey, request: Any) -> Any:
        """The answer to ``request``, both in the latest version that both sides have.

        Raises:
            WireError: there is none.
            UnencodableMessageError: the broker is too old for a field of the request.
        """
        return self.send(api_key, request, self.version(api_key))

    def send(self, api_key: ApiKey, request: Any, version: int, wait_s: float = 0.0) -> Any:
        """As ``call``, in a version of the caller's choice.

        Args:
            wait_s: how long the broker itself may wait before it answers.
        """
        return self._exchange(api_key, request, version, int(wait_s * 1000))

    def _exchange(self, api_key: ApiKey, request: Any, version: int | None, wait_ms: int) -> Any:
        as_it_is = Translation(
            api_key, lambda given, _: given, lambda _, answer, __: answer, lambda _: version
        )
        answer: Future[Any] = Future()
        call = OpenCall(request, as_it_is, answer.set_result, reports_failure=True)
        timeout_ms = self._timeout_ms + wait_ms
        self._transport.call(self.broker_id, call, timeout_ms)
        found = answer.result(timeout_ms / 1000 + _PATIENCE_S)
        if found is not None:
            return found
        if isinstance(call.failure, UnencodableMessageError):
            raise call.failure
        was_sent = call.correlation_id >= 0
        code = ErrorCode.NETWORK_EXCEPTION if was_sent else ErrorCode.BROKER_NOT_AVAILABLE
        raise WireError(str(call.failure), code)


Ask = Callable[[WireConnection, list[K]], Mapping[K, Answered]]
"""Asks one broker about several things."""


class AdminClient:
    """Use as a context manager. Opens a connection to each broker when it is first asked. For one
    thread at a time.

    Attributes:
        brokers: host and port by id, as the latest metadata name them.
        timeout_ms: for what a broker waits for before it answers, such as a topic's creation.

    Raises:
        ConfigError: TLS cannot be set up, or ``bootstrap.servers`` is malformed.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        connect: Callable[[ClusterAccess], TcpTransport] = TcpTransport,
        clock: Clock | None = None,
    ) -> None:
        self.brokers: dict[int, tuple[str, int]] = {}
        self.timeout_ms = config.request_timeout_ms
        self._access, self._connect = ClusterAccess.of(config), connect
        self._patience_ns = config.default_api_timeout_ms * 1_000_000
        self._clock = clock or SystemClock()
        self._transport: TcpTransport | None = None
        self._connections: dict[int, WireConnection] = {}
        self._answered_last: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; what is asked next opens new ones."""
        if self._transport is not None:
            self._transport.close()
        self._transport = None
        self._connections.clear()

    def metadata(self, topics: Sequence[str] | None = None) -> wire.MetadataResponse:
        """
        Args:
            topics: whose partitions; None for all.
        Raises:
            WireError: no broker answers.
        """
        kind = wire.MetadataRequest.MetadataRequestTopic
        named = None if topics is None else tuple(kind(name=name) for name in topics)
        request = wire.MetadataRequest(topics=named, allow_auto_topic_creation=False)
        found: wire.MetadataResponse = self.ask_anyone(
            lambda connection: connection.call(ApiKey.METADATA, request)
        )
        self.brokers = {each.node_id: (each.host, each.port) for each in found.brokers}
        self._opened().set_addresses(self.brokers)
        return found

    def ask_anyone(self, ask: Callable[[WireConnection], Any]) -> Any:
        """The answer of the first broker that gives one; the one that gave the last comes first.

        Raises:
            WireError: none does.
        """
        for broker_id in self._answered_last:
            with suppress(WireError):  # it may have closed the connection since
                return ask(self._connection(broker_id))
        failures: dict[str, None] = {}
        servers = self._access.servers
        known = [key for key, address in self.brokers.items() if address not in servers]
        for broker_id in (*self._opened().bootstrap, *known):
            try:
                found = ask(self._connection(broker_id))
            except WireError as error:
                failures[str(error)] = None
            else:
                self._answered_last = [broker_id]
                return found
        raise WireError("; ".join(failures))

    def _opened(self) -> TcpTransport:
        if self._transport is None:
            self._transport = self._connect(self._access)
            self._transport.set_addresses(self.brokers)
        return self._transport

    def _connection(self, broker_id: int) -> WireConnection:
        transport = self._opened()
        if broker_id not in self._connections:
            connection = WireConnection(transport, broker_id, self.timeout_ms)
            self._connections[broker_id] = connection
        return self._connections[broker_id]

    def ask_brokers(self, asked: Mapping[int, list[K]], ask: Ask[K]) -> dict[K, Answered]:
        """Ask each broker once about what stands behind its id. One that cannot be reached gives
        BROKER_NOT_AVAILABLE; after that nobody knows what it has done: NETWORK_EXCEPTION.
        """
        found: dict[K, Answered] = {}
        for broker_id, keys in asked.items():
            answers, failed = self._ask_one(broker_id, keys, ask)
            found |= {key: answers.get(key, failed) for key in keys}
        return found

    def _ask_one(
        self, broker_id: int, keys: list[K], ask: Ask[K]
    ) -> tuple[Mapping[K, Answered], Answered]:
        """Its answers, and what counts for those without one."""
        try:
            answers = ask(self._connection(broker_id), keys)
        except WireError as error:
            return {}, Answered(error.code, str(error))
        return answers, Answered(ErrorCode.UNKNOWN_SERVER_ERROR, "it is not in the answer")

    def ask_controller(self, keys: Iterable[K], ask: Ask[K]) -> dict[K, Answered]:
        """Ask the controller, and the next one if it changes."""
        return self.ask_until_settled(
            keys, lambda pending: self.ask_brokers({self.metadata(()).controller_id: pending}, ask)
        )

    def ask_coordinators(
        self, groups: Iterable[str], ask: Ask[str], *, patient: bool = True
    ) -> dict[str, Answered]:
        """Ask the coordinator of each group, when it is there and has loaded it.

        Args:
            patient: await that; else one try is made.
        """

        def once(pending: list[str]) -> dict[str, Answered]:
            self.metadata(())
            found: dict[str, Answered] = self.ask_anyone(lambda each: _coordinators(each, pending))
            asked: dict[int, list[str]] = {}
            for group, answer in found.items():
                if answer.code == ErrorCode.NONE:
                    asked.setdefault(answer.value, []).append(group)
            return found | self.ask_brokers(asked, ask)

        return self.ask_until_settled(groups, once, AGAIN if patient else ())

    def list_offsets(
        self, tps: Iterable[TopicPartition], timestamp: int, *, patient: bool = False
    ) -> dict[TopicPartition, Answered]:
        """The first offset at or after a timestamp in ms, −1 if there is none; or ``EARLIEST``,
        or ``LATEST``, which is the high watermark.

        Args:
            patient: await a leader, and ask the next one if it moves.
        """

        def once(pending: list[TopicPartition]) -> dict[TopicPartition, Answered]:
            found = dict.fromkeys(pending, Answered(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            asked: dict[int, list[TopicPartition]] = {}
            for topic in self.metadata([*by_topic(pending)]).topics:
                for part in topic.partitions:
                    tp = TopicPartition(topic.name or "", part.partition_index)
                    if tp in found and part.leader_id == NO_LEADER:
                        found[tp] = Answered(ErrorCode.LEADER_NOT_AVAILABLE)
                    elif tp in found:
                        asked.setdefault(part.leader_id, []).append(tp)
            return found | self.ask_brokers(asked, lambda each, own: _offsets(each, own, timestamp))

        return self.ask_until_settled(tps, once, AGAIN if patient else ())

    def ask_until_settled(
        self,
        keys: Iterable[K],
        ask: Callable[[list[K]], Mapping[K, Answered]],
        again: Container[int] = AGAIN,
    ) -> dict[K, Answered]:
        """Ask until no answer is in ``again``, at most ``default.api.timeout.ms``."""
        deadline = self._clock.monotonic_ns() + self._patience_ns
        found: dict[K, Answered] = {}
        pending = list(dict.fromkeys(keys))
        while pending:
            found |= ask(pending)
            pending = [key for key in pending if found[key].code in again]
            if self._clock.monotonic_ns() >= deadline:
                break
            if pending:
                threading.Event().wait(_BACKOFF_S)
        return found


def _coordinators(connection: WireConnection, groups: list[str]) -> dict[str, Answered]:
    """The broker's id by group."""
    key = ApiKey.FIND_COORDINATOR
    if connection.version(key) >= _SEVERAL_COORDINATORS:
        request = wire.FindCoordinatorRequest(key_type=_OF_GROUPS, coordinator_keys=tuple(groups))
        answers = [(each.key, each) for each in connection.call(key, request).coordinators]
    else:
        answers = [
            (group, connection.call(key, wire.FindCoordinatorRequest(key=group)))
            for group in groups
        ]
    return {
        group: Answered(each.error_code, each.error_message, each.node_id)
        for group, each in answers
    }


def _offsets(
    connection: WireConnection, tps: list[TopicPartition], timestamp: int
) -> dict[TopicPartition, Answered]:
    kind = wire.ListOffsetsRequest
    topics = tuple(
        kind.ListOffsetsTopic(
            topic,
            tuple(
                kind.ListOffsetsPartition(partition_index=number, timestamp=timestamp)
                for number in numbers
            ),
        )
        for topic, numbers in by_topic(tps).items()
    )
    request = kind(replica_id=-1, topics=topics)
    return {
        TopicPartition(topic.name, part.partition_index): Answered(
            part.error_code, value=part.offset
        )
        for topic in connection.call(ApiKey.LIST_OFFSETS, request).topics
        for part in topic.partitions
    }


def by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in tps:
        topics.setdefault(topic, []).append(number)
    return topics
