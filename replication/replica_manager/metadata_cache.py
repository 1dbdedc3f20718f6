"""A broker's metadata of the cluster: live brokers and leaders (Kafka's ``MetadataCache``).

It comes from the controller, and nothing is decided here. Requests may repeat and overtake each
other, so an older broker epoch, or an older registration of the same topic id, is ignored. The
controller of a real Kafka in ZooKeeper mode tells no broker epochs: then that of another broker is
not known, and not compared (X-10).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import masked_partition_for, partition_for
from replication.common.messages import (
    LEADER_DURING_DELETE,
    LeaderAndIsrRequest,
    MetadataRequest,
    MetadataResponse,
    PartitionChange,
    TopicPartitionMetadata,
    UpdateMetadataRequest,
)
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH, LiveBroker, PartitionRegistration

TopicRegistrations = dict[int, PartitionRegistration]


class MetadataCache:
    """The cache. Thread-safe. Single look-ups take no lock, updates take one.

    Attributes:
        is_complete: whether a controller has sent everything once. Clients are answered only then.
        awaits_partitions: whether a real Kafka's controller has partitions to tell of, so that what
            it says without any is not everything (``ConfigsFromTree``).
        masked_topics: the ids of internal topics in which earlier versions placed the keys (W-100).
    """

    def __init__(self, broker_id: int) -> None:
        self.is_complete = False
        self.awaits_partitions = False
        self.masked_topics: frozenset[uuid.UUID] = frozenset()
        self._broker_id = broker_id
        self._brokers: Mapping[int, LiveBroker] = {}  # replaced as a whole
        self._shutting_down: frozenset[int] = frozenset()
        self._topics: dict[str, TopicRegistrations] = {}
        self._topic_ids: dict[str, uuid.UUID | None] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._configs: dict[str, Mapping[str, str]] = {}
        self._counts: dict[str, int] = {}  # of partitions, as the controller says
        self._watchers: tuple[Callable[[], None], ...] = ()  # replaced as a whole, as the next
        self._deletion_watchers: tuple[Callable[[frozenset[str]], None], ...] = ()
        self._gone: set[str] = set()  # topics that the present update removes
        self._behind: tuple[TopicPartition, ...] | None = None  # None: not looked for yet
        self._lock = threading.Lock()

    # -- updates -------------------------------------------------------------------------------

    def update(self, request: UpdateMetadataRequest | LeaderAndIsrRequest) -> list[TopicPartition]:
        """Apply the controller's metadata. Returns the deleted partitions.

        A LeaderAndIsr request has the leaders among the live brokers: none of the others is gone.
        The first UpdateMetadata has everything (X-92), unless partitions are awaited.
        """
        deleted = []
        with self._lock:
            brokers = self._newer_brokers(request)
            if isinstance(request, LeaderAndIsrRequest):
                self._brokers = {**self._brokers, **brokers}
            else:
                self._brokers = brokers
                self._shutting_down = frozenset(request.shutting_down)
                for change in request.partitions:
                    if change.registration.leader == LEADER_DURING_DELETE:
                        if self._remove(change.tp, change.topic_id):
                            deleted.append(change.tp)
                    else:
                        self._put(change)
                if request.is_full:
                    deleted += self._remove_all_but(request.partitions)
                is_all = request.partitions or request.is_full or request.sequence
                if is_all or not self.awaits_partitions:
                    self.is_complete = True
            gone, self._gone = frozenset(self._gone), set()
            self._behind = None
        for watcher in self._watchers:
            watcher()
        for deletion_watcher in self._deletion_watchers if gone else ():
            deletion_watcher(gone)
        return deleted

    def configure(self, topic: str, config: Mapping[str, str]) -> None:
        """Take over a topic's own configuration that did not come from a controller (X-13)."""
        with self._lock:
            if topic in self._topics:
                self._configs[topic] = config

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` after every later update, on its thread. It must be short."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)

    def watch_deletions(self, watcher: Callable[[frozenset[str]], None]) -> None:
        """Call ``watcher`` with the topics that an update deletes, also if another topic has the
        name now. On the update's thread; it must be short."""
        with self._lock:
            self._deletion_watchers = (*self._deletion_watchers, watcher)

    def _remove_all_but(self, states: Iterable[PartitionChange]) -> list[TopicPartition]:
        """Remove partitions that were deleted without this broker's knowledge."""
        named = {(change.tp, change.topic_id) for change in states}
        gone = [
            (tp, topic_id)
            for topic, topic_id in self._topic_ids.items()
            for tp in (TopicPartition(topic, number) for number in self._topics[topic])
            if (tp, topic_id) not in named
        ]
        for tp, topic_id in gone:
            self._remove(tp, topic_id)
        return [tp for tp, _ in gone]

    def _newer_brokers(
        self, request: UpdateMetadataRequest | LeaderAndIsrRequest
    ) -> dict[int, LiveBroker]:
        brokers = {}
        for broker in request.live_brokers:
            broker_id = broker.registration.broker_id
            if broker_id == self._broker_id and broker.broker_epoch == UNKNOWN_EPOCH:
                broker = broker._replace(broker_epoch=request.broker_epoch)  # that of the receiver
            known = self._brokers.get(broker_id)
            older = known is not None and UNKNOWN_EPOCH != broker.broker_epoch < known.broker_epoch
            brokers[broker_id] = known if known is not None and older else broker
        return brokers

    def _put(self, change: PartitionChange) -> None:
        topic, partition = change.tp
        if self._topic_ids.get(topic) != change.topic_id:
            if self._topics.pop(topic, None):  # deleted, and created again
                self._gone.add(topic)
            self._configs.pop(topic, None)
            self._counts.pop(topic, None)
        registrations = self._topics.setdefault(topic, {})
        self._name(topic, change.topic_id)
        known = registrations.get(partition)
        if known is None or _version(known) <= _version(change.registration):
            registrations[partition] = change.registration
            self._configs[topic] = change.config or {}
            self._counts[topic] = max(change.partition_count, self._counts.get(topic, 0))

    def _name(self, topic: str, topic_id: uuid.UUID | None) -> None:
        self._forget_name(topic)
        self._topic_ids[topic] = topic_id
        if topic_id is not None:
            self._names[topic_id] = topic

    def _forget_name(self, topic: str) -> None:
        topic_id = self._topic_ids.pop(topic, None)
        if topic_id is not None:
            self._names.pop(topic_id, None)

    def _remove(self, tp: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        topic, partition = tp
        registrations = self._topics.get(topic)
        if registrations is None or self._topic_ids.get(topic) != topic_id:
            return False
        removed = registrations.pop(partition, None) is not None
        if not registrations:
            del self._topics[topic]
            self._configs.pop(topic, None)
            self._counts.pop(topic, None)
            self._forget_name(topic)
            self._gone.add(topic)
        return removed

    # -- brokers -------------------------------------------------------------------------------

    @property
    def live_brokers(self) -> Mapping[int, LiveBroker]:
        """The live brokers by id."""
        return MappingProxyType(self._brokers)

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self._brokers

    def broker_epoch(self, broker_id: int) -> int:
        """The epoch of a broker; −1 if it is not known, or the broker is not known to be alive."""
        broker = self._brokers.get(broker_id)
        return UNKNOWN_EPOCH if broker is None else broker.broker_epoch

    def rack(self, broker_id: int) -> str | None:
        broker = self._brokers.get(broker_id)
        return None if broker is None else broker.registration.rack

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker may be in an ISR (R-31): live, not shutting down, and of this epoch, if
        both are known."""
        broker = self._brokers.get(broker_id)
        return (
            broker is not None
            and broker_id not in self._shutting_down
            and (
                broker_epoch in (UNKNOWN_EPOCH, broker.broker_epoch)
                or broker.broker_epoch == UNKNOWN_EPOCH
            )
        )

    def eligible_brokers(self) -> frozenset[tuple[int, int]]:
        """The brokers that may be in an ISR, with their epochs."""
        shutting_down = self._shutting_down
        return frozenset(
            (broker_id, broker.broker_epoch)
            for broker_id, broker in self._brokers.items()
            if broker_id not in shutting_down
        )

    # -- partitions ----------------------------------------------------------------------------

    def registration(self, tp: TopicPartition) -> PartitionRegistration | None:
        topic = self._topics.get(tp.topic)
        return None if topic is None else topic.get(tp.partition)

    def replicas_out_of_sync(self) -> tuple[TopicPartition, ...]:
        """The partitions with a leader of which this broker has a replica outside the ISR. Asked
        time and again, it looks only after an update."""
        behind = self._behind
        if behind is None:
            with self._lock:
                behind = self._behind = tuple(self._own_out_of_sync())
        return behind

    def _own_out_of_sync(self) -> Iterator[TopicPartition]:
        own = self._broker_id
        for topic, registrations in self._topics.items():
            for number, known in registrations.items():
                if own in known.replicas and own not in known.isr and known.leader != NO_LEADER:
                    yield TopicPartition(topic, number)

    def topic_id(self, topic: str) -> uuid.UUID | None:
        return self._topic_ids.get(topic)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The name of a topic id; None if it is unknown."""
        return self._names.get(topic_id)

    def topic_config(self, topic: str) -> Mapping[str, str] | None:
        """The topic's own configuration; None if the topic is unknown."""
        return self._configs.get(topic)

    @property
    def topics(self) -> list[str]:
        """The names of all topics, in order."""
        with self._lock:
            return sorted(self._topics)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        with self._lock:
            return [TopicPartition(topic, number) for number in sorted(self._topics.get(topic, ()))]

    def partition_count(self, topic: str) -> int:
        """Count the partitions of a topic; 0 if it is not known.

        Those without a state so far count, too: keys are spread over all partitions.
        """
        return max(self._counts.get(topic, 0), len(self._topics.get(topic, ())))

    def coordinator_partition(self, topic: str, key: str) -> TopicPartition | None:
        """The partition of an internal topic to which a group or a transactional id belongs
        (W-100). None while the topic is not known."""
        count = self.partition_count(topic)
        if not count:
            return None
        is_masked = self.topic_id(topic) in self.masked_topics
        return TopicPartition(
            topic, (masked_partition_for if is_masked else partition_for)(key, count)
        )

    def describe(
        self, request: MetadataRequest, controller_id: int = NO_LEADER
    ) -> MetadataResponse:
        """An answer for clients, without unknown topics.

        Without brokers it means that this broker does not know the cluster yet.
        """
        with self._lock:
            if not self.is_complete:
                return MetadataResponse((), controller_id, ())
            asked = sorted(self._topics) if request.topics is None else request.topics
            found = {topic: self._topics[topic] for topic in asked if topic in self._topics}
            return MetadataResponse(
                tuple(self._brokers[broker_id] for broker_id in sorted(self._brokers)),
                controller_id,
                tuple(
                    self._describe(TopicPartition(topic, number), registrations[number])
                    for topic, registrations in found.items()
                    for number in sorted(registrations)
                ),
                {topic: self._topic_ids[topic] for topic in found},
            )

    def _describe(self, tp: TopicPartition, known: PartitionRegistration) -> TopicPartitionMetadata:
        has_leader = known.leader in self._brokers
        return TopicPartitionMetadata(
            tp,
            ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
            known.leader if has_leader else NO_LEADER,
            known.leader_epoch,
            known.replicas,
            known.isr,
            tuple(replica for replica in known.replicas if replica not in self._brokers),
        )


def _version(registration: PartitionRegistration) -> tuple[int, int]:
    return registration.leader_epoch, registration.partition_epoch
