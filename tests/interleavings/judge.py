"""Whether an answer of the log is one that it may give: some state must explain all of it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tests.interleavings.model import Row, State
from tests.interleavings.scheduler import Found

if TYPE_CHECKING:
    from logstore.log.reading.fetching import FetchData

_HEAD = struct.Struct(">qi")
_DELTA = struct.Struct(">i")


class Check(NamedTuple):
    """A promise in a few words, and whether a state keeps it."""

    promise: str
    holds: Callable[[State], bool]


def judge(what: str, window: Sequence[State], checks: Sequence[Check]) -> None:
    """Raise ``Found`` unless one state of the window passes all checks.

    The failure is named after the first check that no state passes together with those before it.
    """
    left = list(window)
    for check in checks:
        kept = [state for state in left if check.holds(state)]
        if not kept:
            told = "; ".join(str(state.numbers()) for state in left[-3:])
            raise Found(check.promise, f"{what}; states (start, end, hw, lso): {told}")
        left = kept


def batch_spans(data: bytes) -> list[tuple[int, int, int]]:
    """``(base, last, size)`` of the whole batches in ``data``."""
    spans = []
    position = 0
    while position + 61 <= len(data):
        base, length = _HEAD.unpack_from(data, position)
        size = length + 12
        if size < 61 or position + size > len(data):
            break
        spans.append((base, base + _DELTA.unpack_from(data, position + 23)[0], size))
        position += size
    return spans


def rows_of(records: Sequence[object]) -> list[Row]:
    return [Row(r.offset, r.value, r.timestamp) for r in records]  # type: ignore[attr-defined]


def decided(transactions: set[tuple[int, int, int]], state: State) -> set[tuple[int, int, int]]:
    """Those with a marker below the log end: the index may be ahead of the log by one append."""
    return {transaction for transaction in transactions if transaction[2] < state.end}


def read_checks(
    fetched: FetchData, up_to: int | None, *, committed: bool, minimum_one: bool
) -> list[Check]:
    """What one answer of ``PartitionLog.read`` promises."""
    start = fetched.start_offset
    spans = batch_spans(fetched.data)
    covered = spans[-1][1] + 1 if spans else start
    records = rows_of(fetched.records())

    def limit(state: State) -> int:
        limits = [state.end, *([up_to] if up_to is not None else [])]
        return min([*limits, state.last_stable] if committed else limits)

    def content(state: State) -> bool:
        batches = state.from_offset(start)
        return [(b.base, b.last, b.size) for b in batches[: len(spans)]] == spans

    def not_empty(state: State) -> bool:
        if spans or not minimum_one or start >= limit(state):
            return True
        following = state.from_offset(start)
        return not following or following[0].base >= limit(state)

    def same_records(state: State) -> bool:
        return records == state.rows(start, min(covered, limit(state)), committed=committed)

    def aborted(state: State) -> bool:
        known = {(t.producer_id, t.first, t.last) for t in state.transactions if t.aborted}
        told = {(t.producer_id, t.first_offset, t.last_offset) for t in fetched.aborted}
        return not decided(told, state) - known

    reported = (
        fetched.log_start_offset,
        fetched.log_end_offset,
        fetched.high_watermark,
        fetched.last_stable_offset,
    )
    return [
        Check("out of range, and answered", lambda s: s.start <= start <= s.end),
        Check("offsets of another moment", lambda s: s.numbers() == reported),
        Check("bytes above the limit", lambda s: all(base < limit(s) for base, _, _ in spans)),
        Check("batches of another moment", content),
        Check("nothing where there is something", not_empty),
        Check("records of another moment", same_records),
        Check("an aborted transaction that is none", aborted),
    ]


def portion_checks(records: list[Row], position: int, end: int | None) -> list[Check]:
    """What one portion of an iterator at ``position`` promises."""
    first, last = records[0].offset, records[-1].offset

    def run(state: State) -> bool:
        return records == state.rows(first, last + 1)

    def no_gap(state: State) -> bool:
        return not state.rows(position, first)

    return [
        Check("deleted records", lambda s: first >= s.start),
        Check("records outside the range", lambda s: position <= first and last < (end or s.end)),
        Check("records above the log end", lambda s: last < s.end),
        Check("records of another moment", run),
        Check("records left out", no_gap),
    ]


def end_checks(position: int | None, end: int | None) -> list[Check]:
    """What the end of an iterator at ``position`` promises: nothing was left at some moment.

    ``position`` None is the log start.
    """

    def nothing_left(state: State) -> bool:
        start = state.start if position is None else position
        return not state.rows(start, state.end if end is None else end)

    return [Check("records left out", nothing_left)]
