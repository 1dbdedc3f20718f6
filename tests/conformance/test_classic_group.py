"""Kafka's ClassicGroupTest by its names, and what OffsetMetadataManagerTest asks of offsets: what
a group keeps, when it forgets, and what its log brings back, which nothing else says."""

from __future__ import annotations

import itertools
import uuid

import pytest

from checkpoints.types import TopicPartition
from logstore.common.config import MAX_LONG
from replication.common.error_codes import ErrorCode
from replication.coordinators.groups.group import (
    ClassicGroup,
    GroupMember,
    GroupProtocol,
    MemberTerms,
)
from replication.coordinators.groups.shard import COMMIT_NOT_FOUND, ForgetTopics
from replication.coordinators.groups.states import PREDECESSORS, GroupState
from replication.protocol import messages as wire
from replication.protocol.coordinator_records import CONSUMER_OFFSETS, decode_key, decode_value
from tests.support.cases import for_each
from tests.support.groups import APPEND_ERRORS, GROUP, TP, GroupHost, LeavingMember

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState
DAY_MS = 86_400_000
COMMIT_ERRORS = {
    **APPEND_ERRORS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
}
OTHER = TopicPartition("orders", 1)
ELSEWHERE = TopicPartition("payments", 0)


@pytest.fixture
def host() -> GroupHost:
    return GroupHost()


def member(name: str, *protocols: str) -> GroupMember:
    offered = tuple(GroupProtocol(each, b"") for each in protocols)
    return GroupMember(name, None, MemberTerms("client", "host", 10_000, 60_000, offered))


