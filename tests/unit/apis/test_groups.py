"""What clients of groups hear when the shard of their group is not at work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from replication.apis.groups import GroupApis
from replication.common.error_codes import ErrorCode
from replication.network import ConnectionInfo, Listener, ReceivedRequest
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.support.cases import for_each

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
MOVED = ErrorCode.NOT_COORDINATOR

COMMIT = wire.OffsetCommitRequest
TXN_COMMIT = wire.TxnOffsetCommitRequest
FETCH = wire.OffsetFetchRequest
TOPIC = (
    COMMIT.OffsetCommitRequestTopic("t", partitions=(COMMIT.OffsetCommitRequestPartition(0, 1),)),
)
TXN_TOPIC = (
    TXN_COMMIT.TxnOffsetCommitRequestTopic(
        "t", (TXN_COMMIT.TxnOffsetCommitRequestPartition(0, 1),)
    ),
)


class Refusing:
    """A coordinator that is not at work."""

    def __init__(self, code: ErrorCode) -> None:
        self.code = code

    def request(self, group_id: str, request: Any, answer: Any) -> None:
        answer(self.code)

    def commit_in_transaction(self, *arguments: Any) -> None:
        arguments[-1](self.code)

    def list_groups(self, answer: Any) -> None:
        answer(self.code, [])


def ask(key: ApiKey, version: int, request: Any, code: ErrorCode) -> Any:
    metadata = SimpleNamespace(
        registration=lambda tp: object(), topic_id=lambda name: None, topic_name=lambda id_: None
    )
    broker = cast(Any, SimpleNamespace(metadata=metadata))
    apis = GroupApis(broker, cast(Any, Refusing(code)), {})
    connection = ConnectionInfo(1, "127.0.0.1", 9, Listener())
    received = ReceivedRequest(key, version, 1, "me", memoryview(b""), connection, 0)
    answers: list[Any] = []
    apis.handlers[key](received, request, answers.append)
    (answer,) = answers
    return answer


@for_each(
    "key, version, request_, while_loading",
    [
        (ApiKey.JOIN_GROUP, 9, wire.JoinGroupRequest("g"), LOADING),
        (
            ApiKey.SYNC_GROUP,
            5,
            wire.SyncGroupRequest("g", protocol_type="consumer", protocol_name="range"),
            ErrorCode.REBALANCE_IN_PROGRESS,
        ),
        (ApiKey.HEARTBEAT, 4, wire.HeartbeatRequest("g"), ErrorCode.NONE),
        (ApiKey.LEAVE_GROUP, 5, wire.LeaveGroupRequest("g"), LOADING),
        (ApiKey.LEAVE_GROUP, 0, wire.LeaveGroupRequest("g", "m"), LOADING),
        (ApiKey.OFFSET_FETCH, 7, FETCH("g", topics=None), LOADING),
        (ApiKey.LIST_GROUPS, 4, wire.ListGroupsRequest(), LOADING),
        (ApiKey.OFFSET_DELETE, 0, wire.OffsetDeleteRequest("g"), LOADING),
    ],
)
def test_one_code(key: ApiKey, version: int, request_: Any, while_loading: ErrorCode) -> None:
    """A member that heartbeats is kept; one that syncs joins again; no client stops."""
    assert ask(key, version, request_, LOADING).error_code == while_loading
    assert ask(key, version, request_, MOVED).error_code == MOVED


@pytest.mark.parametrize("code", [LOADING, MOVED])
def test_a_code_for_each_part(code: ErrorCode) -> None:
    commit = ask(ApiKey.OFFSET_COMMIT, 9, COMMIT("g", topics=TOPIC), code)
    assert commit.topics[0].partitions[0].error_code == code
    request = TXN_COMMIT("x", "g", 7, 0, topics=TXN_TOPIC)
    txn = ask(ApiKey.TXN_OFFSET_COMMIT, 3, request, code)
    assert txn.topics[0].partitions[0].error_code == code
    fetch = FETCH(groups=(FETCH.OffsetFetchRequestGroup("g"), FETCH.OffsetFetchRequestGroup("h")))
    fetched = ask(ApiKey.OFFSET_FETCH, 8, fetch, code)
    assert [(each.group_id, each.error_code) for each in fetched.groups] == [
        ("g", code),
        ("h", code),
    ]
    topics = (FETCH.OffsetFetchRequestTopic("t", (0,)),)
    old = ask(ApiKey.OFFSET_FETCH, 1, FETCH("g", topics), code)
    assert old.topics[0].partitions[0].error_code == code
    described = ask(ApiKey.DESCRIBE_GROUPS, 6, wire.DescribeGroupsRequest(("g",)), code)
    assert described.groups[0].error_code == code
    deleted = ask(ApiKey.DELETE_GROUPS, 2, wire.DeleteGroupsRequest(("g",)), code)
    assert deleted.results[0].error_code == code


def test_a_transaction_without_a_producer() -> None:
    request = TXN_COMMIT("x", "g", -1, 0, topics=TXN_TOPIC)
    answer = ask(ApiKey.TXN_OFFSET_COMMIT, 3, request, LOADING)
    code = answer.topics[0].partitions[0].error_code
    assert code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
