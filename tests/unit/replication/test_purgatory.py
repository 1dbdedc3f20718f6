"""Waiting operations (R-88 … R-90): what Kafka's DelayedOperationTest says, and more."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from typing import Any

import pytest

from replication.replica_manager.purgatory import DelayedOperation, Purgatory
from tests.support.waiting import Operation, in_another_thread, race

KEY, OTHER = ("orders", 0), ("orders", 1)
COMPLETE, EXPIRED = ["complete"], ["complete", "expiration"]


def make(**kwargs: Any) -> tuple[Purgatory[Any], type[Operation]]:
    return Purgatory("Produce", **kwargs), Operation


def counts(purgatory: Purgatory[Any]) -> tuple[int, int]:
    return purgatory.watched, purgatory.delayed


def test_an_operation_that_can_complete_never_waits() -> None:
    purgatory, operation = make()
    op = operation()
    op.ready = True
    assert purgatory.try_complete_else_watch(op, [KEY])
    assert (op.events, counts(purgatory)) == (COMPLETE, (0, 0))


def test_completion_happens_once_and_cancels_the_deadline() -> None:
    """R-88"""
    purgatory, operation = make()
    op = operation(30)
    assert not purgatory.try_complete_else_watch(op, [KEY])
    assert (op.completed, counts(purgatory)) == (False, (1, 1))
    assert op.force_complete()
    assert not op.force_complete()
    assert op.completed
    assert purgatory.delayed == 0
    assert purgatory.check_and_complete(KEY) == 0
    assert purgatory.advance(1000) == 0
    assert (op.events, purgatory.watched) == (COMPLETE, 0)


def test_on_expiry_it_completes_with_what_it_has_and_is_counted() -> None:
    """R-88"""
    purgatory, operation = make()
    op = operation(30)
    purgatory.try_complete_else_watch(op, [KEY])
    assert purgatory.advance(29) == 0
    assert purgatory.advance(30) == 1
    assert (op.events, op.completed) == (EXPIRED, True)
    assert not op.force_complete()
    assert purgatory.check_and_complete(KEY) == 0
    assert op.events == EXPIRED


@pytest.mark.parametrize("delay", [0, -1])
def test_without_a_delay_it_expires_at_once(delay: int) -> None:
    purgatory, operation = make()
    op = operation(delay)
    assert purgatory.try_complete_else_watch(op, [KEY])
    assert (op.events, counts(purgatory)) == (EXPIRED, (0, 0))


def test_an_event_between_check_and_watch_is_not_lost() -> None:
    """R-89: the second look sees what the check of the key could not deliver."""
    purgatory, operation = make()
    op = operation()

    def event() -> None:
        op.ready = True
        assert purgatory.check_and_complete(KEY) == 0  # nobody watches yet

    op.looks = iter([event])
    assert purgatory.try_complete_else_watch(op, [KEY])
    assert (op.events, purgatory.delayed) == (COMPLETE, 0)


def test_an_event_during_the_second_look_is_not_lost() -> None:
    """R-89: the check finds the operation being looked at, waits for nobody, and leaves word."""
    purgatory, operation = make()
    op = operation()

    def event() -> None:
        op.ready = True
        assert purgatory.check_and_complete(KEY) == 0

    op.looks = iter([lambda: None, lambda: in_another_thread(event)])
    assert purgatory.try_complete_else_watch(op, [KEY])
    assert (op.events, purgatory.delayed) == (COMPLETE, 0)


def test_an_event_during_a_look_of_another_check_is_not_lost() -> None:
    purgatory, operation = make()
    op = operation()
    purgatory.try_complete_else_watch(op, [KEY, OTHER])

    def event() -> None:
        op.ready = True
        assert purgatory.check_and_complete(OTHER) == 0

    op.looks = iter([lambda: in_another_thread(event)])
    assert purgatory.check_and_complete(KEY) == 1
    assert op.events == COMPLETE


def test_a_deadline_during_a_look_is_answered_right_after_it() -> None:
    """R-88: the answer never runs beside a look."""
    purgatory, operation = make()
    op = operation(30)
    purgatory.try_complete_else_watch(op, [KEY])

    def deadline() -> None:
        assert purgatory.advance(30) == 1
        assert (op.completed, op.events) == (True, [])

    op.looks = iter([lambda: in_another_thread(deadline)])
    assert purgatory.check_and_complete(KEY) == 1
    assert op.events == EXPIRED


def test_completion_during_a_look_has_one_winner() -> None:
    purgatory, operation = make()
    op = operation()
    purgatory.try_complete_else_watch(op, [KEY])
    won: list[bool] = []

    def meanwhile() -> None:
        op.ready = True  # the look itself has read False
        won.append(op.force_complete())

    op.looks = iter([lambda: in_another_thread(meanwhile)])
    purgatory.check_and_complete(KEY)
    assert (won, op.force_complete(), op.events) == ([True], False, COMPLETE)


def test_an_operation_watches_all_its_keys() -> None:
    purgatory, operation = make()
    op = operation()
    purgatory.try_complete_else_watch(op, [KEY, OTHER, "any hashable"])
    assert purgatory.check_and_complete(KEY) == 0, "it is not ready, and goes on watching"
    assert counts(purgatory) == (3, 1)
    op.ready = True
    assert purgatory.check_and_complete("any hashable") == 1
    assert purgatory.watched == 2, "the other entries are swept later"
    assert purgatory.check_and_complete(KEY) == 0
    assert purgatory.check_and_complete(OTHER) == 0
    assert counts(purgatory) == (0, 0)


def test_a_check_tries_in_the_order_of_registration() -> None:
    purgatory, operation = make()
    order: list[int] = []
    ops = [operation(answer=lambda n=n: order.append(n)) for n in range(50)]
    for op in ops:
        purgatory.try_complete_else_watch(op, [KEY])
        op.ready = True
    assert purgatory.check_and_complete(KEY) == 50
    assert order == list(range(50))


def test_no_keys_is_a_mistake() -> None:
    purgatory, operation = make()
    with pytest.raises(ValueError, match="no keys"):
        purgatory.try_complete_else_watch(operation(), [])


def test_one_that_is_completed_already_is_not_answered_again() -> None:
    purgatory, operation = make()
    op = operation()
    op.force_complete()
    assert purgatory.try_complete_else_watch(op, [KEY])
    assert (op.events, counts(purgatory)) == (COMPLETE, (0, 0))


def test_two_threads_registering_one_operation_is_a_mistake() -> None:
    purgatory, operation = make()
    op = operation()

    def again() -> None:
        with pytest.raises(RuntimeError, match="another thread"):
            purgatory.try_complete_else_watch(op, [OTHER])

    op.looks = iter([lambda: in_another_thread(again)])
    assert not purgatory.try_complete_else_watch(op, [KEY])
    assert counts(purgatory) == (1, 1)


def test_the_delay_counts_from_the_time_of_registration() -> None:
    """Not from the last advance, which may be 200 ms ago."""
    now = [150]
    purgatory, operation = make(now_ms=lambda: now[0])
    op = operation(30)
    purgatory.try_complete_else_watch(op, [KEY])
    assert purgatory.advance(179) == 0
    assert purgatory.advance(180) == 1


# -- answers that come back ------------------------------------------------------------------------


def test_an_answer_may_register_and_check_the_same_key() -> None:
    purgatory, operation = make()
    successor = operation()

    def answer() -> None:
        purgatory.try_complete_else_watch(successor, [KEY])
        successor.ready = True
        assert purgatory.check_and_complete(KEY) == 0  # put off

    op = operation(answer=answer)
    purgatory.try_complete_else_watch(op, [KEY])
    op.ready = True
    assert purgatory.check_and_complete(KEY) == 2
    assert (successor.events, counts(purgatory)) == (COMPLETE, (0, 0))


@pytest.mark.parametrize("by_deadline", [False, True])
def test_a_long_chain_of_answers_stays_flat(by_deadline: bool) -> None:
    """Each answer makes the next one possible and checks for it: no recursion."""
    purgatory, operation = make()
    ops: list[Any] = []

    def answer(number: int) -> None:
        if number + 1 < len(ops):
            ops[number + 1].ready = True
            purgatory.check_and_complete(("t", number + 1))

    for n in range(3000):
        ops.append(operation(50 if n == 0 else 10_000, answer=lambda n=n: answer(n)))
        purgatory.try_complete_else_watch(ops[n], [("t", n)])
    if by_deadline:
        purgatory.advance(50)
    else:
        ops[0].ready = True
        assert purgatory.check_and_complete(("t", 0)) == 3000
    assert all(op.completed for op in ops)
    assert counts(purgatory) == (0, 0)


def test_an_answer_runs_without_locks() -> None:
    """It waits for another thread that uses the same key and operation: no deadlock."""
    purgatory, operation = make()

    def answer() -> None:
        in_another_thread(lambda: purgatory.check_and_complete(KEY))
        in_another_thread(lambda: purgatory.try_complete_else_watch(operation(), [KEY]))
        in_another_thread(op.force_complete)
        in_another_thread(lambda: purgatory.deadlines.cancel(op))

    op = operation(answer=answer)
    purgatory.try_complete_else_watch(op, [KEY])
    op.ready = True
    assert purgatory.check_and_complete(KEY) == 1
    assert counts(purgatory) == (1, 1)


# -- failures --------------------------------------------------------------------------------------


def fail() -> None:
    raise KeyError("broken")


def test_a_failing_operation_keeps_no_other_from_completing() -> None:
    purgatory, operation = make()
    ops = [operation(answer=fail), operation(), operation(), operation()]
    ops[2].looks = iter([lambda: None, lambda: None, fail])  # fails in try_complete
    for op in ops:
        purgatory.try_complete_else_watch(op, [KEY])
        op.ready = True
    with pytest.raises(ExceptionGroup) as caught:
        purgatory.check_and_complete(KEY)
    assert len(caught.value.exceptions) == 2
    assert [op.events for op in ops] == [COMPLETE, COMPLETE, [], COMPLETE]
    assert purgatory.check_and_complete(KEY) == 1, "one whose look failed is still open"
    assert counts(purgatory) == (0, 0)


def test_a_failing_deadline_keeps_no_other_from_expiring() -> None:
    purgatory, operation = make(purge_interval=1)
    ops = [operation(10, answer=fail), operation(10), operation(10)]
    for op in ops:
        purgatory.try_complete_else_watch(op, [KEY])
    with pytest.raises(KeyError, match="broken"):
        purgatory.advance(10)
    assert [op.events for op in ops] == [COMPLETE, EXPIRED, EXPIRED]
    assert purgatory.watched == 0


@pytest.mark.parametrize("failing_look", [0, 1])
def test_a_registration_whose_look_fails_is_forgotten(failing_look: int) -> None:
    purgatory, operation = make()
    op = operation()
    op.looks = iter([*[lambda: None] * failing_look, fail])
    with pytest.raises(KeyError, match="broken"):
        purgatory.try_complete_else_watch(op, [KEY])
    op.ready = True
    assert purgatory.check_and_complete(KEY) == 0
    assert purgatory.advance(10**6) == 0
    assert (op.events, counts(purgatory)) == ([], (0, 0))


# -- sweeping, cancelling, closing -----------------------------------------------------------------


def test_completed_entries_are_swept_when_more_than_the_interval() -> None:
    """R-90"""
    purgatory, operation = make(purge_interval=10)
    for _ in range(10):
        op = operation()
        purgatory.try_complete_else_watch(op, [KEY, OTHER])
        op.force_complete()
    purgatory.advance(1)
    assert purgatory.watched == 20
    waiting = operation()
    purgatory.try_complete_else_watch(waiting, [OTHER])
    last = operation()
    purgatory.try_complete_else_watch(last, [KEY])
    last.force_complete()
    purgatory.advance(2)
    assert counts(purgatory) == (1, 1)
    waiting.ready = True
    assert purgatory.check_and_complete(OTHER) == 1


def test_sweeps_are_paid_for_by_completions() -> None:
    """With many waiting, a sweep waits until as many have been completed."""
    purgatory, operation = make(purge_interval=1)
    for _ in range(100):
        purgatory.try_complete_else_watch(operation(), [KEY])
    for completed in range(1, 102):
        op = operation(1)
        purgatory.try_complete_else_watch(op, [OTHER])
        op.force_complete()
        purgatory.advance(completed)
        assert purgatory.watched == (100 + completed if completed <= 100 else 100)


def test_shutdown_hands_back_what_is_open_and_lets_nobody_wait() -> None:
    purgatory, operation = make()
    ops = [operation(10) for _ in range(3)]
    for op in ops:
        purgatory.try_complete_else_watch(op, [KEY, OTHER])
    ops[1].force_complete()
    assert purgatory.shutdown() == [ops[0], ops[2]]
    assert counts(purgatory) == (0, 0)
    assert purgatory.advance(100) == 0
    assert [op.events for op in ops] == [[], COMPLETE, []]
    assert ops[0].force_complete(), "the owner may still answer it"
    late = operation()
    assert purgatory.try_complete_else_watch(late, [KEY])
    assert (late.events, purgatory.delayed) == (EXPIRED, 0)
    assert purgatory.shutdown() == []


def test_a_dropped_purgatory_is_collected_with_what_waits() -> None:
    """A broker that is thrown away (a simulated crash) closes nothing."""
    purgatory, operation = make()
    op = operation(answer=purgatory.purge)  # a cycle
    purgatory.try_complete_else_watch(op, [KEY])
    alive = [weakref.ref(op), weakref.ref(purgatory)]
    del op, purgatory
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


# -- threads ---------------------------------------------------------------------------------------


class Offset:
    """What operations wait for: changes, and is read, under its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value = 0

    def reached(self, required: int) -> bool:
        with self.lock:
            return self.value >= required

    def raise_by(self, count: int) -> None:
        with self.lock:
            self.value += count


