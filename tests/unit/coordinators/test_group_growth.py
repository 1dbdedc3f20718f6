"""What the members of a group cost grows with their number, and no faster (W-237): calls are
counted, and at ten thousand members the processor's time is looked at too."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import (
    Append,
    AppendDone,
    ClientRequest,
    Effect,
    Event,
    MarkerWritten,
    Reply,
    RequestReceived,
    TimerFired,
)
from replication.coordinators.groups.classic import (
    MEMBER_ID_REQUIRED,
    JoinTimer,
    PendingTimer,
    SessionTimer,
    SyncTimer,
)
from replication.coordinators.groups.config import GroupConfig
from replication.coordinators.groups.group import (
    ClassicGroup,
    GroupMember,
    GroupProtocol,
    MemberTerms,
)
from replication.coordinators.groups.shard import ForgetTopics, GroupShard
from replication.coordinators.groups.states import GroupState
from replication.protocol import messages as wire
from tests.support.cases import for_each

GROUP = "g"
GROWTH = 1.5
PROTOCOLS = (GroupProtocol("range", b""), GroupProtocol("sticky", b""))


LeavingMember = wire.LeaveGroupRequest.MemberIdentity


def joining(
    member_id: str = "",
    instance_id: str | None = None,
    protocols: tuple[GroupProtocol, ...] = PROTOCOLS,
) -> wire.JoinGroupRequest:
    return wire.JoinGroupRequest(GROUP, 9000, 9000, member_id, instance_id, "consumer", protocols)


class Members:
    """A group of so many clients, each of which does what a client does."""

    def __init__(self, count: int, *, are_static: bool = False) -> None:
        numbers = itertools.count()
        self.shard = GroupShard(GroupConfig(), lambda: f"{next(numbers):032x}")
        self.count = count
        self.are_static = are_static
        self.ids: list[str] = [""] * count
        self.replies: dict[object, Any] = {}

    @property
    def group(self) -> ClassicGroup:
        return self.shard._groups[GROUP]

    def tell(self, event: Event) -> None:
        """And let each append succeed at once."""
        effects: list[Effect] = self.shard.on_event(event, 1_700_000_000_000)
        for effect in effects:
            if isinstance(effect, Reply):
                self.replies[effect.to] = effect.response
            elif isinstance(effect, Append):
                self.tell(AppendDone(effect.token, ErrorCode.NONE))

    def ask(self, to: object, message: Any, version: int = MEMBER_ID_REQUIRED - 1) -> None:
        self.tell(RequestReceived(to, ClientRequest(message, version, "c", "/h")))

    # -- what members do -----------------------------------------------------------------------

    def join(self) -> None:
        """All of them, in turn."""
        for at, member_id in enumerate(self.ids):
            instance_id = f"i{at}" if self.are_static else None
            self.ask(at, joining(member_id, instance_id))

    def begin(self) -> None:
        """The first generation, up to its assignment."""
        self.join()
        self.tell(TimerFired(JoinTimer(GROUP)))
        self.tell(TimerFired(JoinTimer(GROUP)))
        self.sync()

    def sync(self) -> None:
        for at in range(self.count):
            self.ids[at] = self.replies[at].member_id
        generation = self.group.generation
        kind = wire.SyncGroupRequest.SyncGroupRequestAssignment
        assignments = tuple(kind(member_id, b"a") for member_id in self.ids)
        for at, member_id in enumerate(self.ids):
            shares = assignments if member_id == self.group.leader else ()
            request = wire.SyncGroupRequest(GROUP, generation, member_id, assignments=shares)
            self.ask(at, request)
        assert self.group.state is GroupState.STABLE
        assert len(self.group.members) == self.count

    def rejoin(self) -> None:
        """The leader first, which begins a generation."""
        leader = self.group.leader
        assert leader is not None
        self.ids.sort(key=lambda member_id: member_id != leader)
        self.join()
        self.sync()

    def beat(self) -> None:
        for member_id in self.ids:
            self.ask("beat", wire.HeartbeatRequest(GROUP, self.group.generation, member_id))

    def leave(self) -> None:
        for member_id in self.ids:
            self.ask("leave", wire.LeaveGroupRequest(GROUP, members=(LeavingMember(member_id),)))

    def leave_at_once(self) -> None:
        members = tuple(map(LeavingMember, self.ids))
        self.ask("leave", wire.LeaveGroupRequest(GROUP, members=members))

    def fall_silent(self) -> None:
        for member_id in self.ids:
            self.tell(TimerFired(SessionTimer(GROUP, member_id)))

    def fall_silent_backwards(self) -> None:
        for member_id in reversed(self.ids):
            self.tell(TimerFired(SessionTimer(GROUP, member_id)))

    def stay_away(self) -> None:
        """All but one do not come to the next generation."""
        self.ask("last", joining(self.ids[-1], protocols=PROTOCOLS[:1]))
        self.tell(TimerFired(JoinTimer(GROUP)))
        assert len(self.group.members) == 1

    def do_not_sync(self) -> None:
        """They join a generation, and ask for no assignment."""
        self.join()
        assert self.group.state is GroupState.COMPLETING_REBALANCE
        self.tell(TimerFired(SyncTimer(GROUP)))
        assert not self.group.members

    def come_for_ids(self) -> None:
        """Clients that take an id and do not come with it."""
        for _ in range(self.count):
            self.ask("id", joining(), MEMBER_ID_REQUIRED)
        for member_id in list(self.group.pending_members):
            self.tell(TimerFired(PendingTimer(GROUP, member_id)))

    def refuse(self) -> None:
        """Clients with a protocol that the others do not have."""
        other = (GroupProtocol("other", b""),)
        for _ in range(self.count):
            self.ask("refused", joining(protocols=other))
        assert self.replies["refused"].error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    # -- offsets -------------------------------------------------------------------------------

    def commit_in_transactions(self) -> None:
        """Each a group and a producer of its own; then each transaction ends."""
        for at in range(self.count):
            self._commit(f"g{at}", 100 + at)
        for at in range(self.count):
            self.tell(MarkerWritten(100 + at, 0, at % 2 == 0))

    def commit_in_one_transaction(self) -> None:
        for at in range(self.count):
            self._commit(f"g{at}", 100)
        self.tell(MarkerWritten(100, 0, False))

    def forget_topics(self) -> None:
        """While all offsets are in open transactions."""
        for at in range(self.count):
            self._commit(f"g{at}", 100 + at)
        self.ask("forget", ForgetTopics(frozenset({"t"})))
        assert not list(self.shard._offsets.groups())

    def _commit(self, group: str, producer_id: int) -> None:
        kind = wire.TxnOffsetCommitRequest
        part = kind.TxnOffsetCommitRequestPartition(0, 5, -1, "")
        topics = (kind.TxnOffsetCommitRequestTopic("t", (part,)),)
        self.ask("commit", kind("x", group, producer_id, 0, topics=topics))


Act = Callable[[Members], None]
BEGUN: list[Act] = [
    Members.rejoin,
    Members.beat,
    Members.leave,
    Members.leave_at_once,
    Members.fall_silent,
    Members.fall_silent_backwards,
    Members.stay_away,
    Members.do_not_sync,
    Members.refuse,
]
NEW: list[Act] = [
    Members.begin,
    Members.come_for_ids,
    Members.commit_in_transactions,
    Members.commit_in_one_transaction,
    Members.forget_topics,
]


@contextmanager
def counting(calls: list[int]) -> Iterator[None]:
    def count(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            calls[0] += 1

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def prepared(act: Act, count: int) -> Members:
    members = Members(count)
    if act in BEGUN:
        members.begin()
    return members


@for_each("act", [*NEW, *BEGUN], at_once=2)
def test_work_for_a_member_does_not_grow(act: Act) -> None:
    """W-237."""
    found = []
    for count in (20, 200):
        members, calls = prepared(act, count), [0]
        with counting(calls):
            act(members)
        found.append(calls[0] / count)
    few, many = found
    assert many <= GROWTH * few, f"{few:.0f} calls each of 20, {many:.0f} of 200"


def test_what_is_counted_is_what_members_say() -> None:
    """Members come, change their minds, and go; one is named twice, as a damaged record may."""
    group = ClassicGroup(GROUP)
    one, again, other = (
        GroupMember(member_id, None, MemberTerms("c", "/h", 9000, 9000, PROTOCOLS[:count]))
        for member_id, count in (("a", 2), ("a", 1), ("b", 2))
    )
    one.joining = "first"
    for member in (one, again, other):
        group.add(member, "consumer")
    assert (group.joining_count, group.offers) == (0, {"range": 2, "sticky": 1})
    assert [group.supports("consumer", [name]) for name in ("range", "sticky", "x")] == [
        True,
        False,
        False,
    ]
    other.joining, again.joining = "second", "third"
    assert group.has_all_joined
    again.update(again.terms._replace(protocols=PROTOCOLS))
    other.update(other.terms._replace(protocols=PROTOCOLS[1:] * 2))  # twice by mistake
    assert (group.joining_count, group.offers) == (2, {"range": 1, "sticky": 2})
    one.joining = None  # it is no member any more
    group.remove(other)
    again.joining = None
    assert (group.joining_count, group.offers) == (0, {"range": 1, "sticky": 1})
    group.remove(again)
    assert (group.joining_count, group.offers) == (0, {})


@pytest.mark.long
@for_each("act", [*NEW, *BEGUN], at_once=2)
def test_ten_thousand_members(act: Act) -> None:
    """W-237."""

    def seconds(count: int) -> float:
        taken = []
        for _ in range(3):
            members = prepared(act, count)
            begun = time.process_time()
            act(members)
            taken.append(time.process_time() - begun)
        return min(taken)

    few, many = seconds(2_500), seconds(10_000)
    assert many <= 8 * few, f"{few:.3f} s for 2,500, {many:.3f} s for 10,000"