def subscribed(*topics: str) -> bytes:
    """A consumer's subscription of version 0."""
    names = b"".join(len(t).to_bytes(2, "big") + t.encode() for t in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


class TestTransitions:
    ALLOWED = frozenset(
        {
            (STABLE, PREPARING),  # testCanRebalanceWhenStable
            (COMPLETING, PREPARING),  # testCanRebalanceWhenCompletingRebalance
            (EMPTY, PREPARING),  # testEmptyToPreparingRebalanceTransition
            (PREPARING, COMPLETING),  # testAwaitingRebalance…
            (COMPLETING, STABLE),  # testStableTo…
            (PREPARING, EMPTY),  # testPreparingRebalanceToEmptyTransition
            *((state, DEAD) for state in GroupState),  # test…ToDeadTransition
        }
    )

    @for_each("before, after", itertools.product(GroupState, GroupState))
    def test_transitions(self, before: GroupState, after: GroupState) -> None:
        """The 17 tests of transitions and illegal transitions, as one table (W-101)."""
        assert (before in PREDECESSORS[after]) == ((before, after) in self.ALLOWED)
        group = ClassicGroup("g")
        group.state = before
        if (before, after) in self.ALLOWED:
            group.become(after, 5)
            assert (group.state, group.state_since_ms) == (after, 5)
        else:
            with pytest.raises(AssertionError):
                group.become(after, 5)


class TestProtocols:
    def test_select_protocol(self) -> None:
        """testSelectProtocol"""
        group = ClassicGroup("g")
        group.add(member("a", "range", "roundrobin"), "consumer")
        assert group.select_protocol() == "range"
        group.add(member("b", "roundrobin", "range"), "consumer")
        assert group.select_protocol() in {"range", "roundrobin"}
        group.add(member("c", "roundrobin", "range"), "consumer")
        assert group.select_protocol() == "roundrobin"

    def test_select_protocol_chooses_compatible_protocol(self) -> None:
        """testSelectProtocolChoosesCompatibleProtocol: votes are for what all have."""
        group = ClassicGroup("g")
        group.add(member("a", "range", "roundrobin"), "consumer")
        group.add(member("b", "roundrobin", "blah"), "consumer")
        assert group.select_protocol() == "roundrobin"

    def test_supports_protocols(self) -> None:
        """testSupportsProtocols"""
        group = ClassicGroup("g")
        assert group.supports("consumer", ["anything"])
        assert not group.supports("", ["anything"])
        assert not group.supports("consumer", [])
        group.add(member("a", "range", "roundrobin"), "consumer")
        assert group.supports("consumer", ["roundrobin", "foo"])
        assert group.supports("consumer", ["range", "foo"])
        assert not group.supports("consumer", ["foo", "bar"])
        assert not group.supports("connect", ["range"])

    def test_elect_new_joined_leader(self) -> None:
        """testElectNewJoinedLeader, testMaybeElectNewJoinedLeaderChooseExisting"""
        group = ClassicGroup("g")
        first, second = member("a", "range"), member("b", "range")
        group.add(first, "consumer")
        group.add(second, "consumer")
        assert not group.elect_joined_leader()
        second.joining = 1
        assert group.elect_joined_leader()
        assert group.leader == "b"
        first.joining = 2
        assert group.elect_joined_leader()
        assert group.leader == "b"
        group.remove(second)
        assert group.leader == "a"


class TestCommit:
    @for_each("hears_absence", [True, False])
    def test_to_a_group_that_is_not_there(self, host: GroupHost, hears_absence: bool) -> None:
        """OffsetCommit knows GROUP_ID_NOT_FOUND from version 9 on."""
        version = COMMIT_NOT_FOUND - (not hears_absence)
        code = host.commit_offset(1, "member", 0, version=version)
        old, new = ErrorCode.ILLEGAL_GENERATION, ErrorCode.GROUP_ID_NOT_FOUND
        assert code is (new if hears_absence else old)
        assert host.groups() == {}

    def test_validate_offset_commit(self, host: GroupHost) -> None:
        """testValidateOffsetCommit"""
        assert host.commit_offset(1, "member", 0) is ErrorCode.ILLEGAL_GENERATION  # no such group
        assert host.commit_offset(1) is ErrorCode.NONE  # of nobody: a group of offsets only
        assert host.commit_offset(1, "member", 0) is ErrorCode.UNKNOWN_MEMBER_ID
        (leader,) = host.stable(instances=("one",))
        member_id, generation = leader.member_id, leader.generation_id
        for arguments, code in (
            (("", -1), ErrorCode.UNKNOWN_MEMBER_ID),
            (("unknown", generation), ErrorCode.UNKNOWN_MEMBER_ID),
            ((member_id, generation + 1), ErrorCode.ILLEGAL_GENERATION),
            ((member_id, -1), ErrorCode.ILLEGAL_GENERATION),
            ((member_id, generation), ErrorCode.NONE),
        ):
            assert host.commit_offset(1, *arguments) is code, arguments
        assert (
            host.commit_offset(1, "other", generation, instance="one")
            is ErrorCode.FENCED_INSTANCE_ID
        )
        host.join()
        assert host.commit_offset(2, member_id, generation) is ErrorCode.NONE  # PreparingRebalance
        host.join(member_id, instance="one")
        assert host.state == "CompletingRebalance"
        in_progress = host.commit_offset(3, member_id, generation + 1)
        assert in_progress is ErrorCode.REBALANCE_IN_PROGRESS
        assert host.offset() == 2

    def test_validate_transactional_offset_commit(self, host: GroupHost) -> None:
        """testValidateTransactionalOffsetCommit: older clients name no generation, and the state
        does not matter."""
        (leader,) = host.stable()
        assert host.commit_offset(1, producer_id=7) is ErrorCode.NONE
        for arguments, code in (
            (("unknown", leader.generation_id), ErrorCode.UNKNOWN_MEMBER_ID),
            ((leader.member_id, 0), ErrorCode.ILLEGAL_GENERATION),
            ((leader.member_id, leader.generation_id), ErrorCode.NONE),
        ):
            assert host.commit_offset(1, *arguments, producer_id=7) is code
        call = host.join()
        host.join(leader.member_id)
        assert host.state == "CompletingRebalance"
        generation = call.answer.generation_id
        code = host.commit_offset(1, leader.member_id, generation, producer_id=7)
        assert code is ErrorCode.NONE

    @for_each("append, client", COMMIT_ERRORS.items())
    def test_append_failures(self, host: GroupHost, append: ErrorCode, client: ErrorCode) -> None:
        """testCommitOffsetAppendFailureTransformsError…: and nothing is committed, nor a group
        made of it (W-114)."""
        host.refusal = append
        assert host.commit_offset(5) is client
        assert host.offset() == -1
        assert host.groups() == {}

    def test_offsets_count_when_they_are_committed(self, host: GroupHost) -> None:
        host.commit_offset(1)
        host.holds = True
        call = host.commit_call(2)
        assert call.waits
        assert host.offset() == 1
        host.commit()
        assert call.answer == {TP: ErrorCode.NONE}
        assert host.offset() == 2

    def test_a_commit_that_takes_long_still_counts(self, host: GroupHost) -> None:
        """The client hears of a time-out; what is in the log is the truth all the same."""
        host.holds = True
        call = host.commit_call(2)
        host.time_out()
        assert call.answer == {TP: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        host.commit()
        assert host.offset() == host.replayed().offset() == 2

    def test_metadata(self, host: GroupHost) -> None:
        """testConsumerGroupOffsetCommitWithOffsetMetadataTooLarge: what counts are units of UTF-16,
        as in Java's strings (W-112)."""
        assert host.commit_offset(1, metadata="m" * 4096) is ErrorCode.NONE
        assert host.fetch().metadata == "m" * 4096
        too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert host.commit_offset(2, metadata="m" * 4097) is too_large
        assert host.commit_offset(2, metadata="𝄞" * 2049) is too_large
        assert host.offset() == 1
        for most in ("ä" * 4096, "𝄞" * 2048):
            assert host.commit_offset(1, metadata=most) is ErrorCode.NONE
            assert host.replayed().fetch().metadata == most
        assert host.commit_offset(2, metadata="m" * 4097, group_id="new") is too_large
        assert host.groups() == {GROUP: "Empty"}


class TestTransactions:
    def test_committed_by_its_marker(self, host: GroupHost) -> None:
        """testTxnOffsetCommitWithoutMemberId…, testFetchOffsetsWithPendingTransactionalOffsets"""
        host.commit_offset(1)
        host.commit_offset(2, producer_id=7)
        assert host.offset() == 1
        assert host.fetch(stable=True).error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert host.fetch(OTHER, stable=True).error_code is ErrorCode.NONE
        host.end_transaction(7, is_commit=True)
        assert host.fetch(stable=True).committed_offset == 2
        assert host.replayed().offset() == 2

    def test_aborted_by_its_marker(self, host: GroupHost) -> None:
        host.commit_offset(2, producer_id=7, group_id="new")
        assert host.groups() == {"new": "Empty"}
        host.end_transaction(7, is_commit=False)
        assert host.offset(group_id="new") == -1
        assert host.groups() == {}

    def test_is_unstable_on_its_way_to_the_log(self, host: GroupHost) -> None:
        host.holds = True
        call = host.commit_call(2, producer_id=7)
        assert host.fetch(stable=True).error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        host.commit()
        assert call.answer == {TP: ErrorCode.NONE}
        assert host.fetch(stable=True).error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT

    def test_a_refused_one_is_not_pending(self, host: GroupHost) -> None:
        host.refusal = ErrorCode.INVALID_PRODUCER_EPOCH
        code = host.commit_offset(2, producer_id=7)
        assert code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert host.fetch(stable=True).error_code is ErrorCode.NONE

    def test_later_commits_stay(self, host: GroupHost) -> None:
        """testReplayTransactionEndMarkerWithCommit…: the order of the log decides."""
        host.commit_offset(2, producer_id=7)
        host.commit_offset(3)
        host.end_transaction(7, is_commit=True)
        assert host.offset() == host.replayed().offset() == 3

    def test_other_producers_are_not_touched(self, host: GroupHost) -> None:
        host.commit_offset(2, producer_id=7)
        host.commit_offset(3, producer_id=8, tp=OTHER)
        host.end_transaction(7, is_commit=True)
        assert host.offset() == 2
        assert host.fetch(OTHER, stable=True).error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        other = host.replayed()
        assert other.fetch(OTHER, stable=True).error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        other.end_transaction(8, is_commit=True)
        assert other.offset(OTHER) == 3

    def test_deleted_with_the_group(self, host: GroupHost) -> None:
        """testDeleteGroupAllOffsetsWithPendingTransactionalOffsets"""
        host.commit_offset(1)
        host.commit_offset(2, producer_id=7, tp=OTHER)
        assert host.delete_group() is ErrorCode.NONE
        host.end_transaction(7, is_commit=True)
        assert host.groups() == host.replayed().groups() == {}
        assert host.offset(OTHER) == -1


class TestExpiry:
    RETENTION_MS = 7 * DAY_MS

    def test_offset_expiration_condition(self, host: GroupHost) -> None:
        """testOffsetExpirationCondition: a group of offsets only, from its commit."""
        host.commit_offset(1)
        host.pass_time(self.RETENTION_MS - 1)
        assert host.offset() == 1
        host.pass_time(1 + 600_000)
        assert host.offset() == -1
        assert host.groups() == {}
        assert host.replayed().groups() == {}

    def test_empty_group(self, host: GroupHost) -> None:
        """From when its last member left."""
        (leader,) = host.stable(session_ms=1_800_000)
        host.commit_offset(1, leader.member_id, leader.generation_id)
        for _ in range(10 * 48):  # ten days of heartbeats
            host.pass_time(1_800_000 - 1)
            assert host.heartbeat(leader.member_id, leader.generation_id) is ErrorCode.NONE
        host.leave(leader.member_id)
        host.pass_time(self.RETENTION_MS - 600_001)
        assert (host.offset(), host.state) == (1, "Empty")
        host.pass_time(1_200_001)
        assert host.groups() == host.replayed().groups() == {}

    def test_topics_nobody_reads_any_more(self, host: GroupHost) -> None:
        (leader,) = host.stable(session_ms=1_800_000, protocols=(("range", subscribed("orders")),))
        host.commit_offset(1, leader.member_id, leader.generation_id)
        host.commit_offset(2, leader.member_id, leader.generation_id, tp=ELSEWHERE)
        for _ in range(8 * 48):
            host.pass_time(1_800_000 - 1)
            host.heartbeat(leader.member_id, leader.generation_id)
        assert (host.offset(), host.offset(ELSEWHERE)) == (1, -1)
        assert host.state == "Stable"

    def test_what_members_read_is_not_known(self, host: GroupHost) -> None:
        (leader,) = host.stable(session_ms=1_800_000, protocols=(("range", b"garbage"),))
        host.commit_offset(1, leader.member_id, leader.generation_id)
        for _ in range(8 * 48):
            host.pass_time(1_800_000 - 1)
            host.heartbeat(leader.member_id, leader.generation_id)
        assert host.offset() == 1

    def test_retention_of_the_client(self, host: GroupHost) -> None:
        """OffsetCommit up to version 4 said how long; the record does, too."""
        host.commit_offset(1, retention_ms=30 * DAY_MS)
        host.commit_offset(2, tp=OTHER, retention_ms=DAY_MS)
        for other in (host, host.replayed()):
            other.pass_time(DAY_MS + 600_000)
            assert (other.offset(), other.offset(OTHER)) == (1, -1)
            other.pass_time(20 * DAY_MS)
            assert other.offset() == 1
            other.pass_time(10 * DAY_MS)
            assert other.offset() == -1

    def test_pending_transactions_keep_theirs(self, host: GroupHost) -> None:
        host.commit_offset(1)
        host.commit_offset(2, producer_id=7)
        host.pass_time(30 * DAY_MS)
        assert host.offset() == 1

    def test_tombstones_that_are_not_written(self, host: GroupHost) -> None:
        """All is as before, and tried again."""
        host.stable()
        host.pass_time(20_000)
        assert host.state == "Empty"
        host.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
        host.pass_time(600_000)
        assert host.groups() == {GROUP: "Empty"}
        (again,) = host.stable()
        assert again.generation_id == 3
        host.pass_time(20_000 + 1_200_000)
        assert host.groups() == {}

    def test_many_offsets(self) -> None:
        """They are deleted in batches that any log takes."""
        host = GroupHost(offsets_retention_minutes=1)
        for number in range(1200):
            host.commit_offset(1, tp=TopicPartition("t", number))
        before = len(host.log)
        host.holds = True
        host.pass_time(600_000)
        assert [len(append.records) for append in host.held[-2:]] == [1000, 201]
        assert len(host.log) == before + 1201
        host.commit()
        assert host.groups() == {}


class TestDeletion:
    def test_delete_group(self, host: GroupHost) -> None:
        """testDeleteGroups: DeleteGroupsRequestTest"""
        assert host.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND
        (leader,) = host.stable()
        host.commit_offset(1, leader.member_id, leader.generation_id)
        assert host.delete_group() is ErrorCode.NON_EMPTY_GROUP
        host.leave(leader.member_id)
        host.holds = True
        call = host.request(wire.DeleteGroupsRequest((GROUP,)))
        assert call.waits
        assert host.state == "Dead"
        for code in (
            host.joined().error_code,
            host.synced("m", 1).error_code,
            host.heartbeat("m", 1),
            host.leave(LeavingMember("m")).error_code,
            host.commit_offset(3),
        ):
            assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        host.commit()
        assert call.answer is ErrorCode.NONE
        host.holds = False
        assert host.offset() == -1
        assert host.groups() == host.replayed().groups() == {}
        assert host.joined().error_code is ErrorCode.NONE

    def test_delete_group_fails(self, host: GroupHost) -> None:
        host.commit_offset(1)
        host.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
        assert host.delete_group() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (host.state, host.offset()) == ("Empty", 1)

    def test_delete_offsets(self, host: GroupHost) -> None:
        """testConsumerGroupOffsetDelete…, OffsetDeleteRequestTest"""
        assert host.delete_offsets() is ErrorCode.GROUP_ID_NOT_FOUND
        (leader,) = host.stable(protocols=(("range", subscribed("orders")),))
        for tp in (TP, ELSEWHERE):
            host.commit_offset(1, leader.member_id, leader.generation_id, tp=tp)
        deleted = host.delete_offsets(TP, ELSEWHERE, OTHER._replace(topic="x"))
        assert deleted == {
            TP: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ELSEWHERE: ErrorCode.NONE,
            OTHER._replace(topic="x"): ErrorCode.NONE,
        }
        assert (host.offset(), host.offset(ELSEWHERE)) == (1, -1)
        host.leave(leader.member_id)
        assert host.delete_offsets(TP) == {TP: ErrorCode.NONE}
        assert host.offset() == host.replayed().offset() == -1

    def test_topics_are_deleted(self, host: GroupHost) -> None:
        """testOnPartitionsDeleted: also of groups with members, who will find other records."""
        (leader,) = host.stable(protocols=(("range", subscribed("orders")),))
        for tp in (TP, OTHER, ELSEWHERE):
            host.commit_offset(1, leader.member_id, leader.generation_id, tp=tp)
        host.commit_offset(1, group_id="other")
        assert host.now(ForgetTopics(frozenset({"orders", "x"})), ErrorCode) is ErrorCode.NONE
        for other in (host, host.replayed()):
            assert [other.offset(tp) for tp in (TP, OTHER, ELSEWHERE)] == [-1, -1, 1]
            assert other.offset(group_id="other") == -1
            assert other.state == "Stable"

    @for_each("producer_id, retention_ms", itertools.product([-1, 5], [-1, DAY_MS]))
    def test_the_topic_id_is_written(
        self, host: GroupHost, producer_id: int, retention_ms: int
    ) -> None:
        """Not with an expiry, for which there is no newer version, and not in a transaction."""
        topic_id = uuid.UUID(int=7)
        host.commit_offset(1, retention_ms=retention_ms, producer_id=producer_id, topic_id=topic_id)
        key, value = host.log[-1].record
        assert value is not None
        found = decode_value(decode_key(CONSUMER_OFFSETS, key), value)
        is_plain = producer_id < 0 and retention_ms < 0
        assert found.topic_id == (topic_id if is_plain else uuid.UUID(int=0))

    def test_an_offset_that_is_to_be_kept_for_ever(self, host: GroupHost) -> None:
        """Now and the longest time together are more than a record has room for."""
        assert host.commit_offset(1, retention_ms=MAX_LONG) is ErrorCode.NONE
        assert host.offset() == host.replayed().offset() == 1

    def test_topics_are_deleted_under_a_transaction(self, host: GroupHost) -> None:
        """testOnPartitionsDeleted: the next topic of the name begins without an offset."""
        host.commit_offset(1, producer_id=5)
        assert host.now(ForgetTopics(frozenset({TP.topic})), ErrorCode) is ErrorCode.NONE
        host.end_transaction(5, True)
        assert host.offset() == host.replayed().offset() == -1

    def test_topics_are_deleted_while_a_commit_is_under_way(self, host: GroupHost) -> None:
        call = host.commit_call(1)
        forgotten = host.request(ForgetTopics(frozenset({TP.topic})))
        host.commit()
        assert call.answer == {TP: ErrorCode.NONE}
        assert forgotten.answer is ErrorCode.NONE
        assert host.offset() == host.replayed().offset() == -1

    def test_a_pending_offset_makes_a_group(self, host: GroupHost) -> None:
        """Also after the shard was loaded again."""
        host.commit_offset(1, producer_id=5)
        assert host.state == host.replayed().state == "Empty"

    def test_delete_offsets_of_other_members(self, host: GroupHost) -> None:
        """Members of another type read nobody knows what."""
        host.stable(kind="connect")
        assert host.delete_offsets() is ErrorCode.NON_EMPTY_GROUP


class TestDescription:
    def test_unknown_group(self, host: GroupHost) -> None:
        """testDescribeGroupsGroupIdNotFoundException"""
        assert host.describe().error_code is ErrorCode.GROUP_ID_NOT_FOUND
        assert host.state == "Dead"

    def test_members(self, host: GroupHost) -> None:
        """testDescribeGroupStable, testDescribeGroupRebalancing"""
        leader, follower = host.stable(2, protocols=(("range", b"topics"),))
        described = host.describe()
        assert (described.group_state, described.protocol_type, described.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        assert [
            (m.member_id, m.client_id, m.client_host, m.member_metadata, m.member_assignment)
            for m in described.members
        ] == [
            (
                each.member_id,
                "client",
                "/127.0.0.1",
                b"topics",
                f"share of {each.member_id}".encode(),
            )
            for each in (leader, follower)
        ]
        host.join(leader.member_id)
        described = host.describe()
        assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
        assert {(m.member_metadata, m.member_assignment) for m in described.members} == {
            (b"", f"share of {each.member_id}".encode()) for each in (leader, follower)
        }

    def test_replay(self, host: GroupHost) -> None:
        """Whoever reads the log has the same groups; members have a whole session (W-116)."""
        members = host.stable(3, instances=("one", None, "two"))
        host.commit_offset(4, members[0].member_id, members[0].generation_id, instance="one")
        other = host.replayed()
        assert other.describe() == host.describe()
        assert other.fetch() == host.fetch()
        for each in members:
            assert other.heartbeat(each.member_id, each.generation_id) is ErrorCode.NONE
        other.pass_time(10_000)
        assert other.state == "Empty"
        assert other.replayed().state == "Empty"
