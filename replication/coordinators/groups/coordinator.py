"""The coordinator of groups on one broker: commits in transactions, markers, lists (Kafka's
``GroupCoordinator``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from checkpoints.types import TopicPartition
from logstore.common.random_id import RandomId, random_id
from logstore.common.types import NO_SEQUENCE
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.gathering import Gathering
from replication.common.internal_topics import GROUP_METADATA
from replication.common.messages import (
    TransactionSupport,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.common.transport import OnReply
from replication.coordinators.coordinator import TopicCoordinator
from replication.coordinators.effects import ClientRequest
from replication.coordinators.groups.config import GroupConfig
from replication.coordinators.groups.shard import Codes, ForgetTopics, GroupShard
from replication.coordinators.groups.states import COMMIT_ERRORS, GroupStats
from replication.coordinators.runtime import OnAnswer
from replication.protocol import messages as wire
from replication.protocol.partitions import partitions_of
from replication.replica_manager.transaction_verification import error_for_producer


class GroupCoordinator(TopicCoordinator):
    """See the module. Safe from any thread.

    Args:
        broker: has WriteTxnMarkers served from here on, so that the groups know of their markers.
        random_id: where member ids come from.
    Attributes:
        stats: since the broker started.
    """

    def __init__(
        self,
        broker: Broker,
        config: GroupConfig | None = None,
        *,
        random_id: RandomId = random_id,
    ) -> None:
        self.config = config or GroupConfig()
        self.stats = GroupStats()
        super().__init__(
            broker,
            GROUP_METADATA,
            self.config.offsets_topic_num_partitions,
            self.config.offsets_topic_replication_factor,
            {
                "compression.type": "producer",
                "segment.bytes": str(self.config.offsets_topic_segment_bytes),
            },
            lambda partition, leader_epoch: GroupShard(self.config, random_id, self.stats),
            write_timeout_ms=self.config.offsets_commit_timeout_ms,
            load_bytes=self.config.offsets_load_buffer_size,
        )
        broker.metadata.watch_deletions(self._forget_topics)
        broker.serve(WriteTxnMarkersRequest, self._write_txn_markers)

    # -- requests ------------------------------------------------------------------------------

    def commit_in_transaction(
        self, commit: wire.TxnOffsetCommitRequest, support: TransactionSupport, answer: OnAnswer
    ) -> None:
        """Commit offsets that count with the transaction, which must know of the group (W-158)."""
        partition = self.topic.partition_of(commit.group_id)
        if partition is None:
            answer(ErrorCode.NOT_COORDINATOR)
            return

        def verified(errors: Mapping[TopicPartition, ErrorCode]) -> None:
            if not errors:
                self.runtime.request(partition, ClientRequest(commit), answer)
                return
            code = COMMIT_ERRORS[error_for_producer(errors[tp], support)]
            answer(dict.fromkeys(partitions_of(commit.topics), code))

        tp = TopicPartition(GROUP_METADATA, partition)
        self._broker.replica_manager.transactions.verify(
            commit.transactional_id,
            commit.producer_id,
            commit.producer_epoch,
            {tp: NO_SEQUENCE},
            verified,
            adds=support is TransactionSupport.ADD_PARTITION,
        )

    def list_groups(
        self, answer: Callable[[ErrorCode, list[wire.ListGroupsResponse.ListedGroup]], None]
    ) -> None:
        """All groups of this broker."""
        self.list_all(ClientRequest(wire.ListGroupsRequest()), answer)

    def _forget_topics(self, topics: frozenset[str]) -> None:
        """Delete the offsets of deleted topics, which mean nothing for a later topic of the
        name."""
        request = ClientRequest(ForgetTopics(topics))
        for partition in self.runtime.active:
            self.runtime.request(partition, request, lambda code: None)

    # -- transactions --------------------------------------------------------------------------

    def _write_txn_markers(self, request: WriteTxnMarkersRequest, reply: OnReply) -> None:
        """Append markers. Those of offsets go through the groups' runtime, so that the shards know
        of them; the others go straight to the logs."""
        own = [
            (at, tp)
            for at, marker in enumerate(request.markers)
            for tp in marker.partitions
            if tp.topic == GROUP_METADATA
        ]

        def done(answers: Sequence[Any]) -> None:
            others, *codes = answers
            found: list[Codes] = [dict(each) for each in others.markers]
            for (at, tp), code in zip(own, codes, strict=True):
                found[at][tp] = MARKER_ERRORS.get(code, code)
            in_order = (
                tuple((tp, known[tp]) for tp in marker.partitions)
                for marker, known in zip(request.markers, found, strict=True)
            )
            reply(WriteTxnMarkersResponse(tuple(in_order)))

        gathering: Gathering[Any] = Gathering(1 + len(own), done)
        for number, (at, tp) in enumerate(own, 1):
            on_code = partial(gathering.take_answer, number)
            self.runtime.write_marker(tp.partition, request.markers[at], on_code)
        others = (
            marker._replace(
                partitions=tuple(tp for tp in marker.partitions if tp.topic != GROUP_METADATA)
            )
            for marker in request.markers
        )
        self._broker.replica_manager.writes.write_txn_markers(
            WriteTxnMarkersRequest(tuple(others)), partial(gathering.take_answer, 0)
        )


MARKER_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""The answer to the sender of a marker where the shard is not at work. Coordinators and tools of
Kafka ask again at this one error."""
