"""``Cluster``: several brokers in one process, on real files and real threads.

It is for services that embed a replicated log, and for tests of code that uses one. Brokers can be
stopped, crashed, cut off and started again while others serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from checkpoints.types import TopicPartition
from logstore.common.types import Record
from logstore.log.reading.fetching import LATEST
from replication.client import Consumer, Producer, RecordMetadata
from replication.common.error_codes import ErrorCode
from replication.embedded.local_brokers import LocalBrokers
from replication.embedded.topic_admin import TopicAdmin
from replication.partition import Partition


class Cluster(LocalBrokers):
    """Brokers 0, 1, 2, … in one process, with the operations for services and tests.

    Use it as a context manager, or call ``close``.

    Args:
        brokers: how many, or their ids.
        directory: holds a directory ``broker-N`` for each broker, and one for the embedded
            coordinator. By default a temporary one that is removed at the end.
        coordinator: ``embedded`` (below ``directory``), or a URL for ``open_coordinator`` such as
            ``zookeeper://127.0.0.1:2181/chroot``, or a service.
        log_config, broker_config, config: defaults of topics, of log directories, of replication.
        storage, storages: the storage of all files; ``storages`` replaces it for single brokers.
        log_dirs: log directories of brokers that do not have theirs in ``directory``.
        session_timeout_ms: how long a silent broker counts as alive. Only for a coordinator given
            by name or URL.
        cluster_id: for ``meta.properties`` of all brokers and for the coordinator's tree. By
            default the one that the tree has, then that of a directory, or a random one.
        racks: racks by broker id. A consumer may read a replica in its own rack.
        request_listener: opens sockets for clients; without it only this process reaches them.
    Raises:
        ConfigError: no broker, or one twice; and as ``LogManager``.
        InconsistentClusterIdError: the coordinator's tree belongs to another cluster than the log
            directories, or knows none of the topics in those of a broker. Nothing was changed.
        LogDirLockedError, StorageFailedError: as ``LogManager``.
    """

    # -- topics --------------------------------------------------------------------------------

    @cached_property
    def _topics(self) -> TopicAdmin:
        return TopicAdmin(self)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        config: Mapping[str, object] | None = None,
        if_not_exists: bool = False,
    ) -> list[TopicPartition]:
        """Create a topic and wait until each partition has a leader that all brokers know.

        It waits as long as replicas are being made, and gives up when none was for 30 s.

        Args:
            replication_factor: three, or as many as there are brokers, by default.
            assignment: the replicas of each partition, the preferred leader first.
            config: topic keys, such as ``{"min.insync.replicas": 2}``.
            if_not_exists: leave an existing topic as it is, whatever the other arguments, and
                return its partitions.
        Raises:
            ReplicationError: the controller refuses; ``code`` says why.
            TopicNotReadyError: the topic is created, and nothing has happened for 30 s. The text,
                ``done`` and ``total`` say how far the brokers are; they go on when they can.
            UnknownPartitionError: the topic was deleted during the call.
        """
        return self._topics.create_topic(
            topic,
            partitions,
            replication_factor,
            assignment=assignment,
            config=config,
            if_not_exists=if_not_exists,
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until no live broker has a replica of it or knows it.

        Its name is free then, if no broker with a replica of it is down. The topic is deleted by
        its id, so never one that gets the name during the call.

        Raises:
            UnknownPartitionError: the topic does not exist.
            TopicNotReadyError: as ``create_topic``, of a deletion.
            ReplicationError: the controller refuses.
        """
        self._topics.delete_topic(topic)

    def create_partitions(
        self, topic: str, total: int, *, assignment: Sequence[Sequence[int]] | None = None
    ) -> list[TopicPartition]:
        """Raise the number of partitions to ``total``, and wait for leaders. Returns the new ones.

        Producers use them after their next metadata refresh, so a key may go to another partition
        than before. A consumer reads only the partitions that it was given.

        Args:
            assignment: the replicas of each new partition, the preferred leader first.
        Raises:
            ReplicationError: the controller refuses; ``code`` says why.
            TopicNotReadyError: as ``create_topic``.
            UnknownPartitionError: there is no such topic, or not any more.
        """
        return self._topics.create_partitions(topic, total, assignment=assignment)

    def alter_topic(self, topic: str, config: Mapping[str, object]) -> None:
        """Change keys of a topic, and wait until every live replica applies them, or a later change
        by another client.

        Args:
            config: the keys to change. None restores the default.
        Raises:
            ReplicationError: the controller refuses, INVALID_CONFIG for one; nothing is changed.
            UnknownPartitionError: there is no such topic, or not any more.
        """
        self._topics.alter_topic(topic, config)

    def elect_preferred(self, *tps: TopicPartition) -> dict[TopicPartition, ErrorCode]:
        """Move leadership back to the first replica of each assignment; all, when none given."""
        return self._topics.elect_preferred(*tps)

    # -- reading and writing -------------------------------------------------------------------

    def producer(self, **options: Any) -> Producer:
        """A ``Producer``, such as ``producer(idempotent=True)``."""
        return Producer(self.client, **options)

    def consumer(self, *tps: TopicPartition, **options: Any) -> Consumer:
        """A ``Consumer`` of the given partitions."""
        return Consumer(self.client, tps, **options)

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None = None, **options: Any
    ) -> RecordMetadata:
        """Send one record with acks=all; see ``Producer.send``."""
        return Producer(self.client).send(topic, value, key, **options)

    def read_all(self, topic: str, **options: Any) -> dict[int, list[Record]]:
        """All committed records of a topic, by partition."""
        tps = self.client.partitions(topic)
        found: dict[int, list[Record]] = {tp.partition: [] for tp in tps}
        for tp, record in self.consumer(*tps, **options).read_to_end():
            found[tp.partition].append(record)
        return found

    def end_offset(self, tp: TopicPartition) -> int:
        """The high watermark, as a consumer learns it."""
        return self.consumer(tp).offset_for(tp, LATEST)

    # -- inspection ------------------------------------------------------------------------

    def leader(self, tp: TopicPartition) -> int | None:
        """The live broker that leads a partition now, None when there is none."""
        leaders = [
            (p.leader_epoch, b.broker_id)
            for b in self.running()
            if (p := b.replica_manager.partitions.get(tp)) is not None and p.is_leader
        ]
        return max(leaders)[1] if leaders else None

    def replica(self, tp: TopicPartition, broker_id: int) -> Partition:
        """The replica of a partition on one broker.

        Raises:
            BrokerUnavailableError, UnknownPartitionError
        """
        return self.broker(broker_id).replica_manager.partition(tp)

    def isr(self, tp: TopicPartition) -> tuple[int, ...]:
        """The leader's committed ISR; empty without a leader."""
        leader = self.leader(tp)
        return () if leader is None else tuple(sorted(self.replica(tp, leader).isr.committed))

    def wait_for_isr(
        self, tp: TopicPartition, members: Iterable[int], timeout_s: float = 30.0
    ) -> None:
        """Wait until the leader's committed ISR has exactly these members."""
        wanted = tuple(sorted(members))
        self.wait_until(lambda: self.isr(tp) == wanted, f"ISR of {tp} is {wanted}", timeout_s)

    def wait_for_leader(
        self, tp: TopicPartition, not_broker: int | None = None, timeout_s: float = 30.0
    ) -> int:
        """Wait for a leader (other than ``not_broker``), and return its id."""
        found: list[int] = []

        def led() -> bool:
            leader = self.leader(tp)
            if leader is not None and leader != not_broker:
                found.append(leader)
            return bool(found)

        self.wait_until(led, f"{tp} has a leader", timeout_s)
        return found[0]
