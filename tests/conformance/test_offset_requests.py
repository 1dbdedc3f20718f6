"""Kafka's OffsetCommitRequestTest, OffsetFetchRequestTest, DescribeGroupsRequestTest and
ListGroupsRequestTest with the classic protocol, over sockets and in every version served; and what
a comparison with a real broker, request by request, has shown."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.protocol import SERVED, ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.cases import for_each
from tests.support.served import batch, connect, fetch, find_coordinator, new_name, produce, served
from tests.support.wire_client import WireClient

BY_ID = 10  # of OffsetCommit and OffsetFetch
SEVERAL_GROUPS = 8
NO_ID = uuid.UUID(int=0)
UNKNOWN = uuid.UUID(int=1)


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(config={"offsets.topic.num.partitions": 1}) as broker:
        yield broker


@pytest.fixture
def client(kafka: ServedCluster) -> Iterator[WireClient]:
    with connect(kafka) as connected:
        yield connected


@pytest.fixture
def topic(kafka: ServedCluster, client: WireClient) -> str:
    """With two partitions; and the group's coordinator is ready."""
    name = new_name()
    kafka.create_topic(name, 2, 1)
    find_coordinator(client, "g")
    return name


def _named(kafka: ServedCluster, topic: str, version: int) -> tuple[str, uuid.UUID]:
    """How a version names a topic; "?" is one that nobody has."""
    if version < BY_ID:
        return ("unknown" if topic == "?" else topic), NO_ID
    if topic == "?":
        return "", UNKNOWN
    topic_id = kafka.broker(0).metadata.topic_id(topic)
    assert topic_id is not None
    return "", topic_id


def _commit(
    kafka: ServedCluster,
    client: WireClient,
    group: str,
    offsets: dict[TopicPartition, int],
    version: int,
) -> dict[tuple[str, uuid.UUID], list[tuple[int, int]]]:
    kind = wire.OffsetCommitRequest
    topics = tuple(
        kind.OffsetCommitRequestTopic(
            *_named(kafka, tp.topic, version),
            (kind.OffsetCommitRequestPartition(tp.partition, offset, committed_metadata="m"),),
        )
        for tp, offset in offsets.items()
    )
    response = client.ask(ApiKey.OFFSET_COMMIT, version, kind(group, topics=topics))
    return {
        (each.name, each.topic_id): [(p.partition_index, p.error_code) for p in each.partitions]
        for each in response.topics
    }


