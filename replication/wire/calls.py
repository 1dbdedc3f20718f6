"""The requests that a client sends over a wire: how each is written, and its answer read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from replication.wire import elections, fetch, offsets, produce, topics, transactions
from replication.wire.common import code_of


def _any_version(request: Any) -> int | None:
    return None


class Translation(NamedTuple):
    """
    Attributes:
        request_to: the wire's message in a version.
        response_from: the answer to a request; MalformedMessageError if it does not fit to it.
        latest_version: the latest version that can carry a request; None for any.
        unanswered: what stands for the answer of a request that gets none.
    """

    api_key: ApiKey
    request_to: Callable[[Any, int], Any]
    response_from: Callable[[Any, Any, int], Response]
    latest_version: Callable[[Any], int | None] = _any_version
    unanswered: Callable[[Any], Response | None] = _any_version  # type: ignore[assignment]


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
        ApiKey.FETCH, fetch.request_to, fetch.response_from, fetch.latest_version
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
    messages.CreateTopicRequest: Translation(
        ApiKey.CREATE_TOPICS, topics.creation_to, topics.created_from
    ),
    messages.DeleteTopicRequest: Translation(
        ApiKey.DELETE_TOPICS, topics.deletion_to, topics.deleted_from
    ),
    messages.CreatePartitionsRequest: Translation(
        ApiKey.CREATE_PARTITIONS, topics.growth_to, topics.grown_from
    ),
    messages.IncrementalAlterConfigsRequest: Translation(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, topics.alteration_to, topics.altered_from
    ),
    messages.ElectLeadersRequest: Translation(
        ApiKey.ELECT_LEADERS, elections.election_to, elections.elected_from
    ),
    messages.AlterPartitionReassignmentsRequest: Translation(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, elections.reassignment_to, elections.reassigned_from
    ),
    messages.ListPartitionReassignmentsRequest: Translation(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, elections.listing_to, elections.listed_from
    ),
    messages.DeleteRecordsRequest: Translation(
        ApiKey.DELETE_RECORDS, offsets.deletion_to, offsets.deleted_from
    ),
    messages.AddPartitionsToTxnRequest: Translation(
        ApiKey.ADD_PARTITIONS_TO_TXN, transactions.addition_to, transactions.added_from
    ),
    messages.WriteTxnMarkersRequest: Translation(
        ApiKey.WRITE_TXN_MARKERS, transactions.markers_to, transactions.written_from
    ),
}
