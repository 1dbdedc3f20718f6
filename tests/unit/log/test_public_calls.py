"""Each public call does what the table of public calls says; and the table has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.common.errors import UnknownTopicOrPartitionError
from logstore.log import PartitionLog
from logstore.log.reading.cursors import Cursor
from logstore.log.writing.producing import LogProducer
from logstore.manager import LogManager
from tests.support.public_calls import CALLS, PublicCall, open_again, open_stage, unharmed, values

ELSEWHERE = {
    "PartitionLog.open",  # makes what the others need
    "PartitionLog.follow_async",  # follow, in an event loop
    "LogManager.crash",  # for tests
    "PartitionLog.crash",
}


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_call_does_what_it_says_and_harms_nothing(call: PublicCall, tmp_path: Path) -> None:
    opened = open_stage(tmp_path, call)
    assert call.returns(call.run(opened))
    if not call.closes:
        assert call.done(opened)
        if not call.deletes:
            unharmed(call, values(opened.log))
        opened.close()
    if call.deletes:
        with (
            LogManager([tmp_path], background=False) as manager,
            pytest.raises(UnknownTopicOrPartitionError),
        ):
            manager.get("orders", 0)
        return
    again = open_again(tmp_path, call.owner)
    unharmed(call, values(again.log))
    assert call.done(again)
    again.close()


@pytest.mark.parametrize("kind", [PartitionLog, LogProducer, Cursor, LogManager])
def test_the_table_has_every_public_method(kind: type) -> None:
    methods = {
        f"{kind.__name__}.{name}"
        for name in dir(kind)
        if not name.startswith("_") and callable(getattr(kind, name))
    }
    known = {call.name.partition(",")[0] for call in CALLS}
    assert methods - known == methods & ELSEWHERE
