"""CreateTopics, DeleteTopics, CreatePartitions and IncrementalAlterConfigs (W-25, W-26).

A request is about one topic, where the wire has several in one message.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from replication.common.error_codes import ErrorCode
from replication.common.errors import ResponseError
from replication.common.messages import (
    BROKER_DEFAULT,
    AlterableConfig,
    AlterConfigOp,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    IncrementalAlterConfigsRequest,
    TopicResponse,
)
from replication.common.transport import DEFAULT_TIMEOUT_MS
from replication.protocol import ZERO_UUID, MalformedMessageError
from replication.protocol import messages as wire
from replication.wire.common import code_of

FIRST_WITH_IDS = 6  # of DeleteTopics
TOPIC = 2  # the type of a resource

PATIENCE_MS = DEFAULT_TIMEOUT_MS * 2 // 3
"""How long a broker may take until it shows what was changed; its answer comes in time then."""

# -- CreateTopics -----------------------------------------------------------------------------

CreatableTopic = wire.CreateTopicsRequest.CreatableTopic


def creation_to(request: CreateTopicRequest, version: int) -> wire.CreateTopicsRequest:
    kind = wire.CreateTopicsRequest
    numbers = request.partitions, request.replication_factor
    if request.assignment is not None:  # one of no partitions is refused, as their number 0 is
        numbers = (BROKER_DEFAULT if request.assignment else 0), BROKER_DEFAULT
    topic = kind.CreatableTopic(
        request.topic,
        *numbers,
        tuple(
            kind.CreatableReplicaAssignment(partition, replicas)
            for partition, replicas in enumerate(request.assignment or ())
        ),
        tuple(kind.CreatableTopicConfig(*each) for each in request.config.items()),
    )
    return kind((topic,), PATIENCE_MS, request.validate_only, forwarded=True)


def config_from(topic: CreatableTopic) -> dict[str, str]:
    """
    Raises:
        ResponseError: INVALID_CONFIG: a key without a value.
    """
    config = {}
    for each in topic.configs:
        if each.value is None:
            raise ResponseError(ErrorCode.INVALID_CONFIG, f"{each.name} without a value")
        config[each.name] = each.value  # of two the last one counts
    return config


def creation_from(
    topic: CreatableTopic, validate_only: bool, config: Mapping[str, str]
) -> CreateTopicRequest:
    """
    Raises:
        ResponseError: the parts of the request do not fit together.
    """
    numbers = topic.num_partitions, topic.replication_factor
    if not topic.assignments:
        return CreateTopicRequest(topic.name, *numbers, None, config, validate_only)
    if numbers != (BROKER_DEFAULT, BROKER_DEFAULT):
        reason = "an assignment, and numbers of partitions or replicas"
        raise ResponseError(ErrorCode.INVALID_REQUEST, reason)
    assignment = {each.partition_index: tuple(each.broker_ids) for each in topic.assignments}
    if sorted(assignment) != list(range(len(topic.assignments))):
        reason = "partitions are numbered from 0 on, each once"
        raise ResponseError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    return CreateTopicRequest(
        topic.name,
        assignment=tuple(assignment[number] for number in range(len(assignment))),
        config=config,
        validate_only=validate_only,
    )


def creations_from(request: wire.CreateTopicsRequest) -> list[CreateTopicRequest | TopicResponse]:
    """For each topic the request, or what is wrong with it."""

    def one(topic: CreatableTopic) -> CreateTopicRequest | TopicResponse:
        try:
            return creation_from(topic, request.validate_only, config_from(topic))
        except ResponseError as error:
            return TopicResponse(error.code, str(error))

    return [*map(one, request.topics)]


def created_to(
    request: wire.CreateTopicsRequest, answers: Sequence[TopicResponse], version: int
) -> wire.CreateTopicsResponse:
    """Says of each topic no more than whether it is made."""
    kind = wire.CreateTopicsResponse
    return kind(
        topics=tuple(
            kind.CreatableTopicResult(
                topic.name, ZERO_UUID, answer.error_code, answer.error_message or None, configs=None
            )
            for topic, answer in zip(request.topics, answers, strict=True)
        )
    )


def created_from(
    request: CreateTopicRequest, response: wire.CreateTopicsResponse, version: int
) -> TopicResponse:
    return _answer("CreateTopicsResponse", version, request.topic, _named(response.topics))


# -- DeleteTopics -----------------------------------------------------------------------------


def deletion_to(request: DeleteTopicRequest, version: int) -> wire.DeleteTopicsRequest:
    """One by id has no earlier version."""
    kind, name = wire.DeleteTopicsRequest, request.topic
    if version < FIRST_WITH_IDS and name is not None and request.topic_id is None:
        return kind(topic_names=(name,), timeout_ms=PATIENCE_MS, forwarded=True)
    topic = kind.DeleteTopicState(name, request.topic_id or ZERO_UUID)
    return kind(topics=(topic,), timeout_ms=PATIENCE_MS, forwarded=True)


def deletions_from(request: wire.DeleteTopicsRequest) -> list[DeleteTopicRequest]:
    return [
        *(DeleteTopicRequest(name) for name in request.topic_names),
        *(
            DeleteTopicRequest(name, None if topic_id == ZERO_UUID else topic_id)
            for name, topic_id in request.topics
        ),
    ]


def deleted_to(
    topics: Iterable[tuple[str | None, uuid.UUID | None]],
    answers: Iterable[TopicResponse],
    version: int,
) -> wire.DeleteTopicsResponse:
    """
    Args:
        topics: by name, by id, or both.
    """
    kind = wire.DeleteTopicsResponse
    by_id = version >= FIRST_WITH_IDS
    return kind(
        responses=tuple(
            kind.DeletableTopicResult(
                name if by_id else name or "",
                topic_id or ZERO_UUID,
                answer.error_code,
                answer.error_message or None,
            )
            for (name, topic_id), answer in zip(topics, answers, strict=True)
        )
    )


def deleted_from(
    request: DeleteTopicRequest, response: wire.DeleteTopicsResponse, version: int
) -> TopicResponse:
    return _answer("DeleteTopicsResponse", version, request.topic, _named(response.responses))


# -- CreatePartitions -------------------------------------------------------------------------


def growth_to(request: CreatePartitionsRequest, version: int) -> wire.CreatePartitionsRequest:
    kind, assignments = wire.CreatePartitionsRequest, None
    if request.assignment is not None:
        assignments = tuple(kind.CreatePartitionsAssignment(each) for each in request.assignment)
    topic = kind.CreatePartitionsTopic(request.topic, request.total_count, assignments)
    return kind((topic,), PATIENCE_MS, request.validate_only, forwarded=True)


def growth_from(
    topic: wire.CreatePartitionsRequest.CreatePartitionsTopic, validate_only: bool
) -> CreatePartitionsRequest:
    assignment = None
    if topic.assignments is not None:
        assignment = tuple(tuple(each.broker_ids) for each in topic.assignments)
    return CreatePartitionsRequest(topic.name, topic.count, assignment, validate_only)


def grown_to(
    topics: Iterable[wire.CreatePartitionsRequest.CreatePartitionsTopic],
    answers: Iterable[TopicResponse],
) -> wire.CreatePartitionsResponse:
    kind = wire.CreatePartitionsResponse
    return kind(
        results=tuple(
            kind.CreatePartitionsTopicResult(
                topic.name, answer.error_code, answer.error_message or None
            )
            for topic, answer in zip(topics, answers, strict=True)
        )
    )


def grown_from(
    request: CreatePartitionsRequest, response: wire.CreatePartitionsResponse, version: int
) -> TopicResponse:
    return _answer("CreatePartitionsResponse", version, request.topic, _named(response.results))


# -- IncrementalAlterConfigs ------------------------------------------------------------------


def alteration_to(
    request: IncrementalAlterConfigsRequest, version: int
) -> wire.IncrementalAlterConfigsRequest:
    kind = wire.IncrementalAlterConfigsRequest
    changes = (
        kind.AlterableConfig(each.name, each.operation, each.value) for each in request.configs
    )
    resource = kind.AlterConfigsResource(TOPIC, request.topic, tuple(changes))
    return kind((resource,), request.validate_only, forwarded=True)


def changes_from(
    resource: wire.IncrementalAlterConfigsRequest.AlterConfigsResource,
) -> tuple[AlterableConfig, ...] | None:
    """None: an operation is unknown."""
    if not all(each.config_operation in list(AlterConfigOp) for each in resource.configs):
        return None
    return tuple(
        AlterableConfig(each.name, each.value, AlterConfigOp(each.config_operation))
        for each in resource.configs
    )


def alterations_from(
    request: wire.IncrementalAlterConfigsRequest,
) -> list[IncrementalAlterConfigsRequest | TopicResponse]:
    """For each topic the request, or what is wrong with it."""
    found: list[IncrementalAlterConfigsRequest | TopicResponse] = []
    for resource in request.resources:
        name, changes = resource.resource_name, changes_from(resource)
        if resource.resource_type != TOPIC or changes is None:
            found.append(TopicResponse(ErrorCode.INVALID_REQUEST, f"{name!r}: no topic's keys"))
        else:
            found.append(IncrementalAlterConfigsRequest(name, changes, request.validate_only))
    return found


def altered_to(
    resources: Iterable[Any],
    answers: Iterable[TopicResponse],
    kind: Any = wire.IncrementalAlterConfigsResponse,
) -> Any:
    """
    Args:
        kind: of the answer; that of AlterConfigs has the same fields.
    """
    return kind(
        responses=tuple(
            kind.AlterConfigsResourceResponse(
                answer.error_code,
                answer.error_message or None,
                resource.resource_type,
                resource.resource_name,
            )
            for resource, answer in zip(resources, answers, strict=True)
        )
    )


def altered_from(
    request: IncrementalAlterConfigsRequest,
    response: wire.IncrementalAlterConfigsResponse,
    version: int,
) -> TopicResponse:
    found = ((each.resource_name, each) for each in response.responses)
    return _answer("IncrementalAlterConfigsResponse", version, request.topic, found)


def _named(results: Iterable[Any]) -> Iterator[tuple[str | None, Any]]:
    return ((each.name, each) for each in results)


def _answer(
    message: str, version: int, topic: str | None, results: Iterable[tuple[str | None, Any]]
) -> TopicResponse:
    """The only answer, to the only topic of a request.

    Args:
        topic: None if the request does not name it.
        results: each with the topic that it names.
    Raises:
        MalformedMessageError: it is another's, or there are others.
    """
    found = [*results]
    if len(found) != 1 or topic not in (None, found[0][0]):
        raise MalformedMessageError(message, version, -1, f"not one answer about {topic!r}")
    answer = found[0][1]
    return TopicResponse(code_of(answer.error_code), answer.error_message or "")
