"""A group and its members, as Kafka's classic protocol has them: data, and questions about it.

What happens with them is in ``classic``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import NamedTuple

from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import ClientRequest
from replication.coordinators.groups.states import PREDECESSORS, GroupState
from replication.protocol import MalformedMessageError
from replication.protocol import messages as wire
from replication.protocol.coordinator_records import SUBSCRIPTION, decode_of_member

GroupProtocol = wire.JoinGroupRequest.JoinGroupRequestProtocol
"""One way to share partitions that a member offers, with its own data for it."""

CONSUMER_PROTOCOL = "consumer"
NO_GENERATION = -1
NO_MEMBER_ID = ""
MAX_GENERATION = 2**31 - 1
MAX_PENDING_MEMBERS = 1000  # ids that were given and not used yet; the oldest is forgotten


class MemberTerms(NamedTuple):
    """The terms that a member names each time it joins."""

    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]

    @classmethod
    def of(cls, request: ClientRequest) -> MemberTerms:
        join: wire.JoinGroupRequest = request.message
        return cls(
            request.client_id,
            request.client_host,
            join.session_timeout_ms,
            rebalance_timeout_ms(join.session_timeout_ms, join.rebalance_timeout_ms),
            join.protocols,
        )


def rebalance_timeout_ms(session_timeout_ms: int, rebalance_timeout_ms: int) -> int:
    """A client that names none has the time-out of its session."""
    return session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms


class GroupMember:
    """One client of a group.

    Attributes:
        instance_id: of a static member, which keeps its place over a restart.
        joining, syncing: the request that waits for the others. The group counts those that join.
        is_new: it has never had an answer to its join. It cannot send heartbeats yet, and a client
            that is gone is not noticed; so its join itself may take too long.
    """

    __slots__ = (
        "_group",
        "_joining",
        "assignment",
        "instance_id",
        "is_new",
        "member_id",
        "syncing",
        "terms",
    )

    def __init__(
        self, member_id: str, instance_id: str | None, terms: MemberTerms, assignment: bytes = b""
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.terms = terms
        self.assignment = assignment
        self._group: ClassicGroup | None = None  # once it is a member
        self._joining: Hashable | None = None
        self.syncing: Hashable | None = None
        self.is_new = False

    @property
    def joining(self) -> Hashable | None:
        return self._joining

    @joining.setter
    def joining(self, request: Hashable | None) -> None:
        if self._group is not None:
            self._group.joining_count += (request is not None) - (self._joining is not None)
        self._joining = request

    def enter_group(self, group: ClassicGroup) -> None:
        """Be counted in a group."""
        self._group = group
        group.joining_count += self._joining is not None
        group.offers.update({name for name, _ in self.terms.protocols})

    def leave_group(self) -> None:
        """Be counted no more."""
        group, self._group = self._group, None
        assert group is not None
        group.joining_count -= self._joining is not None
        for name in {name for name, _ in self.terms.protocols}:
            group.offers[name] -= 1
            if not group.offers[name]:
                del group.offers[name]

    @property
    def waits(self) -> bool:
        """Whether a request of it waits here, so that it needs no heartbeat."""
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's data for a protocol; empty if it does not offer the protocol."""
        for name, metadata in self.terms.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def update(self, terms: MemberTerms) -> None:
        group = self._group
        if group is not None:
            self.leave_group()
        self.terms = terms
        if group is not None:
            self.enter_group(group)


