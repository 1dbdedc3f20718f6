"""What brokers ask their controller: AlterPartition, ControlledShutdown, AllocateProducerIds.

What they forward for clients is in other modules. The ISR that a leader proposes comes with the
epochs of its brokers from version 3 on; a Kafka under ZooKeeper knows none and sends −1 (X-69).
"""

from __future__ import annotations

from checkpoints.types import TopicPartition
from replication.common.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    unresolved_topic,
)
from replication.common.state import UNKNOWN_EPOCH
from replication.protocol import ZERO_UUID
from replication.protocol import messages as wire
from replication.wire.common import by_topic, code_of, known_id, recovery_state

FIRST_WITH_EPOCHS = 3

# -- AlterPartition ---------------------------------------------------------------------------


def alter_partition_request_to(
    request: AlterPartitionRequest, version: int
) -> wire.AlterPartitionRequest:
    kind = wire.AlterPartitionRequest
    return kind(
        request.broker_id,
        request.broker_epoch,
        tuple(
            kind.TopicData(
                topic_id or ZERO_UUID, tuple([_item_to(item, version) for item in items])
            )
            for (_, topic_id), items in by_topic(request.partitions).items()
        ),
    )


def _item_to(item: AlterPartitionItem, version: int) -> wire.AlterPartitionRequest.PartitionData:
    kind = wire.AlterPartitionRequest
    made = kind.PartitionData(
        item.tp.partition,
        item.leader_epoch,
        leader_recovery_state=item.recovery_state,
        partition_epoch=item.partition_epoch,
    )
    if version < FIRST_WITH_EPOCHS:
        return made._replace(new_isr=tuple([broker_id for broker_id, _ in item.new_isr]))
    return made._replace(
        new_isr_with_epochs=tuple([kind.BrokerState(*each) for each in item.new_isr])
    )


def alter_partition_request_from(
    message: wire.AlterPartitionRequest, version: int
) -> AlterPartitionRequest:
    """The request. Its topics have ids alone, which the controller looks up in its own state: the
    metadata of its broker may be late.

    Raises:
        InvalidRequestError: it says what there is not.
    """
    has_epochs = version >= FIRST_WITH_EPOCHS
    return AlterPartitionRequest(
        message.broker_id,
        message.broker_epoch,
        tuple(
            AlterPartitionItem(
                TopicPartition(unresolved_topic(topic.topic_id), part.partition_index),
                part.leader_epoch,
                part.partition_epoch,
                tuple([(each.broker_id, each.broker_epoch) for each in part.new_isr_with_epochs])
                if has_epochs
                else tuple([(broker_id, UNKNOWN_EPOCH) for broker_id in part.new_isr]),
                recovery_state(part.leader_recovery_state),
                known_id(topic.topic_id),
            )
            for topic in message.topics
            for part in topic.partitions
        ),
    )


def alter_partition_response_to(
    request: AlterPartitionRequest, response: AlterPartitionResponse, version: int
) -> wire.AlterPartitionResponse:
    kind = wire.AlterPartitionResponse
    return kind(
        error_code=response.error_code,
        topics=tuple(
            kind.TopicData(
                topic_id or ZERO_UUID,
                tuple(
                    [
                        kind.PartitionData(
                            part.tp.partition,
                            part.error_code,
                            part.leader_id,
                            part.leader_epoch,
                            part.isr,
                            part.recovery_state,
                            part.partition_epoch,
                            part.min_isr,
                        )
                        for part in parts
                    ]
                ),
            )
            for (_, topic_id), parts in by_topic(response.partitions).items()
        ),
    )


def alter_partition_response_from(
    request: AlterPartitionRequest, message: wire.AlterPartitionResponse, version: int
) -> AlterPartitionResponse:
    """The answer, of topics that were asked for."""
    names = {item.topic_id or ZERO_UUID: item.tp.topic for item in request.partitions}
    return AlterPartitionResponse(
        code_of(message.error_code),
        tuple(
            AlterPartitionResult(
                TopicPartition(names[topic.topic_id], part.partition_index),
                code_of(part.error_code),
                part.leader_id,
                part.leader_epoch,
                part.isr,
                part.partition_epoch,
                recovery_state(part.leader_recovery_state),
                known_id(topic.topic_id),
                part.min_isr,
            )
            for topic in message.topics
            if topic.topic_id in names
            for part in topic.partitions
        ),
    )


# -- ControlledShutdown -----------------------------------------------------------------------


def controlled_shutdown_request_to(
    request: ControlledShutdownRequest, version: int
) -> wire.ControlledShutdownRequest:
    return wire.ControlledShutdownRequest(*request)


def controlled_shutdown_request_from(
    message: wire.ControlledShutdownRequest, version: int
) -> ControlledShutdownRequest:
    return ControlledShutdownRequest(*message)


def controlled_shutdown_response_to(
    request: ControlledShutdownRequest, response: ControlledShutdownResponse, version: int
) -> wire.ControlledShutdownResponse:
    kind = wire.ControlledShutdownResponse
    return kind(
        response.error_code, tuple([kind.RemainingPartition(*tp) for tp in response.remaining])
    )


def controlled_shutdown_response_from(
    request: ControlledShutdownRequest, message: wire.ControlledShutdownResponse, version: int
) -> ControlledShutdownResponse:
    return ControlledShutdownResponse(
        code_of(message.error_code),
        tuple([TopicPartition(*each) for each in message.remaining_partitions]),
    )


# -- AllocateProducerIds (KIP-730) ------------------------------------------------------------


def allocate_ids_request_to(
    request: AllocateProducerIdsRequest, version: int
) -> wire.AllocateProducerIdsRequest:
    return wire.AllocateProducerIdsRequest(*request)


def allocate_ids_request_from(
    message: wire.AllocateProducerIdsRequest, version: int
) -> AllocateProducerIdsRequest:
    return AllocateProducerIdsRequest(*message)


def allocate_ids_response_to(
    request: AllocateProducerIdsRequest, response: AllocateProducerIdsResponse, version: int
) -> wire.AllocateProducerIdsResponse:
    return wire.AllocateProducerIdsResponse(0, *response)


def allocate_ids_response_from(
    request: AllocateProducerIdsRequest, message: wire.AllocateProducerIdsResponse, version: int
) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(
        code_of(message.error_code), message.producer_id_start, message.producer_id_len
    )
