"""Lets a call that changes something end, although a signal handler raises.

Python runs signal handlers on the main thread between any two bytecodes, and what they raise
(Ctrl-C in a notebook, the time limit of a job) leaves a call in its middle. A shielded call of the
main thread runs on a thread of its own, where no handler can raise. The main thread waits for its
end, and what a handler raises there comes after it: the call has either not begun or ended.

That thread stays for the next call, as beginning one takes 0.1 ms. A call costs the main thread two
changes of threads, and any other nothing. Within ``unshielded``, as in a simulation whose world is
thrown away after an interrupt, it costs nothing.
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
from queue import SimpleQueue
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

_GLANCE_S = 0.05
"""The interpreter overlooks a signal that comes just before a wait, until the wait ends."""

_on = True
_main = threading.main_thread().ident
_idle: SimpleQueue[_Call] | None = None
"""Where a thread waits for the next call; None if none does. One that an interrupt let slip away
waits for nothing, and the next call begins another."""


@in_child
def _the_only_thread_is_the_main_one() -> None:
    global _idle, _main
    _main, _idle = get_ident(), None


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
        """Wait for the end. An interrupted wait may be repeated."""
        while not self._ended:
            self._running.acquire(timeout=_GLANCE_S)

    def give_up(self) -> None:
        """Let it not begin, or wait for its end, which an interrupt of the wait does not hurry.

        Its thread may be late: it refers to nothing of the caller's any more.
        """
        if self._claim.acquire(blocking=False):
            del self._call
        else:
            self.wait()
            self.result = None


def _run_calls(task: _Call) -> None:
    """Run a task, and then what is asked of the thread that waits, unless there is one already."""
    global _idle
    tasks: SimpleQueue[_Call] = SimpleQueue()
    task.run()
    while _idle is None:
        del task
        _idle = tasks
        task = tasks.get()
        task.run()


def _begin(task: _Call) -> None:
    """Begin a task on a thread; on this one if none can be had, as at the interpreter's end."""
    global _idle
    idle, _idle = _idle, None
    if idle is not None:
        idle.put(task)
        return
    try:
        # The new thread inherits it, and receives no signal before the call and after it: the
        # interpreter may overlook for a while what another thread than the main one receives.
        pthread_sigmask(signal.SIG_BLOCK, _SENT)
        try:
            # One call of C, with nothing to be interrupted in its middle, unlike ``Thread.start``.
            _thread.start_new_thread(_run_calls, (task,))
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
