"""Each public call in a forked child: what writes is refused, what reads goes on, and the parent
does not notice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logstore.common.errors import ForkedError, LogClosedError
from tests.support.forked import in_child
from tests.support.public_calls import (
    CALLS,
    Effect,
    PublicCall,
    open_again,
    open_stage,
    values,
)


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_child_may_read_and_changes_nothing(call: PublicCall, tmp_path: Path) -> None:
    opened = open_stage(tmp_path, call)
    before, known = files(tmp_path), values(opened.log)

    outcome = in_child(lambda: _shown(call, call.run(opened)))

    assert files(tmp_path) == before
    if call.closes:
        assert outcome.error is None
    elif call.effect is Effect.READS:
        assert call.returns(outcome.get())
    else:
        assert isinstance(outcome.error, ForkedError), outcome
        assert outcome.error.pid == os.getpid()
    assert values(opened.log) == known
    opened.log.append([(b"k", b"after")], sync=True)
    opened.close()
    again = open_again(tmp_path, call.owner)
    assert again.log.recovery_report.clean
    assert [*known.values(), b"after"] == list(values(again.log).values())
    again.close()


def _shown(call: PublicCall, result: object) -> object:
    """The result, if it is one that travels to the parent."""
    return result if call.effect is Effect.READS else None


@pytest.mark.parametrize("call", [c for c in CALLS if not c.closes], ids=str)
def test_after_the_close_of_a_child_its_calls_are_refused(call: PublicCall, tmp_path: Path) -> None:
    opened = open_stage(tmp_path, call)
    before = files(tmp_path)

    def close_and_call() -> None:
        opened.close()
        opened.close()
        if call.effect is not Effect.READS:
            call.run(opened)

    outcome = in_child(close_and_call)
    assert files(tmp_path) == before
    if call.effect is Effect.READS or call.name == "PartitionLog.purge_deleted":  # not its own now
        assert outcome.error is None
    else:
        assert isinstance(outcome.error, ForkedError | LogClosedError), outcome
    opened.close()
    again = open_again(tmp_path, call.owner)
    assert again.log.recovery_report.clean
    again.close()
