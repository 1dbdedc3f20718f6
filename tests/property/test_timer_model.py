"""The timing wheels against a plain sorted list (R-91)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import KERNELS, each_kernel, task_type

# Around the ends of the wheels of 1, 20, 400 and 8,000 ms, and anywhere.
delays = st.one_of(
    st.integers(-5, 45),
    st.integers(380, 420),
    st.integers(7_980, 8_020),
    st.integers(0, 200_000),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), delays, st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 60)),
        st.tuples(st.just("advance"), st.one_of(st.integers(0, 50), st.integers(0, 20_000))),
        st.tuples(st.just("jump")),
    ),
    max_size=60,
)


def play(kernel: ModuleType, start_ms: int, tick_ms: int, size: int, script: Any) -> list[Any]:
    """Do the steps, check each against the model; returns all that could be observed."""
    timer = kernel.Timer(start_ms, tick_ms, size)
    ran: list[int] = []
    tasks: list[Any] = []
    waiting: dict[int, int] = {}  # number of the task -> expiry
    now = start_ms
    trace: list[Any] = []
    for step, *arguments in script:
        if step == "add":
            delay, ahead = arguments  # the caller's clock is ahead of the last advance
            tasks.append(task_type(kernel)(ran, len(tasks)))
            timer.add(tasks[-1], delay, now + ahead)
            waiting[len(tasks) - 1] = now + ahead + delay
        elif step == "cancel" and arguments[0] < len(tasks):
            was_waiting = waiting.pop(arguments[0], None) is not None
            assert tasks[arguments[0]].cancel() == was_waiting
        elif step in ("advance", "jump"):
            deadline = timer.next_deadline_ms()
            assert (deadline is None) == (not waiting)
            if step == "advance":
                now += arguments[0]
            elif deadline is not None:
                assert deadline <= max(now, *waiting.values())
                now = max(now, deadline)
            before = len(ran)
            count = timer.advance(now)
            fired = ran[before:]
            assert count == len(fired) == len(set(fired))
            # All that is due, nothing that is a tick or more away, in order of ticks.
            due = {n for n, expiry in waiting.items() if expiry <= now}
            early = {n for n, expiry in waiting.items() if expiry // tick_ms <= now // tick_ms}
            assert due <= set(fired) <= early
            ticks = [max(waiting[n], start_ms) // tick_ms for n in fired]
            late = [tick for tick in ticks if tick > (trace[-1][0] if trace else 0) // tick_ms]
            assert late == sorted(late)
            for number in fired:
                del waiting[number]
            trace.append((now, fired, deadline))
        assert len(timer) == len(waiting)
        assert all(task.waiting == (n in waiting) for n, task in enumerate(tasks))
    return trace


@each_kernel
@given(start_ms=st.integers(0, 10**13), script=steps)
def test_every_task_runs_once_at_its_ms(kernel: ModuleType, start_ms: int, script: Any) -> None:
    play(kernel, start_ms, 1, 20, script)


@given(
    start_ms=st.integers(0, 10**6),
    tick_ms=st.integers(1, 50),
    size=st.integers(2, 30),
    script=steps,
)
def test_both_kernels_do_the_same_in_the_same_order(
    start_ms: int, tick_ms: int, size: int, script: Any
) -> None:
    """Deadlines, and the order of tasks in a tick, are part of what a seed repeats."""
    first, second = (play(kernel, start_ms, tick_ms, size, script) for kernel in KERNELS)
    assert first == second
