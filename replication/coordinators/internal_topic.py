"""An internal topic. The first search for a coordinator creates it. The coordinator of a key is the
leader of the key's partition (W-100)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.limited_log import LimitedLogger
from replication.common.messages import CreateTopicRequest, Response, TopicResponse
from replication.common.state import NO_LEADER

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