@for_each("version", SERVED[ApiKey.OFFSET_COMMIT].each())
def test_offsets_are_committed(
    kafka: ServedCluster, client: WireClient, topic: str, version: int
) -> None:
    """testOffsetCommitWithOldConsumerGroupProtocol; a topic that nobody has is refused alone."""
    group = new_name("group")
    asked = {TopicPartition(topic, 1): 7 + version, TopicPartition("?", 0): 3}
    unknown = (
        ErrorCode.UNKNOWN_TOPIC_ID if version >= BY_ID else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert _commit(kafka, client, group, asked, version) == {
        _named(kafka, topic, version): [(1, ErrorCode.NONE)],
        _named(kafka, "?", version): [(0, unknown)],
    }
    assert _fetched(kafka, client, group, [TopicPartition(topic, 1)], 7) == {
        (topic, NO_ID, 1): (7 + version, "m", ErrorCode.NONE)
    }


def _fetched(
    kafka: ServedCluster,
    client: WireClient,
    group: str,
    tps: list[TopicPartition] | None,
    version: int,
) -> dict[tuple[str, uuid.UUID, int], tuple[int, str, int]]:
    kind = wire.OffsetFetchRequest
    if version < SEVERAL_GROUPS:
        topics = tps and tuple(
            kind.OffsetFetchRequestTopic(_named(kafka, tp.topic, version)[0], (tp.partition,))
            for tp in tps
        )
        response = client.ask(ApiKey.OFFSET_FETCH, version, kind(group, topics))
        assert response.error_code == ErrorCode.NONE
        return {
            (each.name, NO_ID, p.partition_index): (p.committed_offset, p.metadata, p.error_code)
            for each in response.topics
            for p in each.partitions
        }
    of_group = tps and tuple(
        kind.OffsetFetchRequestTopics(*_named(kafka, tp.topic, version), (tp.partition,))
        for tp in tps
    )
    groups = (kind.OffsetFetchRequestGroup(group, topics=of_group),)
    (found,) = client.ask(ApiKey.OFFSET_FETCH, version, kind(groups=groups)).groups
    assert (found.group_id, found.error_code) == (group, ErrorCode.NONE)
    return {
        (each.name, each.topic_id, p.partition_index): (
            p.committed_offset,
            p.metadata,
            p.error_code,
        )
        for each in found.topics
        for p in each.partitions
    }


@for_each("version", SERVED[ApiKey.OFFSET_FETCH].each())
def test_offsets_are_fetched(
    kafka: ServedCluster, client: WireClient, topic: str, version: int
) -> None:
    """testSingleGroupOffsetFetch and testSingleGroupAllOffsetFetch: committed, not committed, and
    of no topic."""
    group = new_name("group")
    committed, none, other = (
        TopicPartition(topic, 0),
        TopicPartition(topic, 1),
        TopicPartition("?", 0),
    )
    _commit(kafka, client, group, {committed: 5}, 9)
    named, unknown = _named(kafka, topic, version), _named(kafka, "?", version)
    code = ErrorCode.UNKNOWN_TOPIC_ID if version >= BY_ID else ErrorCode.NONE
    assert _fetched(kafka, client, group, [committed, none, other], version) == {
        (*named, 0): (5, "m", ErrorCode.NONE),
        (*named, 1): (-1, "", ErrorCode.NONE),
        (*unknown, 0): (-1, "", code),
    }
    if version >= 2:  # null for all
        assert _fetched(kafka, client, group, None, version) == {
            (*named, 0): (5, "m", ErrorCode.NONE)
        }


@for_each("version", range(SEVERAL_GROUPS, BY_ID + 1))
def test_offsets_of_several_groups_are_fetched(
    kafka: ServedCluster, client: WireClient, topic: str, version: int
) -> None:
    """testMultipleGroupsOffsetFetch: each as it is asked for, and none of one spoils another. One
    that is named twice is answered once (W-237)."""
    first, second, nobody = (new_name("group") for _ in range(3))
    tps = [TopicPartition(topic, number) for number in range(2)]
    _commit(kafka, client, first, {tps[0]: 5}, 9)
    _commit(kafka, client, second, {tps[0]: 6, tps[1]: 7}, 9)
    kind = wire.OffsetFetchRequest
    named = _named(kafka, topic, version)
    groups = (
        kind.OffsetFetchRequestGroup(
            first, topics=(kind.OffsetFetchRequestTopics(*named, (0, 1)),)
        ),
        kind.OffsetFetchRequestGroup(second, topics=None),
        kind.OffsetFetchRequestGroup(nobody, topics=None),
        kind.OffsetFetchRequestGroup(first, topics=()),
    )
    found = client.ask(ApiKey.OFFSET_FETCH, version, kind(groups=groups)).groups
    assert [
        (
            group.group_id,
            group.error_code,
            {
                (each.name, each.topic_id, p.partition_index): p.committed_offset
                for each in group.topics
                for p in each.partitions
            },
        )
        for group in found
    ] == [
        (first, ErrorCode.NONE, {(*named, 0): 5, (*named, 1): -1}),
        (second, ErrorCode.NONE, {(*named, 0): 6, (*named, 1): 7}),
        (nobody, ErrorCode.NONE, {}),
    ]


def test_offsets_of_groups_that_another_broker_coordinates() -> None:
    """testGroupErrors: version 1 has no error of the group, so each partition has it; and up to
    version 7, for clients that look at those alone."""
    kind = wire.OffsetFetchRequest
    with served() as kafka, connect(kafka) as client:
        kafka.create_topic("t", 1, 1)  # and no topic of coordinators
        for version in SERVED[ApiKey.OFFSET_FETCH].each():
            name, topic_id = _named(kafka, "t", version)
            if version < SEVERAL_GROUPS:
                request = kind("unknown", (kind.OffsetFetchRequestTopic(name, (0,)),))
                answer = client.ask(ApiKey.OFFSET_FETCH, version, request)
            else:
                topics = (kind.OffsetFetchRequestTopics(name, topic_id, (0,)),)
                groups = (kind.OffsetFetchRequestGroup("unknown", topics=topics),)
                request = kind(groups=groups)
                (answer,) = client.ask(ApiKey.OFFSET_FETCH, version, request).groups
            code = ErrorCode.NOT_COORDINATOR
            assert answer.error_code == (ErrorCode.NONE if version == 1 else code), version
            parts = [part for each in answer.topics for part in each.partitions]
            expected = [(0, -1, -1, "", code)] if version < SEVERAL_GROUPS else []
            assert [tuple(part) for part in parts] == expected, version


def test_offsets_of_a_topic_that_was_deleted_are_not_those_of_the_next(
    kafka: ServedCluster, client: WireClient, topic: str
) -> None:
    group, tp = new_name("group"), TopicPartition(topic, 0)
    _commit(kafka, client, group, {tp: 5}, BY_ID)
    before = _named(kafka, topic, BY_ID)
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 2, 1)
    assert _named(kafka, topic, BY_ID) != before
    kind = wire.OffsetFetchRequest
    topics = (kind.OffsetFetchRequestTopics("", before[1], (0,)),)
    request = kind(groups=(kind.OffsetFetchRequestGroup(group, topics=topics),))
    (found,) = client.ask(ApiKey.OFFSET_FETCH, BY_ID, request).groups
    assert [p.error_code for t in found.topics for p in t.partitions] == [
        ErrorCode.UNKNOWN_TOPIC_ID
    ]


