"""The partitions of a broker (Kafka's ``HostedPartition``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownPartitionError,
)
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH
from replication.partition import Partition, PartitionContext
from replication.replica_manager.metadata_cache import MetadataCache


class HostedPartitions:
    """The hosted partitions. Look-ups are thread-safe; only ``RoleChanges`` changes them."""

    def __init__(self, env: PartitionContext, metadata: MetadataCache) -> None:
        self._env = env
        self._metadata = metadata
        self._all: dict[TopicPartition, Partition] = {}
        self.view: Mapping[TopicPartition, Partition] = MappingProxyType(self._all)
        self.get = self._all.get

    def find(self, tp: TopicPartition) -> Partition:
        """
        Raises:
            KafkaStorageError: its log directory is offline.
            NotLeaderOrFollowerError: the replicas are on other brokers.
            UnknownPartitionError: this broker does not know the partition.
        """
        partition = self._all.get(tp)
        if partition is None:
            if self.is_unknown(tp):
                raise UnknownPartitionError(f"{tp} is not known here")
            raise NotLeaderOrFollowerError(f"{tp} has no replica here")
        if partition.offline:
            raise KafkaStorageError(f"{tp}: its log directory is offline")
        return partition

    def is_unknown(self, tp: TopicPartition) -> bool:
        """Whether neither this broker nor its metadata has the partition."""
        return tp not in self._all and self._metadata.registration(tp) is None

    def leader_hint(self, tp: TopicPartition, code: ErrorCode) -> tuple[int, int]:
        """(leader id, leader epoch) to send with an error that a new leader explains (KIP-951)."""
        if code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            return NO_LEADER, UNKNOWN_EPOCH
        partition, known = self._all.get(tp), self._metadata.registration(tp)
        if partition is not None and (known is None or known.leader_epoch < partition.leader_epoch):
            return partition.leader_id, partition.leader_epoch
        return (NO_LEADER, UNKNOWN_EPOCH) if known is None else (known.leader, known.leader_epoch)

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._all.values()))

    # -- changes -------------------------------------------------------------------------------

    def create(self, tp: TopicPartition) -> Partition:
        """The partition, created if it is not here."""
        partition = self._all.get(tp)
        if partition is None:
            partition = self._all[tp] = Partition(tp, self._env)
        return partition

    def remove(self, tp: TopicPartition) -> None:
        """Stop serving the partition. Its log stays."""
        partition = self._all.pop(tp, None)
        if partition is not None:
            partition.delete()
