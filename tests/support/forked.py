"""Run something in a forked child, and bring back what it returned or raised."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from tests.support.until import patience


class Outcome(NamedTuple):
    """What a child's call returned, or the error that it raised."""

    value: Any
    error: BaseException | None

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class Child:
    """A forked child that runs ``call`` and ends."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._reading)
            _answer(call, writing)
        os.close(writing)

    def outcome(self) -> Outcome:
        """Wait until it has ended.

        Raises:
            AssertionError: it hangs, or died without an answer.
        """
        parts = []
        try:
            while data := self._read():
                parts.append(data)
        except BaseException:
            os.kill(self.pid, signal.SIGKILL)
            raise
        finally:
            os.close(self._reading)
            _, status = os.waitpid(self.pid, 0)
        assert parts, f"the child died without an answer: {os.waitstatus_to_exitcode(status)}"
        outcome = pickle.loads(b"".join(parts))
        assert isinstance(outcome, Outcome)
        return outcome

    def _read(self) -> bytes:
        ready, _, _ = select.select([self._reading], [], [], patience())
        assert ready, "the child hangs"
        return os.read(self._reading, 1 << 16)


def in_child(call: Callable[[], Any]) -> Outcome:
    """Fork, run ``call`` in the child, and wait until it has ended."""
    return Child(call).outcome()


@contextmanager
def ended_children() -> Iterator[None]:
    """A child that was forked within unwinds to here, as by ``sys.exit``, and ends."""
    origin = os.getpid()
    try:
        yield
    except BaseException as leaving:
        if os.getpid() == origin:
            raise
        os._exit(leaving.code if isinstance(leaving, SystemExit) else 1)  # type: ignore[arg-type]
    if os.getpid() != origin:
        os._exit(1)  # it went on as if it were the parent


@contextmanager
def held_by_another_thread(lock: Any) -> Iterator[None]:
    """Inside the block a thread that a fork does not copy holds ``lock``."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _answer(call: Callable[[], Any], writing: int) -> NoReturn:
    try:
        try:
            outcome = Outcome(call(), None)
        except BaseException as error:
            outcome = Outcome(None, error)
        try:
            data = pickle.dumps(outcome)
        except Exception as error:
            text = f"{outcome!r} does not travel: {error!r}"
            data = pickle.dumps(Outcome(None, AssertionError(text)))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)  # nothing of pytest runs twice


__all__ = ["Child", "Outcome", "ended_children", "held_by_another_thread", "in_child"]
