"""Each public call on a disk without descriptors, without room, or that is read-only; and beside a
second owner. It succeeds, or says so in a typed error; nothing acknowledged is lost, and the next
start is an ordinary one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from logstore.common.errors import (
    LogDirLockedError,
    LogstoreError,
)
from logstore.log import PartitionLog
from logstore.manager import LogManager
from logstore.testing import FaultyStorage
from logstore.testing.faulty import FOREVER
from tests.support.forked import in_child
from tests.support.public_calls import (
    CALLS,
    CONFIG,
    Effect,
    Opened,
    Owner,
    PublicCall,
    open_again,
    open_stage,
    unharmed,
    values,
)

FAULTS = {
    "no descriptors": (errno.EMFILE, ("open",)),
    "no room": (errno.ENOSPC, ("write", "reserve", "make_dir")),
    "read-only": (
        errno.EROFS,
        ("write", "reserve", "make_dir", "rename", "remove", "truncate", "map"),
    ),
}


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_harms_no_record(call: PublicCall, fault: str) -> None:
    number, operations = FAULTS[fault]
    storage = FaultyStorage()
    opened = open_stage("/logs", call, storage)
    faults = [storage.fail(each, error=number, times=FOREVER) for each in operations]
    result, error = _outcome(call, opened)
    storage.heal()

    if not any(each.struck for each in faults):
        assert error is None
        assert call.closes or call.done(opened)
    if error is None:
        assert call.returns(result)
    if call.effect is Effect.READS and fault != "no descriptors":
        assert error is None
    _close(opened)
    _start_again(call, storage)


def _outcome(call: PublicCall, opened: Opened) -> tuple[object, LogstoreError | None]:
    try:
        return call.run(opened), None
    except LogstoreError as error:  # another kind fails the test
        return None, error


def _close(opened: Opened) -> None:
    try:
        opened.close()
    except LogstoreError:
        opened.crash()


def _start_again(call: PublicCall, storage: FaultyStorage) -> None:
    if call.deletes:
        with LogManager(["/logs"], CONFIG, storage=storage, background=False) as manager:
            gone = "orders" not in manager.topics()
        if gone:
            return
    again = open_again("/logs", call.owner, storage)
    unharmed(call, values(again.log))
    end = again.log.log_end_offset
    assert again.log.append([(b"k", b"next")], sync=True).first_offset == end
    again.close()


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_second_owner_is_refused_and_changes_nothing(call: PublicCall, tmp_path: Path) -> None:
    def second() -> None:
        for open_second in (
            lambda: PartitionLog.open(tmp_path / "orders-0"),
            lambda: LogManager([tmp_path], background=False),
        ):
            with pytest.raises(LogDirLockedError):
                open_second()

    opened = open_stage(tmp_path, call)
    second()
    assert in_child(second).error is None
    assert call.returns(call.run(opened))
    if not call.closes:
        assert call.done(opened)
        second()
        opened.close()
    if not call.deletes:
        again = open_again(tmp_path, call.owner)
        unharmed(call, values(again.log))
        again.close()


def test_the_owners_of_two_partitions_share_a_directory(tmp_path: Path) -> None:
    with (
        PartitionLog.open(tmp_path / "orders-0") as log,
        PartitionLog.open(tmp_path / "orders-1") as other,
    ):
        assert log.append([(None, b"0")]).first_offset == 0
        assert other.append([(None, b"0")]).first_offset == 0


def test_the_table_has_both_owners() -> None:
    assert {call.owner for call in CALLS} == {Owner.LOG, Owner.MANAGER}
