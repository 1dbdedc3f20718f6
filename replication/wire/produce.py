"""Produce and InitProducerId."""

from __future__ import annotations

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    TransactionSupport,
)
from replication.protocol import UnencodableMessageError
from replication.protocol import messages as wire
from replication.wire.common import code_of, nested, with_answers

FIRST_WITH_IDS = 13
FIRST_WITH_LEADERS = 10
FIRST_WITH_ABORTABLE = 11
FIRST_ADDING_PARTITIONS = 12

Part = wire.ProduceResponse.PartitionProduceResponse


def latest_version(request: ProduceRequest) -> int:
    """Later ones name topics by id, which a batch to a partition does not know."""
    return FIRST_WITH_IDS - 1


def request_to(request: ProduceRequest, version: int) -> wire.ProduceRequest:
    kind = wire.ProduceRequest
    topics = nested(
        request.partitions,
        lambda name, parts: kind.TopicProduceData(
            name,
            partition_data=tuple(
                kind.PartitionProduceData(part.tp.partition, part.records) for part in parts
            ),
        ),
    )
    return kind(request.transactional_id, request.acks, request.timeout_ms, topics)


def response_from(
    request: ProduceRequest, response: wire.ProduceResponse, version: int
) -> ProduceResponse:
    answers = (
        (TopicPartition(topic.name, part.index), part)
        for topic in response.responses
        for part in topic.partition_responses
    )
    found = with_answers(request.partitions, answers, "ProduceResponse", version)
    return ProduceResponse(tuple(_part_from(asked.tp, part) for asked, part in found))


def _part_from(tp: TopicPartition, part: Part) -> ProducePartitionResponse:
    return ProducePartitionResponse(
        tp,
        code_of(part.error_code),
        part.base_offset,
        part.log_append_time_ms,
        part.log_start_offset,
        part.error_message or "",
        tuple((index, text or "") for index, text in part.record_errors),
        (part.current_leader.leader_id, part.current_leader.leader_epoch),
    )


def unanswered(request: ProduceRequest) -> ProduceResponse | None:
    """The substitute for the answer of a request that gets none; None if it gets one."""
    if request.acks != 0:
        return None
    return ProduceResponse(tuple(ProducePartitionResponse(part.tp) for part in request.partitions))


def part_to(found: ProducePartitionResponse, version: int) -> Part:
    """The answer for one partition."""
    if not found.error_code:
        return Part(
            found.tp.partition,
            0,
            found.base_offset,
            found.log_append_time_ms,
            found.log_start_offset,
        )
    kind = wire.ProduceResponse
    part = Part(
        found.tp.partition,
        found.error_code,
        -1,
        log_start_offset=found.log_start_offset,
        record_errors=tuple(kind.BatchIndexAndErrorMessage(*each) for each in found.record_errors),
        error_message=found.error_message or None,
    )
    if version >= FIRST_WITH_LEADERS and found.current_leader[0] >= 0:
        part = part._replace(current_leader=kind.LeaderIdAndEpoch(*found.current_leader))
    return part


def transaction_support(version: int) -> TransactionSupport:
    if version >= FIRST_ADDING_PARTITIONS:
        return TransactionSupport.ADD_PARTITION
    if version >= FIRST_WITH_ABORTABLE:
        return TransactionSupport.GENERIC_ERROR
    return TransactionSupport.DEFAULT_ERROR


# -- InitProducerId ---------------------------------------------------------------------------


def id_request_to(request: InitProducerIdRequest, version: int) -> wire.InitProducerIdRequest:
    """
    Raises:
        UnencodableMessageError: the id is to be above another one. Only the coordinators of a
            broker ask so, and they ask their own.
    """
    if request.above != -1:
        raise UnencodableMessageError("InitProducerIdRequest", version, "no field has a bound")
    return wire.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)


def id_response_from(
    request: InitProducerIdRequest, response: wire.InitProducerIdResponse, version: int
) -> InitProducerIdResponse:
    code = code_of(response.error_code)
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # of a broker that has no ids yet
        code = ErrorCode.BROKER_NOT_AVAILABLE
    return InitProducerIdResponse(code, response.producer_id, response.producer_epoch)
