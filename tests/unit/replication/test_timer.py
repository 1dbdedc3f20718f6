"""Deadlines (R-91): what TimerTest and TimerTaskListTest say, and more."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from replication.replica_manager.purgatory import Deadlines, Purgatory
from tests.support.cases import for_each
from tests.support.waiting import Operation, race

EXPIRED = ["complete", "expiration"]


def make(start_ms: int = 0) -> Purgatory[Operation]:
    purgatory: Purgatory[Operation] = Purgatory("Produce")
    purgatory.deadlines.now_ms = start_ms
    return purgatory


def add(
    purgatory: Purgatory[Operation], delay_ms: int, then: Any = None, now_ms: int | None = None
) -> Operation:
    operation, timer = Operation(delay_ms, then), purgatory.deadlines
    timer.add(operation, delay_ms, timer.now_ms if now_ms is None else now_ms)
    return operation


def expire_all(purgatory: Purgatory[Operation], limit: int = 10_000) -> list[int]:
    """Advance from deadline to deadline until nothing waits; returns the deadlines."""
    deadlines = []
    while (deadline := purgatory.deadlines.next_deadline_ms()) is not None:
        deadlines.append(deadline)
        purgatory.advance(deadline)
        assert len(deadlines) < limit
    return deadlines


@for_each("delay", [1, 19, 20, 400, 8_000, 30_000, 10**7, 2**62])
def test_one_expires_at_its_ms_and_not_before(delay: int) -> None:
    """R-91"""
    purgatory = make(12_345)
    operation = add(purgatory, delay)
    assert purgatory.advance(12_345 + delay - 1) == 0
    assert (len(purgatory.deadlines), purgatory.deadlines.next_deadline_ms()) == (1, 12_345 + delay)
    assert purgatory.advance(12_345 + delay) == 1
    assert (operation.events, operation.expiry_ms) == (EXPIRED, None)
    assert (len(purgatory.deadlines), purgatory.deadlines.next_deadline_ms()) == (0, None)


@pytest.mark.parametrize("delay", [0, -1, -(10**9)])
def test_what_is_due_waits_for_the_next_advance_whatever_its_time(delay: int) -> None:
    purgatory = make(100)
    operation = add(purgatory, delay)
    assert not operation.events
    assert purgatory.deadlines.next_deadline_ms() == 100
    assert purgatory.advance(5) == 1, "time never goes back"
    assert operation.events == EXPIRED


def test_an_old_reading_of_the_clock_is_earlier() -> None:
    purgatory, ran = make(1000), []
    add(purgatory, 10, lambda: ran.append("a"))
    add(purgatory, 3, lambda: ran.append("late"), now_ms=900)
    assert purgatory.advance(1010) == 2
    assert ran == ["late", "a"]


def test_one_long_step_expires_all_in_order_of_time() -> None:
    purgatory, ran = make(), []
    for delay in (500, 3, 20_000, 3, 21, 400):
        add(purgatory, delay, lambda delay=delay: ran.append(delay))
    assert purgatory.advance(10**6) == 6
    assert ran == [3, 3, 21, 400, 500, 20_000]


def test_those_of_one_ms_expire_in_the_order_of_adding() -> None:
    purgatory, ran = make(), []
    for number in range(100):
        add(purgatory, 30_000, lambda number=number: ran.append(number))
    purgatory.advance(30_000)
    assert ran == list(range(100))


def test_cancel_says_whether_it_was_in_time() -> None:
    purgatory = make()
    operation, cancel = Operation(), purgatory.deadlines.cancel
    assert not cancel(operation)
    purgatory.deadlines.add(operation, 30_000, 0)
    assert cancel(operation)
    assert not cancel(operation)
    assert (len(purgatory.deadlines), purgatory.advance(10**6), operation.events) == (0, 0, [])
    purgatory.deadlines.add(operation, 5, 10**6)
    assert purgatory.advance(10**6 + 5) == 1
    assert not cancel(operation)


def test_an_answer_may_add_another_and_cancel_others() -> None:
    purgatory, added = make(), []
    other = add(purgatory, 15)

    def again() -> None:
        purgatory.deadlines.cancel(other)
        if len(added) < 3:
            added.append(add(purgatory, 10 * (len(added) + 2), again, now_ms=0))

    add(purgatory, 10, again)
    assert purgatory.advance(100) == 4
    assert ([each.events for each in added], other.events) == ([EXPIRED] * 3, [])


def test_what_a_stopped_thread_leaves_is_still_due() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    purgatory = make()
    operations = [add(purgatory, 10, then) for then in (stop, None, None)]
    with pytest.raises(KeyboardInterrupt):
        purgatory.advance(10)
    assert len(purgatory.deadlines) == 2
    assert purgatory.advance(10) == 2
    assert [each.events for each in operations[1:]] == [EXPIRED] * 2


def test_the_next_deadline_passes_over_what_was_cancelled() -> None:
    purgatory = make()
    soon = add(purgatory, 5)
    add(purgatory, 15)
    purgatory.deadlines.cancel(soon)
    assert purgatory.deadlines.next_deadline_ms() == 15
    purgatory.deadlines.add(soon, 5, 0)
    assert expire_all(purgatory) == [5, 15]


def test_what_was_cancelled_is_let_go_of_at_once() -> None:
    """Not only when it falls due, seconds later; and so are its ms."""
    timer: Deadlines[Operation] = Deadlines()
    operations = [Operation() for _ in range(1000)]
    for number, operation in enumerate(operations):
        timer.add(operation, 30_000, number)
    alive = [weakref.ref(operation) for operation in operations]
    for operation in operations[:-1]:
        timer.cancel(operation)
    del operation
    operations = operations[-1:]
    gc.collect()
    assert [ref() for ref in alive if ref() is not None] == operations
    assert len(timer) == 1
    assert len(timer._heap) < 100


def test_every_one_expires_or_is_cancelled_once_under_threads() -> None:
    """Two threads add, two cancel, two advance: they share them out."""
    purgatory = make()
    ran: list[int] = []
    cancelled: list[int] = []
    operations = [Operation(1, lambda number=number: ran.append(number)) for number in range(4000)]

    def add_half(part: int) -> None:
        for number in range(part, len(operations), 2):
            purgatory.deadlines.add(operations[number], number % 997, number)

    def cancel(part: int) -> None:
        for number in [*range(part, len(operations), 2)] * 4:
            if purgatory.deadlines.cancel(operations[number]):
                cancelled.append(number)

    def advance() -> None:
        for now in range(0, 6000, 7):
            purgatory.advance(now)

    race(
        lambda: add_half(0),
        lambda: add_half(1),
        lambda: cancel(0),
        lambda: cancel(1),
        advance,
        advance,
    )
    purgatory.advance(10_000)
    assert len(purgatory.deadlines) == 0
    assert sorted(ran + cancelled) == list(range(len(operations)))
