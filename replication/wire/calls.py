"""The requests that go over a wire: by which lane, how each is written, how its answer is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from checkpoints.types import TopicPartition
from replication.common import messages
from replication.common.messages import (
    MetadataRequest,
    MetadataResponse,
    Response,
    TopicPartitionMetadata,
)
from replication.common.state import UNKNOWN_EPOCH, BrokerRegistration, LiveBroker
from replication.protocol import ZERO_UUID, ApiKey
from replication.protocol import messages as wire
from replication.wire import (
    control,
    controller,
    elections,
    fetch,
    offsets,
    produce,
    topics,
    transactions,
)
from replication.wire.common import code_of


def _any_version(request: Any) -> int | None:
    return None


class LanePurpose(Enum):
    """What a lane is for (X-51). Requests of one purpose never wait for those of another."""

    CLIENT = "client"  # what is answered soon
    FETCH = "fetch"
    CONTROL = "control"  # from the controller
    CONTROLLER = "controller"  # to it, about the sender's own partitions
    FORWARD = "forward"  # to it, from a client
    TRANSACTIONS = "transactions"


class LaneRule(NamedTuple):
    """The lanes of one purpose to one broker.

    Attributes:
        lanes: that there may be; each further request queues behind one that is under way.
        in_flight: requests of one lane. The order of such a lane is that of the handling only if
            it is 1: a broker may handle two requests of a connection side by side.
        max_response_bytes: a larger answer ends the lane; FETCH has a bound of its own.
        hands_over: who is answered may wait for a disk, and must not do so on the thread of I/O.
    """

    lanes: int
    in_flight: int
    max_response_bytes: int = 16 << 20
    hands_over: bool = False


MAX_RESPONSE_BYTES = 100 << 20
MAX_FETCH_LANES = 16

LANE_RULES: Mapping[LanePurpose, LaneRule] = {
    LanePurpose.CLIENT: LaneRule(1, 1 << 31, MAX_RESPONSE_BYTES),
    # An answer may wait for records, or for other brokers: nothing may queue behind it.
    LanePurpose.FETCH: LaneRule(MAX_FETCH_LANES, 1, MAX_RESPONSE_BYTES),
    LanePurpose.FORWARD: LaneRule(16, 1),
    LanePurpose.TRANSACTIONS: LaneRule(16, 1, hands_over=True),
    # Order counts: a later request must not overtake.
    LanePurpose.CONTROL: LaneRule(1, 1),
    LanePurpose.CONTROLLER: LaneRule(1, 1),
}


class Translation(NamedTuple):
    """
    Attributes:
        request_to: the wire's message in a version.
        response_from: the answer to a request; MalformedMessageError if it does not fit to it.
        latest_version: the latest version that can carry a request; None for any.
        unanswered: what stands for the answer of a request that gets none.
        purpose: of the lane that carries it.
    """

    api_key: ApiKey
    request_to: Callable[[Any, int], Any]
    response_from: Callable[[Any, Any, int], Response]
    latest_version: Callable[[Any], int | None] = _any_version
    unanswered: Callable[[Any], Response | None] = _any_version  # type: ignore[assignment]
    purpose: LanePurpose = LanePurpose.CLIENT


# -- Metadata (W-20 to W-24) -------------------------------------------------------------------

FIRST_WITH_PERMISSION = 4


def _metadata_to(request: MetadataRequest, version: int) -> wire.MetadataRequest:
    kind = wire.MetadataRequest
    topics = None
    if request.topics is not None:
        topics = tuple(kind.MetadataRequestTopic(name=name) for name in request.topics)
    may_create = request.may_create or version < FIRST_WITH_PERMISSION
    return kind(topics, allow_auto_topic_creation=may_create)


def _metadata_from(
    request: MetadataRequest, response: wire.MetadataResponse, version: int
) -> MetadataResponse:
    named = [(topic.name, topic) for topic in response.topics if topic.name is not None]
    return MetadataResponse(
        tuple(
            LiveBroker(
                BrokerRegistration(each.node_id, each.host, each.port, each.rack), UNKNOWN_EPOCH
            )
            for each in response.brokers
        ),
        response.controller_id,
        tuple(
            TopicPartitionMetadata(
                TopicPartition(name, part.partition_index),
                code_of(part.error_code),
                part.leader_id,
                part.leader_epoch,
                part.replica_nodes,
                part.isr_nodes,
                part.offline_replicas,
            )
            for name, topic in named
            for part in topic.partitions
        ),
        {
            name: None if topic.topic_id == ZERO_UUID else topic.topic_id
            for name, topic in named
            if not topic.error_code
        },
        {name: code_of(topic.error_code) for name, topic in named if topic.error_code},
        response.cluster_id,
    )


TRANSLATIONS: Mapping[type[Any], Translation] = {
    messages.MetadataRequest: Translation(ApiKey.METADATA, _metadata_to, _metadata_from),
    messages.ProduceRequest: Translation(
        ApiKey.PRODUCE,
        produce.request_to,
        produce.response_from,
        produce.latest_version,
        produce.unanswered,
    ),
    messages.FetchRequest: Translation(
        ApiKey.FETCH,
        fetch.request_to,
        fetch.response_from,
        fetch.latest_version,
        purpose=LanePurpose.FETCH,
    ),
    messages.ListOffsetsRequest: Translation(
        ApiKey.LIST_OFFSETS, offsets.request_to, offsets.response_from
    ),
    messages.OffsetForLeaderEpochRequest: Translation(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, offsets.epoch_request_to, offsets.epoch_response_from
    ),
    messages.InitProducerIdRequest: Translation(
        ApiKey.INIT_PRODUCER_ID, produce.id_request_to, produce.id_response_from
    ),
    messages.LeaderAndIsrRequest: Translation(
        ApiKey.LEADER_AND_ISR,
        control.leader_and_isr_request_to,
        control.leader_and_isr_response_from,
        purpose=LanePurpose.CONTROL,
    ),
    messages.UpdateMetadataRequest: Translation(
        ApiKey.UPDATE_METADATA,
        control.update_metadata_request_to,
        control.update_metadata_response_from,
        purpose=LanePurpose.CONTROL,
    ),
    messages.StopReplicaRequest: Translation(
        ApiKey.STOP_REPLICA,
        control.stop_replica_request_to,
        control.stop_replica_response_from,
        purpose=LanePurpose.CONTROL,
    ),
    messages.AlterPartitionRequest: Translation(
        ApiKey.ALTER_PARTITION,
        controller.alter_partition_request_to,
        controller.alter_partition_response_from,
        purpose=LanePurpose.CONTROLLER,
    ),
    messages.ControlledShutdownRequest: Translation(
        ApiKey.CONTROLLED_SHUTDOWN,
        controller.controlled_shutdown_request_to,
        controller.controlled_shutdown_response_from,
        purpose=LanePurpose.CONTROLLER,
    ),
    messages.AllocateProducerIdsRequest: Translation(
        ApiKey.ALLOCATE_PRODUCER_IDS,
        controller.allocate_ids_request_to,
        controller.allocate_ids_response_from,
        purpose=LanePurpose.CONTROLLER,
    ),
    messages.CreateTopicRequest: Translation(
        ApiKey.CREATE_TOPICS,
        topics.creation_to,
        topics.created_from,
        purpose=LanePurpose.FORWARD,
    ),
    messages.DeleteTopicRequest: Translation(
        ApiKey.DELETE_TOPICS,
        topics.deletion_to,
        topics.deleted_from,
        purpose=LanePurpose.FORWARD,
    ),
    messages.CreatePartitionsRequest: Translation(
        ApiKey.CREATE_PARTITIONS,
        topics.growth_to,
        topics.grown_from,
        purpose=LanePurpose.FORWARD,
    ),
    messages.IncrementalAlterConfigsRequest: Translation(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        topics.alteration_to,
        topics.altered_from,
        purpose=LanePurpose.FORWARD,
    ),
    messages.ElectLeadersRequest: Translation(
        ApiKey.ELECT_LEADERS,
        elections.election_to,
        elections.elected_from,
        purpose=LanePurpose.FORWARD,
    ),
    messages.AlterPartitionReassignmentsRequest: Translation(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        elections.reassignment_to,
        elections.reassigned_from,
        purpose=LanePurpose.FORWARD,
    ),
    messages.ListPartitionReassignmentsRequest: Translation(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        elections.listing_to,
        elections.listed_from,
        purpose=LanePurpose.FORWARD,
    ),
    messages.DeleteRecordsRequest: Translation(
        ApiKey.DELETE_RECORDS, offsets.deletion_to, offsets.deleted_from
    ),
    messages.AddPartitionsToTxnRequest: Translation(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        transactions.addition_to,
        transactions.added_from,
        purpose=LanePurpose.TRANSACTIONS,
    ),
    messages.WriteTxnMarkersRequest: Translation(
        ApiKey.WRITE_TXN_MARKERS,
        transactions.markers_to,
        transactions.written_from,
        purpose=LanePurpose.TRANSACTIONS,
    ),
}
