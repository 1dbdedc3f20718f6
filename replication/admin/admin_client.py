"""Asks the right brokers of a cluster: its controller, coordinators of groups, leaders.

What is asked of several topics, groups or partitions goes to each broker in one request. Each of
them has its own answer (``Answered``), so what fails for one says nothing of the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self, TypeVar

from checkpoints.types import TopicPartition
from logstore.common.clock import Clock, SystemClock
from replication.admin.connection import Connector, UnservedApiError, WireConnection, WireError
from replication.common.error_codes import ErrorCode, error_name
from replication.common.state import NO_LEADER
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.security.config import ClientConfig

LATEST, EARLIEST = -1, -2  # in place of a timestamp
_SEVERAL_COORDINATORS = 4  # from this version on one request may ask for several
_OF_GROUPS = 0
_BACKOFF_S = 0.1
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
    """What a broker answers about one topic, group or partition; ``code`` 0 is success."""

    code: int
    message: str | None = None
    value: Any = None

    def __str__(self) -> str:
        name = error_name(self.code)
        message = (self.message or "").removeprefix(f"{name}: ")
        return f"{name}: {message}" if message else name


Connect = Callable[[str, int], WireConnection]
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
        self, config: ClientConfig, *, connect: Connect | None = None, clock: Clock | None = None
    ) -> None:
        self.brokers: dict[int, tuple[str, int]] = {}
        self.timeout_ms = config.request_timeout_ms
        self._connect = connect or Connector(config)
        self._servers = config.servers
        self._patience_ns = config.default_api_timeout_ms * 1_000_000
        self._clock = clock or SystemClock()
        self._opened: dict[tuple[str, int], WireConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; what is asked next opens new ones."""
        while self._opened:
            self._opened.popitem()[1].close()

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
        found: wire.MetadataResponse = self._anyone(
            lambda connection: connection.call(ApiKey.METADATA, request)
        )
        self.brokers = {each.node_id: (each.host, each.port) for each in found.brokers}
        return found

    def _anyone(self, ask: Callable[[WireConnection], Any]) -> Any:
        """The answer of the first broker that gives one; those that are connected come first."""
        for address in [*self._opened]:
            with suppress(WireError):  # it may have closed the connection since
                return self._ask(address, ask)
        failures = []
        for address in dict.fromkeys((*self._servers, *self.brokers.values())):
            try:
                return self._ask(address, ask)
            except WireError as error:
                failures.append(str(error))
        raise WireError("; ".join(failures))

    def _ask(self, address: tuple[str, int], ask: Callable[[WireConnection], Any]) -> Any:
        if address not in self._opened:
            self._opened[address] = self._connect(*address)
        try:
            return ask(self._opened[address])
        except WireError:
            self._opened.pop(address).close()
            raise

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
        code = ErrorCode.BROKER_NOT_AVAILABLE
        if broker_id not in self.brokers:
            return {}, Answered(code, f"there is no broker {broker_id}")
        address = self.brokers[broker_id]
        try:
            self._ask(address, lambda connection: connection.is_of(broker_id))
            code = ErrorCode.NETWORK_EXCEPTION
            answers = self._ask(address, lambda connection: ask(connection, keys))
        except UnservedApiError as error:
            return {}, Answered(ErrorCode.UNSUPPORTED_VERSION, str(error))
        except WireError as error:
            return {}, Answered(code, str(error))
        return answers, Answered(ErrorCode.UNKNOWN_SERVER_ERROR, "it is not in the answer")

    def ask_controller(self, keys: Iterable[K], ask: Ask[K]) -> dict[K, Answered]:
        """Ask the controller, and the next one if it changes."""
        return self.settle(
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
            found: dict[str, Answered] = self._anyone(lambda each: _coordinators(each, pending))
            asked: dict[int, list[str]] = {}
            for group, told in found.items():
                if told.code == ErrorCode.NONE:
                    asked.setdefault(told.value, []).append(group)
            return found | self.ask_brokers(asked, ask)

        return self.settle(groups, once, AGAIN if patient else ())

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

        return self.settle(tps, once, AGAIN if patient else ())

    def settle(
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
