"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.errors import InvalidRequestError
from replication.common.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
)
from replication.common.transport import DEFAULT_TIMEOUT_MS
from replication.protocol import messages as wire
from replication.protocol.partitions import by_partition, by_topic, partitions_of
from replication.wire.common import answers_for, code_of

FIRST_WITH_CODE = 1  # of ElectLeaders: one for the whole

# -- ElectLeaders -----------------------------------------------------------------------------


def election_to(request: ElectLeadersRequest, version: int) -> wire.ElectLeadersRequest:
    kind, topics = wire.ElectLeadersRequest, None
    if request.partitions is not None:
        topics = by_topic(((tp, tp.partition) for tp in request.partitions), kind.TopicPartitions)
    return kind(request.election_type, topics, DEFAULT_TIMEOUT_MS, forwarded=True)


def election_from(request: wire.ElectLeadersRequest) -> ElectLeadersRequest:
    """
    Raises:
        InvalidRequestError: the type is unknown.
    """
    if request.election_type not in list(ElectionType):
        raise InvalidRequestError(f"election type {request.election_type}")
    topics = request.topic_partitions
    tps = None if topics is None else tuple(partitions_of(topics))
    return ElectLeadersRequest(ElectionType(request.election_type), tps)


def elected_to(
    request: wire.ElectLeadersRequest, answer: ElectLeadersResponse, version: int
) -> wire.ElectLeadersResponse:
    """The code of the whole also stands for each partition: some clients look there only."""
    kind, whole = wire.ElectLeadersResponse, answer.error_code
    codes, topics = dict(answer.partitions), request.topic_partitions
    if topics is None:
        parts = ((tp, tp.partition) for tp in sorted(codes))
        topics = by_topic(parts, wire.ElectLeadersRequest.TopicPartitions)
    results = tuple(
        kind.ReplicaElectionResult(
            name,
            tuple(
                kind.PartitionResult(part, codes.get(TopicPartition(name, part), whole), None)
                for part in parts
            ),
        )
        for name, parts in topics
    )
    code = whole if version >= FIRST_WITH_CODE else ErrorCode.NONE
    return kind(error_code=code, replica_election_results=results)


def elected_from(
    request: ElectLeadersRequest, response: wire.ElectLeadersResponse, version: int
) -> ElectLeadersResponse:
    code, found = code_of(response.error_code), by_partition(response.replica_election_results)
    tps = [tp for tp, _ in found] if request.partitions is None else request.partitions
    return ElectLeadersResponse(code, _codes(code, tps, found, "ElectLeadersResponse", version))


# -- AlterPartitionReassignments --------------------------------------------------------------


def reassignment_to(
    request: AlterPartitionReassignmentsRequest, version: int
) -> wire.AlterPartitionReassignmentsRequest:
    kind = wire.AlterPartitionReassignmentsRequest
    parts = (
        (tp, kind.ReassignablePartition(tp.partition, replicas)) for tp, replicas in request.targets
    )
    topics = by_topic(parts, kind.ReassignableTopic)
    return kind(DEFAULT_TIMEOUT_MS, request.may_change_factor, topics, forwarded=True)


def reassignment_from(
    request: wire.AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsRequest:
    """Of a partition that stands twice the last move counts."""
    targets = {tp: part.replicas for tp, part in by_partition(request.topics)}
    return AlterPartitionReassignmentsRequest(
        tuple((tp, None if to is None else tuple(to)) for tp, to in targets.items()),
        request.allow_replication_factor_change,
    )


def reassigned_to(
    request: wire.AlterPartitionReassignmentsRequest, answer: AlterPartitionReassignmentsResponse
) -> wire.AlterPartitionReassignmentsResponse:
    kind, whole = wire.AlterPartitionReassignmentsResponse, answer.error_code
    codes = dict(answer.partitions)
    responses = tuple(
        kind.ReassignableTopicResponse(
            topic.name,
            tuple(
                kind.ReassignablePartitionResponse(
                    part.partition_index,
                    codes.get(TopicPartition(topic.name, part.partition_index), whole),
                    None,
                )
                for part in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return kind(0, request.allow_replication_factor_change, whole, None, responses)


def reassigned_from(
    request: AlterPartitionReassignmentsRequest,
    response: wire.AlterPartitionReassignmentsResponse,
    version: int,
) -> AlterPartitionReassignmentsResponse:
    code, found = code_of(response.error_code), by_partition(response.responses)
    tps = [tp for tp, _ in request.targets]
    name = "AlterPartitionReassignmentsResponse"
    return AlterPartitionReassignmentsResponse(code, _codes(code, tps, found, name, version))


# -- ListPartitionReassignments ---------------------------------------------------------------


def listing_to(
    request: ListPartitionReassignmentsRequest, version: int
) -> wire.ListPartitionReassignmentsRequest:
    kind, topics = wire.ListPartitionReassignmentsRequest, None
    if request.partitions is not None:
        parts = ((tp, tp.partition) for tp in request.partitions)
        topics = by_topic(parts, kind.ListPartitionReassignmentsTopics)
    return kind(DEFAULT_TIMEOUT_MS, topics, forwarded=True)


def listing_from(
    request: wire.ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsRequest:
    topics = request.topics
    return ListPartitionReassignmentsRequest(
        None if topics is None else tuple(partitions_of(topics))
    )


def listed_to(
    answer: ListPartitionReassignmentsResponse,
) -> wire.ListPartitionReassignmentsResponse:
    kind = wire.ListPartitionReassignmentsResponse
    moves = (
        (tp, kind.OngoingPartitionReassignment(tp.partition, *moves))
        for tp, *moves in answer.partitions
    )
    topics = by_topic(moves, kind.OngoingTopicReassignment)
    return kind(error_code=answer.error_code, error_message=None, topics=topics)


def listed_from(
    request: ListPartitionReassignmentsRequest,
    response: wire.ListPartitionReassignmentsResponse,
    version: int,
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(
        code_of(response.error_code),
        tuple(
            OngoingReassignment(tp, part.replicas, part.adding_replicas, part.removing_replicas)
            for tp, part in by_partition(response.topics)
        ),
    )


def _codes(
    whole: ErrorCode,
    tps: Sequence[TopicPartition],
    found: Sequence[tuple[TopicPartition, Any]],
    name: str,
    version: int,
) -> tuple[tuple[TopicPartition, ErrorCode], ...]:
    """The code of each partition; none where the whole has failed."""
    if whole:
        return ()
    codes = answers_for(tps, found, name, version)
    return tuple((tp, code_of(part.error_code)) for tp, part in zip(tps, codes, strict=True))
