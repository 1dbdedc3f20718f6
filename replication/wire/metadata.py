"""Metadata (W-20 to W-24)."""

from __future__ import annotations

from checkpoints.types import TopicPartition
from replication.common.messages import (
    MetadataRequest,
    MetadataResponse,
    TopicPartitionMetadata,
)
from replication.common.state import UNKNOWN_EPOCH, BrokerRegistration, LiveBroker
from replication.protocol import ZERO_UUID
from replication.protocol import messages as wire
from replication.wire.common import code_of

FIRST_WITH_PERMISSION = 4


def request_to(request: MetadataRequest, version: int) -> wire.MetadataRequest:
    kind = wire.MetadataRequest
    topics = None
    if request.topics is not None:
        topics = tuple(kind.MetadataRequestTopic(name=name) for name in request.topics)
    may_create = request.may_create or version < FIRST_WITH_PERMISSION
    return kind(topics, allow_auto_topic_creation=may_create)


def response_from(
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
