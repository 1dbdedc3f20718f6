"""What a broker knows of the cluster: who is alive, and who leads what (Kafka's ``MetadataCache``).

The controller tells it; nothing here is decided. Requests repeat and overtake each other, so what
is older than what is known is left out: a broker epoch, or a registration of the same topic id.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    LEADER_DURING_DELETE,
    LeaderAndIsrRequest,
    MetadataRequest,
    MetadataResponse,
    PartitionChange,
    PartitionMetadata,
    UpdateMetadataRequest,
)
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH, LiveBroker, PartitionRegistration

Topic = dict[int, PartitionRegistration]


class MetadataCache:
    """Safe from any thread. Questions about one thing take no lock; updates have one.

    Attributes:
        is_complete: a controller has told everything once; only then are clients answered.
    """

    def __init__(self, broker_id: int) -> None:
        self.is_complete = False
        self._broker_id = broker_id
        self._brokers: Mapping[int, LiveBroker] = {}  # replaced as a whole
        self._shutting_down: frozenset[int] = frozenset()
        self._topics: dict[str, Topic] = {}
        self._topic_ids: dict[str, uuid.UUID | None] = {}
        self._lock = threading.Lock()

    # -- updates -------------------------------------------------------------------------------

    def update(self, request: UpdateMetadataRequest | LeaderAndIsrRequest) -> list[TopicPartition]:
        """Take over what the controller says; the partitions that are deleted.

        A LeaderAndIsr request tells of the live brokers too: a new leader may be one that the next
        UpdateMetadata introduces.
        """
        deleted = []
        with self._lock:
            self._brokers = self._newer_brokers(request.live_brokers)
            if isinstance(request, UpdateMetadataRequest):
                self._shutting_down = frozenset(request.shutting_down)
                for change in request.partitions:
                    if change.registration.leader == LEADER_DURING_DELETE:
                        if self._remove(change.tp, change.topic_id):
                            deleted.append(change.tp)
                    else:
                        self._put(change)
                if request.is_full:
                    deleted += self._remove_all_but(request.partitions)
                self.is_complete = True
        return deleted

    def _remove_all_but(self, told: Iterable[PartitionChange]) -> list[TopicPartition]:
        """What was deleted while this broker did not hear of it."""
        named = {(change.tp, change.topic_id) for change in told}
        gone = [
            (tp, topic_id)
            for topic, topic_id in self._topic_ids.items()
            for tp in (TopicPartition(topic, number) for number in self._topics[topic])
            if (tp, topic_id) not in named
        ]
        for tp, topic_id in gone:
            self._remove(tp, topic_id)
        return [tp for tp, _ in gone]

    def _newer_brokers(self, told: Iterable[LiveBroker]) -> Mapping[int, LiveBroker]:
        brokers = {}
        for broker in told:
            broker_id = broker.registration.broker_id
            known = self._brokers.get(broker_id)
            older = known is not None and broker.broker_epoch < known.broker_epoch
            brokers[broker_id] = known if known is not None and older else broker
        return brokers

    def _put(self, change: PartitionChange) -> None:
        topic, partition = change.tp
        if self._topic_ids.get(topic) != change.topic_id:
            self._topics.pop(topic, None)  # deleted, and created again
        registrations = self._topics.setdefault(topic, {})
        self._topic_ids[topic] = change.topic_id
        known = registrations.get(partition)
        if known is None or _version(known) <= _version(change.registration):
            registrations[partition] = change.registration

    def _remove(self, tp: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        topic, partition = tp
        registrations = self._topics.get(topic)
        if registrations is None or self._topic_ids.get(topic) != topic_id:
            return False
        removed = registrations.pop(partition, None) is not None
        if not registrations:
            del self._topics[topic]
            del self._topic_ids[topic]
        return removed

    # -- brokers -------------------------------------------------------------------------------

    @property
    def live_brokers(self) -> Mapping[int, LiveBroker]:
        """By id."""
        return MappingProxyType(self._brokers)

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self._brokers

    def broker_epoch(self, broker_id: int) -> int:
        """−1 when it is not known to be alive."""
        broker = self._brokers.get(broker_id)
        return UNKNOWN_EPOCH if broker is None else broker.broker_epoch

    def rack(self, broker_id: int) -> str | None:
        broker = self._brokers.get(broker_id)
        return None if broker is None else broker.registration.rack

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether it may be in an ISR: alive, not shutting down, of this epoch or −1 (R-31)."""
        broker = self._brokers.get(broker_id)
        return (
            broker is not None
            and broker_id not in self._shutting_down
            and broker_epoch in (UNKNOWN_EPOCH, broker.broker_epoch)
        )

    # -- partitions ----------------------------------------------------------------------------

    def registration(self, tp: TopicPartition) -> PartitionRegistration | None:
        topic = self._topics.get(tp.topic)
        return None if topic is None else topic.get(tp.partition)

    def topic_id(self, topic: str) -> uuid.UUID | None:
        return self._topic_ids.get(topic)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        with self._lock:
            return [TopicPartition(topic, number) for number in sorted(self._topics.get(topic, ()))]

    def describe(
        self, request: MetadataRequest, controller_id: int = NO_LEADER
    ) -> MetadataResponse:
        """An answer for clients; a topic that is not known is not in it. Without any broker in it
        it says nothing: this one does not know yet."""
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

    def _describe(self, tp: TopicPartition, known: PartitionRegistration) -> PartitionMetadata:
        has_leader = known.leader in self._brokers
        return PartitionMetadata(
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
