"""The coordinator of an internal topic on one broker: it has the shards of the partitions that the
broker leads.

The first search for a coordinator creates the topic. The coordinator of a key, such as the name of
a group, is the leader of the key's partition (W-100).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.limited_log import LimitedLogger
from replication.common.messages import CreateTopicRequest, Response, TopicResponse
from replication.common.state import NO_LEADER
from replication.coordinators.effects import ClientRequest, ShardFactory
from replication.coordinators.runtime import CarryOut, CoordinatorRuntime, OnAnswer

logger = get_logger(__name__)


class InternalTopic:
    """Safe from any thread.

    Args:
        partitions, replication_factor: of a new topic. While fewer brokers are there the controller
            refuses it, and there is no coordinator: the first client must not decide how safe the
            topic is for ever (KIP-115).
        config: of a new topic.
        is_ready: whether this broker serves a partition that it leads.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        is_ready: Callable[[int], bool] = lambda partition: True,
    ) -> None:
        self.name = name
        self._broker = broker
        self._log = LimitedLogger(logger, broker.runtime.clock)
        self._creation = CreateTopicRequest(name, partitions, replication_factor, config=config)
        self._is_ready = is_ready
        self._is_creating = False
        self._lock = threading.Lock()  # guards the flag

    def partition_of(self, key: str) -> int | None:
        """The partition of a key; None while the topic is not known here."""
        tp = self._broker.metadata.coordinator_partition(self.name, key)
        return None if tp is None else tp.partition

    def find(self, key: str) -> int:
        """The broker that coordinates a key. ``NO_LEADER`` while there is none; the client comes
        back, and meanwhile the topic is created if it is missing."""
        partition = self.partition_of(key)
        if partition is None:
            self.create()
            return NO_LEADER
        metadata = self._broker.metadata
        known = metadata.registration(TopicPartition(self.name, partition))
        if known is None or not metadata.is_alive(known.leader):
            return NO_LEADER
        is_here = known.leader == self._broker.broker_id
        return NO_LEADER if is_here and not self._is_ready(partition) else known.leader

    def create(self) -> None:
        """Have the controller create the topic, unless it is on its way."""
        with self._lock:
            if self._is_creating:
                return
            self._is_creating = True
        self._broker.ask_controller(self._creation, self._created)

    def _created(self, response: Response | None) -> None:
        with self._lock:
            self._is_creating = False
        said = "no controller answers"
        if isinstance(response, TopicResponse):
            if response.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            said = f"{response.error_code.name} {response.error_message or ''}".strip()
        self._log.warning("topic %s is not created: %s", self.name, said)


class TopicCoordinator:
    """Safe from any thread.

    Args:
        name, partitions, replication_factor, config: of the topic, as ``InternalTopic``.
        others: as ``CoordinatorRuntime``.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        partitions: int,
        replication_factor: int,
        config: dict[str, str],
        make_shard: ShardFactory,
        carry_out: CarryOut | None = None,
        **others: int,
    ) -> None:
        self._broker = broker
        self.runtime = CoordinatorRuntime(
            name, broker.runtime, broker.replica_manager, make_shard, carry_out, **others
        )
        self.topic = InternalTopic(
            broker,
            name,
            partitions,
            replication_factor,
            {"cleanup.policy": "compact", **config},
            lambda partition: partition in self.runtime.active,
        )

    def startup(self) -> None:
        """Coordinate what the broker leads, now and from now on."""
        self.runtime.startup()

    def close(self) -> None:
        """Answer all requests that wait with NOT_COORDINATOR."""
        self.runtime.close()

    @property
    def states(self) -> Counter[Any]:
        """All that is coordinated here, by state; from any thread."""
        found: Counter[Any] = Counter()
        for shard in self.runtime.active_shards:
            found.update(shard.states)
        return found

    def request(self, key: str, request: ClientRequest, answer: OnAnswer) -> None:
        """Put a request to the shard of a key, which says more of it. ``answer`` as in
        ``CoordinatorRuntime.request``."""
        partition = self.topic.partition_of(key)
        if partition is None:
            answer(ErrorCode.NOT_COORDINATOR)
        else:
            self.runtime.request(partition, request, answer)

    def list_all(
        self, request: ClientRequest, answer: Callable[[ErrorCode, list[Any]], None]
    ) -> None:
        """List what all shards of this broker have. While a partition is not loaded the list would
        not be whole, so the answer is an error."""

        def listed(answers: list[object]) -> None:
            found: list[Any] = []
            for each in answers:
                if isinstance(each, list):
                    found += each
                elif isinstance(each, ErrorCode) and each is not ErrorCode.NOT_COORDINATOR:
                    answer(each, [])
                    return
            answer(ErrorCode.NONE, found)

        self.runtime.request_all(request, listed)
