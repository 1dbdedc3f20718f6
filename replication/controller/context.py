"""The controller's view of the cluster, with indexes that keep its work linear.

Everything here is also in the coordinator's tree: the view changes after a write succeeded, and
never before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from checkpoints.loggers import get_logger
from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError
from replication.common.limited_log import LimitedLogger
from replication.common.messages import PartitionChange
from replication.common.state import (
    NO_LEADER,
    UNKNOWN_EPOCH,
    LiveBroker,
    PartitionRegistration,
    TopicAssignment,
    TopicPartition,
)
from replication.decisions.isr import effective_min_isr

logger = get_logger(__name__)

# Sets in order of insertion, because requests must not depend on hashes.
Partitions: TypeAlias = dict[TopicPartition, None]
Changes: TypeAlias = dict[TopicPartition, PartitionRegistration]
LeftOut: TypeAlias = str | TopicPartition  # a topic, or one partition


@dataclass(slots=True)
class Topic:
    """A topic's node and its version."""

    assignment: TopicAssignment
    version: int
    config: LogConfig


@dataclass(slots=True)
class ControllerStats:
    """Numbers for the metrics of R-172 and R-173. Any thread may read them."""

    active_controller_count: int = 0
    offline_partitions_count: int = 0
    preferred_replica_imbalance_count: int = 0
    global_topic_count: int = 0
    global_partition_count: int = 0
    active_broker_count: int = 0
    unclean_leader_elections: int = 0  # since the start, under every term


