"""``ThreadRuntime``: order, timers, and an end that leaves nothing behind."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator

import pytest

from replication.common import runtime as runtime_module
from replication.common.runtime import SPARE_TIMERS, TURN_S, ThreadRuntime, in_turn
from tests.support.leftovers import nothing_left
from tests.support.until import patience, until


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
    assert done.wait(patience())
    assert seen == list(range(1000))


def test_a_failing_task_does_not_end_the_actor(runtime: ThreadRuntime) -> None:
    actor, done = runtime.actor("one"), threading.Event()
    actor.post(lambda: 1 // 0)  # type: ignore[arg-type]
    actor.post(done.set)
    assert done.wait(patience())


def test_a_closed_actor_runs_nothing_more(runtime: ThreadRuntime) -> None:
    actor, seen, begun, go_on = runtime.actor("one"), [], threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        go_on.wait()

    actor.post(busy)
    actor.post(lambda: seen.append("late"))
    assert begun.wait(patience())
    actor.close()
    go_on.set()
    actor.close(wait=True)
    actor.post(lambda: seen.append("later"))
    assert seen == []


class Gate:
    """A task that says when it has begun, and ends when told so."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.thread: int | None = None

    def __call__(self) -> None:
        self.thread = threading.get_ident()
        self.begun.set()
        assert self.go_on.wait(patience())


