"""The timing wheels (R-91), native and plain: what Kafka's TimerTest, TimingWheelTest and
TimerTaskListTest say, and more."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from types import ModuleType
from typing import Any

import pytest

from tests.support.cases import for_each
from tests.support.waiting import each_kernel, race, task_type

pytestmark = each_kernel


def fire_all(timer: Any, limit: int = 10_000) -> list[int]:
    """Advance from deadline to deadline until nothing waits; returns the deadlines."""
    deadlines = []
    while (deadline := timer.next_deadline_ms()) is not None:
        deadlines.append(deadline)
        timer.advance(deadline)
        assert len(deadlines) < limit
    return deadlines


@for_each("delay", [1, 19, 20, 21, 399, 400, 401, 7_999, 8_000, 30_000, 10**7])
def test_a_task_runs_at_its_ms_and_not_before(kernel: ModuleType, delay: int) -> None:
    """R-91: with a tick of 1 ms, to the ms, whatever level it was on."""
    ran: list[str] = []
    timer = kernel.Timer(12_345)
    timer.add(task_type(kernel)(ran, "a"), delay)
    assert timer.advance(12_345 + delay - 1) == 0
    assert len(timer) == 1
    assert timer.advance(12_345 + delay) == 1
    assert (ran, len(timer), timer.next_deadline_ms()) == (["a"], 0, None)


@pytest.mark.parametrize("delay", [0, -1, -(10**9)])
def test_what_is_due_waits_for_the_next_advance_whatever_its_time(
    kernel: ModuleType, delay: int
) -> None:
    ran: list[str] = []
    timer = kernel.Timer(100)
    task = task_type(kernel)(ran, "a")
    timer.add(task, delay)
    assert not ran
    assert task.waiting
    assert timer.next_deadline_ms() == 100
    assert timer.advance(100) == 1
    assert ran == ["a"]


def test_a_bucket_of_each_level_falls_due_on_the_way_down(kernel: ModuleType) -> None:
    """R-91: 30 s is on the level of 8 s first, then 400 ms, 20 ms and 1 ms."""
    timer = kernel.Timer(0)
    timer.add(task_type(kernel)([], "a"), 30_399)
    assert fire_all(timer) == [24_000, 30_000, 30_380, 30_399]


def test_the_delay_counts_from_the_time_given_else_from_the_last_advance(
    kernel: ModuleType,
) -> None:
    timer = kernel.Timer(1000)
    a, b, c = (task_type(kernel)([], name) for name in "abc")
    timer.add(a, 50)
    timer.add(b, 50, now_ms=1_030)
    timer.advance(1_040)
    timer.add(c, 50)
    assert (a.expiry_ms, b.expiry_ms, c.expiry_ms) == (1_050, 1_080, 1_090)


def test_time_never_goes_back(kernel: ModuleType) -> None:
    ran: list[str] = []
    timer = kernel.Timer(1000)
    timer.add(task_type(kernel)(ran, "a"), 10)
    assert timer.advance(5) == 0
    assert timer.wheel.current_ms == 1000
    timer.add(task_type(kernel)(ran, "late"), 3, now_ms=900)  # a reading of the clock that is old
    assert timer.advance(1010) == 2
    assert ran == ["late", "a"]


def test_a_coarse_tick_may_run_early_by_less_than_a_tick(kernel: ModuleType) -> None:
    ran: list[str] = []
    timer = kernel.Timer(0, tick_ms=10)
    timer.add(task_type(kernel)(ran, "a"), 25)
    assert timer.advance(19) == 0
    assert timer.wheel.current_ms == 10
    assert timer.advance(20) == 1


def test_one_long_step_runs_all_in_order_of_time(kernel: ModuleType) -> None:
    ran: list[int] = []
    timer = kernel.Timer(0)
    for delay in (500, 3, 20_000, 3, 21, 400):
        timer.add(task_type(kernel)(ran, delay), delay)
    assert timer.advance(10**6) == 6
    assert ran == [3, 3, 21, 400, 500, 20_000]


def test_tasks_of_one_ms_run_in_the_order_of_adding(kernel: ModuleType) -> None:
    ran: list[int] = []
    timer = kernel.Timer(0)
    for number in range(100):
        timer.add(task_type(kernel)(ran, number), 30_000)
    timer.advance(30_000)
    assert ran == list(range(100))


def test_cancel_says_whether_it_was_in_time(kernel: ModuleType) -> None:
    ran: list[str] = []
    timer = kernel.Timer(0)
    task = task_type(kernel)(ran, "a")
    assert not task.cancel()
    timer.add(task, 30_000)
    timer.advance(29_000)  # it has moved to a finer bucket
    assert task.cancel()
    assert not task.cancel()
    assert (len(timer), timer.advance(10**6), ran) == (0, 0, [])
    timer.add(task, 5)
    assert timer.advance(10**6 + 5) == 1
    assert not task.cancel()


def test_a_task_that_waits_already_gets_the_new_deadline(kernel: ModuleType) -> None:
    ran: list[str] = []
    timer = kernel.Timer(0)
    task = task_type(kernel)(ran, "a")
    timer.add(task, 10)
    timer.add(task, 500)
    assert len(timer) == 1
    assert timer.advance(499) == 0
    assert timer.advance(500) == 1
    assert ran == ["a"]


def test_a_task_may_add_itself_and_cancel_others(kernel: ModuleType) -> None:
    ran: list[str] = []
    timer = kernel.Timer(0)
    other = task_type(kernel)(ran, "other")

    def again() -> None:
        if len(ran) < 3:
            timer.add(task, 10)
        other.cancel()

    task = task_type(kernel)(ran, "again", again)
    timer.add(task, 10)
    timer.add(other, 15)
    assert timer.advance(100) == 3
    assert ran == ["again"] * 3


def test_a_failing_task_keeps_no_other_from_running(kernel: ModuleType) -> None:
    ran: list[str] = []

    def fail() -> None:
        raise KeyError("broken")

    timer = kernel.Timer(0)
    for name, then in (("a", fail), ("b", None)):
        timer.add(task_type(kernel)(ran, name, then), 10)
    with pytest.raises(KeyError, match="broken"):
        timer.advance(10)
    assert ran == ["a", "b"]
    for name, then in (("c", fail), ("d", fail), ("e", None)):
        timer.add(task_type(kernel)(ran, name, then), 10)
    with pytest.raises(ExceptionGroup) as caught:
        timer.advance(20)
    assert len(caught.value.exceptions) == 2
    assert ran == ["a", "b", "c", "d", "e"]


def test_what_a_stopped_thread_leaves_is_still_due(kernel: ModuleType) -> None:
    ran: list[str] = []

    def stop() -> None:
        raise KeyboardInterrupt

    timer = kernel.Timer(0)
    for name, then in (("a", stop), ("b", None), ("c", None)):
        timer.add(task_type(kernel)(ran, name, then), 10)
    with pytest.raises(KeyboardInterrupt):
        timer.advance(10)
    assert (ran, len(timer)) == (["a"], 2)
    assert timer.advance(10) == 2
    assert ran == ["a", "b", "c"]


def test_the_next_deadline_passes_over_cancelled_tasks(kernel: ModuleType) -> None:
    timer = kernel.Timer(0)
    soon, late = (task_type(kernel)([], name) for name in "ab")
    timer.add(soon, 5)
    timer.add(late, 15)
    soon.cancel()
    assert timer.next_deadline_ms() == 15
    timer.add(soon, 5)  # into a bucket that has been dropped
    assert timer.next_deadline_ms() == 5
    assert fire_all(timer) == [5, 15]


@for_each("arguments", [(-1,), (0, 0), (0, 1, 1), (0, -5, 20)])
def test_what_makes_no_wheel_is_refused(kernel: ModuleType, arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="buckets"):
        kernel.Timer(*arguments)


def test_cancelled_tasks_are_let_go_of_at_once(kernel: ModuleType) -> None:
    """Not only when their bucket falls due, seconds later."""
    timer = kernel.Timer(0)
    tasks = [task_type(kernel)([], number) for number in range(1000)]
    for task in tasks:
        timer.add(task, 30_000)
    alive = [weakref.ref(task) for task in tasks]
    for task in tasks[:-1]:
        task.cancel()
    del task
    tasks = tasks[-1:]
    gc.collect()
    assert [ref() for ref in alive if ref() is not None] == tasks
    assert len(timer) == 1


def test_the_memory_of_cancelled_tasks_is_given_back(kernel: ModuleType) -> None:
    timer = kernel.Timer(0)
    tasks = [task_type(kernel)([], number) for number in range(20_000)]
    tracemalloc.start()
    try:
        for task in tasks:
            timer.add(task, 30_000)
        waiting, _ = tracemalloc.get_traced_memory()
        for task in tasks[1:]:
            task.cancel()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert waiting > 8 * len(tasks)
    assert after < waiting - 8 * len(tasks) * 9 // 10
    assert len(timer) == 1


def test_a_dropped_timer_is_collected_with_its_tasks(kernel: ModuleType) -> None:
    timer = kernel.Timer(0)
    task = task_type(kernel)([], "a", timer.next_deadline_ms)  # a cycle
    timer.add(task, 30_000)
    alive = weakref.ref(task)
    del task, timer
    gc.collect()
    assert alive() is None


def test_every_task_runs_or_is_cancelled_once_under_threads(kernel: ModuleType) -> None:
    """Two threads add, two cancel, two advance: ``cancel`` and ``run`` share the tasks out."""
    timer = kernel.Timer(0)
    ran: list[int] = []
    cancelled: list[int] = []
    tasks = [task_type(kernel)(ran, number) for number in range(4000)]

    def add(part: int) -> None:
        for number in range(part, len(tasks), 2):
            timer.add(tasks[number], number % 997, now_ms=number)

    def cancel(part: int) -> None:
        for number in [*range(part, len(tasks), 2)] * 4:
            if tasks[number].cancel():
                cancelled.append(number)

    def advance() -> None:
        for now in range(0, 6000, 7):
            timer.advance(now)

    race(
        lambda: add(0),
        lambda: add(1),
        lambda: cancel(0),
        lambda: cancel(1),
        advance,
        advance,
    )
    timer.advance(10_000)
    assert len(timer) == 0
    assert sorted(ran + cancelled) == list(range(len(tasks)))