class ControllerContext:
    """Brokers, topics and registrations, as of the last successful read or write.

    ``defaults`` is the configuration of a topic without its own: this broker's, as in Kafka.
    """

    def __init__(self, defaults: LogConfig | None = None, log: LimitedLogger | None = None) -> None:
        self._defaults = defaults or LogConfig()
        self.log = log or LimitedLogger(logger)
        self.live: dict[int, LiveBroker] = {}
        self.beside_kafka = False  # a real Kafka broker is registered
        # Until the term has begun: partitions whose state is of a controller of Kafka's that came
        # after the last one of ours.
        self.by_kafka: Partitions = {}
        self.remembered: dict[int, int] = {}  # the last epoch of each broker that was processed
        self.shutting_down: dict[int, None] = {}
        self.offline: dict[int, Partitions] = {}  # in failed log directories of live brokers
        self.topics: dict[str, Topic] = {}
        self.names: dict[str, str] = {}  # topic names, by the form in which they collide (F-2)
        self.topic_ids: dict[UUID, str] = {}
        self.partitions: Changes = {}
        self.on_broker: dict[int, Partitions] = {}  # replicas, also of partitions without a state
        self.leaderless: Partitions = {}
        self.imbalanced: Partitions = {}
        self.uninitialised: Partitions = {}  # without a state, because no replica was ever alive
        self.deleting: dict[str, dict[TopicPartition, dict[int, None]]] = {}  # remaining replicas
        self.deleted: list[UUID] = []  # topics whose deletion is complete, the latest ones
        # To be read before any decision: not read yet, or perhaps written since.
        self.unread_topics: dict[str, None] = {}
        self.unread: Partitions = {}
        self.unread_deletions = False  # a topic may be marked although no answer confirmed it
        self.unreadable: dict[LeftOut, None] = {}  # left out, and not sent to brokers
        # The brokers that came back uncleanly while it was left out, and may lack records.
        self.distrusted: dict[LeftOut, frozenset[int]] = {}

    @property
    def coordinator_epoch(self) -> int:
        """The largest in logs that live brokers brought along; −1 without any (R-182)."""
        epochs = (live.registration.coordinator_epoch for live in self.live.values())
        return max(epochs, default=UNKNOWN_EPOCH)

    # -- topics and partitions -------------------------------------------------------------------

    def put_topic(self, name: str, assignment: TopicAssignment, version: int) -> None:
        """Add or replace a topic's node. Its partitions follow with ``put``."""
        before = self.topics.get(name)
        self.unreadable.pop(name, None)
        self.names[name.replace(".", "_")] = name
        if before is not None:
            self.topic_ids.pop(before.assignment.topic_id, None)
        self.topic_ids[assignment.topic_id] = name
        self.topics[name] = Topic(assignment, version, self.resolve(name, assignment.config))
        for number, replicas in assignment.partitions.items():
            tp = TopicPartition(name, number)
            had = before.assignment.partitions.get(number, ()) if before is not None else ()
            for broker in had:
                if broker not in replicas:
                    self.on_broker[broker].pop(tp, None)
            for broker in replicas:
                self.on_broker.setdefault(broker, {})[tp] = None
            if not (tp in self.partitions or tp in self.unreadable or name in self.deleting):
                self.uninitialised[tp] = None

    def resolve(self, name: str, properties: Mapping[str, str]) -> LogConfig:
        """A topic's configuration, from the keys in which it differs from the defaults."""
        try:
            return self._defaults.with_properties(properties)
        except ConfigError as error:
            self.log.error("topic %s: its configuration is ignored: %s", name, error, about=name)
            return self._defaults

    def put(self, tp: TopicPartition, registration: PartitionRegistration) -> None:
        self.partitions[tp] = registration
        self.by_kafka.pop(tp, None)
        self.uninitialised.pop(tp, None)
        self.unreadable.pop(tp, None)
        if tp.topic not in self.deleting:
            leader = registration.leader
            _mark(self.leaderless, tp, leader == NO_LEADER)
            _mark(self.imbalanced, tp, (leader,) != registration.replicas[:1])

    def expect(self, tp: TopicPartition) -> None:
        """Note that a partition never had a state, and waits for a live replica."""
        self.unreadable.pop(tp, None)
        if tp.topic not in self.deleting:
            self.uninitialised[tp] = None

    def leave_out(self, tp: TopicPartition) -> None:
        """Leave a partition out of all decisions. Its state is unreadable or has vanished."""
        self._forget(tp)
        self.unread.pop(tp, None)
        self.unreadable[tp] = None

    def leave_out_topic(self, name: str) -> None:
        """Leave out a topic with all its partitions."""
        if name in self.topics:
            for number in self.topics[name].assignment.partitions:
                self.unread.pop(TopicPartition(name, number), None)
            self.remove_topic(name)
        self.unread_topics.pop(name, None)
        self.unreadable[name] = None

    def left_out_topics(self) -> list[str]:
        """Topics that are left out, in whole or in part."""
        names = (each if isinstance(each, str) else each.topic for each in self.unreadable)
        return list(dict.fromkeys(names))

    def read_left_out(self, name: str) -> None:
        """Have everything of a topic that is left out read again."""
        left_out = [e for e in self.unreadable if name == (e if isinstance(e, str) else e.topic)]
        for each in left_out:
            self.unread_topics[name] = None
            self.unread_deletions = True
            if not isinstance(each, str):
                self.unread[each] = None

    def doubtful_replicas(self) -> dict[TopicPartition, frozenset[int]]:
        """Partitions that are no longer left out, and whom to distrust there."""
        doubtful: dict[TopicPartition, frozenset[int]] = {}
        for each, brokers in self.distrusted.items():
            for tp in self._partitions_of(each):
                if self.is_active(tp):
                    doubtful[tp] = doubtful.get(tp, frozenset()) | brokers
        return doubtful

    def still_distrusted(self) -> dict[LeftOut, frozenset[int]]:
        """The rest of ``distrusted`` once those replicas have left their ISRs."""
        still: dict[LeftOut, frozenset[int]] = {}
        for each, brokers in self.distrusted.items():
            left = [each, *self._partitions_of(each)]
            for remaining in filter(self.unreadable.__contains__, left):
                still[remaining] = still.get(remaining, frozenset()) | brokers
        return still

    def _partitions_of(self, each: LeftOut) -> list[TopicPartition]:
        if not isinstance(each, str):
            return [each]
        topic = self.topics.get(each)
        return (
            [] if topic is None else [TopicPartition(each, n) for n in topic.assignment.partitions]
        )

    def _forget(self, tp: TopicPartition) -> None:
        self.partitions.pop(tp, None)
        self.unreadable.pop(tp, None)
        for index in (self.leaderless, self.imbalanced, self.uninitialised):
            index.pop(tp, None)

    def start_deletion(self, name: str) -> None:
        """Begin a deletion: replicas wait for ``confirm_deletion``, and no leader is elected any
        more.
        """
        if name in self.deleting:
            return
        waiting = self.deleting[name] = {}
        for number, replicas in self.topics[name].assignment.partitions.items():
            tp = TopicPartition(name, number)
            if replicas:
                waiting[tp] = dict.fromkeys(replicas)
            for index in (self.leaderless, self.imbalanced, self.uninitialised):
                index.pop(tp, None)

    def confirm_deletion(self, tp: TopicPartition, broker: int) -> bool:
        """Note that a replica is deleted. True if it was the last one of its topic."""
        waiting = self.deleting.get(tp.topic)
        if waiting is None or tp not in waiting:
            return False
        waiting[tp].pop(broker, None)
        if not waiting[tp]:
            del waiting[tp]
        return not waiting

    def remove_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        self.names.pop(name.replace(".", "_"), None)
        if self.topic_ids.get(topic.assignment.topic_id) == name:
            del self.topic_ids[topic.assignment.topic_id]
        for number, replicas in topic.assignment.partitions.items():
            tp = TopicPartition(name, number)
            self._forget(tp)
            for broker in replicas:
                self.on_broker[broker].pop(tp, None)
        self.deleting.pop(name, None)

    def min_isr(self, topic: str, replica_count: int, wanted: int | None = None) -> int:
        """The effective minimum ISR. ``wanted`` replaces the topic's ``min.insync.replicas``."""
        own = self.topics[topic].config.min_insync_replicas
        return effective_min_isr(own if wanted is None else wanted, replica_count)

    def is_active(self, tp: TopicPartition) -> bool:
        """Whether the partition has a state and is not being deleted."""
        return tp in self.partitions and tp.topic not in self.deleting

    def active_partitions_on(self, broker: int) -> Iterator[TopicPartition]:
        return filter(self.is_active, self.on_broker.get(broker, ()))

    def change_of(self, tp: TopicPartition) -> PartitionChange:
        """The change that brokers are sent about a partition."""
        assignment = self.topics[tp.topic].assignment
        count = len(assignment.partitions)
        return PartitionChange(
            tp, self.partitions[tp], assignment.topic_id, assignment.config, count
        )

    # -- brokers ---------------------------------------------------------------------------------

    def set_live(self, live: Mapping[int, LiveBroker]) -> None:
        """Replace the live incarnations, and forget what was known about earlier ones.

        From now on no other broker counts as up, leads or joins an ISR.
        """
        for broker in [*self.shutting_down, *self.offline]:
            if live.get(broker) != self.live.get(broker):
                self.shutting_down.pop(broker, None)
                self.offline.pop(broker, None)
        self.live = dict(sorted(live.items()))

    def is_foreign(self, broker: int) -> bool:
        live = self.live.get(broker)
        return live is not None and live.registration.is_foreign

    def is_online(self, broker: int, tp: TopicPartition) -> bool:
        return broker in self.live and tp not in self.offline.get(broker, ())

    def lacking(self, tp: TopicPartition) -> list[int]:
        """Live brokers that came back without their log of a partition, or with an older one."""
        return [broker for broker, live in self.live.items() if live.registration.lacks(tp)]

    def is_eligible(self, broker: int, broker_epoch: int) -> bool:
        """Whether a broker may be in the ISR (R-48).

        Epoch −1 means that the leader does not know it.
        """
        known = self.live.get(broker)
        if known is None or broker in self.shutting_down:
            return False
        return broker_epoch in (-1, known.broker_epoch)

    def update(self, stats: ControllerStats) -> None:
        stats.offline_partitions_count = len(self.leaderless) + len(self.uninitialised)
        stats.preferred_replica_imbalance_count = len(self.imbalanced)
        stats.global_topic_count = len(self.topics)
        stats.global_partition_count = len(self.partitions) + len(self.uninitialised)
        stats.active_broker_count = len(self.live)


def _mark(index: Partitions, tp: TopicPartition, wanted: bool) -> None:
    if wanted:
        index[tp] = None
    else:
        index.pop(tp, None)
