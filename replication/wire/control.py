"""What a controller orders its brokers: LeaderAndIsr, StopReplica and UpdateMetadata (X-9, X-73).

Kafka's layouts lack some of it, which lies in tagged fields of ours. A real broker skips them. A
real controller does not send them: then the order of a connection stands for ``sequence``, broker
epochs are −1, topics have no configuration, and LeaderAndIsr says nothing of live brokers (X-94).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from typing import Any

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.errors import InvalidRequestError
from replication.common.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionChange,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from replication.common.state import (
    UNKNOWN_EPOCH,
    BrokerRegistration,
    Endpoint,
    LiveBroker,
    PartitionRegistration,
    TopicAssignment,
)
from replication.network import SecurityProtocol
from replication.protocol import ZERO_UUID
from replication.protocol import messages as wire
from replication.wire.common import by_topic, code_of, known_id, recovery_state, with_answers

FULL = 2  # the type of a request that names everything (KIP-866)
PROTOCOLS = (
    SecurityProtocol.PLAINTEXT.value,
    SecurityProtocol.SSL.value,
    SecurityProtocol.SASL_PLAINTEXT.value,
    SecurityProtocol.SASL_SSL.value,
)
"""By their numbers in Kafka."""

# -- LeaderAndIsr -----------------------------------------------------------------------------


def leader_and_isr_request_to(
    request: LeaderAndIsrRequest, version: int
) -> wire.LeaderAndIsrRequest:
    kind = wire.LeaderAndIsrRequest
    return kind(
        request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topic_states=tuple(
            [
                kind.LeaderAndIsrTopicState(
                    topic,
                    topic_id or ZERO_UUID,
                    tuple([_role_to(change) for change in changes]),
                    _configs_to(kind.Config, changes),
                    _partition_count(changes),
                )
                for (topic, topic_id), changes in by_topic(request.partitions).items()
            ]
        ),
        live_leaders=tuple(
            kind.LeaderAndIsrLiveLeader(
                broker.broker_id,
                broker.host,
                broker.port,
                epoch,
                _endpoints_to(kind.Endpoint, broker),
                broker.rack,
            )
            for broker, epoch in request.live_brokers
        ),
        sequence=request.sequence,
        full=request.is_full,
        topics=tuple(
            kind.Topic(
                name,
                topic.topic_id,
                tuple([kind.Partition(*each) for each in topic.partitions.items()]),
            )
            for name, topic in request.topics.items()
        ),
        deleted_topic_ids=tuple(request.deleted),
    )


def _role_to(change: PartitionChange) -> wire.LeaderAndIsrRequest.LeaderAndIsrPartitionState:
    new = change.registration
    return wire.LeaderAndIsrRequest.LeaderAndIsrPartitionState(
        change.tp.partition,
        new.controller_epoch,
        new.leader,
        new.leader_epoch,
        new.isr,
        new.partition_epoch,
        new.replicas,
        is_new=new.leader_epoch == new.partition_epoch == 0,
        leader_recovery_state=new.recovery_state,
        elr=new.elr,
        last_known_leader=new.last_known_leader,
    )


def leader_and_isr_request_from(
    message: wire.LeaderAndIsrRequest, version: int
) -> LeaderAndIsrRequest:
    """
    Raises:
        InvalidRequestError: it says what there is not.
    """
    states: Any = message.topics
    if not message.full and message.type == FULL:
        states = [
            (
                topic.topic_name,
                topic.topic_id,
                [(part.partition_index, part.replicas) for part in topic.partition_states],
            )
            for topic in message.topic_states
        ]
    return LeaderAndIsrRequest(
        message.controller_id,
        message.controller_epoch,
        message.broker_epoch,
        _changes(message.topic_states, lambda part: part.partition_epoch),
        # Kafka names the leaders alone, without their listeners. They are known already.
        tuple(
            _live_broker(
                leader.broker_id,
                leader.host_name,
                leader.port,
                leader.endpoints,
                leader.rack,
                leader.broker_epoch,
            )
            for leader in message.live_leaders
            if leader.broker_epoch != UNKNOWN_EPOCH
        ),
        message.sequence,
        message.full or message.type == FULL,
        {name: TopicAssignment(topic_id, dict(parts)) for name, topic_id, parts in states},
        frozenset(message.deleted_topic_ids),
    )


def leader_and_isr_response_to(
    request: LeaderAndIsrRequest, response: LeaderAndIsrResponse, version: int
) -> wire.LeaderAndIsrResponse:
    kind = wire.LeaderAndIsrResponse
    ids = {change.tp: change.topic_id or ZERO_UUID for change in request.partitions}
    topics: dict[uuid.UUID, list[wire.LeaderAndIsrResponse.LeaderAndIsrPartitionError]] = {}
    for tp, code in response.partitions:
        error = kind.LeaderAndIsrPartitionError(
            tp.partition, code, response.log_epochs.get(tp, UNKNOWN_EPOCH)
        )
        topics.setdefault(ids[tp], []).append(error)
    return kind(
        response.error_code,
        tuple(
            kind.LeaderAndIsrTopicError(topic_id, tuple(parts))
            for topic_id, parts in topics.items()
        ),
    )


def leader_and_isr_response_from(
    request: LeaderAndIsrRequest, message: wire.LeaderAndIsrResponse, version: int
) -> LeaderAndIsrResponse:
    """
    Raises:
        MalformedMessageError: a partition without an answer.
    """
    code = code_of(message.error_code)
    if code is not ErrorCode.NONE:
        return LeaderAndIsrResponse(code)
    names = {change.topic_id or ZERO_UUID: change.tp.topic for change in request.partitions}
    answers = (
        (TopicPartition(names[topic.topic_id], part.partition_index), part)
        for topic in message.topics
        if topic.topic_id in names
        for part in topic.partition_errors
    )
    found = [
        (change.tp, part)
        for change, part in with_answers(
            request.partitions, answers, "LeaderAndIsrResponse", version
        )
    ]
    return LeaderAndIsrResponse(
        code,
        tuple([(tp, code_of(part.error_code)) for tp, part in found]),
        {tp: part.log_epoch for tp, part in found if part.log_epoch != UNKNOWN_EPOCH},
    )


# -- UpdateMetadata ---------------------------------------------------------------------------


def update_metadata_request_to(
    request: UpdateMetadataRequest, version: int
) -> wire.UpdateMetadataRequest:
    kind = wire.UpdateMetadataRequest
    live = {broker.broker_id for broker, _ in request.live_brokers}
    return kind(
        request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topic_states=tuple(
            [
                kind.UpdateMetadataTopicState(
                    topic,
                    topic_id or ZERO_UUID,
                    tuple([_state_to(change, live) for change in changes]),
                    _configs_to(kind.Config, changes),
                    _partition_count(changes),
                )
                for (topic, topic_id), changes in by_topic(request.partitions).items()
            ]
        ),
        live_brokers=tuple(
            kind.UpdateMetadataBroker(
                broker.broker_id,
                _endpoints_to(kind.UpdateMetadataEndpoint, broker),
                broker.rack,
                epoch,
            )
            for broker, epoch in request.live_brokers
        ),
        sequence=request.sequence,
        full=request.is_full,
        shutting_down=request.shutting_down,
    )


def _state_to(
    change: PartitionChange, live: Collection[int]
) -> wire.UpdateMetadataRequest.UpdateMetadataPartitionState:
    new = change.registration
    return wire.UpdateMetadataRequest.UpdateMetadataPartitionState(
        change.tp.partition,
        new.controller_epoch,
        new.leader,
        new.leader_epoch,
        new.isr,
        new.partition_epoch,
        new.replicas,
        tuple([replica for replica in new.replicas if replica not in live]),
        new.elr,
        new.last_known_leader,
    )


def update_metadata_request_from(
    message: wire.UpdateMetadataRequest, version: int
) -> UpdateMetadataRequest:
    """The request. It does not say whether leaders have recovered, which their replicas know.

    Raises:
        InvalidRequestError: it says what there is not.
    """
    return UpdateMetadataRequest(
        message.controller_id,
        message.controller_epoch,
        message.broker_epoch,
        _changes(message.topic_states, lambda part: part.zk_version),
        tuple(
            _live_broker(
                broker.id, "localhost", -1, broker.endpoints, broker.rack, broker.broker_epoch
            )
            for broker in message.live_brokers
        ),
        message.shutting_down,
        message.sequence,
        message.full or message.type == FULL,
    )


def update_metadata_response_to(
    request: UpdateMetadataRequest, response: UpdateMetadataResponse, version: int
) -> wire.UpdateMetadataResponse:
    return wire.UpdateMetadataResponse(response.error_code)


def update_metadata_response_from(
    request: UpdateMetadataRequest, message: wire.UpdateMetadataResponse, version: int
) -> UpdateMetadataResponse:
    return UpdateMetadataResponse(code_of(message.error_code))


# -- StopReplica ------------------------------------------------------------------------------


def stop_replica_request_to(request: StopReplicaRequest, version: int) -> wire.StopReplicaRequest:
    kind = wire.StopReplicaRequest
    return kind(
        request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topic_states=tuple(
            kind.StopReplicaTopicState(
                topic,
                tuple(
                    [
                        kind.StopReplicaPartitionState(
                            stop.tp.partition, stop.leader_epoch, stop.delete
                        )
                        for stop in stops
                    ]
                ),
                topic_id or ZERO_UUID,
            )
            for (topic, topic_id), stops in by_topic(request.partitions).items()
        ),
        sequence=request.sequence,
    )


def stop_replica_request_from(message: wire.StopReplicaRequest, version: int) -> StopReplicaRequest:
    return StopReplicaRequest(
        message.controller_id,
        message.controller_epoch,
        message.broker_epoch,
        tuple(
            [
                StopReplicaPartition(
                    TopicPartition(topic.topic_name, part.partition_index),
                    part.leader_epoch,
                    part.delete_partition,
                    topic_id,
                )
                for topic in message.topic_states
                for topic_id in (known_id(topic.topic_id),)
                for part in topic.partition_states
            ]
        ),
        message.sequence,
    )


def stop_replica_response_to(
    request: StopReplicaRequest, response: StopReplicaResponse, version: int
) -> wire.StopReplicaResponse:
    kind = wire.StopReplicaResponse
    return kind(
        response.error_code,
        tuple([kind.StopReplicaPartitionError(*tp, code) for tp, code in response.partitions]),
    )


def stop_replica_response_from(
    request: StopReplicaRequest, message: wire.StopReplicaResponse, version: int
) -> StopReplicaResponse:
    """
    Raises:
        MalformedMessageError: a partition without an answer.
    """
    code = code_of(message.error_code)
    if code is not ErrorCode.NONE:
        return StopReplicaResponse(code)
    answers = (
        (TopicPartition(part.topic_name, part.partition_index), code_of(part.error_code))
        for part in message.partition_errors
    )
    found = with_answers(request.partitions, answers, "StopReplicaResponse", version)
    return StopReplicaResponse(code, tuple([(stop.tp, part) for stop, part in found]))


# -- parts that two of them have --------------------------------------------------------------


def _changes(states: Iterable[Any], partition_epoch: Any) -> tuple[PartitionChange, ...]:
    """
    Args:
        states: of the topics in a message.
        partition_epoch: reads it from the state of a partition.
    """
    return tuple(
        [
            PartitionChange(
                TopicPartition(topic.topic_name, part.partition_index),
                PartitionRegistration(
                    part.replicas,
                    part.isr,
                    part.leader,
                    part.leader_epoch,
                    partition_epoch(part),
                    recovery_state(getattr(part, "leader_recovery_state", 0)),
                    part.elr,
                    part.last_known_leader,
                    part.controller_epoch,
                ),
                topic_id,
                configs,
                topic.partition_count,
            )
            for topic in states
            for topic_id, configs in ((known_id(topic.topic_id), dict(topic.configs)),)
            for part in topic.partition_states
        ]
    )


def _configs_to(kind: Any, changes: list[PartitionChange]) -> tuple[Any, ...]:
    """The configuration of a topic, which all its partitions have."""
    return tuple([kind(*each) for each in (changes[-1].config or {}).items()])


def _partition_count(changes: list[PartitionChange]) -> int:
    return max([change.partition_count for change in changes])


def _endpoints_to(kind: Any, broker: BrokerRegistration) -> tuple[Any, ...]:
    return tuple(
        kind(each.port, each.host, each.listener, PROTOCOLS.index(each.security_protocol))
        for each in broker.endpoints
    )


def _live_broker(
    broker_id: int,
    host: str,
    port: int,
    endpoints: Iterable[Any],
    rack: str | None,
    broker_epoch: int,
) -> LiveBroker:
    """
    Args:
        host, port: of a broker without endpoints.
    """
    found = tuple(
        Endpoint(each.listener, each.host, each.port, _protocol(each.security_protocol))
        for each in endpoints
    )
    if found:
        host, port = found[0].host, found[0].port
    return LiveBroker(
        BrokerRegistration(broker_id, host, port, rack, endpoints=found), broker_epoch
    )


def _protocol(number: int) -> str:
    if not 0 <= number < len(PROTOCOLS):
        raise InvalidRequestError(f"security protocol {number}")
    return PROTOCOLS[number]
