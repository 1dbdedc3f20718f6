"""A request that fails as a whole, answered in its own schema: the code stands in every place that
the response has for one (Kafka's ``getErrorResponse``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replication.common.error_codes import ErrorCode
from replication.network import CLOSE
from replication.protocol import ApiKey
from replication.protocol import messages as wire

# Versions of responses that have no place for a code of the whole begin with this one.
_FIRST_WITH_CODE = {ApiKey.ELECT_LEADERS: 1, ApiKey.DESCRIBE_LOG_DIRS: 3}


def refusal(key: ApiKey, version: int, request: Any, code: ErrorCode) -> Any:
    """The answer to ``request`` in which all failed with ``code``; ``CLOSE`` where there is none.

    Args:
        request: the decoded message.
    """
    if version < _FIRST_WITH_CODE.get(key, 0):
        return CLOSE
    return _REFUSALS[key](request, code)


def _produce(request: wire.ProduceRequest, code: ErrorCode) -> Any:
    if request.acks == 0:
        return CLOSE  # nobody reads an answer, so this is how the producer hears of it
    response = wire.ProduceResponse
    return response(
        tuple(
            response.TopicProduceResponse(
                topic.name,
                topic.topic_id,
                tuple(
                    response.PartitionProduceResponse(part.index, code, -1)
                    for part in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


def _fetch(request: wire.FetchRequest, code: ErrorCode) -> Any:
    """Topics by id (v13+) are not named: the code of the whole is enough."""
    response = wire.FetchResponse
    return response(
        error_code=code,
        responses=tuple(
            response.FetchableTopicResponse(
                topic.topic,
                topic.topic_id,
                tuple(
                    response.PartitionData(part.partition, code, -1, records=b"")
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
            if topic.topic
        ),
    )


def _list_offsets(request: wire.ListOffsetsRequest, code: ErrorCode) -> Any:
    response = wire.ListOffsetsResponse
    return response(
        topics=tuple(
            response.ListOffsetsTopicResponse(
                topic.name,
                tuple(
                    response.ListOffsetsPartitionResponse(part.partition_index, code)
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _metadata(request: wire.MetadataRequest, code: ErrorCode) -> Any:
    response = wire.MetadataResponse
    topics = tuple(
        response.MetadataResponseTopic(code, topic.name, topic.topic_id)
        for topic in request.topics or ()
    )
    return response(topics=topics, error_code=code)


def _offset_commit(request: wire.OffsetCommitRequest, code: ErrorCode) -> Any:
    response = wire.OffsetCommitResponse
    return response(
        topics=tuple(
            response.OffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                tuple(
                    response.OffsetCommitResponsePartition(part.partition_index, code)
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _offset_fetch(request: wire.OffsetFetchRequest, code: ErrorCode) -> Any:
    """Below version 2 only partitions have a place for it."""
    response = wire.OffsetFetchResponse
    topics = tuple(
        response.OffsetFetchResponseTopic(
            topic.name,
            tuple(
                response.OffsetFetchResponsePartition(index, -1, -1, "", code)
                for index in topic.partition_indexes
            ),
        )
        for topic in request.topics or ()
    )
    groups = tuple(
        response.OffsetFetchResponseGroup(group.group_id, (), code) for group in request.groups
    )
    return response(topics=topics, error_code=code, groups=groups)


def _find_coordinator(request: wire.FindCoordinatorRequest, code: ErrorCode) -> Any:
    response = wire.FindCoordinatorResponse
    if request.coordinator_keys:
        return response(
            coordinators=tuple(
                response.Coordinator(key, -1, "", -1, code, None)
                for key in request.coordinator_keys
            )
        )
    return response(error_code=code, node_id=-1, host="", port=-1)


def _leave_group(request: wire.LeaveGroupRequest, code: ErrorCode) -> Any:
    return wire.LeaveGroupResponse(error_code=code)


def _describe_groups(request: wire.DescribeGroupsRequest, code: ErrorCode) -> Any:
    response = wire.DescribeGroupsResponse
    return response(
        groups=tuple(response.DescribedGroup(code, group_id=name) for name in request.groups)
    )


def _delete_groups(request: wire.DeleteGroupsRequest, code: ErrorCode) -> Any:
    response = wire.DeleteGroupsResponse
    return response(
        results=tuple(response.DeletableGroupResult(name, code) for name in request.groups_names)
    )


def _create_topics(request: wire.CreateTopicsRequest, code: ErrorCode) -> Any:
    response = wire.CreateTopicsResponse
    return response(
        topics=tuple(
            response.CreatableTopicResult(topic.name, error_code=code, error_message=None)
            for topic in request.topics
        )
    )


def _delete_topics(request: wire.DeleteTopicsRequest, code: ErrorCode) -> Any:
    response = wire.DeleteTopicsResponse
    named = [response.DeletableTopicResult(name, error_code=code) for name in request.topic_names]
    states = [
        response.DeletableTopicResult(topic.name, topic.topic_id, code) for topic in request.topics
    ]
    return response(responses=(*named, *states))


def _delete_records(request: wire.DeleteRecordsRequest, code: ErrorCode) -> Any:
    response = wire.DeleteRecordsResponse
    return response(
        topics=tuple(
            response.DeleteRecordsTopicResult(
                topic.name,
                tuple(
                    response.DeleteRecordsPartitionResult(part.partition_index, -1, code)
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _init_producer_id(request: wire.InitProducerIdRequest, code: ErrorCode) -> Any:
    return wire.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def _offset_for_leader_epoch(request: wire.OffsetForLeaderEpochRequest, code: ErrorCode) -> Any:
    response = wire.OffsetForLeaderEpochResponse
    return response(
        topics=tuple(
            response.OffsetForLeaderTopicResult(
                topic.topic,
                tuple(response.EpochEndOffset(code, part.partition) for part in topic.partitions),
            )
            for topic in request.topics
        )
    )


def _add_partitions_to_txn(request: wire.AddPartitionsToTxnRequest, code: ErrorCode) -> Any:
    """Version 4 has a code of the whole, earlier ones a code for each partition."""
    response = wire.AddPartitionsToTxnResponse
    return response(
        error_code=code,
        results_by_topic_v3_and_below=tuple(
            response.AddPartitionsToTxnTopicResult(
                topic.name,
                tuple(
                    response.AddPartitionsToTxnPartitionResult(index, code)
                    for index in topic.partitions
                ),
            )
            for topic in request.v3_and_below_topics
        ),
    )


def _write_txn_markers(request: wire.WriteTxnMarkersRequest, code: ErrorCode) -> Any:
    response = wire.WriteTxnMarkersResponse
    return response(
        markers=tuple(
            response.WritableTxnMarkerResult(
                marker.producer_id,
                tuple(
                    response.WritableTxnMarkerTopicResult(
                        topic.name,
                        tuple(
                            response.WritableTxnMarkerPartitionResult(index, code)
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


def _txn_offset_commit(request: wire.TxnOffsetCommitRequest, code: ErrorCode) -> Any:
    response = wire.TxnOffsetCommitResponse
    return response(
        topics=tuple(
            response.TxnOffsetCommitResponseTopic(
                topic.name,
                tuple(
                    response.TxnOffsetCommitResponsePartition(part.partition_index, code)
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _describe_acls(request: wire.DescribeAclsRequest, code: ErrorCode) -> Any:
    return wire.DescribeAclsResponse(error_code=code, error_message=code.name)


def _create_acls(request: wire.CreateAclsRequest, code: ErrorCode) -> Any:
    response = wire.CreateAclsResponse
    return response(results=(response.AclCreationResult(code, None),) * len(request.creations))


def _delete_acls(request: wire.DeleteAclsRequest, code: ErrorCode) -> Any:
    response = wire.DeleteAclsResponse
    result = response.DeleteAclsFilterResult(code, None)
    return response(filter_results=(result,) * len(request.filters))


def _describe_client_quotas(request: wire.DescribeClientQuotasRequest, code: ErrorCode) -> Any:
    return wire.DescribeClientQuotasResponse(error_code=code, error_message=None, entries=None)


def _describe_configs(request: wire.DescribeConfigsRequest, code: ErrorCode) -> Any:
    response = wire.DescribeConfigsResponse
    return response(
        results=tuple(
            response.DescribeConfigsResult(code, None, each.resource_type, each.resource_name)
            for each in request.resources
        )
    )


def _alter_configs(request: wire.AlterConfigsRequest, code: ErrorCode) -> Any:
    response = wire.AlterConfigsResponse
    return response(
        responses=tuple(
            response.AlterConfigsResourceResponse(
                code, None, each.resource_type, each.resource_name
            )
            for each in request.resources
        )
    )


def _incremental_alter_configs(
    request: wire.IncrementalAlterConfigsRequest, code: ErrorCode
) -> Any:
    response = wire.IncrementalAlterConfigsResponse
    return response(
        responses=tuple(
            response.AlterConfigsResourceResponse(
                code, None, each.resource_type, each.resource_name
            )
            for each in request.resources
        )
    )


def _create_partitions(request: wire.CreatePartitionsRequest, code: ErrorCode) -> Any:
    response = wire.CreatePartitionsResponse
    return response(
        results=tuple(
            response.CreatePartitionsTopicResult(topic.name, code) for topic in request.topics
        )
    )


def _elect_leaders(request: wire.ElectLeadersRequest, code: ErrorCode) -> Any:
    response = wire.ElectLeadersResponse
    return response(
        error_code=code,
        replica_election_results=tuple(
            response.ReplicaElectionResult(
                topic.topic,
                tuple(response.PartitionResult(index, code, None) for index in topic.partitions),
            )
            for topic in request.topic_partitions or ()
        ),
    )


def _describe_producers(request: wire.DescribeProducersRequest, code: ErrorCode) -> Any:
    response = wire.DescribeProducersResponse
    return response(
        topics=tuple(
            response.TopicResponse(
                topic.name,
                tuple(response.PartitionResponse(index, code) for index in topic.partition_indexes),
            )
            for topic in request.topics
        )
    )


def _describe_transactions(request: wire.DescribeTransactionsRequest, code: ErrorCode) -> Any:
    response = wire.DescribeTransactionsResponse
    return response(
        transaction_states=tuple(
            response.TransactionState(code, name) for name in request.transactional_ids
        )
    )


def _consumer_group_describe(request: wire.ConsumerGroupDescribeRequest, code: ErrorCode) -> Any:
    response = wire.ConsumerGroupDescribeResponse
    return response(
        groups=tuple(response.DescribedGroup(code, group_id=name) for name in request.group_ids)
    )


def _describe_topic_partitions(
    request: wire.DescribeTopicPartitionsRequest, code: ErrorCode
) -> Any:
    response = wire.DescribeTopicPartitionsResponse
    return response(
        topics=tuple(
            response.DescribeTopicPartitionsResponseTopic(code, topic.name)
            for topic in request.topics
        )
    )


def _of_the_whole(name: str) -> Callable[[Any, ErrorCode], Any]:
    """For a response with one code for everything."""
    return lambda request, code: getattr(wire, name)(error_code=code)


def _close(request: Any, code: ErrorCode) -> Any:
    """Close the connection. Brokers take a lost connection for an unknown outcome, as it is."""
    return CLOSE


_REFUSALS: dict[ApiKey, Callable[[Any, ErrorCode], Any]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.LEADER_AND_ISR: _close,
    ApiKey.STOP_REPLICA: _close,
    ApiKey.UPDATE_METADATA: _close,
    ApiKey.CONTROLLED_SHUTDOWN: _close,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _of_the_whole("JoinGroupResponse"),
    ApiKey.HEARTBEAT: _of_the_whole("HeartbeatResponse"),
    ApiKey.LEAVE_GROUP: _leave_group,
    ApiKey.SYNC_GROUP: _of_the_whole("SyncGroupResponse"),
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.LIST_GROUPS: _of_the_whole("ListGroupsResponse"),
    ApiKey.SASL_HANDSHAKE: _of_the_whole("SaslHandshakeResponse"),
    ApiKey.API_VERSIONS: _of_the_whole("ApiVersionsResponse"),
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: _of_the_whole("AddOffsetsToTxnResponse"),
    ApiKey.END_TXN: _of_the_whole("EndTxnResponse"),
    ApiKey.WRITE_TXN_MARKERS: _write_txn_markers,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
    ApiKey.DESCRIBE_ACLS: _describe_acls,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: _of_the_whole("DescribeLogDirsResponse"),
    ApiKey.SASL_AUTHENTICATE: _of_the_whole("SaslAuthenticateResponse"),
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _of_the_whole("AlterPartitionReassignmentsResponse"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _of_the_whole("ListPartitionReassignmentsResponse"),
    ApiKey.OFFSET_DELETE: _of_the_whole("OffsetDeleteResponse"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _describe_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _of_the_whole("DescribeUserScramCredentialsResponse"),
    ApiKey.UPDATE_FEATURES: _of_the_whole("UpdateFeaturesResponse"),
    ApiKey.LIST_CONFIG_RESOURCES: _of_the_whole("ListConfigResourcesResponse"),
    ApiKey.ALTER_PARTITION: _of_the_whole("AlterPartitionResponse"),
    ApiKey.DESCRIBE_CLUSTER: _of_the_whole("DescribeClusterResponse"),
    ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.LIST_TRANSACTIONS: _of_the_whole("ListTransactionsResponse"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _of_the_whole("ConsumerGroupHeartbeatResponse"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _consumer_group_describe,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
}
