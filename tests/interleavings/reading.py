"""Operations that read the log, each with what its answer may be."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from logstore.errors import LogstoreError
from logstore.log import EARLIEST, LATEST, MAX_TIMESTAMP, PartitionLog
from tests.builders import NOW
from tests.interleavings.judge import (
    Check,
    decided,
    end_checks,
    judge,
    portion_checks,
    read_checks,
    rows_of,
)
from tests.interleavings.model import Row, State
from tests.interleavings.world import World
from tests.interleavings.writing import Hands, place


def read(world: World, hands: Hands, thousandth: int, limit: str, max_bytes: int) -> None:
    """``limit``: nothing, ``hw``, ``committed``, or ``committed hw`` for both."""
    log = world.log
    start = place(log, thousandth)
    up_to = log.high_watermark if "hw" in limit else None
    committed = "committed" in limit
    minimum_one = max_bytes != 1
    name = f"read({start}, {max_bytes}, up_to={up_to}, committed={committed})"
    with world.operation(name, in_range=lambda s: s.start <= start <= s.end) as doing:
        fetched = log.read(
            start, max_bytes, minimum_one=minimum_one, up_to=up_to, committed=committed
        )
        world.observe()
        checks = read_checks(fetched, up_to, committed=committed, minimum_one=minimum_one)
        judge(name, world.window(doing), checks)


class Walk:
    """An iterator of the log and where it stands.

    ``start`` None leaves the first offset to the log. ``since`` is the first state that may explain
    what ``records`` gives: it hands out records one by one that it took at once.
    """

    def __init__(
        self, log: PartitionLog, how: str, start: int | None, end: int | None, since: int
    ) -> None:
        self.how, self.start, self.end, self.since = how, start, end, since
        self.position = start
        calls = {"records": log.records, "chunks": log.record_chunks, "arrow": log.to_arrow}
        self.iterator: Iterator[Any] = iter(calls[how](start, end))

    def close(self) -> None:
        if isinstance(self.iterator, Generator):
            self.iterator.close()

    def pull(self) -> list[Row]:
        """The next portion; nothing at the end."""
        portion = next(self.iterator, None)
        if portion is None:
            return []
        if self.how == "records":
            return rows_of([portion])
        if self.how == "chunks":
            return rows_of(portion)
        columns = portion.to_pydict()
        stamps = portion.column("timestamp").cast("int64").to_pylist()
        return [
            Row(offset, value, stamp)
            for offset, value, stamp in zip(
                columns["offset"], columns["value"], stamps, strict=True
            )
        ]


def iterate(
    world: World, hands: Hands, how: str, thousandth: int, bounded: bool, pulls: int
) -> None:
    """Some steps of an iterator, with other actors in between."""
    log = world.log
    start = None if thousandth == 0 else place(log, thousandth)
    end = log.log_end_offset if bounded else None
    name = f"{how}({start}, {end})"
    walk: Walk | None = None
    for _ in range(pulls):
        done = True

        def in_range(state: State) -> bool:
            at = walk.position if walk is not None else start
            return at is not None and state.start <= at <= state.end

        with world.operation(name, in_range=in_range) as doing:
            if walk is None:
                walk = Walk(log, how, start, end, doing.since)
            doing.since = walk.since if how == "records" else doing.since
            rows = walk.pull()
            world.observe()
            window = world.window(doing)
            at = walk.position
            if rows:
                position = rows[0].offset if at is None else at
                checks = portion_checks(rows, position, end)
                if at is None:
                    checks.insert(0, Check("records left out", _begins_at(rows[0].offset)))
                judge(f"{name} at {at} gave {_brief(rows)}", window, checks)
                walk.position, done = rows[-1].offset + 1, False
            else:
                judge(f"{name} ended at {at}", window, end_checks(at, end))
        if done:
            break
    if walk is not None:
        walk.close()


def _begins_at(first: int) -> Any:
    def holds(state: State) -> bool:
        rows = state.rows(state.start, state.end)
        return bool(rows) and rows[0].offset == first

    return holds


def _brief(rows: list[Row]) -> str:
    return f"{rows[0].offset} … {rows[-1].offset}"


def find_timestamp(world: World, hands: Hands, stamp: int) -> None:
    timestamp = {-1: LATEST, -2: EARLIEST, -3: MAX_TIMESTAMP}.get(stamp, NOW + stamp)
    name = f"offset_for_timestamp({timestamp})"
    with world.operation(name) as doing:
        found = world.log.offset_for_timestamp(timestamp)
        world.observe()
        answer = None if found is None else (found.timestamp, found.offset)
        judge(
            f"{name} gave {answer}",
            world.window(doing),
            [Check("lookup by timestamp", lambda state: answer in _expected(state, timestamp))],
        )


def _expected(state: State, timestamp: int) -> list[tuple[int, int] | None]:
    if timestamp == EARLIEST:
        return [(-1, state.start)]
    if timestamp == LATEST:
        return [(-1, state.end)]
    rows = [row for batch in state.batches for row in batch.rows if row.offset >= state.start]
    if timestamp == MAX_TIMESTAMP:
        largest = max((row.timestamp for row in rows), default=None)
        below = any(batch.base < state.start for batch in state.batches)
        answers: list[tuple[int, int] | None] = [None] if below or not rows else []
        # Of equal ones, and beside deleted ones, any will do.
        return answers + [
            (row.timestamp, row.offset) for row in rows if below or row.timestamp == largest
        ]
    for row in rows:
        if row.timestamp >= timestamp:
            return [(row.timestamp, row.offset)]
    return [None]


def available_bytes(world: World, hands: Hands, thousandth: int, end_thousandth: int) -> None:
    start, end = place(world.log, thousandth), place(world.log, end_thousandth)
    name = f"available_bytes({start}, {end})"

    def in_range(state: State) -> bool:
        return state.start <= start <= state.end and state.start <= end <= state.end

    def expected(state: State) -> int:
        return sum(b.size for b in state.batches if b.last >= start and b.base < end)

    with world.operation(name, in_range=in_range) as doing:
        count = world.log.available_bytes(start, end)
        world.observe()
        judge(
            f"{name} gave {count}",
            world.window(doing),
            [Check("available bytes", lambda s: not in_range(s) or count == expected(s))],
        )


def aborted_transactions(world: World, hands: Hands, thousandth: int, end_thousandth: int) -> None:
    start, end = place(world.log, thousandth), place(world.log, end_thousandth)
    name = f"aborted_transactions({start}, {end})"

    def in_range(state: State) -> bool:
        return state.start <= start <= state.end and state.start <= end <= state.end

    def expected(state: State) -> set[tuple[int, int, int]]:
        return {
            (t.producer_id, t.first, t.last)
            for t in state.transactions
            if t.aborted and t.last >= start and t.first < end
        }

    with world.operation(name, in_range=in_range) as doing:
        found = {
            (t.producer_id, t.first_offset, t.last_offset)
            for t in world.log.aborted_transactions(start, end)
        }
        world.observe()
        judge(
            f"{name} gave {sorted(found)}",
            world.window(doing),
            [
                Check(
                    "aborted transactions",
                    lambda s: not in_range(s) or decided(found, s) == expected(s),
                )
            ],
        )


def check_all(world: World, log: PartitionLog, state: State, when: str) -> None:
    """With nobody else about, every way to read gives exactly the records of ``state``."""
    expected = state.rows(state.start, state.end)
    window = [state]
    try:
        for how in ("records", "chunks", "arrow"):
            walk, rows = Walk(log, how, state.start, None, 0), []
            while portion := walk.pull():
                rows += portion
            judge(f"{how} {when}", window, [Check("content", lambda s: rows == expected)])
        for committed in (False, True):
            end = state.last_stable if committed else state.end
            offset, rows = state.start, []
            while offset < end:
                fetched = log.read(offset, 500, committed=committed)
                judge(
                    f"read {when}", window,
                    read_checks(fetched, None, committed=committed, minimum_one=True),
                )  # fmt: skip
                covered = [b for b in state.from_offset(offset) if b.base < end]
                if not covered:
                    break
                size, taken = 0, 0
                while taken < len(covered) and size + covered[taken].size <= len(fetched.data):
                    size += covered[taken].size
                    taken += 1
                offset = covered[taken - 1].last + 1
                rows += rows_of(fetched.records())
            told = state.rows(state.start, end, committed=committed)
            judge(f"read {when}", window, [Check("content", lambda s: rows == told)])
        log.check_invariants()
    except (LogstoreError, OSError, ValueError) as error:
        from tests.interleavings.scheduler import Found

        raise Found("content", f"{when}: {error!r}") from error
