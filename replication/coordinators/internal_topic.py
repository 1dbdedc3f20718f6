"""An internal topic. The first search for a coordinator creates it. The coordinator of a key is the
leader of the key's partition (W-100)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.limited_log import LimitedLogger
from replication.common.messages import CreateTopicRequest, Response, TopicResponse
from replication.common.runtime import Cancellable
from replication.common.state import NO_LEADER

logger = get_logger(__name__)

FIND_WAIT_MS = 2000

Found = Callable[[ErrorCode, int], None]
"""Takes NONE and the broker's id, or COORDINATOR_NOT_AVAILABLE and −1."""


class _Search:
    """A search for a coordinator that waits."""

    __slots__ = ("found", "partition_of", "timer")

    def __init__(self, partition_of: Callable[[], int | None], found: Found) -> None:
        self.partition_of, self.found = partition_of, found
        self.timer: Cancellable | None = None


class InternalTopic:
    """Safe from any thread. The lock guards the searches; no answer is given under it.

    Args:
        partitions, replication_factor: of a new topic. It has fewer replicas only if some brokers
            stay away for as long as a search waits: while a cluster starts, the first client must
            not decide how safe the topic is for ever.
        config: of a new topic.
        is_ready: whether this broker serves a partition that it leads. A client that comes before
            is sent away, and comes back after a pause; so it is better found a moment later.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        is_ready: Callable[[int], bool] = lambda partition: True,
        *,
        wait_ms: int = FIND_WAIT_MS,
    ) -> None:
        self.name = name
        self._broker = broker
        self._log = LimitedLogger(logger, broker.runtime.clock)
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._config = config
        self._is_ready = is_ready
        self._wait_ms = wait_ms
        self._searches: list[_Search] = []
        self._is_creating = False
        self._lock = threading.Lock()
        broker.metadata.watch(self.look)

    def partition_of(self, key: str) -> int | None:
        """The partition of a key; None while the topic is not known here."""
        tp = self._broker.metadata.coordinator_partition(self.name, key)
        return None if tp is None else tp.partition

    def find(self, key: str, found: Found) -> None:
        """The coordinator of a key; waits a moment where the topic or a leader is still to come.
        ``found`` is called once, from any thread."""
        search = _Search(partial(self.partition_of, key), found)
        leader = self._leader_for(search, patient=True)
        if leader != NO_LEADER:
            found(ErrorCode.NONE, leader)
            return
        with self._lock:
            self._searches.append(search)
            search.timer = self._broker.runtime.call_later(
                self._wait_ms, partial(self._give_up, search)
            )
        self.create()
        self.look()  # an update before the search was listed has not woken it

    def _leader_for(self, search: _Search, *, patient: bool) -> int:
        partition = search.partition_of()
        if partition is None:
            return NO_LEADER
        metadata = self._broker.metadata
        known = metadata.registration(TopicPartition(self.name, partition))
        if known is None or not metadata.is_alive(known.leader):
            return NO_LEADER
        is_here = known.leader == self._broker.broker_id
        return NO_LEADER if patient and is_here and not self._is_ready(partition) else known.leader

    def look(self) -> None:
        """Look again for all searches: the metadata may have changed."""
        if not self._searches:
            return
        if not self._broker.metadata.partition_count(self.name):
            self._broker.runtime.call_later(0, self.create)  # the caller is in an update
        with self._lock:
            ended = []
            for search in list(self._searches):
                leader = self._leader_for(search, patient=True)
                if leader != NO_LEADER:
                    self._searches.remove(search)
                    ended.append((search, leader))
        for search, leader in ended:
            if search.timer is not None:
                search.timer.cancel()
            search.found(ErrorCode.NONE, leader)

    def _give_up(self, search: _Search) -> None:
        with self._lock:
            if search not in self._searches:
                return
            self._searches.remove(search)
        self.create(patient=False)
        leader = self._leader_for(search, patient=False)
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE
        search.found(code, leader)

    def create(self, *, patient: bool = True) -> None:
        """Have the controller create the topic, unless it is there or on its way, or patience may
        bring more brokers."""
        metadata = self._broker.metadata
        if metadata.partition_count(self.name) or not metadata.is_complete:
            return
        live = len(metadata.live_brokers)
        if patient and live < self._replication_factor:
            return
        with self._lock:
            if self._is_creating:
                return
            self._is_creating = True
        factor = max(1, min(self._replication_factor, live))
        request = CreateTopicRequest(self.name, self._partitions, factor, config=self._config)
        self._broker.ask_controller(request, self._created)

    def _created(self, response: Response | None) -> None:
        with self._lock:
            self._is_creating = False
        code = response.error_code if isinstance(response, TopicResponse) else None
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            said = "no controller answers" if code is None else code.name
            self._log.warning("topic %s is not created: %s", self.name, said)
