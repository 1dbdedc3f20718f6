"""An operation that waits: following the log while others change it."""

from __future__ import annotations

from logstore.common.errors import LogTruncatedError
from logstore.common.types import Record
from tests.interleavings.judge import Check, judge
from tests.interleavings.model import Doing, Row, State
from tests.interleavings.world import World
from tests.interleavings.writing import Hands, place


def follow(world: World, hands: Hands, thousandth: int, committed: bool, pulls: int) -> None:
    """Some records, one by one. A wait ends when there is news, or when nobody else can go on."""
    log = world.log
    start = place(log, thousandth)
    since = len(world.model.states) - 1
    follower = None
    position = start

    def in_range(state: State) -> bool:
        return state.start <= position <= state.end

    def cut(state: State) -> bool:
        under_way = any(doing.truncates for doing in world.doings.values())
        return under_way or state.end < position or not state.batches

    for _ in range(pulls):
        record = None
        name = f"follow({start}, committed={committed}) at {position}"
        with world.operation(name, in_range=in_range, allowed={LogTruncatedError: cut}) as doing:
            called, doing.since = doing.since, since
            if follower is None:
                follower = log.follow(start, timeout=1.0, committed=committed)
            record = next(follower, None)
            world.observe()
            if record is None:
                _judge_end(world, doing.name, position, committed)
            else:
                _judge_record(world, doing, called, position, record, committed)
        if record is None or follower is None:
            return
        position = record.offset + 1


def _limit(state: State, committed: bool) -> int:
    return min(state.high_watermark, state.last_stable) if committed else state.high_watermark


def _judge_end(world: World, name: str, position: int, committed: bool) -> None:
    """A wait times out when nobody can go on; so whoever had news for it has told them."""

    def nothing(state: State) -> bool:
        return not state.rows(position, _limit(state, committed), committed=committed)

    since = world.time_outs[world.scheduler.current.index]
    judge(f"{name} ended", world.model.states[since:], [Check("records left out", nothing)])


def _judge_record(
    world: World, doing: Doing, called: int, position: int, record: Record, committed: bool
) -> None:
    row = Row(record.offset, record.value or b"", record.timestamp)
    what = f"{doing.name} gave {row.offset}"

    def held(state: State) -> bool:
        return state.rows(row.offset, row.offset + 1, committed=committed) == [row]

    def no_gap(state: State) -> bool:
        return not state.rows(position, row.offset, committed=committed)

    judge(
        what,
        world.window(doing),
        [
            Check("records of another moment", held),
            Check("deleted records", lambda s: row.offset >= s.start),
            Check("records above the limit", lambda s: row.offset < _limit(s, committed)),
            Check("records left out", no_gap),
        ],
    )
    # It may be in hand for long; but once it is cut off it must not be given any more.
    still = [Check("a record that was cut off", lambda s: bool(s.rows(row.offset, row.offset + 1)))]
    judge(what, world.model.states[called:], still)
