"""Kafka's JoinGroupRequestTest, SyncGroupRequestTest, HeartbeatRequestTest, LeaveGroupRequestTest,
DeleteGroupsRequestTest and OffsetDeleteRequestTest with the classic protocol, over sockets: what
of them has a place in which version. What a group does is said without a socket."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from replication.common.error_codes import ErrorCode
from replication.protocol import SERVED, ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.cases import for_each
from tests.support.served import connect, find_coordinator, new_name, served
from tests.support.wire_client import WireClient

MEMBER_ID_REQUIRED = 4
NAMES_PROTOCOL_TYPE = 7
SEVERAL_LEAVE = 3
SYNC_NAMES_PROTOCOL = 5


def versions(key: ApiKey) -> list[int]:
    return [*SERVED[key].each()]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(config={"offsets.topic.num.partitions": 1}) as broker:
        yield broker


@pytest.fixture
def client(kafka: ServedCluster) -> Iterator[WireClient]:
    with connect(kafka) as connected:
        yield connected


def new_group(client: WireClient) -> str:
    """Its coordinator is ready."""
    name = new_name("group")
    find_coordinator(client, name)
    return name


def join(client: WireClient, version: int, group: str, member: str = "", **fields: Any) -> Any:
    kind = wire.JoinGroupRequest
    defaults: dict[str, Any] = {
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": (kind.JoinGroupRequestProtocol("range", b"topics"),),
    }
    request = kind(group_id=group, member_id=member, **{**defaults, **fields})
    return client.ask(ApiKey.JOIN_GROUP, version, request)


def joined(client: WireClient, version: int, group: str) -> Any:
    """The answer to a join that succeeds."""
    answer = join(client, version, group)
    if version >= MEMBER_ID_REQUIRED:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert answer.member_id
        answer = join(client, version, group, answer.member_id)
    assert answer.error_code == ErrorCode.NONE
    return answer


def sync(client: WireClient, version: int, group: str, answer: Any, **fields: Any) -> Any:
    kind = wire.SyncGroupRequest
    own = (kind.SyncGroupRequestAssignment(answer.member_id, b"share"),)
    defaults: dict[str, Any] = {"assignments": own}
    if version >= SYNC_NAMES_PROTOCOL:
        defaults.update(protocol_type="consumer", protocol_name="range")
    request = kind(group, answer.generation_id, answer.member_id, **{**defaults, **fields})
    return client.ask(ApiKey.SYNC_GROUP, version, request)


def stable(client: WireClient, group: str) -> Any:
    answer = joined(client, 9, group)
    assert sync(client, 5, group, answer).error_code == ErrorCode.NONE
    return answer


@for_each("version", versions(ApiKey.JOIN_GROUP))
def test_a_member_joins(client: WireClient, version: int) -> None:
    group = new_group(client)
    answer = joined(client, version, group)
    assert answer.generation_id == 1
    assert answer.leader == answer.member_id
    assert answer.member_id.startswith("test-")
    assert answer.protocol_name == "range"
    assert answer.protocol_type == ("consumer" if version >= NAMES_PROTOCOL_TYPE else None)
    assert [(each.member_id, each.metadata) for each in answer.members] == [
        (answer.member_id, b"topics")
    ]
    assert not answer.skip_assignment


@for_each("version", versions(ApiKey.JOIN_GROUP))
def test_refused_joins(client: WireClient, version: int) -> None:
    group = new_group(client)
    for code, arguments, fields in (
        (ErrorCode.INVALID_GROUP_ID, ("",), {}),
        (ErrorCode.INVALID_SESSION_TIMEOUT, (group,), {"session_timeout_ms": 1}),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, (group,), {"protocols": ()}),
        (ErrorCode.UNKNOWN_MEMBER_ID, (group, "nobody"), {}),
    ):
        answer = join(client, version, *arguments, **fields)
        assert answer.error_code == code
        assert (answer.generation_id, answer.leader, answer.members) == (-1, "", ())
        assert answer.protocol_name == (None if version >= NAMES_PROTOCOL_TYPE else "")


@for_each("version", versions(ApiKey.JOIN_GROUP)[5:])
def test_static_member(client: WireClient, version: int) -> None:
    """From version 5 on members have instances."""
    group = new_group(client)
    first = join(client, version, group, group_instance_id="one")
    assert first.error_code == ErrorCode.NONE
    assert first.member_id.startswith("one-")
    assert sync(client, 5, group, first, group_instance_id="one").error_code == ErrorCode.NONE
    back = join(client, version, group, group_instance_id="one")
    assert (back.error_code, back.generation_id) == (ErrorCode.NONE, 1)
    assert back.member_id != first.member_id
    may_skip = version >= 9
    assert back.skip_assignment == may_skip
    assert back.leader == (back.member_id if may_skip else first.member_id)
    assert len(back.members) == may_skip
    old = wire.HeartbeatRequest(group, 1, first.member_id, "one")
    fenced = client.ask(ApiKey.HEARTBEAT, 4, old)
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID


@for_each("version", versions(ApiKey.SYNC_GROUP))
def test_sync_group(client: WireClient, version: int) -> None:
    group = new_group(client)
    answer = joined(client, 9, group)
    for code, fields in (
        (ErrorCode.UNKNOWN_MEMBER_ID, {"member_id": "nobody"}),
        (ErrorCode.ILLEGAL_GENERATION, {"generation_id": 7}),
    ):
        refused = sync(client, version, group, answer._replace(**fields))
        assert (refused.error_code, refused.assignment) == (code, b"")
    if version >= SYNC_NAMES_PROTOCOL:
        for other in ({"protocol_name": "other"}, {"protocol_type": None}):
            refused = sync(client, version, group, answer, **other)
            assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    synced = sync(client, version, group, answer)
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"share")
    named = ("consumer", "range") if version >= SYNC_NAMES_PROTOCOL else (None, None)
    assert (synced.protocol_type, synced.protocol_name) == named


@for_each("version", versions(ApiKey.HEARTBEAT))
def test_heartbeat(client: WireClient, version: int) -> None:
    group = new_group(client)
    answer = stable(client, group)

    def beat(member: str, generation: int, of: str = group) -> int:
        request = wire.HeartbeatRequest(of, generation, member)
        code: int = client.ask(ApiKey.HEARTBEAT, version, request).error_code
        return code

    assert beat(answer.member_id, 1) == ErrorCode.NONE
    assert beat(answer.member_id, 2) == ErrorCode.ILLEGAL_GENERATION
    assert beat("nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(answer.member_id, 1, "other") == ErrorCode.UNKNOWN_MEMBER_ID


@for_each("version", versions(ApiKey.LEAVE_GROUP))
def test_leave_group(client: WireClient, version: int) -> None:
    group = new_group(client)
    answer = stable(client, group)
    kind = wire.LeaveGroupRequest

    def leave(member: str) -> Any:
        if version >= SEVERAL_LEAVE:
            request = kind(group, members=(kind.MemberIdentity(member),))
        else:
            request = kind(group, member)
        return client.ask(ApiKey.LEAVE_GROUP, version, request)

    refused, left = leave("nobody"), leave(answer.member_id)
    if version >= SEVERAL_LEAVE:
        assert (refused.error_code, left.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
        (refused,), (left,) = refused.members, left.members
        assert (refused.member_id, left.member_id) == ("nobody", answer.member_id)
    assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert left.error_code == ErrorCode.NONE


@for_each("version", versions(ApiKey.DELETE_GROUPS))
def test_delete_groups(client: WireClient, version: int) -> None:
    group = new_group(client)
    answer = stable(client, group)

    def delete() -> list[tuple[str, int]]:
        response = client.ask(
            ApiKey.DELETE_GROUPS, version, wire.DeleteGroupsRequest((group, "other"))
        )
        return [(each.group_id, each.error_code) for each in response.results]

    other = ("other", ErrorCode.GROUP_ID_NOT_FOUND)
    assert delete() == [(group, ErrorCode.NON_EMPTY_GROUP), other]
    kind = wire.LeaveGroupRequest
    client.ask(ApiKey.LEAVE_GROUP, 3, kind(group, members=(kind.MemberIdentity(answer.member_id),)))
    assert delete() == [(group, ErrorCode.NONE), other]
    assert delete() == [(group, ErrorCode.GROUP_ID_NOT_FOUND), other]


def test_offset_delete(kafka: ServedCluster, client: WireClient) -> None:
    group = new_group(client)
    topic = new_name()
    kafka.create_topic(topic, 1, 1)

    def delete(name: str, of: str = group) -> Any:
        kind = wire.OffsetDeleteRequest
        part = kind.OffsetDeleteRequestPartition(0)
        request = kind(of, (kind.OffsetDeleteRequestTopic(name, (part,)),))
        return client.ask(ApiKey.OFFSET_DELETE, 0, request)

    def codes(response: Any) -> tuple[int, list[int]]:
        found = [part.error_code for each in response.topics for part in each.partitions]
        return response.error_code, found

    assert codes(delete(topic, "other")) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    commit = wire.OffsetCommitRequest
    part = commit.OffsetCommitRequestPartition(0, 5)
    request = commit(group, topics=(commit.OffsetCommitRequestTopic(topic, partitions=(part,)),))
    client.ask(ApiKey.OFFSET_COMMIT, 9, request)
    assert codes(delete("unknown")) == (
        ErrorCode.NONE,
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    )
    assert codes(delete(topic)) == (ErrorCode.NONE, [ErrorCode.NONE])


def test_the_topic_of_groups_does_not_grow(client: WireClient) -> None:
    """Each group would have another coordinator, who knows nothing of it."""
    new_group(client)
    kind = wire.CreatePartitionsRequest
    for name in ("__consumer_offsets", "__transaction_state"):
        request = kind((kind.CreatePartitionsTopic(name, 7, None),), 1000)
        (result,) = client.ask(ApiKey.CREATE_PARTITIONS, 3, request).results
        assert result.error_code == ErrorCode.INVALID_PARTITIONS


@for_each("version", versions(ApiKey.FIND_COORDINATOR))
def test_find_coordinator(kafka: ServedCluster, client: WireClient, version: int) -> None:
    """With the address of the listener by which the client came; types 0 and 1 are there."""
    endpoint = kafka.broker(0).endpoints[0]
    types = (0, 1, 7) if version >= 1 else (0,)
    for key, key_type in itertools.product("ab", (0, 1)):
        find_coordinator(client, key, key_type)
    for key_type in types:
        if version >= 4:
            request = wire.FindCoordinatorRequest(key_type=key_type, coordinator_keys=("a", "b"))
            answers = client.ask(ApiKey.FIND_COORDINATOR, version, request).coordinators
            assert [each.key for each in answers] == ["a", "b"]
        else:
            request = wire.FindCoordinatorRequest("a", key_type)
            answers = [client.ask(ApiKey.FIND_COORDINATOR, version, request)]
        for each in answers:
            place = (each.error_code, each.node_id, each.host, each.port)
            if key_type == 7:
                assert place == (ErrorCode.INVALID_REQUEST, -1, "", -1)
            else:
                assert place == (ErrorCode.NONE, 0, endpoint.host, endpoint.port)
