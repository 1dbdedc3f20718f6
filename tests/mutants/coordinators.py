"""Broken coordinators of groups."""

from __future__ import annotations

from functools import partial
from typing import Any

from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import AppendDone
from replication.coordinators.groups import classic
from replication.coordinators.groups.classic import ClassicProtocol
from replication.coordinators.groups.group import ClassicGroup, GroupMember
from replication.coordinators.groups.offsets import OffsetStore
from replication.coordinators.groups.shard import GroupShard
from replication.coordinators.outbox import ShardOutbox
from replication.coordinators.runtime import CoordinatorRuntime
from tests.mutants import MonkeyPatch, mutant


@mutant(groups=2)
def the_generation_is_not_checked(patch: MonkeyPatch) -> None:
    """Members of an old generation commit."""

    def check(self: ClassicGroup, member_id: str, instance: str | None, generation: int) -> Any:
        return self.check_member(member_id, instance)

    patch.setattr(ClassicGroup, "check_generation", check)


@mutant(groups=0)
def members_are_not_checked(patch: MonkeyPatch) -> None:
    """Whoever left or is fenced still commits."""

    def check_commit(self: Any, group: Any, commit: Any, version: int) -> ErrorCode:
        said = getattr(commit, "generation_id_or_member_epoch", None)
        if group is not None and group.generation == said:
            return ErrorCode.NONE
        code = unchanged(self, group, commit, version)
        assert isinstance(code, ErrorCode)
        return code

    unchanged = GroupShard._check_commit
    patch.setattr(GroupShard, "_check_commit", check_commit)


@mutant(groups=0)
def the_generation_does_not_rise(patch: MonkeyPatch) -> None:
    """Two generations of one number have two assignments."""

    def next_generation(self: ClassicGroup, now_ms: int) -> None:
        before = self.generation
        unchanged(self, now_ms)
        self.generation = max(1, before)

    unchanged = ClassicGroup.next_generation
    patch.setattr(ClassicGroup, "next_generation", next_generation)


@mutant(groups=1)
def assignments_count_before_they_are_committed(patch: MonkeyPatch) -> None:
    """A next leader may know nothing of them, and hand out the generation again."""

    def append(
        self: ShardOutbox, records: Any, on_done: Any, on_late: Any = None, **producer: Any
    ) -> None:
        unchanged(self, records, lambda code: None, **producer)
        on_done(ErrorCode.NONE)

    unchanged = ShardOutbox.append

    def write(self: ClassicProtocol, *args: Any) -> None:
        with MonkeyPatch.context() as inner:
            inner.setattr(ShardOutbox, "append", append)
            write_unchanged(self, *args)

    write_unchanged = ClassicProtocol._write_assignments
    patch.setattr(ClassicProtocol, "_write_assignments", write)


@mutant(groups=0)
def offsets_count_before_they_are_committed(patch: MonkeyPatch) -> None:
    def begin(self: OffsetStore, group: str, tp: Any, *, in_transaction: bool) -> None:
        unchanged(self, group, tp, in_transaction=in_transaction)
        if not in_transaction and (known := self.get(group, tp)) is not None:
            self.commit(group, tp, known._replace(offset=known.offset + 1), 1 << 50)

    unchanged = OffsetStore.begin_write
    patch.setattr(OffsetStore, "begin_write", begin)


@mutant(groups=1)
def aborted_offsets_count(patch: MonkeyPatch) -> None:
    def end(self: OffsetStore, producer_id: int, is_commit: bool) -> list[str]:
        return unchanged(self, producer_id, True)

    unchanged = OffsetStore.end_transaction
    patch.setattr(OffsetStore, "end_transaction", end)


@mutant(groups=0)
def the_order_of_the_log_is_not_kept(patch: MonkeyPatch) -> None:
    """What a transaction commits late replaces what was written after it."""

    def commit(self: OffsetStore, group: str, tp: Any, offset: Any, number: int) -> None:
        self._committed.setdefault(group, {})[tp] = number, offset

    patch.setattr(OffsetStore, "commit", commit)


@mutant(groups=0)
def a_refused_offset_counts(patch: MonkeyPatch) -> None:
    def done(self: ShardOutbox, token: Any, code: ErrorCode) -> None:
        unchanged(self, token, ErrorCode.NONE)

    unchanged = ShardOutbox.append_done
    patch.setattr(ShardOutbox, "append_done", done)


