"""A request that fails as a whole is answered in its own schema, in every version served."""

from __future__ import annotations

import random
from typing import Any

from replication.apis.common.refusals import refusal
from replication.common.error_codes import ErrorCode
from replication.network import CLOSE
from replication.protocol import (
    SERVED_TO_BROKERS,
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    schema,
)
from replication.protocol import messages as wire
from tests.support.cases import for_each
from tests.support.protocol_values import draw

NO_PLACE = {(ApiKey.ELECT_LEADERS, 0), (ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)}
CODE = ErrorCode.UNKNOWN_SERVER_ERROR
VERSIONS = [
    (key, v) for key, each in SERVED_TO_BROKERS.items() for v in range(each.first, each.last + 1)
]
# Requests with a place for each code that their response could have.
FILLED: dict[ApiKey, Any] = {
    ApiKey.PRODUCE: lambda v: wire.ProduceRequest(
        acks=1,
        topic_data=(
            wire.ProduceRequest.TopicProduceData(
                "" if v >= 13 else "t",
                partition_data=(wire.ProduceRequest.PartitionProduceData(3, b""),),
            ),
        ),
    ),
    ApiKey.FETCH: lambda v: wire.FetchRequest(
        topics=(
            wire.FetchRequest.FetchTopic(
                "" if v >= 13 else "t", partitions=(wire.FetchRequest.FetchPartition(3),)
            ),
        )
    ),
    ApiKey.LIST_OFFSETS: lambda v: wire.ListOffsetsRequest(
        topics=(
            wire.ListOffsetsRequest.ListOffsetsTopic(
                "t", (wire.ListOffsetsRequest.ListOffsetsPartition(3),)
            ),
        )
    ),
    ApiKey.METADATA: lambda v: wire.MetadataRequest(
        (wire.MetadataRequest.MetadataRequestTopic(name="t"),)
    ),
    ApiKey.OFFSET_COMMIT: lambda v: wire.OffsetCommitRequest(
        "g",
        topics=(
            wire.OffsetCommitRequest.OffsetCommitRequestTopic(
                "" if v >= 10 else "t",
                partitions=(wire.OffsetCommitRequest.OffsetCommitRequestPartition(3),),
            ),
        ),
    ),
    ApiKey.OFFSET_FETCH: lambda v: (
        wire.OffsetFetchRequest(groups=(wire.OffsetFetchRequest.OffsetFetchRequestGroup("g"),))
        if v >= 8
        else wire.OffsetFetchRequest(
            "g", (wire.OffsetFetchRequest.OffsetFetchRequestTopic("t", (3,)),)
        )
    ),
    ApiKey.FIND_COORDINATOR: lambda v: (
        wire.FindCoordinatorRequest(coordinator_keys=("g",))
        if v >= 4
        else wire.FindCoordinatorRequest("g")
    ),
    ApiKey.DESCRIBE_GROUPS: lambda v: wire.DescribeGroupsRequest(("g",)),
    ApiKey.DELETE_GROUPS: lambda v: wire.DeleteGroupsRequest(("g",)),
    ApiKey.CREATE_TOPICS: lambda v: wire.CreateTopicsRequest(
        (wire.CreateTopicsRequest.CreatableTopic("t"),)
    ),
    ApiKey.DELETE_TOPICS: lambda v: (
        wire.DeleteTopicsRequest((wire.DeleteTopicsRequest.DeleteTopicState("t"),))
        if v >= 6
        else wire.DeleteTopicsRequest(topic_names=("t",))
    ),
    ApiKey.DELETE_RECORDS: lambda v: wire.DeleteRecordsRequest(
        (
            wire.DeleteRecordsRequest.DeleteRecordsTopic(
                "t", (wire.DeleteRecordsRequest.DeleteRecordsPartition(3),)
            ),
        )
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda v: wire.OffsetForLeaderEpochRequest(
        topics=(
            wire.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                "t", (wire.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(3),)
            ),
        )
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda v: wire.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x" if v < 4 else "",
        v3_and_below_topics=(
            (wire.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic("t", (3,)),) if v < 4 else ()
        ),
    ),
    ApiKey.WRITE_TXN_MARKERS: lambda v: wire.WriteTxnMarkersRequest(
        (
            wire.WriteTxnMarkersRequest.WritableTxnMarker(
                1, 0, True, (wire.WriteTxnMarkersRequest.WritableTxnMarkerTopic("t", (3,)),), 0
            ),
        )
    ),
    ApiKey.TXN_OFFSET_COMMIT: lambda v: wire.TxnOffsetCommitRequest(
        topics=(
            wire.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                "t", (wire.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(3),)
            ),
        )
    ),
    ApiKey.CREATE_ACLS: lambda v: wire.CreateAclsRequest((wire.CreateAclsRequest.AclCreation(),)),
    ApiKey.DELETE_ACLS: lambda v: wire.DeleteAclsRequest(
        (wire.DeleteAclsRequest.DeleteAclsFilter(),)
    ),
    ApiKey.DESCRIBE_CONFIGS: lambda v: wire.DescribeConfigsRequest(
        (wire.DescribeConfigsRequest.DescribeConfigsResource(2, "t", None),)
    ),
    ApiKey.ALTER_CONFIGS: lambda v: wire.AlterConfigsRequest(
        (wire.AlterConfigsRequest.AlterConfigsResource(2, "t"),)
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda v: wire.IncrementalAlterConfigsRequest(
        (wire.IncrementalAlterConfigsRequest.AlterConfigsResource(2, "t"),)
    ),
    ApiKey.CREATE_PARTITIONS: lambda v: wire.CreatePartitionsRequest(
        (wire.CreatePartitionsRequest.CreatePartitionsTopic("t", 3, None),)
    ),
    ApiKey.ELECT_LEADERS: lambda v: wire.ElectLeadersRequest(
        topic_partitions=(wire.ElectLeadersRequest.TopicPartitions("t", (3,)),)
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: lambda v: wire.AlterReplicaLogDirsRequest(
        (
            wire.AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                "/d", (wire.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic("t", (3,)),)
            ),
        )
    ),
    ApiKey.DESCRIBE_PRODUCERS: lambda v: wire.DescribeProducersRequest(
        (wire.DescribeProducersRequest.TopicRequest("t", (3,)),)
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: lambda v: wire.DescribeTransactionsRequest(("x",)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda v: wire.DescribeTopicPartitionsRequest(
        (wire.DescribeTopicPartitionsRequest.TopicRequest("t"),)
    ),
}


def codes_in(value: Any, has_code_of_whole: bool = True) -> list[int]:
    """Every error code of a message that its version has."""
    found = []
    if hasattr(value, "_fields"):
        for name, each in zip(value._fields, value, strict=True):
            if name in ("error_code", "partition_error_code"):
                if has_code_of_whole:
                    found.append(each)
            else:
                found += codes_in(each)
    elif isinstance(value, tuple):
        for each in value:
            found += codes_in(each)
    return found


@for_each("key, version", VERSIONS, at_once=60)
def test_the_code_stands_wherever_the_schema_has_a_place(key: ApiKey, version: int) -> None:
    fill = FILLED.get(key)
    name = f"{_name(key)}Request"
    request = getattr(wire, name)() if fill is None else fill(version)
    body = memoryview(bytes(encode_request(request, version)))
    answer = refusal(key, version, decode_request(key, version, body), CODE)
    if (key, version) in NO_PLACE:
        assert answer is CLOSE
        return
    assert answer is not CLOSE
    sent = b"".join(bytes(part) for part in encode_response(answer, version))
    received = decode_response(key, version, memoryview(sent))
    whole = [
        f for f in schema.message(f"{_name(key)}Response").body.fields if f.name == "error_code"
    ]
    assert set(codes_in(received, any(version in f.versions for f in whole))) == {CODE}, received


@for_each("key, version", VERSIONS, at_once=60)
def test_any_request_has_an_answer_that_can_be_sent(key: ApiKey, version: int) -> None:
    rng = random.Random(version)
    for _ in range(10):
        body = encode_request(draw(f"{_name(key)}Request", version, rng), version)
        answer = refusal(key, version, decode_request(key, version, memoryview(body)), CODE)
        assert answer is CLOSE or encode_response(answer, version)


def test_each_topic_and_partition_is_named_as_in_the_request() -> None:
    request = wire.OffsetCommitRequest
    topics = tuple(
        request.OffsetCommitRequestTopic(
            name, partitions=tuple(map(request.OffsetCommitRequestPartition, indexes))
        )
        for name, indexes in [("a", (0, 7)), ("b", ())]
    )
    answer = refusal(ApiKey.OFFSET_COMMIT, 8, request("g", topics=topics), CODE)
    assert [
        (topic.name, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in answer.topics
    ] == [("a", [(0, CODE), (7, CODE)]), ("b", [])]


def test_a_producer_without_acks_hears_by_the_end_of_its_connection() -> None:
    assert refusal(ApiKey.PRODUCE, 9, wire.ProduceRequest(acks=0), CODE) is CLOSE


@for_each("key", list(ApiKey))
def test_there_is_a_refusal_for_every_api(key: ApiKey) -> None:
    assert refusal(key, 9, getattr(wire, f"{_name(key)}Request")(), CODE) is not None


def _name(key: ApiKey) -> str:
    return schema.APIS[key].name
