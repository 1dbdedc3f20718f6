"""Operations that read the log, each with what its answer may be."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from logstore.common.errors import LogstoreError
from logstore.log import EARLIEST, LATEST, MAX_TIMESTAMP, PartitionLog
from tests.interleavings.judge import (
    Check,
    batch_spans,
    decided,
    end_checks,
    judge,
    portion_checks,
    read_checks,
    rows_of,
)
from tests.interleavings.model import Doing, Row, State
from tests.interleavings.scheduler import Found
from tests.interleavings.world import World
from tests.interleavings.writing import Hands, place
from tests.support.builders import NOW
from tests.support.logs import check_invariants


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
    """An iterator of the log and where it stands; made when it is first asked.

    ``start`` None leaves the first offset to the log.
    """

    def __init__(self, log: PartitionLog, how: str, start: int | None, end: int | None) -> None:
        self.log, self.how, self.start, self.end = log, how, start, end
        self.position = start
        self._begun = log.log_start_offset
        self.since = -1  # the first state that may explain it
        self._iterator: Iterator[Any] | None = None

    def __str__(self) -> str:
        return f"{self.how}({self.start}, {self.end}) at {self.position}"

    def close(self) -> None:
        if isinstance(self._iterator, Generator):
            self._iterator.close()

    def in_range(self, state: State) -> bool:
        at = self._begun if self.position is None else self.position
        return state.start <= at <= state.end

    def pull(self) -> list[Row]:
        """The next portion; nothing at the end."""
        if self._iterator is None:
            log = self.log
            calls = {"records": log.records, "chunks": log.record_chunks, "arrow": log.to_arrow}
            self._iterator = iter(calls[self.how](self.start, self.end))
        portion = next(self._iterator, None)
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
    walk = Walk(log, how, start, log.log_end_offset if bounded else None)
    for _ in range(pulls):
        goes_on = False
        with world.operation(str(walk), in_range=walk.in_range) as doing:
            goes_on = _pull(world, walk, doing)
        if not goes_on:
            break
    walk.close()


def _pull(world: World, walk: Walk, doing: Doing) -> bool:
    """Ask for a portion and judge it; whether there was one."""
    if walk.since < 0:
        walk.since = doing.since
    if walk.how == "records":  # it hands out one by one what it took at once
        doing.since = walk.since
    rows = walk.pull()
    world.observe()
    window = world.window(doing)
    if not rows:
        judge(f"{walk} ended", window, end_checks(walk.position, walk.end))
        return False
    first, last = rows[0].offset, rows[-1].offset
    position = first if walk.position is None else walk.position
    checks = portion_checks(rows, position, walk.end)
    if walk.position is None:
        checks.insert(0, Check("records left out", _begins_at(first)))
    judge(f"{walk} gave {first} … {last}", window, checks)
    walk.position = last + 1
    return True


def _begins_at(first: int) -> Any:
    def holds(state: State) -> bool:
        rows = state.rows(state.start, state.end)
        return bool(rows) and rows[0].offset == first

    return holds


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
        count = world.log.reader.available_bytes(start, end)
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
            for t in world.log.reader.aborted_transactions(start, end)
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
    try:
        for how in ("records", "chunks", "arrow"):
            _check_rows(f"{how} {when}", _iterated(log, how, state), state, state.end, False)
        for committed in (False, True):
            end = state.last_stable if committed else state.end
            rows = _fetched(log, state, end, committed, f"read {when}")
            _check_rows(f"read {when}", rows, state, end, committed)
        check_invariants(log)
    except (LogstoreError, OSError, ValueError) as error:
        raise Found("content", f"{when}: {error!r}") from error


def _check_rows(what: str, rows: list[Row], state: State, end: int, committed: bool) -> None:
    expected = state.rows(state.start, end, committed=committed)
    judge(what, [state], [Check("content", lambda _: rows == expected)])


def _iterated(log: PartitionLog, how: str, state: State) -> list[Row]:
    walk = Walk(log, how, state.start, None)
    rows: list[Row] = []
    while portion := walk.pull():
        rows += portion
    return rows


def _fetched(log: PartitionLog, state: State, end: int, committed: bool, what: str) -> list[Row]:
    """Read by read, each from the batch after the last whole one."""
    offset = state.start
    rows: list[Row] = []
    while offset < end:
        fetched = log.read(offset, 500, committed=committed)
        checks = read_checks(fetched, None, committed=committed, minimum_one=True)
        judge(what, [state], checks)
        spans = batch_spans(fetched.data)
        if not spans:
            break
        rows += rows_of(fetched.records())
        offset = spans[-1][1] + 1
    return rows
