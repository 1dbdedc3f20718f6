"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords (W-55 to W-57)."""

from __future__ import annotations

from collections.abc import Iterable

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    DeleteRecordsPartitionResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResponse,
)
from replication.protocol import messages as wire
from replication.protocol.partitions import by_partition, by_topic
from replication.wire.common import answers_for, code_of, nested, with_answers

FIRST_WITH_EPOCHS = 4
FIRST_WITH_NOT_AVAILABLE = 5

ListedPart = wire.ListOffsetsResponse.ListOffsetsPartitionResponse

# -- ListOffsets ------------------------------------------------------------------------------


def request_to(request: ListOffsetsRequest, version: int) -> wire.ListOffsetsRequest:
    kind = wire.ListOffsetsRequest
    topics = nested(
        request.partitions,
        lambda name, parts: kind.ListOffsetsTopic(
            name,
            tuple(
                kind.ListOffsetsPartition(
                    part.tp.partition, part.current_leader_epoch, part.timestamp
                )
                for part in parts
            ),
        ),
    )
    return kind(request.replica_id, request.isolation_level, topics)


def response_from(
    request: ListOffsetsRequest, response: wire.ListOffsetsResponse, version: int
) -> ListOffsetsResponse:
    answers = (
        (TopicPartition(topic.name, part.partition_index), part)
        for topic in response.topics
        for part in topic.partitions
    )
    return ListOffsetsResponse(
        tuple(
            ListOffsetsPartitionResponse(
                asked.tp, code_of(part.error_code), part.timestamp, part.offset, part.leader_epoch
            )
            for asked, part in with_answers(
                request.partitions, answers, "ListOffsetsResponse", version
            )
        )
    )


def listed_to(found: ListOffsetsPartitionResponse, version: int) -> ListedPart:
    code = found.error_code
    if code is ErrorCode.OFFSET_NOT_AVAILABLE and version < FIRST_WITH_NOT_AVAILABLE:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    epoch = found.leader_epoch if version >= FIRST_WITH_EPOCHS else -1
    return ListedPart(found.tp.partition, code, found.timestamp, found.offset, epoch)


# -- OffsetForLeaderEpoch ---------------------------------------------------------------------


def epoch_request_to(
    request: OffsetForLeaderEpochRequest, version: int
) -> wire.OffsetForLeaderEpochRequest:
    kind = wire.OffsetForLeaderEpochRequest
    topics = nested(
        request.partitions,
        lambda name, parts: kind.OffsetForLeaderTopic(
            name,
            tuple(
                kind.OffsetForLeaderPartition(
                    part.tp.partition, part.current_leader_epoch, part.leader_epoch
                )
                for part in parts
            ),
        ),
    )
    return kind(request.replica_id, topics)


def epoch_request_from(request: wire.OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochRequest:
    """The request, as a consumer's: who fetches as a replica has its own way."""
    return OffsetForLeaderEpochRequest(
        tuple(
            OffsetForLeaderPartition(
                TopicPartition(topic.topic, part.partition),
                part.leader_epoch,
                part.current_leader_epoch,
            )
            for topic in request.topics
            for part in topic.partitions
        )
    )


def epoch_response_to(
    asked: wire.OffsetForLeaderEpochRequest, found: Iterable[OffsetForLeaderPartitionResponse]
) -> wire.OffsetForLeaderEpochResponse:
    """
    Args:
        found: an answer for each partition that was asked for, in their order.
    """
    kind = wire.OffsetForLeaderEpochResponse
    answers = iter(found)
    return kind(
        topics=tuple(
            kind.OffsetForLeaderTopicResult(
                topic.topic,
                tuple(
                    kind.EpochEndOffset(
                        each.error_code, each.tp.partition, each.leader_epoch, each.end_offset
                    )
                    for _, each in zip(topic.partitions, answers, strict=False)
                ),
            )
            for topic in asked.topics
        )
    )


def epoch_response_from(
    request: OffsetForLeaderEpochRequest,
    response: wire.OffsetForLeaderEpochResponse,
    version: int,
) -> OffsetForLeaderEpochResponse:
    answers = (
        (TopicPartition(topic.topic, part.partition), part)
        for topic in response.topics
        for part in topic.partitions
    )
    return OffsetForLeaderEpochResponse(
        tuple(
            OffsetForLeaderPartitionResponse(
                asked.tp, code_of(part.error_code), part.leader_epoch, part.end_offset
            )
            for asked, part in with_answers(
                request.partitions, answers, "OffsetForLeaderEpochResponse", version
            )
        )
    )


# -- DeleteRecords ----------------------------------------------------------------------------


def deletion_to(request: DeleteRecordsRequest, version: int) -> wire.DeleteRecordsRequest:
    kind = wire.DeleteRecordsRequest
    parts = (
        (tp, kind.DeleteRecordsPartition(tp.partition, offset)) for tp, offset in request.partitions
    )
    return kind(by_topic(parts, kind.DeleteRecordsTopic), request.timeout_ms)


def deletion_from(request: wire.DeleteRecordsRequest) -> DeleteRecordsRequest:
    """Of a partition that stands twice the last offset counts."""
    asked = {tp: part.offset for tp, part in by_partition(request.topics)}
    return DeleteRecordsRequest(tuple(asked.items()), request.timeout_ms)


def deleted_to(found: Iterable[DeleteRecordsPartitionResponse]) -> wire.DeleteRecordsResponse:
    kind = wire.DeleteRecordsResponse
    parts = (
        (tp, kind.DeleteRecordsPartitionResult(tp.partition, low_watermark, code))
        for tp, code, low_watermark in sorted(found)
    )
    return kind(topics=by_topic(parts, kind.DeleteRecordsTopicResult))


def deleted_from(
    request: DeleteRecordsRequest, response: wire.DeleteRecordsResponse, version: int
) -> DeleteRecordsResponse:
    tps = [tp for tp, _ in request.partitions]
    found = answers_for(tps, by_partition(response.topics), "DeleteRecordsResponse", version)
    return DeleteRecordsResponse(
        tuple(
            DeleteRecordsPartitionResponse(tp, code_of(part.error_code), part.low_watermark)
            for tp, part in zip(tps, found, strict=True)
        )
    )