@for_each("version", SERVED[ApiKey.DESCRIBE_GROUPS].each())
def test_a_group_that_is_not_there(client: WireClient, topic: str, version: int) -> None:
    """testDescribeGroupsWithOldConsumerGroupProtocol: an error from version 6 on."""
    response = client.ask(ApiKey.DESCRIBE_GROUPS, version, wire.DescribeGroupsRequest(("nobody",)))
    (found,) = response.groups
    assert (found.group_id, found.group_state, found.members) == ("nobody", "Dead", ())
    expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
    assert found.error_code == expected
    assert bool(found.error_message) == (version >= 6)


@for_each("version", SERVED[ApiKey.LIST_GROUPS].each())
def test_groups_are_listed_by_state_and_type(
    kafka: ServedCluster, client: WireClient, topic: str, version: int
) -> None:
    """testListGroupsWithOldConsumerGroupProtocol."""
    group = new_name("group")
    _commit(kafka, client, group, {TopicPartition(topic, 0): 5}, 9)

    def listed(**filters: tuple[str, ...]) -> list[tuple[str, str, str]]:
        request = wire.ListGroupsRequest(**filters)
        response = client.ask(ApiKey.LIST_GROUPS, version, request)
        return [
            (each.group_id, each.group_state, each.group_type)
            for each in response.groups
            if each.group_id == group
        ]

    mine = (group, "Empty" if version >= 4 else "", "classic" if version >= 5 else "")
    assert listed() == [mine]
    if version >= 4:
        assert listed(states_filter=("empty",)) == [mine]
        assert listed(states_filter=("Stable",)) == []
    if version >= 5:
        assert listed(types_filter=("Classic", "consumer")) == [mine]
        assert listed(types_filter=("consumer",)) == []


