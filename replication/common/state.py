"""The state of the control plane: brokers, topics, partition registrations.

These are plain values; ``coordination.nodes`` has their JSON as in Kafka. A partition's
registration changes only by compare-and-set. Its version in the coordinator is the *partition
epoch* (R-50).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from checkpoints.types import TopicPartition as TopicPartition

NO_LEADER = -1
UNKNOWN_EPOCH = -1  # an unknown broker epoch or leader epoch
MAX_EPOCH = 2**30  # of leaders and controllers: the next one has to fit into 32 bits
MAX_EPOCH_OF_A_LOG = 2**29  # the largest that a log may bring along: elections have to follow


class RecoveryState(IntEnum):
    """Whether the leader was elected uncleanly and has not yet said that it recovered (R-58)."""

    RECOVERED = 0
    RECOVERING = 1


class Endpoint(NamedTuple):
    """The address of one listener of a broker, for clients."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class BrokerRegistration(NamedTuple):
    """One incarnation of a broker, alive as long as its session.

    ``host`` and ``port`` are those of the first of ``endpoints``. Without any the broker has no
    socket: only its own process reaches it.

    ``previous_broker_epoch`` proves a clean stop: it is the one in the clean-shutdown markers of
    all its log directories (KIP-966), or −1. ``earlier_epochs`` are those of the same process,
    whose sessions ended: the second may end before a controller has dealt with the first.

    ``coordinator_epoch`` is the largest in logs that may come from another cluster; −1 without any.

    ``unproven`` are replicas whose logs are missing or not as that stop left them, named until a
    controller knows them; None for all. ``proves_logs``: the others are as that stop left them.

    ``is_foreign``: it is a real Kafka broker, which knows nothing of what is ours (X-95).
    """

    broker_id: int
    host: str = "localhost"
    port: int = -1
    rack: str | None = None
    previous_broker_epoch: int = UNKNOWN_EPOCH
    timestamp_ms: int = 0
    earlier_epochs: tuple[int, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    unproven: frozenset[TopicPartition] | None = frozenset()
    proves_logs: bool = False
    coordinator_epoch: int = UNKNOWN_EPOCH
    is_foreign: bool = False

    def endpoint(self, listener: str) -> Endpoint | None:
        """The endpoint of a listener; None if the broker has no listener of that name."""
        return next((each for each in self.endpoints if each.listener == listener), None)

    def continues(self, broker_epoch: int) -> bool:
        """Whether everything that the incarnation of that epoch had is still there.

        Only an epoch that this broker names itself counts. Any other may belong to another process
        with this id and another disk, which came and went in between.
        """
        named = (self.previous_broker_epoch, *self.earlier_epochs)
        return broker_epoch > UNKNOWN_EPOCH and broker_epoch in named

    def lacks(self, tp: TopicPartition) -> bool:
        """Whether the log of a replica is named as missing, or as not what it was."""
        return self.unproven is None or tp in self.unproven

    def is_of_another_time(self, broker_epoch: int) -> bool:
        """Whether the log directories are whole, but not those of the incarnation of that epoch: an
        older copy, or another broker's.
        """
        named = self.previous_broker_epoch > UNKNOWN_EPOCH and broker_epoch > UNKNOWN_EPOCH
        return named and self.proves_logs and not self.continues(broker_epoch)


class LiveBroker(NamedTuple):
    """A registration with the epoch that the coordinator gave it (R-63)."""

    registration: BrokerRegistration
    broker_epoch: int


class TopicAssignment(NamedTuple):
    """A topic: its id, and the replicas of each partition in order of preference."""

    topic_id: uuid.UUID
    partitions: Mapping[int, tuple[int, ...]]
    config: Mapping[str, str] = {}  # Kafka's topic keys that differ from the defaults
    # For a reassignment under way, otherwise empty.
    adding: Mapping[int, tuple[int, ...]] = {}
    removing: Mapping[int, tuple[int, ...]] = {}


class PartitionRegistration(NamedTuple):
    """The leader and the in-sync replicas of a partition (Kafka's ``PartitionRegistration``).

    ``elr`` are the eligible leader replicas of KIP-966: outside the ISR, but known to have every
    committed record. ``last_known_leader`` is set while ISR and ELR are both empty (R-71).
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    recovery_state: RecoveryState = RecoveryState.RECOVERED
    elr: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER
    controller_epoch: int = 0
