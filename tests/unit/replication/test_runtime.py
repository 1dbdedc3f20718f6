"""``ThreadRuntime``: order, timers, and an end that leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from replication.runtime import ThreadRuntime


@pytest.fixture
def runtime() -> Iterator[ThreadRuntime]:
    runtime = ThreadRuntime("test")
    yield runtime
    runtime.close()


def test_an_actor_keeps_the_order(runtime: ThreadRuntime) -> None:
    actor, seen, done = runtime.actor("one"), [], threading.Event()
    for number in range(1000):
        actor.post(lambda number=number: seen.append(number))  # type: ignore[misc]
    actor.post(done.set)
    assert done.wait(10)
    assert seen == list(range(1000))


def test_a_failing_task_does_not_end_the_actor(runtime: ThreadRuntime) -> None:
    actor, done = runtime.actor("one"), threading.Event()
    actor.post(lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    actor.post(done.set)
    assert done.wait(10)


def test_a_closed_actor_runs_nothing_more(runtime: ThreadRuntime) -> None:
    actor, seen, begun, go_on = runtime.actor("one"), [], threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        go_on.wait()

    actor.post(busy)
    actor.post(lambda: seen.append("late"))
    assert begun.wait(10)
    actor.close()
    go_on.set()
    actor.close(wait=True)
    actor.post(lambda: seen.append("later"))
    assert seen == []


def test_timers_run_in_the_order_of_their_time(runtime: ThreadRuntime) -> None:
    seen, done = [], threading.Event()
    runtime.call_later(30, done.set)
    runtime.call_later(20, lambda: seen.append("second"))
    runtime.call_later(5, lambda: seen.append("first"))
    runtime.call_later(10, lambda: seen.append("never")).cancel()
    assert done.wait(10)
    assert seen == ["first", "second"]


def test_every_repeats_until_it_is_cancelled(runtime: ThreadRuntime) -> None:
    count, enough = [], threading.Event()

    def tick() -> None:
        count.append(1)
        if len(count) == 3:
            timer.cancel()
            enough.set()

    timer = runtime.every(1, tick)
    assert enough.wait(10)
    after, settled = len(count), threading.Event()
    runtime.call_later(20, settled.set)
    assert settled.wait(10)
    assert len(count) == after == 3


def test_close_ends_all_threads() -> None:
    before = threading.active_count()
    runtime = ThreadRuntime("test")
    runtime.actor("one")
    runtime.every(1, lambda: None)
    assert threading.active_count() == before + 2
    runtime.close()
    assert threading.active_count() == before