def test_there_are_no_coordinators_of_share_groups(client: WireClient) -> None:
    request = wire.FindCoordinatorRequest(key_type=2, coordinator_keys=("g:t:0",))
    (found,) = client.ask(ApiKey.FIND_COORDINATOR, 6, request).coordinators
    assert (found.key, found.error_code, found.node_id) == (
        "g:t:0",
        ErrorCode.INVALID_REQUEST,
        -1,
    )


@for_each(
    "key, version, request_",
    [
        (ApiKey.HEARTBEAT, 4, wire.HeartbeatRequest()),
        (ApiKey.SYNC_GROUP, 4, wire.SyncGroupRequest()),
        (ApiKey.LEAVE_GROUP, 2, wire.LeaveGroupRequest()),
        (ApiKey.LEAVE_GROUP, 5, wire.LeaveGroupRequest()),
        (ApiKey.OFFSET_DELETE, 0, wire.OffsetDeleteRequest()),
    ],
)
def test_a_group_needs_a_name(
    client: WireClient, topic: str, key: ApiKey, version: int, request_: object
) -> None:
    assert client.ask(key, version, request_).error_code == ErrorCode.INVALID_GROUP_ID


def test_offsets_of_no_group_can_be_deleted(
    kafka: ServedCluster, client: WireClient, topic: str
) -> None:
    """A consumer that names no group may commit, so what it left must be removable."""
    assert _commit(kafka, client, "", {TopicPartition(topic, 0): 5}, 9)[topic, NO_ID] == [(0, 0)]
    for expected in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        (found,) = client.ask(ApiKey.DELETE_GROUPS, 2, wire.DeleteGroupsRequest(("",))).results
        assert found.error_code == expected


def test_members_of_an_unknown_group_leave_with_an_error_each(
    client: WireClient, topic: str
) -> None:
    """From version 3 on; below it the one member's error is that of the whole."""
    kind = wire.LeaveGroupRequest
    members = (kind.MemberIdentity("m"), kind.MemberIdentity("", "instance"))
    found = client.ask(ApiKey.LEAVE_GROUP, 5, kind("nobody", members=members))
    assert found.error_code == ErrorCode.NONE
    assert [
        (each.member_id, each.group_instance_id, each.error_code) for each in found.members
    ] == [
        ("m", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "instance", ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert client.ask(ApiKey.LEAVE_GROUP, 2, kind("nobody", "m")).error_code == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )


def test_topics_of_coordinators_are_not_for_clients(
    kafka: ServedCluster, client: WireClient, topic: str
) -> None:
    """What a client wrote or deleted there, a coordinator would load or miss."""
    tp = TopicPartition("__consumer_offsets", 0)
    _commit(kafka, client, new_name("group"), {TopicPartition(topic, 0): 5}, 9)
    before = fetch(client, tp).high_watermark
    assert before > 0
    written = produce(client, tp, batch(b"not an offset"))
    assert written.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    kind = wire.DeleteRecordsRequest
    parts = (kind.DeleteRecordsPartition(0, -1), kind.DeleteRecordsPartition(9, -1))
    mine = kind.DeleteRecordsTopic(topic, (kind.DeleteRecordsPartition(1, -1),))
    request = kind((kind.DeleteRecordsTopic(tp.topic, parts), mine), 10_000)
    found = client.ask(ApiKey.DELETE_RECORDS, 2, request)
    assert [(p.partition_index, p.error_code) for t in found.topics for p in t.partitions] == [
        (0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, ErrorCode.NONE),
    ]
    assert (fetch(client, tp).log_start_offset, fetch(client, tp).high_watermark) == (0, before)


def test_where_name_and_id_are_given_the_id_counts(
    kafka: ServedCluster, client: WireClient, topic: str
) -> None:
    asked = (wire.MetadataRequest.MetadataRequestTopic(UNKNOWN, topic),)
    (found,) = client.ask(ApiKey.METADATA, 12, wire.MetadataRequest(asked)).topics
    assert (found.error_code, found.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
