"""A shielded call has not begun or has ended, whatever a signal handler raises meanwhile."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from logstore.common import shield
from logstore.common.shield import run_shielded, shield_needed, shielded, unshielded
from tests.interrupts.points import Interruption, interrupted, places
from tests.support.until import patience, until


@pytest.fixture
def handler() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Sets what SIGUSR1 does."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda action: signal.signal(signal.SIGUSR1, lambda *_: action()) and None
    signal.signal(signal.SIGUSR1, before)


def raises() -> None:
    raise Interruption


def interrupt() -> None:
    """Of the process, the kernel would choose the thread; the main one might overlook it."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)


def test_it_returns_the_result_and_raises_the_error() -> None:
    assert run_shielded(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_shielded(lambda: 1 // 0)


def test_it_runs_on_another_thread_than_the_main_one() -> None:
    assert run_shielded(threading.get_ident) != threading.get_ident()


def test_another_thread_runs_it_itself() -> None:
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(run_shielded(threading.get_ident) == threading.get_ident())
    )
    thread.start()
    thread.join(patience())
    assert seen == [True]


def test_a_call_in_a_shielded_call_stays_on_its_thread() -> None:
    inner = shielded(threading.get_ident)
    assert run_shielded(lambda: inner() == threading.get_ident())


def test_unshielded_is_for_worlds_that_are_thrown_away() -> None:
    with unshielded():
        assert not shield_needed()
        assert run_shielded(threading.get_ident) == threading.get_ident()
    assert shield_needed()


def test_an_interrupt_waits_for_the_end(handler: Callable[[Callable[[], None]], None]) -> None:
    handler(raises)
    done = []

    def work() -> None:
        interrupt()
        done.append("half")
        done.append("whole")

    with pytest.raises(Interruption):
        run_shielded(work)
    assert done == ["half", "whole"]


def test_a_long_call_is_told(handler: Callable[[Callable[[], None]], None]) -> None:
    handler(raises)
    told = threading.Event()

    def work() -> None:
        interrupt()
        assert told.wait(patience())

    with pytest.raises(Interruption):
        run_shielded(work, told.set)
    assert told.is_set()


def test_a_second_interrupt_ends_the_wait_and_not_the_call(
    handler: Callable[[Callable[[], None]], None],
) -> None:
    handler(raises)
    go_on, done = threading.Event(), []

    def work() -> None:
        interrupt()
        assert go_on.wait(patience())
        done.append(True)

    def second() -> None:
        threading.Timer(0, interrupt).start()

    with pytest.raises(Interruption):
        run_shielded(work, second)
    assert done == []
    go_on.set()
    until(lambda: done == [True], "the call ends")


def end_helpers() -> None:
    while shield._idle:
        shield._idle.pop().woken.release()


@pytest.mark.parametrize("lingers", [False, True])
@pytest.mark.parametrize("error", [Interruption, KeyboardInterrupt, RuntimeError])
def test_it_is_done_once_or_never(
    error: type[BaseException], lingers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a handler raises, ``RuntimeError`` too, which also means that no thread begins."""

    def work() -> None:
        done.append(True)

    def prepare() -> None:
        if lingers:
            run_shielded(int)
            until(lambda: shield._idle, "a thread waits for the next call")
        else:
            end_helpers()

    monkeypatch.setattr(shield, "LINGER_S", patience())
    end_helpers()
    done: list[bool] = []
    prepare()
    for place in range(places(lambda: run_shielded(work))):
        done.clear()
        prepare()
        raised, _ = interrupted(lambda: run_shielded(work), place, error)
        assert len(done) <= 1
        assert raised or (done and error is RuntimeError)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_calls_in_a_row_are_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shield, "LINGER_S", patience())
    end_helpers()
    seen = set()
    for _ in range(9):
        seen.add(run_shielded(threading.get_ident))
        until(lambda: len(shield._idle) == 1, "it waits for the next call")
    end_helpers()
    assert len(seen) == 1


def test_a_thread_ends_that_has_no_call_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shield, "LINGER_S", 0)
    end_helpers()
    run_shielded(int)
    until(lambda: not shield._idle, "it ends")


def test_where_no_thread_can_be_had_the_caller_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    end_helpers()
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert run_shielded(threading.get_ident) == threading.get_ident()


def test_what_begins_within_receives_signals_as_ever() -> None:
    masks = []

    def work() -> None:
        thread = threading.Thread(
            target=lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        )
        thread.start()
        thread.join(patience())

    run_shielded(work)
    assert masks == [set()]
