"""Deadlines against a plain sorted list (R-91)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from replication.replica_manager.purgatory import Purgatory
from tests.support.waiting import Operation

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(-5, 45) | st.integers(0, 200_000)),
        st.tuples(st.just("cancel"), st.integers(0, 60)),
        st.tuples(st.just("advance"), st.integers(0, 50) | st.integers(0, 20_000)),
        st.tuples(st.just("jump"), st.none()),
    ),
    max_size=60,
)


@given(start_ms=st.integers(0, 10**13), script=steps)
def test_every_one_expires_once_at_its_ms(start_ms: int, script: Any) -> None:
    now = [start_ms]
    purgatory: Purgatory[Operation] = Purgatory("Produce", now_ms=lambda: now[0])
    timer, ran = purgatory.deadlines, []
    operations: list[Operation] = []
    waiting: dict[int, int] = {}  # number of the operation -> expiry
    for step, argument in script:
        if step == "add":
            number = len(operations)
            operations.append(Operation(1, lambda number=number: ran.append(number)))
            timer.add(operations[-1], argument, now[0])
            waiting[number] = max(now[0] + argument, now[0])
        elif step == "cancel" and argument < len(operations):
            was_waiting = waiting.pop(argument, None) is not None
            assert timer.cancel(operations[argument]) == was_waiting
        elif step in ("advance", "jump"):
            deadline = timer.next_deadline_ms()
            assert deadline == min(waiting.values(), default=None)
            now[0] = max(now[0], deadline or 0) if step == "jump" else now[0] + argument
            due = sorted((expiry, n) for n, expiry in waiting.items() if expiry <= now[0])
            ran.clear()
            assert purgatory.advance(now[0]) == len(due)
            assert ran == [number for _, number in due]
            for number in ran:
                del waiting[number]
        assert len(timer) == len(waiting)
        assert all((o.expiry_ms is not None) == (n in waiting) for n, o in enumerate(operations))
