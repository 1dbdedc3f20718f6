"""Answers to what is odd, as a real Kafka gives them: what stands twice, what cannot be. Random
sequences of such requests are in ``tests/differential``."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from replication.common.error_codes import ErrorCode as E
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.served import (
    batch,
    connect,
    fetch_request,
    find_coordinator,
    leader_client,
    new_name,
)
from tests.support.until import until
from tests.support.wire_client import WireClient

Elect = wire.ElectLeadersRequest
Move = wire.AlterPartitionReassignmentsRequest
Alter = wire.IncrementalAlterConfigsRequest
Describe = wire.DescribeConfigsRequest
Create = wire.CreateTopicsRequest
Metadata = wire.MetadataRequest
Produce = wire.ProduceRequest
NOBODY = uuid.UUID(int=7)


def test_an_election_of_nothing(client: WireClient) -> None:
    """Of a kind that there is not, and of topics without partitions."""
    assert client.ask(ApiKey.ELECT_LEADERS, 1, Elect(7, (), 1000)).error_code == E.NONE
    some = (Elect.TopicPartitions("nobody", (0, 0)), Elect.TopicPartitions("none", ()))
    found = client.ask(ApiKey.ELECT_LEADERS, 1, Elect(7, some, 1000))
    assert found.error_code == E.INVALID_REQUEST
    found = client.ask(ApiKey.ELECT_LEADERS, 1, Elect(0, some, 1000))
    assert [
        (topic.topic, [part.error_code for part in topic.partition_result])
        for topic in found.replica_election_results
    ] == [("nobody", [E.UNKNOWN_TOPIC_OR_PARTITION] * 2), ("none", [])]


def test_a_move_that_keeps_the_number_of_replicas(kafka: ServedCluster, client: WireClient) -> None:
    (tp,) = kafka.create_topic(new_name(), assignment=[(0, 1)])

    def move(*replicas: int, **options: bool) -> tuple[bool, int]:
        part = Move.ReassignablePartition(tp.partition, replicas)
        topics = (Move.ReassignableTopic(tp.topic, (part, part)),)
        request = Move(timeout_ms=5000, topics=topics, **options)
        answer = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, request)
        (topic,) = answer.responses
        (code,) = {each.error_code for each in topic.partitions}  # both, though it stands twice
        return answer.allow_replication_factor_change, code

    fixed = {"allow_replication_factor_change": False}
    assert move(0, 1, 2, **fixed) == (False, E.INVALID_REPLICATION_FACTOR)
    assert move(0, **fixed) == (False, E.INVALID_REPLICATION_FACTOR)
    assert move(0, 2, **fixed) == (False, E.NONE)
    assert move(0, 1, 2) == (True, E.NONE)


@pytest.mark.parametrize(
    ("name", "configs", "code"),
    [
        ("", (), E.INVALID_REQUEST),
        ("a b", (), E.INVALID_TOPIC_EXCEPTION),
        ("a b", (("no.such.key", "1"),), E.INVALID_TOPIC_EXCEPTION),
        ("nobody", (), E.UNKNOWN_TOPIC_OR_PARTITION),
        ("nobody", (("no.such.key", "1"),), E.INVALID_CONFIG),
        ("nobody", (("no.such.key", None),), E.INVALID_REQUEST),
        ("nobody", (("retention.ms", "1"), ("retention.ms", "x")), E.INVALID_REQUEST),
        ("nobody", (("segment.bytes", "1048575"),), E.INVALID_CONFIG),
        ("nobody", (("segment.bytes", "+1"),), E.INVALID_CONFIG),
        ("nobody", (("segment.bytes", "9" * 5000),), E.INVALID_CONFIG),
        ("nobody", (("segment.bytes", "1048576"),), E.UNKNOWN_TOPIC_OR_PARTITION),
        ("nobody", (("compression.gzip.level", "0"),), E.INVALID_CONFIG),
        ("nobody", (("cleanup.policy", ""),), E.UNKNOWN_TOPIC_OR_PARTITION),
        (
            "nobody",
            (("min.compaction.lag.ms", "2"), ("max.compaction.lag.ms", "1")),
            E.INVALID_CONFIG,
        ),
    ],
)
def test_the_order_in_which_configurations_are_refused(
    client: WireClient, name: str, configs: tuple[tuple[str, str | None], ...], code: E
) -> None:
    changes = tuple(Alter.AlterableConfig(key, 0, value) for key, value in configs)
    request = Alter((Alter.AlterConfigsResource(2, name, changes),))
    (found,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    assert found.error_code == code


def test_a_value_beside_a_deletion_counts_for_nothing(
    kafka: ServedCluster, client: WireClient
) -> None:
    (tp,) = kafka.create_topic(new_name())
    for key in ("segment.bytes", "no.such.key"):
        changes = (Alter.AlterableConfig(key, 1, "13"),)
        request = Alter((Alter.AlterConfigsResource(2, tp.topic, changes),))
        (found,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
        assert found.error_code == E.NONE


def test_what_is_described_of_a_topic(kafka: ServedCluster, client: WireClient) -> None:
    (tp,) = kafka.create_topic(new_name())
    keys = ("retention.ms", "segment.ms", "leader.replication.throttled.replicas")
    topic = Describe.DescribeConfigsResource(2, tp.topic, keys)
    every_broker = Describe.DescribeConfigsResource(4, "", None)
    answer = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, Describe((topic, every_broker), True))
    found, of_all = answer.results
    assert (of_all.error_code, of_all.configs) == (E.NONE, ())
    by_name = {each.name: each for each in found.configs}
    assert by_name["leader.replication.throttled.replicas"].config_type == 7
    assert [each.name for each in by_name["retention.ms"].synonyms] == [
        "log.retention.ms",
        "log.retention.hours",
    ]
    assert by_name["segment.ms"].synonyms == ()
    kinds = (topic, Describe.DescribeConfigsResource(9, "x", None))
    refused = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, Describe(kinds)).results
    assert [each.error_code for each in refused] == [E.INVALID_REQUEST] * 2


def test_what_a_client_may_do(kafka: ServedCluster, client: WireClient) -> None:
    (tp,) = kafka.create_topic(new_name())
    topics = (Metadata.MetadataRequestTopic(name=tp.topic),)
    found = client.ask(ApiKey.METADATA, 9, Metadata(topics, True, True, True))
    assert found.cluster_authorized_operations == 8096
    assert [each.topic_authorized_operations for each in found.topics] == [3576]
    found = client.ask(ApiKey.METADATA, 9, Metadata(topics))
    assert found.cluster_authorized_operations == -(2**31)
    assert [each.topic_authorized_operations for each in found.topics] == [-(2**31)]
    coordinator = find_coordinator(client, "g")
    groups = wire.DescribeGroupsRequest(("g", "g"), True)
    with connect(kafka, coordinator) as other:

        def answered() -> Any:
            found = other.ask(ApiKey.DESCRIBE_GROUPS, 5, groups).groups
            return found if found[0].error_code == E.NONE else None

        described = until(answered, "the coordinator has read its log")
    assert [each.authorized_operations for each in described] == [3400]  # a name once


def test_ids_that_metadata_do_not_take(kafka: ServedCluster, client: WireClient) -> None:
    """Version 10 has a place for them, and refuses them with nothing else in the answer. From 12 on
    they count, and not the names beside them."""
    (tp,) = kafka.create_topic(new_name())
    kind = Metadata.MetadataRequestTopic
    topics = (kind(NOBODY, None), kind(NOBODY, None), kind(name=tp.topic))
    found = client.ask(ApiKey.METADATA, 10, Metadata(topics))
    assert [each.error_code for each in found.topics] == [E.INVALID_REQUEST] * 3
    assert (found.brokers, found.cluster_id, found.controller_id) == ((), None, -1)
    found = client.ask(ApiKey.METADATA, 12, Metadata(topics))
    assert [(each.error_code, each.name) for each in found.topics] == [(E.UNKNOWN_TOPIC_ID, None)]


def test_a_coordinator_that_is_asked_for_twice(client: WireClient) -> None:
    request = wire.FindCoordinatorRequest(coordinator_keys=("a", "b", "a"))
    found = client.ask(ApiKey.FIND_COORDINATOR, 4, request).coordinators
    assert [each.key for each in found] == ["a", "b", "a"]


def test_creations(client: WireClient) -> None:
    """No configurations beside an error; of two values the last one; what is wrong with a
    configuration before an assignment."""
    kind = Create.CreatableTopic
    config = Create.CreatableTopicConfig
    nowhere = (Create.CreatableReplicaAssignment(3, (99,)),)
    topics = (
        kind(new_name(), 1, 1, (), (config("flush.ms", "5"), config("flush.ms", "6"))),
        kind(new_name(), -1, -1, nowhere, (config("no.such.key", "1"),)),
        kind(new_name(), -1, -1, nowhere, ()),
        kind(new_name(), 0, 0),
        kind(new_name(), 0, 99),
    )
    found = client.ask(ApiKey.CREATE_TOPICS, 5, Create(topics, 5000, True)).topics
    assert [each.error_code for each in found] == [
        E.NONE,
        E.INVALID_CONFIG,
        E.INVALID_REPLICA_ASSIGNMENT,
        E.INVALID_REPLICATION_FACTOR,
        E.INVALID_PARTITIONS,
    ]
    assert {each.name: each.value for each in found[0].configs}["flush.ms"] == "6"
    assert [each.configs for each in found[1:]] == [()] * 4


def test_no_batch_at_all_refuses_the_others(kafka: ServedCluster) -> None:
    """Also where it is for a topic that nobody knows."""
    (tp,) = kafka.create_topic(new_name())
    known = kafka.broker(0).metadata.topic_id(tp.topic) or NOBODY
    good = batch(b"v")
    bad = good[:16] + b"\7" + good[17:]
    topics = (
        Produce.TopicProduceData("", known, (data(0, good),)),
        Produce.TopicProduceData("", NOBODY, (data(0, bad),)),
    )
    with leader_client(kafka, tp) as client:
        answer = client.ask(ApiKey.PRODUCE, 13, Produce(None, -1, 5000, topics))
    codes = [part.error_code for each in answer.responses for part in each.partition_responses]
    assert codes == [E.CORRUPT_MESSAGE] * 2
    assert kafka.read_all(tp.topic)[0] == []


def data(index: int, records: bytes) -> wire.ProduceRequest.PartitionProduceData:
    return Produce.PartitionProduceData(index, records)


def test_deletions_of_no_name(client: WireClient) -> None:
    kind = wire.DeleteTopicsRequest
    topics = (kind.DeleteTopicState(""), kind.DeleteTopicState(None, NOBODY))
    found = client.ask(ApiKey.DELETE_TOPICS, 6, kind(topics, timeout_ms=1000)).responses
    assert [each.name for each in found] == ["", None]


def test_an_isolation_level_that_there_is_not(kafka: ServedCluster) -> None:
    """Records are empty and not null, at which librdkafka would loop. Ids are not named."""
    (tp,) = kafka.create_topic(new_name())
    with leader_client(kafka, tp) as client:
        for version in (4, 12):
            request = fetch_request((tp, {"fetch_offset": 0}), isolation_level=7)
            found = client.ask(ApiKey.FETCH, version, request)
            ((part,),) = (topic.partitions for topic in found.responses)
            assert (part.error_code, bytes(part.records)) == (E.UNKNOWN_SERVER_ERROR, b"")
        kind = wire.FetchRequest
        topics = (kind.FetchTopic("", NOBODY, (kind.FetchPartition(0),)),)
        found = client.ask(ApiKey.FETCH, 13, kind(isolation_level=7, topics=topics))
        assert (found.error_code, found.responses) == (E.UNKNOWN_SERVER_ERROR, ())