def test_an_idle_actor_lets_the_caller_run_what_it_offers(runtime: ThreadRuntime) -> None:
    actor, seen = runtime.actor("one"), []
    actor.offer(lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]
    actor.offer(lambda: 1 // 0)  # type: ignore[arg-type]
    actor.offer(lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()] * 2


def test_a_busy_actor_runs_what_is_offered_later_and_in_order(runtime: ThreadRuntime) -> None:
    actor, seen, gate, done = runtime.actor("one"), [], Gate(), threading.Event()
    actor.post(gate)
    assert gate.begun.wait(patience())
    actor.offer(lambda: seen.append("offered"))
    actor.post(lambda: seen.append("posted"))
    actor.offer(lambda: seen.append("offered again"))
    actor.post(done.set)
    assert seen == []
    gate.go_on.set()
    assert done.wait(patience())
    assert seen == ["offered", "posted", "offered again"]


def test_nothing_runs_beside_a_task_of_a_guest(runtime: ThreadRuntime) -> None:
    actor, gate, after = runtime.actor("one"), Gate(), threading.Event()
    guest = threading.Thread(target=lambda: actor.offer(gate))
    guest.start()
    assert gate.begun.wait(patience())
    assert gate.thread == guest.ident
    actor.post(after.set)
    actor.offer(lambda: None)  # does not wait for the guest
    assert not after.wait(0.05)
    gate.go_on.set()
    assert after.wait(patience())
    guest.join(patience())


def test_a_close_waits_for_the_task_of_a_guest(runtime: ThreadRuntime) -> None:
    actor, gate = runtime.actor("one"), Gate()
    guest = threading.Thread(target=lambda: actor.offer(gate))
    guest.start()
    assert gate.begun.wait(patience())
    closer = threading.Thread(target=lambda: actor.close(wait=True))
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    gate.go_on.set()
    closer.join(patience())
    guest.join(patience())
    assert not closer.is_alive()
    seen: list[str] = []
    actor.offer(lambda: seen.append("late"))
    assert seen == []


def test_a_task_of_a_guest_may_close_its_actor(runtime: ThreadRuntime) -> None:
    actor = runtime.actor("one")
    actor.offer(lambda: actor.close(wait=True))
    actor.close(wait=True)


def test_a_task_of_a_guest_may_close_the_runtime() -> None:
    runtime = ThreadRuntime("test")
    actor = runtime.actor("one")

    def task() -> None:
        actor.post(lambda: None)
        runtime.close()

    actor.offer(task)


def test_the_end_of_a_runtime_waits_for_a_guest() -> None:
    runtime, gate = ThreadRuntime("test"), Gate()
    actor = runtime.actor("one")
    guest = threading.Thread(target=lambda: actor.offer(gate))
    guest.start()
    assert gate.begun.wait(patience())
    closer = threading.Thread(target=runtime.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    gate.go_on.set()
    closer.join(patience())
    guest.join(patience())
    assert not closer.is_alive()


def test_many_threads_offer_and_post(runtime: ThreadRuntime) -> None:
    actor, inside, seen = runtime.actor("one"), [0], []

    def task(name: int, number: int) -> None:
        inside[0] += 1
        assert inside[0] == 1
        seen.append((name, number))
        inside[0] -= 1

    def work(name: int) -> None:
        for number in range(500):
            (actor.post if number % 3 else actor.offer)(lambda n=number: task(name, n))  # type: ignore[misc]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience())
    done = threading.Event()
    actor.post(done.set)
    assert done.wait(patience())
    for name in range(4):
        assert [number for who, number in seen if who == name] == list(range(500))


def test_timers_run_in_the_order_of_their_time(runtime: ThreadRuntime) -> None:
    seen, done = [], threading.Event()
    runtime.call_later(30, done.set)
    runtime.call_later(20, lambda: seen.append("second"))
    runtime.call_later(5, lambda: seen.append("first"))
    runtime.call_later(10, lambda: seen.append("never")).cancel()
    assert done.wait(patience())
    assert seen == ["first", "second"]


def test_every_repeats_until_it_is_cancelled(runtime: ThreadRuntime) -> None:
    count, enough = [], threading.Event()

    def tick() -> None:
        count.append(1)
        if len(count) == 3:
            timer.cancel()
            enough.set()

    timer = runtime.every(1, tick)
    assert enough.wait(patience())
    after, settled = len(count), threading.Event()
    runtime.call_later(20, settled.set)
    assert settled.wait(patience())
    assert len(count) == after == 3


def test_cancelled_timers_are_let_go(runtime: ThreadRuntime) -> None:
    """However many are cancelled, and long before they would be due: with what they refer to, and
    without a loss of those that are to run."""
    half_an_hour_ms = 1_800_000
    kept = [runtime.call_later(half_an_hour_ms, Gate()) for _ in range(10)]
    tasks = []
    for number in range(5000):
        task = Gate()
        tasks.append(weakref.ref(task))
        timer = runtime.call_later(half_an_hour_ms + number % 7, task)
        del task
        timer.cancel()
        timer.cancel()
        assert len(runtime._heap) <= 2 * (SPARE_TIMERS + len(kept))
    assert not any(task() for task in tasks)
    done = threading.Event()
    runtime.call_later(1, done.set)
    assert done.wait(patience())
    assert {item[2] for item in runtime._heap} >= {*kept}


def test_a_timer_that_ran_may_be_cancelled_once_more(runtime: ThreadRuntime) -> None:
    """It is no longer there, so nothing is counted for it."""
    done = threading.Event()
    timers = [runtime.call_later(0, done.set) for _ in range(3 * SPARE_TIMERS)]
    last = threading.Event()
    runtime.call_later(1, last.set)
    assert last.wait(patience())
    for timer in timers:
        timer.cancel()
    assert runtime._cancelled == 0


def test_timers_are_set_and_cancelled_by_many_threads(runtime: ThreadRuntime) -> None:
    seen: Counter[int] = Counter()

    def work(number: int) -> None:
        for at in range(300):
            runtime.call_later(1_000_000, lambda: None).cancel()
            if at % 3 == 0:
                runtime.call_later(0, lambda: seen.update([number]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: seen == dict.fromkeys(range(6), 100), "all that were not cancelled ran")
    assert len(runtime._heap) <= 2 * SPARE_TIMERS


def test_the_last_that_run_leave_no_heap_of_cancelled_ones(runtime: ThreadRuntime) -> None:
    """Nobody may cancel anything after them."""
    gate, ran = Gate(), Counter[str]()
    runtime.call_later(0, gate)
    assert gate.begun.wait(patience())
    for _ in range(10 * SPARE_TIMERS):
        runtime.call_later(0, lambda: ran.update(["run"]))
    for _ in range(4 * SPARE_TIMERS):
        runtime.call_later(1_000_000, lambda: None).cancel()
    gate.go_on.set()
    until(lambda: ran["run"] == 10 * SPARE_TIMERS, "all that were not cancelled ran")
    assert len(runtime._heap) <= SPARE_TIMERS


@pytest.mark.parametrize("has_turn", [True, False])
def test_a_turn_is_awaited_for_a_while_and_given_back(
    has_turn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    class Turn:
        def acquire(self, *, timeout: float) -> bool:
            seen.append(timeout)
            return has_turn

        def release(self) -> None:
            seen.append("released")

    monkeypatch.setattr(runtime_module, "_TURN", Turn())
    in_turn(lambda: seen.append("ran"))
    with pytest.raises(ZeroDivisionError):
        in_turn(lambda: 1 // 0)  # type: ignore[arg-type]
    back = ["released"] if has_turn else []
    assert seen == [TURN_S, "ran", *back, TURN_S, *back]


def test_a_task_in_its_turn_keeps_others_from_theirs() -> None:
    gate, order = Gate(), list[str]()

    def first() -> None:
        gate()
        order.append("first")

    threads = [
        threading.Thread(target=in_turn, args=[each])
        for each in (first, lambda: order.append("second"))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime_module, "TURN_S", patience())
        threads[0].start()
        assert gate.begun.wait(patience())
        threads[1].start()
        gate.go_on.set()
        for thread in threads:
            thread.join(patience())
    assert order == ["first", "second"]


def test_close_ends_all_threads() -> None:
    with nothing_left() as threads:
        runtime = ThreadRuntime("test")
        runtime.actor("one")
        runtime.every(1, lambda: None)
        assert len(threads) == 2
        runtime.close()


def test_who_asks_another_system_is_not_waited_for_and_does_what_was_queued() -> None:
    runtime, gate, farewell = ThreadRuntime("test"), Gate(), threading.Event()
    actor = runtime.actor("one", may_hang=True)
    actor.post(gate)
    actor.post(farewell.set)
    assert gate.begun.wait(patience())
    runtime.close()
    actor.post(lambda: pytest.fail("posted after the end"))
    assert not farewell.is_set()
    gate.go_on.set()
    assert farewell.wait(patience())
    actor.close(wait=True)
