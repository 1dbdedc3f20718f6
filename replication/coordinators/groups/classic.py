"""The classic group protocol: members join, one of them shares the partitions, all keep alive by
heartbeats, and every change begins a new generation.

A join phase (PreparingRebalance) collects the members. When all are there, or have had their time,
a generation begins: each member learns its id and who leads. The leader's SyncGroup brings the
assignment; when it is in the log the group is Stable. All of it is W-102 … W-111.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable
from typing import NamedTuple

from logstore.common.random_id import RandomId
from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import ClientRequest
from replication.coordinators.groups.config import GroupConfig
from replication.coordinators.groups.group import (
    MAX_PENDING_MEMBERS,
    NO_MEMBER_ID,
    ClassicGroup,
    GroupMember,
    MemberTerms,
)
from replication.coordinators.groups.records import encode_group
from replication.coordinators.groups.states import (
    GROUP_ERRORS,
    MEMBER_ERRORS,
    GroupState,
    GroupStats,
)
from replication.coordinators.outbox import ShardOutbox
from replication.protocol import messages as wire

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000

# First versions of JoinGroup: a new member gets an id and comes again with it; the leader can be
# told to leave all as it is.
MEMBER_ID_REQUIRED = 4
SKIP_ASSIGNMENT = 9

EMPTY = GroupState.EMPTY
PREPARING = GroupState.PREPARING_REBALANCE
COMPLETING = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD


class SessionTimer(NamedTuple):
    """Fires when a member has been silent for too long, or its first join takes too long."""

    group_id: str
    member_id: str


class PendingTimer(NamedTuple):
    """Fires when an id that was given has not been used."""

    group_id: str
    member_id: str


class JoinTimer(NamedTuple):
    group_id: str


class SyncTimer(NamedTuple):
    group_id: str


ClassicTimer = SessionTimer | PendingTimer | JoinTimer | SyncTimer


class ClassicProtocol:
    """See the module. It changes groups, and puts effects into the outbox.

    Args:
        groups: those of the shard, which are shared with the rest of it.
        drop_if_void: forgets a group that is as if it had never been.
        random_id: where member ids come from.
    """

    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, ClassicGroup],
        outbox: ShardOutbox,
        drop_if_void: Callable[[ClassicGroup], None],
        random_id: RandomId,
        stats: GroupStats,
    ) -> None:
        self.now_ms = 0  # of the present event
        self._config = config
        self._groups = groups
        self._out = outbox
        self._drop_if_void = drop_if_void
        self._random_id = random_id
        self._stats = stats

    # -- join ----------------------------------------------------------------------------------

    def join(self, to: Hashable, request: ClientRequest) -> None:
        join: wire.JoinGroupRequest = request.message
        code = _check_join(self._config, join)
        group = self._groups.get(join.group_id)
        if code is ErrorCode.NONE and group is not None:
            code = self._check_room(group, join)
        elif code is ErrorCode.NONE:
            group = ClassicGroup(join.group_id)
            if join.member_id:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            elif not group.supports(join.protocol_type, _names(join)):
                code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            else:
                self._groups[join.group_id] = group
        if code is not ErrorCode.NONE:
            self._out.reply(to, refused_join(code, join.member_id))
            return
        assert group is not None
        if join.member_id == NO_MEMBER_ID:
            self._join_new(group, to, request)
        else:
            self._join_known(group, to, request)
        self._drop_if_void(group)

    def _check_room(self, group: ClassicGroup, join: wire.JoinGroupRequest) -> ErrorCode:
        if group.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not group.accepts(join.member_id, self._config.group_max_size):
            member = group.members.get(join.member_id)
            if member is not None:  # the group is larger than is allowed now
                self.remove_member(group, member)
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not group.supports(join.protocol_type, _names(join)):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _join_new(self, group: ClassicGroup, to: Hashable, request: ClientRequest) -> None:
        """A client without a member id: it gets one (W-103, W-104)."""
        join: wire.JoinGroupRequest = request.message
        instance_id = join.group_instance_id
        name = request.client_id if instance_id is None else instance_id
        member_id = f"{name}-{uuid.UUID(self._random_id())}"
        if instance_id is not None:
            known = group.static_members.get(instance_id)
            if known is None:
                self._add(group, member_id, to, request)
            else:
                self._replace(group, group.members[known], member_id, to, request)
        elif request.version >= MEMBER_ID_REQUIRED:
            self._add_pending(group, member_id, join.session_timeout_ms)
            self._out.reply(to, refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(group, member_id, to, request)

    def _add_pending(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        if len(group.pending_members) >= MAX_PENDING_MEMBERS:
            self._forget_pending(group, next(iter(group.pending_members)))
        group.pending_members[member_id] = None
        self._out.start_timer(PendingTimer(group.group_id, member_id), timeout_ms)

    def _forget_pending(self, group: ClassicGroup, member_id: str) -> None:
        del group.pending_members[member_id]
        self._out.stop_timer(PendingTimer(group.group_id, member_id))

    def _join_known(self, group: ClassicGroup, to: Hashable, request: ClientRequest) -> None:
        join: wire.JoinGroupRequest = request.message
        member_id, instance_id = join.member_id, join.group_instance_id
        if member_id in group.pending_members and instance_id is None:
            self._forget_pending(group, member_id)
            self._add(group, member_id, to, request)
            return
        code = group.check_member(member_id, instance_id)
        if code is not ErrorCode.NONE:
            self._out.reply(to, refused_join(code, member_id))
            return
        member = group.members[member_id]
        same = member.terms.protocols == join.protocols
        match group.state:
            case GroupState.PREPARING_REBALANCE:
                self._rejoin(group, member, to, request)
            case GroupState.COMPLETING_REBALANCE if same:  # its answer was lost
                self._supersede(member)
                self._out.reply(to, joined(group, member, is_leader=group.leader == member_id))
                self._touch(group, member)
            case GroupState.STABLE if same and group.leader != member_id:
                self._out.reply(to, joined(group, member, is_leader=False))
                self._touch(group, member)
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                self._rejoin(group, member, to, request)
            case GroupState.EMPTY | GroupState.DEAD:
                self._out.reply(to, refused_join(ErrorCode.UNKNOWN_MEMBER_ID, member_id))

    def _add(
        self, group: ClassicGroup, member_id: str, to: Hashable, request: ClientRequest
    ) -> None:
        join: wire.JoinGroupRequest = request.message
        member = GroupMember(member_id, join.group_instance_id, MemberTerms.of(request))
        member.joining, member.is_new = to, True
        group.add(member, join.protocol_type)
        group.has_newcomer = True
        timer = SessionTimer(group.group_id, member_id)
        self._out.start_timer(timer, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(group)

    def _rejoin(
        self, group: ClassicGroup, member: GroupMember, to: Hashable, request: ClientRequest
    ) -> None:
        self._supersede(member)
        member.update(MemberTerms.of(request))
        member.joining = to
        if not member.is_new:
            self._out.stop_timer(SessionTimer(group.group_id, member.member_id))
        self._rebalance_or_complete(group)

    def _supersede(self, member: GroupMember) -> None:
        """Answer an earlier request of a client that has asked again and does not read the
        answer."""
        self._answer_waiting(member, ErrorCode.REBALANCE_IN_PROGRESS)

    def _answer_waiting(self, member: GroupMember, code: ErrorCode) -> None:
        if member.joining is not None:
            is_gone = code is ErrorCode.UNKNOWN_MEMBER_ID
            name = NO_MEMBER_ID if is_gone else member.member_id
            self._out.reply(member.joining, refused_join(code, name))
        if member.syncing is not None:
            self._out.reply(member.syncing, wire.SyncGroupResponse(error_code=code))
        member.joining = member.syncing = None

    # -- static members ------------------------------------------------------------------------

    def _replace(
        self,
        group: ClassicGroup,
        member: GroupMember,
        new_id: str,
        to: Hashable,
        request: ClientRequest,
    ) -> None:
        """A static member comes back under a new id. From now on the old id is fenced
        (W-104)."""
        old_id, old_leader = member.member_id, group.leader
        before = member.terms
        metadata = member.metadata(group.protocol_name)
        self._answer_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        self._out.stop_timer(SessionTimer(group.group_id, old_id))
        group.rename(member, new_id)
        member.update(MemberTerms.of(request))
        member.joining = to
        keeps_assignment = (
            group.state is STABLE
            and group.select_protocol() == group.protocol_name
            and member.metadata(group.protocol_name) == metadata
        )
        if not keeps_assignment:
            self._rebalance_or_complete(group)
            return
        generation = group.generation

        def waits_still() -> bool:
            """The member, unless a new join phase has begun, which will answer it."""
            return (
                group.state is STABLE
                and group.generation == generation
                and group.members.get(new_id) is member
                and member.joining == to
            )

        def done(code: ErrorCode) -> None:
            if not waits_still():
                return
            member.joining = None
            if code is ErrorCode.NONE:
                is_leader = group.leader == new_id
                may_skip = request.version >= SKIP_ASSIGNMENT
                skips = is_leader and may_skip
                named = None if may_skip else old_leader
                answer = joined(group, member, is_leader=skips, skip_assignment=skips, leader=named)
                self._out.reply(to, answer)
            else:
                group.rename(member, old_id)
                member.update(before)
                self._out.reply(to, refused_join(GROUP_ERRORS[code]))
            self._touch(group, member)

        def late(code: ErrorCode) -> None:
            """The new id may be in the log, so it stays. Its client does not know it, and gets
            another one by its instance."""
            if waits_still():
                member.joining = None
                self._out.reply(to, refused_join(GROUP_ERRORS[code]))
                self._touch(group, member)

        self._out.append([encode_group(group)], done, late)

    # -- the join phase ------------------------------------------------------------------------

    def _rebalance_or_complete(self, group: ClassicGroup) -> None:
        match group.state:
            case GroupState.EMPTY | GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                self.prepare_rebalance(group)
            case GroupState.PREPARING_REBALANCE:
                self._complete_if_all_joined(group)
            case GroupState.DEAD:
                pass

    def prepare_rebalance(self, group: ClassicGroup) -> None:
        """Begin a join phase."""
        if group.state is COMPLETING:
            self._drop_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._out.stop_timer(SyncTimer(group.group_id))
        group.pending_syncs.clear()
        group.is_initial = group.state is EMPTY
        group.become(PREPARING, self.now_ms)
        timer = JoinTimer(group.group_id)
        if group.is_initial:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            group.initial_wait_ms = max(0, group.rebalance_timeout_ms - delay_ms)
            group.has_newcomer = False
            if delay_ms:
                self._out.start_timer(timer, delay_ms)
            else:
                self._complete_join(group)
        elif group.has_all_joined:
            self._complete_join(group)
        else:
            self._out.start_timer(timer, group.rebalance_timeout_ms)

    def _complete_if_all_joined(self, group: ClassicGroup) -> None:
        """Complete the phase if all have joined. The first phase of an empty group lasts its whole
        time, since others may be about to start."""
        if group.state is PREPARING and not group.is_initial and group.has_all_joined:
            self._complete_join(group)

    def _join_phase_is_over(self, group: ClassicGroup) -> None:
        if group.state is not PREPARING:
            return
        if group.is_initial and group.has_newcomer and group.initial_wait_ms:
            delay_ms = min(self._config.group_initial_rebalance_delay_ms, group.initial_wait_ms)
            group.initial_wait_ms -= delay_ms
            group.has_newcomer = False
            self._out.start_timer(JoinTimer(group.group_id), delay_ms)
        else:
            self._complete_join(group)

    def _complete_join(self, group: ClassicGroup) -> None:
        """A member that has not joined again leaves; a static one stays until its session ends."""
        # From the end, so that the first one, who leads if his leader goes, is looked for once.
        for member in list(reversed(group.members.values())):
            if member.joining is None and member.instance_id is None:
                self._forget(group, member)
        if group.members and not group.elect_joined_leader():
            self._out.start_timer(JoinTimer(group.group_id), group.rebalance_timeout_ms)
            return
        self._out.stop_timer(JoinTimer(group.group_id))
        group.next_generation(self.now_ms)
        if not group.members:
            # Without it the log would keep the generation before, whose members are gone.
            self._out.append([encode_group(group)], lambda code: None)
            return
        for member in group.members.values():
            if member.joining is not None:
                is_leader = group.leader == member.member_id
                self._out.reply(member.joining, joined(group, member, is_leader=is_leader))
            member.joining, member.is_new = None, False
            self._touch(group, member)
            group.pending_syncs.add(member.member_id)
        self._out.start_timer(SyncTimer(group.group_id), group.rebalance_timeout_ms)

    # -- sync ----------------------------------------------------------------------------------

    def sync(self, to: Hashable, request: ClientRequest) -> None:
        sync: wire.SyncGroupRequest = request.message
        group = self._groups.get(sync.group_id)
        code = self._check_sync(group, sync)
        if group is None or code is not ErrorCode.NONE:
            self._out.reply(to, wire.SyncGroupResponse(error_code=code))
            return
        member = group.members[sync.member_id]
        self._has_synced(group, member)
        if group.state is STABLE:
            self._out.reply(to, synced(group, member))
            self._touch(group, member)
            return
        self._supersede(member)
        member.syncing = to
        self._out.stop_timer(SessionTimer(group.group_id, member.member_id))
        if group.leader == member.member_id and not group.is_writing:
            self._write_assignments(group, dict(sync.assignments))

    def _check_sync(self, group: ClassicGroup | None, sync: wire.SyncGroupRequest) -> ErrorCode:
        code = _check_generation(group, sync)
        if group is not None and code is ErrorCode.NONE:
            code = group.check_protocol(sync)
        if group is None or code is not ErrorCode.NONE:
            return code
        return MEMBER_ERRORS[group.state]

    def _has_synced(self, group: ClassicGroup, member: GroupMember) -> None:
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._out.stop_timer(SyncTimer(group.group_id))

    def _write_assignments(self, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        """Write what the leader assigns. It counts once it is in the log, so that the next leader
        of the partition has the same assignments."""
        generation = group.generation
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        record = encode_group(group)
        for member in group.members.values():
            member.assignment = b""
        group.is_writing = True

        def is_over() -> bool:
            return not (
                group.state is COMPLETING and group.generation == generation and group.is_writing
            )

        def done(code: ErrorCode) -> None:
            if is_over():
                return
            if code is not ErrorCode.NONE:
                failed(code)
                return
            group.is_writing = False
            group.become(STABLE, self.now_ms)
            self._stats.completed_rebalances += 1
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                if member.syncing is not None:
                    self._out.reply(member.syncing, synced(group, member))
                    member.syncing = None
                self._touch(group, member)

        def failed(code: ErrorCode) -> None:
            if not is_over():
                self._drop_assignments(group, GROUP_ERRORS[code])
                self.prepare_rebalance(group)

        self._out.append([record], done, failed)

    def _drop_assignments(self, group: ClassicGroup, code: ErrorCode) -> None:
        """Give up the assignments of this generation."""
        group.is_writing = False
        for member in group.members.values():
            member.assignment = b""
            if member.syncing is not None:
                self._out.reply(member.syncing, wire.SyncGroupResponse(error_code=code))
                member.syncing = None
                self._touch(group, member)

    def _sync_phase_is_over(self, group: ClassicGroup) -> None:
        """Remove the members that did not ask for their assignment in time (W-108)."""
        if group.state not in (COMPLETING, STABLE) or not group.pending_syncs:
            return
        for member_id in list(group.pending_syncs):
            self._dismiss(group, group.members[member_id])
        self.prepare_rebalance(group)

    # -- heartbeats ----------------------------------------------------------------------------

    def heartbeat(self, to: Hashable, request: ClientRequest) -> None:
        beat: wire.HeartbeatRequest = request.message
        group = self._groups.get(beat.group_id)
        code = _check_generation(group, beat)
        if group is not None and code is ErrorCode.NONE:
            self.prolong(group, beat.member_id)
            code = MEMBER_ERRORS[group.state]
        self._out.reply(to, code)

    def prolong(self, group: ClassicGroup, member_id: str) -> None:
        """Prolong the session of a member that sent a request."""
        member = group.members.get(member_id)
        if member is not None:
            self._touch(group, member)

    def _touch(self, group: ClassicGroup, member: GroupMember) -> None:
        """Begin the session of a member again. While its request waits here, it needs none."""
        if not member.waits:
            timer = SessionTimer(group.group_id, member.member_id)
            self._out.start_timer(timer, member.terms.session_timeout_ms)

    # -- leave ---------------------------------------------------------------------------------

    def leave(self, to: Hashable, request: ClientRequest) -> None:
        leave: wire.LeaveGroupRequest = request.message
        kind = wire.LeaveGroupResponse
        group = self._groups.get(leave.group_id)
        if group is not None and group.state is DEAD:
            self._out.reply(to, kind(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        codes = [
            ErrorCode.UNKNOWN_MEMBER_ID
            if group is None
            else self._leave(group, each.member_id, each.group_instance_id)
            for each in leave.members
        ]
        if group is not None and ErrorCode.NONE in codes:  # one that never joined counts too
            self._share_again(group)
        members = (
            kind.MemberResponse(each.member_id, each.group_instance_id, code)
            for each, code in zip(leave.members, codes, strict=True)
        )
        self._out.reply(to, kind(members=tuple(members)))
        if group is not None:
            self._drop_if_void(group)

    def _leave(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
        if member_id == NO_MEMBER_ID:  # by an operator, who knows only the instance
            if instance_id is None or instance_id not in group.static_members:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = group.static_members[instance_id]
        elif member_id in group.pending_members and instance_id is None:
            self._forget_pending(group, member_id)
            return ErrorCode.NONE
        code = group.check_member(member_id, instance_id)
        if code is ErrorCode.NONE:
            self._dismiss(group, group.members[member_id])
        return code

    def remove_member(self, group: ClassicGroup, member: GroupMember) -> None:
        """Remove a member, so that the others share its partitions (W-111)."""
        self._dismiss(group, member)
        self._share_again(group)

    def _dismiss(self, group: ClassicGroup, member: GroupMember) -> None:
        self._answer_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._forget(group, member)

    def _share_again(self, group: ClassicGroup) -> None:
        """Have the members that are left share the partitions."""
        match group.state:
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                self.prepare_rebalance(group)
            case GroupState.PREPARING_REBALANCE:
                self._complete_if_all_joined(group)
            case GroupState.EMPTY | GroupState.DEAD:
                pass

    def _forget(self, group: ClassicGroup, member: GroupMember) -> None:
        group.remove(member)
        self._out.stop_timer(SessionTimer(group.group_id, member.member_id))

    # -- timers --------------------------------------------------------------------------------

    def on_timer(self, timer: ClassicTimer) -> None:
        group = self._groups.get(timer.group_id)
        if group is None or group.state is DEAD:
            return
        match timer:
            case SessionTimer():
                member = group.members.get(timer.member_id)
                if member is not None and (member.is_new or not member.waits):
                    self.remove_member(group, member)
            case PendingTimer():
                if timer.member_id in group.pending_members:
                    del group.pending_members[timer.member_id]
                    self._complete_if_all_joined(group)
            case JoinTimer():
                self._join_phase_is_over(group)
            case SyncTimer():
                self._sync_phase_is_over(group)
        self._drop_if_void(group)

    def on_loaded(self, group: ClassicGroup) -> None:
        """The members of a group in the log have a whole session to send a request (W-116)."""
        for member in group.members.values():
            self._touch(group, member)
        if len(group.members) > self._config.group_max_size:
            self.prepare_rebalance(group)


def joined(
    group: ClassicGroup,
    member: GroupMember,
    *,
    is_leader: bool,
    skip_assignment: bool = False,
    leader: str | None = None,
) -> wire.JoinGroupResponse:
    """The answer to a join. ``leader`` is the one that it names; by default the present one."""
    return wire.JoinGroupResponse(
        0,
        ErrorCode.NONE,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        leader or group.leader or NO_MEMBER_ID,
        skip_assignment,
        member.member_id,
        group.joined_members() if is_leader else (),
    )


def synced(group: ClassicGroup, member: GroupMember) -> wire.SyncGroupResponse:
    return wire.SyncGroupResponse(
        0, ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment
    )


def refused_join(code: ErrorCode, member_id: str = NO_MEMBER_ID) -> wire.JoinGroupResponse:
    return wire.JoinGroupResponse(error_code=code, protocol_name=None, member_id=member_id)


def _check_generation(
    group: ClassicGroup | None, request: wire.SyncGroupRequest | wire.HeartbeatRequest
) -> ErrorCode:
    """The error if a request is not from a member of the present generation."""
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return group.check_generation(
        request.member_id, request.group_instance_id, request.generation_id
    )


def _check_join(config: GroupConfig, join: wire.JoinGroupRequest) -> ErrorCode:
    if not join.group_id:
        return ErrorCode.INVALID_GROUP_ID
    low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    is_valid = low <= join.session_timeout_ms <= high
    return ErrorCode.NONE if is_valid else ErrorCode.INVALID_SESSION_TIMEOUT


def _names(join: wire.JoinGroupRequest) -> list[str]:
    return [name for name, _ in join.protocols]
