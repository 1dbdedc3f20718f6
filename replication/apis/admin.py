"""ElectLeaders, reassignments, log directories and DescribeProducers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError
from logstore.log import PartitionLog
from replication.apis.common.handlers import ApiArea, ReceivedRequest, Reply
from replication.apis.common.topic_names import missing_code
from replication.apis.common.waits import error_without_answer
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode, error_code_of
from replication.common.errors import NotLeaderOrFollowerError
from replication.common.messages import (
    AlterPartitionReassignmentsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
    Response,
)
from replication.protocol import messages as wire
from replication.protocol.partitions import by_topic, partitions_of
from replication.wire import elections as codec

DescribedPartition = wire.DescribeLogDirsResponse.DescribeLogDirsPartition

UNKNOWN = -1
NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED


class AdminApi(ApiArea):
    """Requests of operators."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # -- ElectLeaders --------------------------------------------------------------------------

    def elect_leaders(
        self, received: ReceivedRequest, request: wire.ElectLeadersRequest, reply: Reply
    ) -> None:
        """Have the controller elect leaders. A request for all partitions is answered only for
        those that needed an election."""
        if request.topic_partitions == ():
            reply(wire.ElectLeadersResponse())
            return
        asked = codec.election_from(request)

        def answer(response: Response | None) -> None:
            if not isinstance(response, ElectLeadersResponse):
                response = ElectLeadersResponse(error_without_answer(self._broker))
            if asked.partitions is None:
                elected = [each for each in response.partitions if each[1] is not NOT_NEEDED]
                response = response._replace(partitions=tuple(elected))
            reply(codec.elected_to(request, response, received.api_version))

        self._broker.ask_controller(asked, answer)

    # -- reassignments -------------------------------------------------------------------------

    def alter_partition_reassignments(
        self,
        received: ReceivedRequest,
        request: wire.AlterPartitionReassignmentsRequest,
        reply: Reply,
    ) -> None:
        """Have the controller begin or end moves. Answered once they have begun."""

        def answer(response: Response | None) -> None:
            if not isinstance(response, AlterPartitionReassignmentsResponse):
                response = AlterPartitionReassignmentsResponse(error_without_answer(self._broker))
            reply(codec.reassigned_to(request, response))

        self._broker.ask_controller(codec.reassignment_from(request), answer)

    def list_partition_reassignments(
        self,
        received: ReceivedRequest,
        request: wire.ListPartitionReassignmentsRequest,
        reply: Reply,
    ) -> None:
        """The moves under way, of all partitions or of those asked for."""

        def answer(response: Response | None) -> None:
            if not isinstance(response, ListPartitionReassignmentsResponse):
                response = ListPartitionReassignmentsResponse(error_without_answer(self._broker))
            reply(codec.listed_to(response))

        self._broker.ask_controller(codec.listing_from(request), answer)

    # -- DescribeLogDirs -----------------------------------------------------------------------

    def describe_log_dirs(
        self, received: ReceivedRequest, request: wire.DescribeLogDirsRequest, reply: Reply
    ) -> None:
        """The directories of this broker. One that failed is named with its error."""
        kind = wire.DescribeLogDirsResponse
        manager = self._broker.log_manager
        wanted = None if request.topics is None else {*partitions_of(request.topics)}
        by_directory: dict[str, list[tuple[TopicPartition, DescribedPartition]]] = {}
        logs = manager.logs
        described = [(tp, log, self._described(tp, log)) for tp, log in logs.items()]
        for tp, log in manager.futures.logs().items():
            lag = logs[tp].log_end_offset - log.log_end_offset if tp in logs else UNKNOWN
            described.append((tp, log, DescribedPartition(tp.partition, log.size, lag, True)))
        for tp, log, part in sorted(described, key=lambda each: each[0]):
            if wanted is None or tp in wanted:
                by_directory.setdefault(os.path.dirname(log.directory), []).append((tp, part))
        results = []
        for path in manager.live_directories:
            total, usable = _space(path)
            topics = by_topic(by_directory.get(path, ()), kind.DescribeLogDirsTopic)
            results.append(
                kind.DescribeLogDirsResult(
                    ErrorCode.NONE, os.path.abspath(path), topics, total, usable
                )
            )
        results += [
            kind.DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, os.path.abspath(path))
            for path in manager.offline_directories
        ]
        reply(kind(results=tuple(results)))

    def _described(self, tp: TopicPartition, log: PartitionLog) -> DescribedPartition:
        """The lag is that behind the high watermark, as for Kafka's replicas."""
        lag = max(0, log.high_watermark - log.log_end_offset)
        return DescribedPartition(tp.partition, log.size, lag, False)

    # -- AlterReplicaLogDirs -------------------------------------------------------------------

    def alter_replica_log_dirs(
        self, received: ReceivedRequest, request: wire.AlterReplicaLogDirsRequest, reply: Reply
    ) -> None:
        """Move replicas between the directories of this broker. Answered once that has begun. Where
        a partition stands twice, its last place counts."""
        kind = wire.AlterReplicaLogDirsResponse
        wanted = {tp: each.path for each in request.dirs for tp in partitions_of(each.topics)}

        def answer(codes: Mapping[TopicPartition, ErrorCode]) -> None:
            part = kind.AlterReplicaLogDirPartitionResult
            parts = ((tp, part(tp.partition, code)) for tp, code in sorted(codes.items()))
            reply(kind(results=by_topic(parts, kind.AlterReplicaLogDirTopicResult)))

        self._broker.replica_manager.moves.alter(wanted, answer)

    # -- DescribeProducers ---------------------------------------------------------------------

    def describe_producers(
        self, received: ReceivedRequest, request: wire.DescribeProducersRequest, reply: Reply
    ) -> None:
        """The active producers of partitions that this broker leads, each once (W-237)."""
        kind = wire.DescribeProducersResponse
        asked: dict[str, dict[int, None]] = {}  # also topics without partitions, as Kafka does
        for name, indexes in request.topics:
            asked.setdefault(name, {}).update(dict.fromkeys(indexes))
        topics = (
            kind.TopicResponse(
                name, tuple(self._producers(TopicPartition(name, index)) for index in indexes)
            )
            for name, indexes in asked.items()
        )
        reply(kind(topics=tuple(topics)))

    def _producers(self, tp: TopicPartition) -> wire.DescribeProducersResponse.PartitionResponse:
        kind = wire.DescribeProducersResponse
        try:
            partition = self._broker.replica_manager.partition(tp)
            if not partition.is_leader:
                raise NotLeaderOrFollowerError(f"{tp} is led by another broker")
            entries = partition.local_log().producers.entries()
        except LogstoreError as error:
            code = error_code_of(error)
            if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                code = missing_code(tp.topic)
            return kind.PartitionResponse(tp.partition, code, str(error))
        return kind.PartitionResponse(
            tp.partition,
            active_producers=tuple(
                kind.ProducerState(
                    each.producer_id,
                    each.producer_epoch,
                    each.last_sequence,
                    each.last_timestamp,
                    each.coordinator_epoch,
                    each.current_txn_first_offset,
                )
                for each in entries
            ),
        )


def _space(path: str) -> tuple[int, int]:
    """Bytes of the file system, all and free; −1 if the storage has no file system."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return UNKNOWN, UNKNOWN
    return usage.total, usage.free