@pytest.mark.slow
def test_no_completion_is_lost_or_doubled_under_threads() -> None:
    """R-88, R-89: registrations, events, deadlines and forced completions race; each operation is
    answered once, and after the last event none is left whose offset was reached."""
    purgatory: Purgatory[Any] = Purgatory("Produce", purge_interval=50)
    offsets = [Offset() for _ in range(4)]
    answered: list[int] = []
    expired: list[int] = []
    total = 3000

    class Wait(DelayedOperation):
        def __init__(self, number: int, delay_ms: int) -> None:
            super().__init__(delay_ms)
            self.number = number

        def try_complete(self) -> bool:
            reached = offsets[self.number % 4].reached(self.number)
            return self.force_complete() if reached else False

        def on_complete(self) -> None:
            answered.append(self.number)

        def on_expiration(self) -> None:
            expired.append(self.number)

    ops = [Wait(n, 5 if n % 5 == 0 else 10**6) for n in range(total)]

    def register(part: int) -> None:
        for op in ops[part::2]:
            purgatory.try_complete_else_watch(op, [op.number % 4, ("also", op.number % 7)])

    def raise_offsets(part: int) -> None:
        draw = random.Random(part)
        while not all(offset.reached(total) for offset in offsets):
            key = draw.randrange(4)
            offsets[key].raise_by(draw.randrange(1, 9))
            purgatory.check_and_complete(key)

    def force() -> None:
        for op in ops[::11]:
            op.force_complete()

    def advance() -> None:
        for now in range(500):
            purgatory.advance(now)

    race(
        lambda: register(0),
        lambda: register(1),
        lambda: raise_offsets(0),
        lambda: raise_offsets(1),
        advance,
        force,
    )
    # No further event: whoever is still open has been forgotten.
    assert sorted(answered) == list(range(total))
    assert len(set(expired)) == len(expired)
    purgatory.purge()
    assert counts(purgatory) == (0, 0)


def test_nobody_waits_beyond_a_shutdown_under_threads() -> None:
    for _ in range(20):
        purgatory, operation = make()
        ops = [operation(10**6) for _ in range(100)]
        open_ones: list[Any] = []

        def register(part: int, ops: Any = ops, purgatory: Any = purgatory) -> None:
            for number, op in list(enumerate(ops))[part::2]:
                purgatory.try_complete_else_watch(op, [number % 3])

        def stop(purgatory: Any = purgatory, open_ones: Any = open_ones) -> None:
            open_ones.extend(purgatory.shutdown())

        race(lambda r=register: r(0), lambda r=register: r(1), stop)
        assert purgatory.delayed == 0
        for op in open_ones:
            op.force_complete()
        assert all(op.events in (COMPLETE, EXPIRED) for op in ops)
