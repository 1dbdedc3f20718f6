"""Kafka's GroupMetadataManagerTest by its names: nothing else says who joins, syncs, is silent and
leaves in the classic protocol, and what each hears."""

from __future__ import annotations

from typing import Any

import pytest

from replication.common.error_codes import ErrorCode
from replication.coordinators.groups.classic import NEW_MEMBER_JOIN_TIMEOUT_MS
from replication.coordinators.groups.config import GroupConfig
from replication.protocol import messages as wire
from tests.support.cases import for_each
from tests.support.groups import (
    APPEND_ERRORS,
    REBALANCE_MS,
    SESSION_MS,
    Call,
    GroupHost,
    LeavingMember,
)

SYNC_ERRORS = {
    **APPEND_ERRORS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


@pytest.fixture
def host() -> GroupHost:
    return GroupHost()


def result(call: Call) -> wire.JoinGroupResponse:
    assert isinstance(call.answer, wire.JoinGroupResponse)
    return call.answer


def keep_alive(host: GroupHost, ms: int, *members: wire.JoinGroupResponse) -> None:
    """Let time pass while these members send heartbeats."""
    for _ in range(ms // 5000):
        host.pass_time(5000)
        for member in members:
            host.heartbeat(member.member_id, member.generation_id)


class TestJoin:
    @for_each("instance", [None, "instance"])
    def test_join_group_unknown_member_new_group(
        self, host: GroupHost, instance: str | None
    ) -> None:
        """testJoinGroupUnknownMemberNewGroup"""
        joined = host.joined("member", instance=instance)
        assert joined.error_code is ErrorCode.UNKNOWN_MEMBER_ID
        assert host.groups() == {}

    def test_classic_group_join_inconsistent_protocol_type(self, host: GroupHost) -> None:
        """testClassicGroupJoinInconsistentProtocolType"""
        host.stable()
        joined = host.joined(kind="connect")
        assert joined.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (joined.generation_id, joined.protocol_name, joined.members) == (-1, None, ())

    def test_join_group_with_empty_protocol_type(self, host: GroupHost) -> None:
        """testJoinGroupWithEmptyProtocolType and testJoinGroupWithEmptyGroupProtocol"""
        cases: list[dict[str, Any]] = [{"kind": ""}, {"protocols": ()}]
        for options in cases:
            joined = host.joined(**options)
            assert joined.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert host.groups() == {}

    def test_join_group_second_join_inconsistent_protocol(self, host: GroupHost) -> None:
        """testJoinGroupSecondJoinInconsistentProtocol"""
        first = host.joined(needs_id=True)
        assert first.error_code is ErrorCode.MEMBER_ID_REQUIRED
        member = host.joined(first.member_id)
        assert member.error_code is ErrorCode.NONE
        again = host.joined(member.member_id, protocols=())
        assert again.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_join_group_session_timeout(self, host: GroupHost) -> None:
        """testJoinGroupSessionTimeoutTooSmall, testJoinGroupSessionTimeoutTooLarge"""
        for session_ms in (5_999, 1_800_001):
            joined = host.joined(session_ms=session_ms)
            assert joined.error_code is ErrorCode.INVALID_SESSION_TIMEOUT
        for session_ms in (6_000, 1_800_000):
            joined = host.joined(group_id=str(session_ms), session_ms=session_ms)
            assert joined.error_code is ErrorCode.NONE
        assert host.joined(group_id="").error_code is ErrorCode.INVALID_GROUP_ID

    def test_new_member_join_expiration(self, host: GroupHost) -> None:
        """testNewMemberJoinExpiration: a client that is gone while its first join waits."""
        (member,) = host.stable(rebalance_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
        newcomer = host.join()
        keep_alive(host, NEW_MEMBER_JOIN_TIMEOUT_MS - 5000, member)
        assert newcomer.waits
        keep_alive(host, 5000, member)
        assert result(newcomer).error_code is ErrorCode.UNKNOWN_MEMBER_ID
        assert len(host.describe().members) == 1

    def test_join_group_as_existing_leader_triggers_rebalance_in_stable_state(
        self, host: GroupHost
    ) -> None:
        """testJoinGroupAsExistingLeaderTriggersRebalanceInStableState"""
        leader, _ = host.stable(2)
        call = host.join(leader.member_id)
        assert call.waits
        assert host.state == "PreparingRebalance"

    def test_join_group_existing_member_does_not_trigger_rebalance_in_stable_state(
        self, host: GroupHost
    ) -> None:
        """testJoinGroupExistingMemberDoesNotTriggerRebalanceInStableState"""
        leader, follower = host.stable(2)
        again = host.joined(follower.member_id)
        assert (again.error_code, again.generation_id) == (ErrorCode.NONE, follower.generation_id)
        assert (again.leader, again.members) == (leader.member_id, ())
        assert host.state == "Stable"
        assert host.join(follower.member_id, protocols=(("range", b"other topics"),)).waits
        assert host.state == "PreparingRebalance"

    def test_join_of_a_member_in_completing_rebalance(self, host: GroupHost) -> None:
        """testJoinGroupExistingMemberWithUpdatedMetadataTriggersRebalance, and whose answer was
        lost: testJoinGroupReturnsFullMembershipForLeaderInCompletingRebalance"""
        (leader,) = host.stable()
        follower = host.join()
        leads = host.joined(leader.member_id)
        follows = result(follower)
        assert host.state == "CompletingRebalance"
        assert host.joined(follows.member_id) == follows._replace(members=())
        assert host.joined(leader.member_id) == leads
        assert len(leads.members) == 2
        assert host.join(follows.member_id, protocols=(("range", b"new"),)).waits
        assert host.state == "PreparingRebalance"

    def test_last_joining_members_are_kicked_out_when_rejoining_group_with_max_size(self) -> None:
        """testLastJoiningMembersAreKickedOutWhenRejoiningGroupWithMaxSize"""
        large = GroupHost()
        members = large.stable(5)
        large.config = large.config.with_properties({"group.max.size": 2})
        host = large.replayed()
        assert host.state == "PreparingRebalance"  # a group that is too large is not left alone
        calls = [host.join(each.member_id) for each in members]
        codes = [result(call).error_code for call in calls]
        full = ErrorCode.GROUP_MAX_SIZE_REACHED
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, full, full, full]
        assert len(host.describe().members) == 2

    def test_dynamic_members_join_group_with_max_size(self) -> None:
        """testDynamicMembersJoinGroupWithMaxSize"""
        host = GroupHost(group_max_size=2)
        host.stable(2)
        assert host.joined().error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert host.state == "Stable"

    def test_required_member_id(self, host: GroupHost) -> None:
        """testJoinGroupUnknownConsumerNewGroup with requireKnownMemberId: a pending id joins once,
        is no member before, and is forgotten after a session."""
        first = host.joined(needs_id=True)
        assert first.error_code is ErrorCode.MEMBER_ID_REQUIRED
        assert first.member_id.startswith("client-")
        assert host.heartbeat(first.member_id, 0) is ErrorCode.UNKNOWN_MEMBER_ID
        assert host.joined(first.member_id).error_code is ErrorCode.NONE
        second = host.joined(needs_id=True)
        host.pass_time(SESSION_MS)
        assert host.joined(second.member_id).error_code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_only_pending_members_are_no_group_for_ever(self, host: GroupHost) -> None:
        host.joined(needs_id=True)
        assert host.groups() == {"g": "Empty"}
        host.pass_time(SESSION_MS)
        assert host.groups() == {}

    def test_pending_ids_are_bounded(
        self, host: GroupHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("replication.coordinators.groups.classic.MAX_PENDING_MEMBERS", 3)
        ids = [host.joined(needs_id=True).member_id for _ in range(5)]
        assert len(host.timers) == 3 + 1
        assert host.joined(ids[0]).error_code is ErrorCode.UNKNOWN_MEMBER_ID
        host.join(ids[-1])
        assert host.state != "Empty"


class TestInitialDelay:
    def test_delay_initial_rebalance_by_group_initial_rebalance_delay_on_empty_group(self) -> None:
        """testDelayInitialRebalanceByGroupInitialRebalanceDelayOnEmptyGroup"""
        host = _delayed()
        call = host.join()
        host.pass_time(1500)
        assert call.waits
        host.pass_time(1500)
        assert result(call).error_code is ErrorCode.NONE

    def test_delay_rebalance_upto_rebalance_timeout(self) -> None:
        """testDelayRebalanceUptoRebalanceTimeout: newcomers prolong, but not for ever."""
        host = _delayed()
        calls = [host.join(rebalance_ms=7000)]
        host.pass_time(2000)
        calls.append(host.join(rebalance_ms=7000))
        host.pass_time(2000)
        calls.append(host.join(rebalance_ms=7000))
        host.pass_time(2000)
        assert all(call.waits for call in calls)
        calls.append(host.join(rebalance_ms=7000))
        host.pass_time(1000)
        assert {result(call).generation_id for call in calls} == {1}

    def test_a_quiet_group_is_not_delayed_longer(self) -> None:
        """testJoinGroupResponse…: without newcomers one delay is enough."""
        host = _delayed()
        call = host.join(rebalance_ms=60_000)
        host.pass_time(3000)
        assert result(call).generation_id == 1


def _delayed() -> GroupHost:
    return GroupHost(GroupConfig(group_initial_rebalance_delay_ms=3000))


class TestJoinPhase:
    def test_complete_join_remove_not_yet_rejoined_dynamic_members(self, host: GroupHost) -> None:
        """testCompleteJoinRemoveNotYetRejoinedDynamicMembers"""
        leader, follower = host.stable(2, session_ms=1_800_000)
        call = host.join(leader.member_id, session_ms=1_800_000)
        host.pass_time(REBALANCE_MS)
        assert [each.member_id for each in result(call).members] == [leader.member_id]
        assert (
            host.heartbeat(follower.member_id, follower.generation_id)
            is ErrorCode.UNKNOWN_MEMBER_ID
        )

    def test_complete_join_phase_no_members_rejoined_extends_join_phase(
        self, host: GroupHost
    ) -> None:
        """testCompleteJoinPhaseNoMembersRejoinedExtendsJoinPhase"""
        options: dict[str, Any] = {"session_ms": 1_800_000}
        first, second = host.stable(2, instances=("one", "two"), **options)
        leaving = host.joined(needs_id=True).member_id
        host.join(leaving, session_ms=6000)
        assert host.state == "PreparingRebalance"
        host.leave(leaving)
        host.pass_time(REBALANCE_MS)
        assert host.state == "PreparingRebalance"
        assert len(host.describe().members) == 2
        call = host.join(first.member_id, instance="one", **options)
        host.pass_time(REBALANCE_MS)
        joined = result(call)
        assert joined.generation_id == first.generation_id + 1
        assert {each.member_id for each in joined.members} == {first.member_id, second.member_id}

    def test_join_group_completion_when_pending_member_times_out(self, host: GroupHost) -> None:
        """testJoinGroupCompletionWhenPendingMemberTimesOut"""
        (member,) = host.stable()
        newcomer = host.joined(needs_id=True).member_id
        call = host.join(member.member_id)
        assert call.waits  # for whoever has an id and is not back yet
        host.pass_time(SESSION_MS)
        assert result(call).error_code is ErrorCode.NONE
        assert host.joined(newcomer).error_code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_heartbeat_expiration_should_remove_pending_member(self, host: GroupHost) -> None:
        """testHeartbeatExpirationShouldRemovePendingMember"""
        pending = host.joined(needs_id=True).member_id
        host.pass_time(SESSION_MS)
        assert host.groups() == {}
        assert host.joined(pending).error_code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_classic_group_member_session_timeout_during_rebalance(self, host: GroupHost) -> None:
        """testClassicGroupMemberSessionTimeoutDuringRebalance: who is silent leaves, who waits in
        the join phase stays."""
        leader, follower = host.stable(2)
        call = host.join(leader.member_id)
        host.pass_time(SESSION_MS - 1)
        assert call.waits
        assert (
            host.heartbeat(follower.member_id, follower.generation_id)
            is ErrorCode.REBALANCE_IN_PROGRESS
        )
        host.pass_time(SESSION_MS - 1)
        assert call.waits
        host.pass_time(1)
        assert [each.member_id for each in result(call).members] == [leader.member_id]

    def test_heartbeat_during_preparing_rebalance(self, host: GroupHost) -> None:
        """testHeartbeatDuringPreparingRebalance"""
        leader, follower = host.stable(2)
        host.join(leader.member_id)
        assert (
            host.heartbeat(follower.member_id, follower.generation_id)
            is ErrorCode.REBALANCE_IN_PROGRESS
        )

    def test_heartbeat_during_completing_rebalance(self, host: GroupHost) -> None:
        """testHeartbeatDuringCompletingRebalance, and testHeartbeatIllegalGeneration,
        testHeartbeatUnknownMember, testHeartbeatUnknownGroup"""
        assert host.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
        member = host.joined()
        assert host.state == "CompletingRebalance"
        assert host.heartbeat(member.member_id, 1) is ErrorCode.NONE
        assert host.heartbeat(member.member_id, 2) is ErrorCode.ILLEGAL_GENERATION
        assert host.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_heartbeats_keep_a_member(self, host: GroupHost) -> None:
        """testValidHeartbeat and testSessionTimeout"""
        (member,) = host.stable()
        keep_alive(host, 60_000, member)
        assert host.state == "Stable"
        host.pass_time(SESSION_MS)
        assert host.state == "Empty"
        assert host.heartbeat(member.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_commits_keep_a_member(self, host: GroupHost) -> None:
        """testCommitMaintainsSession"""
        (member,) = host.stable()
        for offset in range(10):
            host.pass_time(SESSION_MS - 1)
            code = host.commit_offset(offset, member.member_id, member.generation_id)
            assert code is ErrorCode.NONE
        assert host.state == "Stable"


class TestStaticMembers:
    @pytest.mark.parametrize("may_skip", [True, False])
    def test_replace_static_member_in_stable_state_no_error(
        self, host: GroupHost, may_skip: bool
    ) -> None:
        """testReplaceStaticMemberInStableStateNoError: a follower comes back to its assignment."""
        leader, follower = host.stable(2, instances=("leader", "follower"))
        back = host.joined(instance="follower", may_skip=may_skip)
        assert (back.error_code, back.generation_id) == (ErrorCode.NONE, follower.generation_id)
        assert back.member_id != follower.member_id
        assert (back.leader, back.members) == (leader.member_id, ())
        assert not back.skip_assignment
        assert host.state == "Stable"
        synced = host.synced(back.member_id, back.generation_id, instance="follower")
        assert synced.assignment == f"share of {follower.member_id}".encode()
        fenced = host.heartbeat(follower.member_id, follower.generation_id, "follower")
        assert fenced is ErrorCode.FENCED_INSTANCE_ID
        assert host.replayed().describe() == host.describe()

    def test_static_member_rejoin_with_leader_id_and_unknown_member_id(
        self, host: GroupHost
    ) -> None:
        """testStaticMemberRejoinWithLeaderIdAndUnknownMemberId: the leader comes back, and must not
        assign."""
        leader, follower = host.stable(2, instances=("leader", "follower"))
        back = host.joined(instance="leader")
        assert (back.generation_id, back.skip_assignment) == (leader.generation_id, True)
        assert back.leader == back.member_id
        assert {each.group_instance_id for each in back.members} == {"leader", "follower"}
        older = host.joined(instance="leader", may_skip=False)
        assert (older.skip_assignment, older.members) == (False, ())
        assert older.leader == back.member_id != older.member_id  # so that it takes another for it
        assert host.heartbeat(follower.member_id, follower.generation_id) is ErrorCode.NONE

    def test_static_member_fence_duplicate_rejoined_follower(self, host: GroupHost) -> None:
        """testStaticMemberFenceDuplicateRejoinedFollower: of two that join at once the later
        counts."""
        leader, follower = host.stable(2, instances=("leader", "follower"))
        pending = host.joined(needs_id=True).member_id  # for which all wait
        host.join(leader.member_id, instance="leader")
        waiting = host.join(follower.member_id, instance="follower")
        assert waiting.waits
        twin = host.join(instance="follower")
        assert result(waiting).error_code is ErrorCode.FENCED_INSTANCE_ID
        host.leave(pending)
        assert result(twin).generation_id == follower.generation_id + 1

    def test_change_of_protocol_while_select_protocol_unchanged_persistence_failure(
        self, host: GroupHost
    ) -> None:
        """testStaticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWhileSelectProtocolUnchanged
        PersistenceFailure"""
        _leader, follower = host.stable(2, instances=("leader", "follower"))
        host.refusal = ErrorCode.MESSAGE_TOO_LARGE
        more = (("range", b""), ("roundrobin", b""))
        back = host.joined(instance="follower", protocols=more)
        assert back.error_code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert (back.member_id, back.generation_id) == ("", -1)
        known = host.heartbeat(follower.member_id, follower.generation_id, "follower")
        assert known is ErrorCode.NONE
        assert host.state == "Stable"
        assert host.joined(instance="follower", protocols=more).error_code is ErrorCode.NONE

    def test_static_member_rejoin_with_other_metadata(self, host: GroupHost) -> None:
        """testStaticMemberRejoinWithUnknownMemberIdAndChangeOfProtocol: what it wants of the chosen
        protocol is another thing now, so its assignment does not fit."""
        host.stable(2, instances=("leader", "follower"))
        assert host.join(instance="follower", protocols=(("range", b"other topics"),)).waits
        assert host.state == "PreparingRebalance"

    def test_static_member_rejoins_while_the_others_sync(self, host: GroupHost) -> None:
        """testStaticMemberRejoinWithFollowerIdAndChangeOfProtocol: the leader knows the old."""
        (leader,) = host.stable(1, instances=("leader",))
        follower = host.join(instance="follower")
        host.join(leader.member_id, instance="leader")
        sync = host.sync(result(follower).member_id, 2, instance="follower")
        assert host.state == "CompletingRebalance"
        assert sync.waits
        assert host.join(instance="follower").waits
        assert sync.answer.error_code is ErrorCode.FENCED_INSTANCE_ID
        assert host.state == "PreparingRebalance"

    def test_unknown_instance(self, host: GroupHost) -> None:
        """testStaticMemberRejoinWithUnknownMemberId…, testStaticMemberJoinWithUnknownInstanceIdAnd
        KnownMemberId, testStaticMemberJoinWithIllegalStateAsPendingMember"""
        (leader,) = host.stable(1, instances=("leader",))
        unknown = host.joined(leader.member_id, instance="other")
        assert unknown.error_code is ErrorCode.UNKNOWN_MEMBER_ID
        fenced = host.joined("another id", instance="leader")
        assert fenced.error_code is ErrorCode.FENCED_INSTANCE_ID
        pending = host.joined(needs_id=True).member_id
        static = host.joined(pending, instance="other")
        assert static.error_code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_static_members_fenced_instance_batch_leave_group(self, host: GroupHost) -> None:
        """testStaticMembersFencedInstanceBatchLeaveGroup and testStaticMembersValidBatchLeaveGroup,
        testStaticMembersUnknownInstanceBatchLeaveGroup, testPendingMembersLeaveGroup"""
        leader, follower = host.stable(2, instances=("leader", "follower"))
        pending = host.joined(needs_id=True).member_id
        members = (
            LeavingMember("", "leader"),  # by an operator
            LeavingMember("invalid", "follower"),
            LeavingMember(follower.member_id, "unknown"),
            LeavingMember(pending),
            LeavingMember(""),
        )
        left = host.leave(*members)
        assert left.error_code == ErrorCode.NONE
        assert [each[:2] for each in left.members] == [each[:2] for each in members]
        assert [each.error_code for each in left.members] == [
            ErrorCode.NONE,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_MEMBER_ID,
        ]
        assert host.state == "PreparingRebalance"
        gone = host.heartbeat(leader.member_id, leader.generation_id, "leader")
        assert gone is ErrorCode.UNKNOWN_MEMBER_ID
        unknown = host.leave("anybody", group_id="other").members
        assert [each.error_code for each in unknown] == [ErrorCode.UNKNOWN_MEMBER_ID]

    def test_group_stuck_in_rebalance_timeout_due_to_nonjoined_static_member(
        self, host: GroupHost
    ) -> None:
        """testGroupStuckInRebalanceTimeoutDueToNonjoinedStaticMember: a static member that is away
        holds each generation until its session ends, and no longer."""
        leader, _away = host.stable(2, instances=("leader", "away"), session_ms=300_000)
        options: dict[str, Any] = {
            "instance": "leader",
            "protocols": (("range", b"changed"),),
            "session_ms": 300_000,
        }
        call = host.join(leader.member_id, **options)
        host.pass_time(REBALANCE_MS)
        joined = result(call)
        assert len(joined.members) == 2
        host.sync(leader.member_id, joined.generation_id, {leader.member_id: b"all"})
        assert host.state == "Stable"
        host.pass_time(REBALANCE_MS)  # it does not ask for its assignment either
        assert host.state == "PreparingRebalance"
        again = host.joined(leader.member_id, **options)
        assert [each.group_instance_id for each in again.members] == ["leader"]


class TestSync:
    def test_sync_group_returns_an_error_when_protocol_type_is_inconsistent(
        self, host: GroupHost
    ) -> None:
        """testSyncGroupReturnsAnErrorWhenProtocolTypeIsInconsistent and …NameIsInconsistent"""
        member = host.joined()
        for options in ({"kind": "connect"}, {"protocol": "roundrobin"}):
            synced = host.synced(member.member_id, 1, **options)
            assert synced.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            assert (synced.protocol_type, synced.protocol_name) == (None, None)
        synced = host.synced(member.member_id, 1, kind="consumer", protocol="range")
        assert (synced.error_code, synced.protocol_type, synced.protocol_name) == (
            ErrorCode.NONE,
            "consumer",
            "range",
        )

    def test_sync_group_from_illegal_generation(self, host: GroupHost) -> None:
        """testSyncGroupFromIllegalGeneration, testSyncGroupFromUnknownMember,
        testSyncGroupFromUnknownGroup"""
        assert host.synced("a", 1).error_code is ErrorCode.UNKNOWN_MEMBER_ID
        member = host.joined()
        assert host.synced(member.member_id, 2).error_code is ErrorCode.ILLEGAL_GENERATION
        assert host.synced("nobody", 1).error_code is ErrorCode.UNKNOWN_MEMBER_ID

    @for_each("append, client", SYNC_ERRORS.items())
    def test_sync_group_as_leader_append_failure_transforms_error(
        self, append: ErrorCode, client: ErrorCode
    ) -> None:
        """testSyncGroupAsLeaderAppendFailureTransformsError"""
        host = GroupHost()
        member = host.joined()
        host.refusal = append
        synced = host.synced(member.member_id, 1, {member.member_id: b"all"})
        assert (synced.error_code, synced.assignment) == (client, b"")
        assert host.state == "PreparingRebalance"
        assert host.joined(member.member_id).generation_id == 2

    def test_sync_group_as_leader_append_takes_long(self, host: GroupHost) -> None:
        """What is not committed in time is nobody's assignment, also if it is later."""
        member = host.joined()
        host.holds = True
        sync = host.sync(member.member_id, 1, {member.member_id: b"all"})
        assert sync.waits
        host.time_out()
        assert sync.answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert host.joined(member.member_id).generation_id == 2
        host.commit()
        assert host.state == "CompletingRebalance"

    def test_sync_group_leader_after_follower(self, host: GroupHost) -> None:
        """testSyncGroupLeaderAfterFollower and testSyncGroupFollowerAfterLeader"""
        (leader,) = host.stable()
        call = host.join()
        host.join(leader.member_id)
        follower = result(call)
        waits = host.sync(follower.member_id, 2)
        assert waits.waits
        shares = {leader.member_id: b"l", follower.member_id: b"f"}
        assert host.synced(leader.member_id, 2, shares).assignment == b"l"
        assert waits.answer.assignment == b"f"
        assert host.synced(follower.member_id, 2).assignment == b"f"

    def test_members_without_an_assignment_get_none(self, host: GroupHost) -> None:
        """testSyncGroup…: the leader may leave members out."""
        member = host.joined()
        synced = host.synced(member.member_id, 1, {"somebody": b"x"})
        assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"")

    @pytest.mark.parametrize("who", ["followers", "leaders"])
    def test_rebalance_times_out_when_sync_request_is_not_received(
        self, host: GroupHost, who: str
    ) -> None:
        """testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromFollowers and …Leaders"""
        (leader,) = host.stable()
        call = host.join()
        host.join(leader.member_id)
        follower = result(call)
        present, absent = (leader, follower) if who == "followers" else (follower, leader)
        sync = host.sync(present.member_id, 2)
        for _ in range(REBALANCE_MS // 5000 - 1):
            host.pass_time(5000)
            assert host.heartbeat(leader.member_id, 2) is ErrorCode.NONE
            assert host.heartbeat(follower.member_id, 2) is ErrorCode.NONE
        host.pass_time(5000)
        assert host.state == "PreparingRebalance"
        if who == "leaders":
            assert sync.answer.error_code is ErrorCode.REBALANCE_IN_PROGRESS
        assert host.heartbeat(absent.member_id, 2) is ErrorCode.UNKNOWN_MEMBER_ID
        assert host.heartbeat(present.member_id, 2) is ErrorCode.REBALANCE_IN_PROGRESS

    def test_a_waiting_sync_ends_with_the_generation(self, host: GroupHost) -> None:
        """testRebalanceCompletesBeforeMemberJoins…: a newcomer makes everybody join again."""
        (leader,) = host.stable()
        call = host.join()
        host.join(leader.member_id)
        sync = host.sync(result(call).member_id, 2)
        assert host.join().waits
        assert sync.answer.error_code is ErrorCode.REBALANCE_IN_PROGRESS

    def test_a_pending_member_that_leaves_a_stable_group(self, host: GroupHost) -> None:
        """As in Kafka the members share their partitions again, although it had none."""
        host.stable(2)
        pending = host.joined(needs_id=True).member_id
        assert host.state == "Stable"
        assert host.leave("nobody").members[0].error_code is ErrorCode.UNKNOWN_MEMBER_ID
        assert host.state == "Stable"
        assert host.leave(pending).members[0].error_code is ErrorCode.NONE
        assert host.state == "PreparingRebalance"

    def test_several_that_leave_at_once(self, host: GroupHost) -> None:
        """The others are looked at once, after the last: those who leave do not hold them up."""
        first, second, third = host.stable(3)
        call = host.join(first.member_id)
        assert call.waits
        left = host.leave(second.member_id, third.member_id)
        assert [each.error_code for each in left.members] == [ErrorCode.NONE, ErrorCode.NONE]
        joined = result(call)
        assert joined.generation_id == first.generation_id + 1
        assert [each.member_id for each in joined.members] == [first.member_id]

    def test_a_dismissed_join_names_no_member(self, host: GroupHost) -> None:
        """Its id is of no use any more: the client joins without one."""
        _, follower = host.stable(2)
        call = host.join(follower.member_id, protocols=(("range", b"x"),))
        assert call.waits
        host.leave(follower.member_id)
        assert result(call).error_code is ErrorCode.UNKNOWN_MEMBER_ID
        assert result(call).member_id == ""

    def test_leave_group_member(self, host: GroupHost) -> None:
        """testConsumerGroupLeave…, testLeaveGroupUnknownConsumerExistingGroup: what a leaving
        member waits for gets an answer."""
        leader, follower = host.stable(2)
        call = host.join(follower.member_id, protocols=(("range", b"x"),))
        assert call.waits
        assert host.leave(follower.member_id).members[0].error_code is ErrorCode.NONE
        assert result(call).error_code is ErrorCode.UNKNOWN_MEMBER_ID
        assert host.leave("nobody").members[0].error_code is ErrorCode.UNKNOWN_MEMBER_ID
        host.leave(leader.member_id)
        assert host.state == "Empty"
        assert host.describe().members == ()
