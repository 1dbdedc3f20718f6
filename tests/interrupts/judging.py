"""What must hold after a call that an exception of a signal handler has ended.

The call has returned or raised. Nothing acknowledged is lost, what it appends is there whole or not
at all, a retry with the same sequence stores nothing twice, the log goes on, and the next start is
clean.
"""

from __future__ import annotations

import gc
from pathlib import Path

from tests.interrupts.points import interrupted
from tests.support.public_calls import (
    RECORDS,
    Opened,
    PublicCall,
    open_again,
    open_stage,
    unharmed,
    values,
)

AFTER = b"after"


def _records(opened: Opened) -> dict[int, bytes | None]:
    return {at: value for at, value in values(opened.log).items() if value != AFTER}


def _retry(call: PublicCall, opened: Opened) -> None:
    """Do what the caller of an idempotent producer does after an unknown outcome."""
    if call.name.startswith("LogProducer.append"):
        call.run(opened)
        assert len(list(opened.log.records())) == len(RECORDS) + 1


def judge_place(
    directory: Path, call: PublicCall, at: int, error: type[BaseException]
) -> tuple[bool, int]:
    """Interrupt ``call`` at one place, and see what is left.

    Returns whether there is such a place, and how many were passed.
    """
    opened = open_stage(directory, call)
    raised, passed = interrupted(lambda: call.run(opened), at, error)
    gc.collect()
    if not call.closes and not call.deletes:
        _goes_on(call, opened, raised)
    opened.close()
    if not call.deletes:
        _starts_again(directory, call, raised)
    return raised or passed > at, passed


def _goes_on(call: PublicCall, opened: Opened, raised: bool) -> None:
    assert not opened.log.failed, opened.log.core.failure
    unharmed(call, _records(opened), returned=not raised)
    _retry(call, opened)
    seen = _records(opened)
    info = opened.log.append([(b"k", AFTER)], sync=True)
    assert values(opened.log) == {**seen, info.first_offset: AFTER}
    if opened.manager is not None:
        opened.manager.get_or_create("more", 0).append([(b"k", AFTER)], sync=True)


def _starts_again(directory: Path, call: PublicCall, raised: bool) -> None:
    again = open_again(directory, call.owner)
    try:
        report = again.log.recovery_report
        assert (report.clean, report.warnings) == (True, [])
        unharmed(call, _records(again), returned=not raised)
        if not call.closes:
            assert AFTER in values(again.log).values()
        if again.manager is not None:
            for found in again.manager.recovery_reports:
                assert (found.clean, found.warnings) == (True, [])
    finally:
        again.close()


def judge_start(
    directory: Path, call: PublicCall, at: int, error: type[BaseException], *, crashed: bool
) -> tuple[bool, int]:
    """Interrupt an opening at one place: the next one finds everything."""
    opened = open_stage(directory, call)
    if crashed:
        opened.crash()
    else:
        opened.close()
    held: list[Opened] = []
    raised, passed = interrupted(lambda: held.append(open_again(directory, call.owner)), at, error)
    gc.collect()
    gc.collect()  # what finalizers kept once
    for each in held:
        each.close()
    again = open_again(directory, call.owner)
    try:
        assert values(again.log) == dict(enumerate(RECORDS))
    finally:
        again.close()
    return raised or passed > at, passed


__all__ = ["judge_place", "judge_start"]