@mutant(groups=12)
def a_late_assignment_counts(patch: MonkeyPatch) -> None:
    """The members were sent away, and the log has it later."""

    def late(self: ShardOutbox, token: Any) -> None:
        on_done, _ = self._appends[token]
        on_done(ErrorCode.NONE)
        self._appends[token] = lambda code: None, None

    patch.setattr(ShardOutbox, "append_late", late)


@mutant(groups=0)
def the_timed_out_commit_is_forgotten(patch: MonkeyPatch) -> None:
    def late(self: ShardOutbox, token: Any) -> None:
        on_done, _ = self._appends[token]
        on_done(ErrorCode.REQUEST_TIMED_OUT)
        self._appends[token] = lambda code: None, None

    patch.setattr(ShardOutbox, "append_late", late)


@mutant(groups=1)
def tombstones_leave_transactions(patch: MonkeyPatch) -> None:
    """A deleted group comes back with a transaction."""

    def deleted(self: GroupShard, group_id: str, tp: Any, number: int) -> None:
        offsets = self._offsets
        pending, offsets._pending = offsets._pending, {}
        offsets.delete(group_id, tp, number)
        offsets._pending = pending

    patch.setattr(GroupShard, "_offset_deleted", deleted)


@mutant(groups=0)
def waiting_members_are_forgotten(patch: MonkeyPatch) -> None:
    """A join phase never ends for whoever came in it."""

    def complete(self: ClassicProtocol, group: ClassicGroup) -> None:
        pass

    patch.setattr(ClassicProtocol, "_complete_if_all_joined", complete)
    patch.setattr(ClassicProtocol, "_join_phase_is_over", complete)


@mutant(groups=1)
def silent_members_stay(patch: MonkeyPatch) -> None:
    def touch(self: ClassicProtocol, group: Any, member: Any) -> None:
        pass

    patch.setattr(ClassicProtocol, "_touch", touch)


@mutant(groups=0)
def fenced_members_are_not_answered(patch: MonkeyPatch) -> None:
    """A static member comes back, and both go on under one id."""

    def check(self: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None and instance_id in self.static_members:
            return ErrorCode.NONE
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    patch.setattr(ClassicGroup, "check_member", check)


@mutant(groups=0)
def a_removed_member_does_not_begin_a_generation(patch: MonkeyPatch) -> None:
    """Its partitions are nobody's."""

    def remove(self: ClassicProtocol, group: ClassicGroup, member: Any) -> None:
        self._answer_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._forget(group, member)

    patch.setattr(ClassicProtocol, "remove_member", remove)


@mutant(groups=0)
def the_static_id_is_not_written(patch: MonkeyPatch) -> None:
    """The next leader knows only the old one."""

    def encode(group: ClassicGroup) -> Any:
        joining = [m for m in group.members.values() if m.joining is not None]
        for member in joining if group.state is classic.STABLE else ():
            group.rename(member, member.member_id + "-old")
        record = unchanged(group)
        for member in joining if group.state is classic.STABLE else ():
            group.rename(member, member.member_id.removesuffix("-old"))
        return record

    unchanged = classic.encode_group
    patch.setattr(classic, "encode_group", encode)


# -- seen where brokers fail ----------------------------------------------------------------------


@mutant()
def commits_are_answered_before_they_are_committed(patch: MonkeyPatch) -> None:
    def append(self: CoordinatorRuntime, hosted: Any, effect: Any) -> None:
        unchanged(self, hosted, effect)
        event = AppendDone(effect.token, ErrorCode.NONE)
        self._submit(partial(self._event, hosted, event))
        hosted.appends[-1].on_done = lambda code: None
        hosted.appends[-1].token = None

    unchanged = CoordinatorRuntime._append
    patch.setattr(CoordinatorRuntime, "_append", append)


@mutant()
def a_new_leader_does_not_read_the_log(patch: MonkeyPatch) -> None:
    def load(self: CoordinatorRuntime, hosted: Any, offset: int, end_offset: int) -> None:
        self._submit(partial(self._loaded, hosted))

    patch.setattr(CoordinatorRuntime, "_load", load)


@mutant()
def a_member_that_restarts_gets_the_share_of_another(patch: MonkeyPatch) -> None:
    def rename(self: ClassicGroup, member: GroupMember, member_id: str) -> None:
        unchanged(self, member, member_id)
        others = [each for each in self.members.values() if each is not member]
        if others:
            member.assignment, others[0].assignment = others[0].assignment, member.assignment

    unchanged = ClassicGroup.rename
    patch.setattr(ClassicGroup, "rename", rename)
