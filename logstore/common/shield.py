"""Lets a call that changes something end, although a signal handler raises.

Python runs signal handlers on the main thread between any two bytecodes, and what they raise
(Ctrl-C in a notebook, the time limit of a job) leaves a call in its middle. A shielded call of the
main thread runs on a thread of its own, where no handler can raise. The main thread waits for its
end, and what a handler raises there comes after it: the call has either not begun or ended.

It costs some 20 µs on the main thread, 0.1 ms if there was none for a while, and nothing on any
other. Within ``unshielded``, as in a
simulation whose world is thrown away after an interrupt, it costs nothing.
"""

from __future__ import annotations

import _thread
import functools
import signal
import sys
import threading

# That of ``signal`` makes an enum of each signal, which takes longer than the thread.
from _signal import pthread_sigmask  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, ParamSpec, TypeVar, cast

from logstore.common.forks import in_child

P = ParamSpec("P")
T = TypeVar("T")

# What is sent to the process, and not caused by an instruction of the thread that gets it.
_SENT = signal.valid_signals() - {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}

LINGER_S = 0.1
"""How long a thread waits for another call: to begin one takes as long as a sync of a fast disk."""
WAKE_S = 0.1

_on = True
_main = threading.main_thread().ident


@in_child
def _the_only_thread_is_the_main_one() -> None:
    global _main
    _main = get_ident()
    _idle.clear()


def shield_needed() -> bool:
    """Whether a signal handler may raise in the caller."""
    return _on and get_ident() == _main


@contextmanager
def unshielded() -> Iterator[None]:
    """Inside the block every call runs on its caller's thread. For the whole process."""
    global _on
    before, _on = _on, False
    try:
        yield
    finally:
        _on = before


class _Call:
    """One call for another thread. Whoever has its claim decides whether it begins."""

    def __init__(self, call: Callable[[], Any], mask: Any) -> None:
        """``mask``: the signals that the caller does not receive."""
        self._call = call
        self.mask = mask
        self._claim = threading.Lock()
        self._running = threading.Lock()
        self._running.acquire()
        self._ended = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return  # the caller has given it up
        pthread_sigmask(signal.SIG_SETMASK, self.mask)  # what begins here has the usual one
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        finally:
            del self._call
            pthread_sigmask(signal.SIG_BLOCK, _SENT)
            self._ended = True
            self._running.release()

    def wait(self) -> None:
        """Wait for its end; again, if that was interrupted."""
        while not self._ended:
            # A signal that comes just before the thread sleeps does not wake it.
            if self._running.acquire(timeout=WAKE_S):
                self._running.release()

    def give_up(self) -> None:
        """Let it not begin, or wait for its end, which an interrupt of the wait does not hurry.

        Its thread may be late: it refers to nothing of the caller's any more.
        """
        if self._claim.acquire(blocking=False):
            del self._call
        else:
            self.wait()
            self.result = None


class _Helper:
    """A thread that runs a call, and those that come while it lingers."""

    def __init__(self, task: _Call) -> None:
        self.task: _Call | None = task
        self.woken = threading.Lock()
        self.woken.acquire()

    def serve(self) -> None:
        while self.task is not None:
            task, self.task = self.task, None
            task.run()
            del task
            _idle.append(self)
            if not self.woken.acquire(timeout=LINGER_S):
                try:
                    _idle.remove(self)
                except ValueError:  # somebody has it, and is about to wake it
                    self.woken.acquire()
                else:
                    return


_idle: list[_Helper] = []


def _begin(task: _Call) -> None:
    """Begin a task on a thread; on this one if none can be had, as at the interpreter's end."""
    try:
        helper = _idle.pop()
    except IndexError:
        helper = None
    if helper is None:
        _begin_helper(task)
        return
    try:
        helper.task = task
    finally:
        helper.woken.release()


def _begin_helper(task: _Call) -> None:
    try:
        # The new thread inherits it, and receives no signal before the call and after it: the
        # interpreter may overlook for a while what another thread than the main one receives.
        pthread_sigmask(signal.SIG_BLOCK, _SENT)
        try:
            # One call of C, with nothing to be interrupted in its middle, unlike ``Thread.start``.
            _thread.start_new_thread(_Helper(task).serve, ())
        except RuntimeError:
            task.run()
    finally:
        pthread_sigmask(signal.SIG_SETMASK, task.mask)


def run_shielded(call: Callable[[], T], cancel: Callable[[], object] | None = None) -> T:
    """Run ``call`` as the module says.

    ``cancel`` is called after an interrupt: a call that may take long then ends early.
    """
    # At the interpreter's end a thread begins and never gets its turn, and no handler runs either.
    if not shield_needed() or sys.is_finalizing():
        return call()
    task = _Call(call, pthread_sigmask(signal.SIG_BLOCK, ()))
    try:
        _begin(task)
        task.wait()
        pthread_sigmask(signal.SIG_BLOCK, ())  # runs the handlers of what the thread received
    except BaseException:
        if cancel is not None:
            cancel()
        task.give_up()
        raise
    error = task.error
    if error is not None:
        try:
            raise error
        finally:
            del error, task  # the traceback refers to this frame
    return cast(T, task.result)


def shielded(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that is to be run shielded."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not shield_needed():
            return method(*args, **kwargs)
        return run_shielded(functools.partial(method, *args, **kwargs))

    return call


__all__ = ["run_shielded", "shield_needed", "shielded", "unshielded"]
