"""The search can see: each of these broken coordinators is caught within a bounded number of
seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replication.common.error_codes import ErrorCode
from replication.coordinators.groups import classic
from replication.coordinators.groups.classic import ClassicProtocol
from replication.coordinators.groups.group import ClassicGroup
from replication.coordinators.groups.offsets import OffsetStore
from replication.coordinators.groups.outbox import ShardOutbox
from replication.coordinators.groups.shard import GroupShard
from tests.groups.model import Violation
from tests.groups.search import run

Patch = Callable[[pytest.MonkeyPatch], None]
SEEDS = 60


def the_generation_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Members of an old generation commit."""

    def check(self: ClassicGroup, member_id: str, instance: str | None, generation: int) -> Any:
        return self.check_member(member_id, instance)

    patch.setattr(ClassicGroup, "check_generation", check)


def members_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Whoever left or is fenced still commits."""

    def check_commit(self: Any, group: Any, request: Any) -> ErrorCode:
        if group is not None and group.generation == request.generation:
            return ErrorCode.NONE
        code = unchanged(self, group, request)
        assert isinstance(code, ErrorCode)
        return code

    unchanged = GroupShard._check_commit
    patch.setattr(GroupShard, "_check_commit", check_commit)


def the_generation_does_not_rise(patch: pytest.MonkeyPatch) -> None:
    """Two generations of one number have two assignments."""

    def next_generation(self: ClassicGroup, now_ms: int) -> None:
        before = self.generation
        unchanged(self, now_ms)
        self.generation = max(1, before)

    unchanged = ClassicGroup.next_generation
    patch.setattr(ClassicGroup, "next_generation", next_generation)


def assignments_count_before_they_are_committed(patch: pytest.MonkeyPatch) -> None:
    """A next leader may know nothing of them, and hand out the generation again."""

    def append(
        self: ShardOutbox, records: Any, on_done: Any, on_late: Any = None, **producer: Any
    ) -> None:
        unchanged(self, records, lambda code: None, **producer)
        on_done(ErrorCode.NONE)

    unchanged = ShardOutbox.append

    def write(self: ClassicProtocol, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ShardOutbox, "append", append)
            write_unchanged(self, *args)

    write_unchanged = ClassicProtocol._write_assignments
    patch.setattr(ClassicProtocol, "_write_assignments", write)


def offsets_count_before_they_are_committed(patch: pytest.MonkeyPatch) -> None:
    def begin(self: OffsetStore, group: str, tp: Any, *, in_transaction: bool) -> None:
        unchanged(self, group, tp, in_transaction=in_transaction)
        if not in_transaction and (known := self.get(group, tp)) is not None:
            self.commit(group, tp, known._replace(offset=known.offset + 1), 1 << 50)

    unchanged = OffsetStore.begin
    patch.setattr(OffsetStore, "begin", begin)


def aborted_offsets_count(patch: pytest.MonkeyPatch) -> None:
    def end(self: OffsetStore, producer_id: int, is_commit: bool) -> list[str]:
        return unchanged(self, producer_id, True)

    unchanged = OffsetStore.end_transaction
    patch.setattr(OffsetStore, "end_transaction", end)


def the_order_of_the_log_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    """What a transaction commits late replaces what was written after it."""

    def commit(self: OffsetStore, group: str, tp: Any, offset: Any, number: int) -> None:
        self._committed.setdefault(group, {})[tp] = number, offset

    patch.setattr(OffsetStore, "commit", commit)


def a_refused_offset_counts(patch: pytest.MonkeyPatch) -> None:
    def done(self: ShardOutbox, token: Any, code: ErrorCode) -> None:
        unchanged(self, token, ErrorCode.NONE)

    unchanged = ShardOutbox.append_done
    patch.setattr(ShardOutbox, "append_done", done)


def a_late_assignment_counts(patch: pytest.MonkeyPatch) -> None:
    """The members were sent away, and the log has it later."""

    def late(self: ShardOutbox, token: Any) -> None:
        on_done, _ = self._appends[token]
        on_done(ErrorCode.NONE)
        self._appends[token] = lambda code: None, None

    patch.setattr(ShardOutbox, "append_late", late)


def the_timed_out_commit_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def late(self: ShardOutbox, token: Any) -> None:
        on_done, _ = self._appends[token]
        on_done(ErrorCode.REQUEST_TIMED_OUT)
        self._appends[token] = lambda code: None, None

    patch.setattr(ShardOutbox, "append_late", late)


def tombstones_leave_transactions(patch: pytest.MonkeyPatch) -> None:
    """A deleted group comes back with a transaction."""

    def deleted(self: GroupShard, group_id: str, tp: Any, number: int) -> None:
        offsets = self._offsets
        pending, offsets._pending = offsets._pending, {}
        offsets.delete(group_id, tp, number)
        offsets._pending = pending

    patch.setattr(GroupShard, "_offset_deleted", deleted)


def waiting_members_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A join phase never ends for whoever came in it."""

    def complete(self: ClassicProtocol, group: ClassicGroup) -> None:
        pass

    patch.setattr(ClassicProtocol, "_complete_if_all_joined", complete)
    patch.setattr(ClassicProtocol, "_join_phase_is_over", complete)


def silent_members_stay(patch: pytest.MonkeyPatch) -> None:
    def touch(self: ClassicProtocol, group: Any, member: Any) -> None:
        pass

    patch.setattr(ClassicProtocol, "_touch", touch)


def fenced_members_are_not_answered(patch: pytest.MonkeyPatch) -> None:
    """A static member comes back, and both go on under one id."""

    def check(self: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None and instance_id in self.static_members:
            return ErrorCode.NONE
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    patch.setattr(ClassicGroup, "check_member", check)


def a_removed_member_does_not_begin_a_generation(patch: pytest.MonkeyPatch) -> None:
    """Its partitions are nobody's."""

    def remove(self: ClassicProtocol, group: ClassicGroup, member: Any) -> None:
        self._answer_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._forget(group, member)

    patch.setattr(ClassicProtocol, "remove_member", remove)


def the_static_id_is_not_written(patch: pytest.MonkeyPatch) -> None:
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


MUTANTS: list[Patch] = [
    the_generation_is_not_checked,
    members_are_not_checked,
    the_generation_does_not_rise,
    assignments_count_before_they_are_committed,
    offsets_count_before_they_are_committed,
    aborted_offsets_count,
    the_order_of_the_log_is_not_kept,
    a_refused_offset_counts,
    a_late_assignment_counts,
    the_timed_out_commit_is_forgotten,
    tombstones_leave_transactions,
    waiting_members_are_forgotten,
    silent_members_stay,
    fenced_members_are_not_answered,
    a_removed_member_does_not_begin_a_generation,
    the_static_id_is_not_written,
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    found = next((error for seed in range(SEEDS) if (error := run(seed).error) is not None), None)
    assert isinstance(found, Violation), found