class ClassicGroup:
    """One group.

    Attributes:
        protocol_type: None of a group that has only ever had offsets.
        protocol_name: the one that was chosen for this generation.
        members: in the order in which they came.
        static_members: instance id -> member id.
        pending_members: ids that were given to clients which have not joined with them yet.
        pending_syncs: members of this generation that have not asked for their assignment.
        joining_count: members whose join waits; ``offers``: how many offer a protocol. Each join
            asks for both, so they are counted as members come and go.
        state_since_ms: ms since 1970; None where it is not known.
        is_initial: this join phase is the first of an empty group, which waits for more members.
        has_newcomer: a member came since the wait of the first phase began or was prolonged.
        initial_wait_ms: by how much that wait may still be prolonged.
        is_writing: the leader's assignment of this generation is on its way to the log.
        subscribed_topics: what the members read; None: not known.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_since_ms: int | None = None
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, GroupMember] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: dict[str, None] = {}
        self.pending_syncs: set[str] = set()
        self.joining_count = 0
        self.offers: Counter[str] = Counter()
        self.is_initial = False
        self.has_newcomer = False
        self.initial_wait_ms = 0
        self.is_writing = False
        self.subscribed_topics: frozenset[str] | None = None

    def __repr__(self) -> str:
        members = len(self.members)
        return f"ClassicGroup({self.group_id}, {self.state.value}, {self.generation}, {members})"

    # -- state ---------------------------------------------------------------------------------

    def become(self, state: GroupState, now_ms: int) -> None:
        assert self.state in PREDECESSORS[state], (self, state)
        self.state, self.state_since_ms = state, now_ms

    def next_generation(self, now_ms: int) -> None:
        """End the join phase and begin the next generation."""
        self.generation = 1 if self.generation == MAX_GENERATION else self.generation + 1
        self.is_initial = self.is_writing = False
        self.pending_syncs.clear()
        self.protocol_name = self.select_protocol() if self.members else None
        self.note_subscriptions()
        empty, completing = GroupState.EMPTY, GroupState.COMPLETING_REBALANCE
        self.become(completing if self.members else empty, now_ms)

    def note_subscriptions(self) -> None:
        """Note which topics members of type "consumer" read (W-172). The bytes are a client's, and
        only the expiry of offsets wants to know: where some cannot be read, they say nothing."""
        self.subscribed_topics = None
        if self.protocol_type == CONSUMER_PROTOCOL:
            said = (member.metadata(self.protocol_name) for member in self.members.values())
            with suppress(MalformedMessageError):
                self.subscribed_topics = frozenset(
                    topic for each in said for topic in decode_of_member(SUBSCRIPTION, each).topics
                )

    # -- members -------------------------------------------------------------------------------

    def add(self, member: GroupMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type, (self, protocol_type)
        before = self.members.get(member.member_id)
        if before is not None:  # a record of the log can name a member twice
            before.leave_group()
        self.members[member.member_id] = member
        member.enter_group(self)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.pending_members.pop(member.member_id, None)

    def remove(self, member: GroupMember) -> None:
        del self.members[member.member_id]
        member.leave_group()
        if member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        self.pending_syncs.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: GroupMember, member_id: str) -> None:
        """Give a static member another id. It keeps its place."""
        before = member.member_id
        renamed = {
            member_id if known == before else known: each for known, each in self.members.items()
        }
        self.members = renamed
        member.member_id = member_id
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id
        if before in self.pending_syncs:
            self.pending_syncs.remove(before)
            self.pending_syncs.add(member_id)
        if self.leader == before:
            self.leader = member_id

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """The error unless there is a member with this id and instance (W-104)."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_generation(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        code = self.check_member(member_id, instance_id)
        if code is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    def check_protocol(self, request: wire.SyncGroupRequest) -> ErrorCode:
        """The error unless a member syncs with the protocol that its join was answered with."""
        for said, known in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol_name),
        ):
            if None not in (said, known) and said != known:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks for."""
        return max((m.terms.rebalance_timeout_ms for m in self.members.values()), default=0)

    @property
    def has_all_joined(self) -> bool:
        return not self.pending_members and self.joining_count == len(self.members)

    def accepts(self, member_id: str, max_size: int) -> bool:
        """Whether there is room for a member. If the group is larger than is allowed now, the
        members that join first stay."""
        member = self.members.get(member_id)
        match self.state:
            case GroupState.EMPTY | GroupState.DEAD:
                return True
            case GroupState.PREPARING_REBALANCE:
                if member is not None and member.joining is not None:
                    return True
                return self.joining_count < max_size
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member is not None or len(self.members) < max_size

    def elect_joined_leader(self) -> bool:
        """Choose a leader among those that join this generation; False if no member does."""
        leader = None if self.leader is None else self.members.get(self.leader)
        if leader is None or leader.joining is None:
            joined = (m.member_id for m in self.members.values() if m.joining is not None)
            leader_id = next(joined, None)
            if leader_id is None:
                return False
            self.leader = leader_id
        return True

    def joined_members(self) -> tuple[wire.JoinGroupResponse.JoinGroupResponseMember, ...]:
        """The members with their data, for the leader."""
        kind = wire.JoinGroupResponse.JoinGroupResponseMember
        return tuple(
            kind(m.member_id, m.instance_id, m.metadata(self.protocol_name))
            for m in self.members.values()
        )

    # -- protocols -----------------------------------------------------------------------------

    def is_common(self, protocol: str) -> bool:
        """Whether all members offer a protocol."""
        return self.offers[protocol] == len(self.members)

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a client that offers these protocols can be a member."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in names)
        return protocol_type == self.protocol_type and any(map(self.is_common, names))

    def select_protocol(self) -> str:
        """Every member has a vote, for the first of its own that all offer (W-107)."""
        votes = Counter(
            next(name for name, _ in member.terms.protocols if self.is_common(name))
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]


def is_no_member(generation: int, member_id: str, instance_id: str | None) -> bool:
    """Whether a commit names no member at all."""
    return generation <= NO_GENERATION and member_id == NO_MEMBER_ID and instance_id is None
