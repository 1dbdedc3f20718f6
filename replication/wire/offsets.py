"""ListOffsets and OffsetForLeaderEpoch (W-55, W-56)."""

from __future__ import annotations

from collections.abc import Iterable

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResponse,
)
from replication.protocol import messages as wire
from replication.wire.common import code_of, nested, with_answers

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
