"""A member of a classic group: what it tells the others, what it asks next, and in whose words."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.admin import Answered
from replication.admin.assignments import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    range_assignment,
)
from replication.admin.membership import (
    UNKNOWN_GENERATION,
    ClassicMembership,
    ConsumingMember,
    MembershipError,
    MemberState,
)
from replication.common.error_codes import ErrorCode as E
from replication.protocol import ApiKey, MalformedMessageError, encode_request
from replication.protocol import messages as wire
from tests.support.cases import for_each

JOIN, SYNC, BEAT = ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT
SUBSCRIPTION = b"\0\0\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xff"
ASSIGNMENT = b"\0\0\0\0\0\1\0\1a\0\0\0\2\0\0\0\0\0\0\0\3\xff\xff\xff\xff"


def test_the_words_of_members() -> None:
    """Later versions of a subscription have more at the end."""
    assert encode_subscription(["a", "bc"]) == SUBSCRIPTION
    assert decode_subscription(b"\0\3" + SUBSCRIPTION[2:] + bytes(20)) == {"a", "bc"}
    assert encode_assignment([TopicPartition("a", 0), TopicPartition("a", 3)]) == ASSIGNMENT
    assert decode_assignment(ASSIGNMENT) == (TopicPartition("a", 0), TopicPartition("a", 3))
    assert decode_assignment(b"") == ()


def test_hostile_words() -> None:
    for end in range(1, len(ASSIGNMENT) - 4):
        with pytest.raises(MalformedMessageError):
            decode_assignment(ASSIGNMENT[:end])
    for count in (-1, -2, 1 << 30):
        topics = struct.pack(">hi", 0, 1 << 30)
        for data in (topics + struct.pack(">h", max(-2, min(count, 9))), topics):
            assert decode_subscription(data) == frozenset()
        with pytest.raises(MalformedMessageError):
            decode_assignment(b"\0\0\0\0\0\1\0\1a" + struct.pack(">i", count))
    with pytest.raises(MalformedMessageError):
        decode_assignment(b"\0\0\0\0\0\1\0\1\xff\0\0\0\0")


def test_range() -> None:
    assert range_assignment({"y": ["t"], "x": ["t", "u"], "z": ["t"]}, {"t": 5, "u": 1}) == {
        "x": [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)],
        "y": [TopicPartition("t", 2), TopicPartition("t", 3)],
        "z": [TopicPartition("t", 4)],
    }
    rng = random.Random(7)
    for _ in range(200):
        counts = {f"t{n}": rng.randrange(9) for n in range(3)}
        subscribed = {f"m{n}": rng.sample([*counts, "gone"], 2) for n in range(rng.randrange(1, 5))}
        found = range_assignment(subscribed, counts)
        every = sorted(tp for tps in found.values() for tp in tps)
        wanted = {topic for topics in subscribed.values() for topic in topics}
        assert every == sorted(
            TopicPartition(topic, n) for topic in wanted for n in range(counts.get(topic, 0))
        )
        assert all(tp.topic in subscribed[m] for m, tps in found.items() for tp in tps)


def new_member() -> ClassicMembership:
    member = ClassicMembership("g", session_timeout_ms=6000, rebalance_timeout_ms=9000)
    member.note_topics(("a",), {})
    return member


def joined(leader: str = "m-1", generation: int = 3) -> Answered:
    kind = wire.JoinGroupResponse
    others = (
        kind.JoinGroupResponseMember("m-1", None, SUBSCRIPTION),
        kind.JoinGroupResponseMember("m-2", None, b"nonsense"),
    )
    return Answered(
        0,
        value=kind(
            generation_id=generation,
            member_id="m-1",
            leader=leader,
            members=others if leader == "m-1" else (),
        ),
    )


def synced() -> Answered:
    return Answered(0, value=wire.SyncGroupResponse(assignment=ASSIGNMENT))


def in_group() -> ClassicMembership:
    member = new_member()
    member.answered(JOIN, joined())
    member.answered(SYNC, synced())
    return member


def test_into_the_group() -> None:
    """The first join gives it an id (KIP-394). It leads, so it assigns, also what it lacks."""
    member = new_member()
    key, request = member.next_request()
    assert (key, request.member_id, request.rebalance_timeout_ms) == (JOIN, "", 9000)
    assert decode_subscription(request.protocols[0].metadata) == {"a"}
    given = wire.JoinGroupResponse(member_id="m-1")
    member.answered(JOIN, Answered(E.MEMBER_ID_REQUIRED, value=given))
    key, request = member.next_request()
    assert (key, request.member_id) == (JOIN, "m-1")
    member.answered(JOIN, joined())
    assert member.topics_of_all == {"a", "bc"}
    member.note_topics(("a",), {"a": 1, "bc": 2})
    key, request = member.next_request()
    assert (key, request.generation_id, request.protocol_name) == (SYNC, 3, "range")
    assert {each.member_id: decode_assignment(each.assignment) for each in request.assignments} == {
        "m-1": (TopicPartition("a", 0), TopicPartition("bc", 0), TopicPartition("bc", 1)),
        "m-2": (),
    }
    member.answered(SYNC, synced())
    assert (member.state, member.assigned) == (MemberState.MEMBER, decode_assignment(ASSIGNMENT))
    assert member.next_request() == (BEAT, wire.HeartbeatRequest("g", 3, "m-1"))
    _, joins = new_member().next_request()
    for version in range(3, 10):  # from Kafka 2.1 on
        encode_request(joins, version)
    for version in range(2, 5):
        encode_request(member.next_request()[1], version)
    for version in range(2, 6):
        encode_request(member.leave_request(version), version)
        encode_request(request, version)


def test_who_follows_assigns_nothing() -> None:
    member = in_group()
    member.answered(BEAT, Answered(E.REBALANCE_IN_PROGRESS))
    member.answered(JOIN, joined(leader="m-2"))
    assert member.topics_of_all == frozenset()
    assert member.next_request()[1].assignments == ()


@for_each(
    "key, code, state, generation, member_id",
    [
        (BEAT, E.REBALANCE_IN_PROGRESS, MemberState.OUTSIDE, 3, "m-1"),
        (BEAT, E.ILLEGAL_GENERATION, MemberState.OUTSIDE, UNKNOWN_GENERATION, "m-1"),
        (BEAT, E.UNKNOWN_MEMBER_ID, MemberState.OUTSIDE, UNKNOWN_GENERATION, ""),
        (BEAT, E.NOT_COORDINATOR, MemberState.MEMBER, 3, "m-1"),
        (BEAT, E.COORDINATOR_NOT_AVAILABLE, MemberState.MEMBER, 3, "m-1"),
        (BEAT, E.NETWORK_EXCEPTION, MemberState.MEMBER, 3, "m-1"),
        (SYNC, E.NETWORK_EXCEPTION, MemberState.OUTSIDE, 3, "m-1"),
        (ApiKey.OFFSET_COMMIT, E.UNKNOWN_MEMBER_ID, MemberState.OUTSIDE, UNKNOWN_GENERATION, ""),
        (ApiKey.OFFSET_COMMIT, E.REBALANCE_IN_PROGRESS, MemberState.OUTSIDE, 3, "m-1"),
    ],
)
def test_answers(key: ApiKey, code: E, state: MemberState, generation: int, member_id: str) -> None:
    """A generation that is lost commits nothing more; one that ends may."""
    member = in_group()
    member.answered(key, Answered(code))
    assert (member.state, member.generation_id, member.member_id) == (state, generation, member_id)


@for_each("code", [E.FENCED_INSTANCE_ID, E.GROUP_AUTHORIZATION_FAILED, 9999])
def test_refused_for_good(code: int) -> None:
    with pytest.raises(MembershipError, match="group g: "):
        in_group().answered(BEAT, Answered(code))


def test_what_changes_is_assigned_anew() -> None:
    member = in_group()
    member.note_topics(("a",), {})
    assert member.state is MemberState.MEMBER
    member.note_topics(("a",), {"a": 4})
    assert member.state is MemberState.OUTSIDE


def test_a_lost_generation_commits_nothing() -> None:
    """A broker would take it from nobody once the group has no members."""
    member = in_group()
    member.answered(BEAT, Answered(E.UNKNOWN_MEMBER_ID))
    admin: Any = None  # is not asked
    at = {TopicPartition("a", 0): 5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConsumingMember, "__exit__", lambda *_: None)
        with ConsumingMember(admin, member, lambda: ("a",), len) as joined_once:
            assert joined_once.commit(at) == {TopicPartition("a", 0): Answered(E.UNKNOWN_MEMBER_ID)}
