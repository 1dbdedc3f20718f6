"""A runtime whose actors have no threads: a task runs on the thread that posts it.

The blocking ``Client``, ``Producer`` and ``Consumer`` use it, so that an answer needs no change of
thread.
"""

from __future__ import annotations

import random
import threading
from collections import deque

from checkpoints.loggers import get_logger
from logstore.common.clock import Clock
from replication.common.runtime import Cancellable, Runtime, Task, ThreadRuntime

logger = get_logger(__name__)


class InlineActor:
    """An `Actor` without a thread.

    A thread that runs a task also runs the tasks that others post.
    """

    __slots__ = ("_closed", "_running", "_tasks", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: deque[Task] = deque()
        self._running = threading.Lock()
        self._closed = False

    def post(self, task: Task) -> None:
        if self._closed:
            return
        tasks, running = self._tasks, self._running
        tasks.append(task)
        # The running thread checks again after releasing the lock, so that no task is left.
        while tasks and running.acquire(False):
            try:
                while tasks and not self._closed:
                    task = tasks.popleft()
                    try:
                        task()
                    except Exception:
                        logger.exception("a task of %s failed", self.name)
            finally:
                running.release()
            if self._closed:
                return

    offer = post

    def close(self, wait: bool = False) -> None:
        self._closed = True
        if wait:
            with self._running:
                pass


class InlineRuntime:
    """A `Runtime`. Timers come from ``timers``, or from a thread that the first timer starts."""

    def __init__(self, clock: Clock, timers: Runtime | None = None) -> None:
        self.clock = clock
        self.random = random.Random()
        self._timers = timers
        self._own: ThreadRuntime | None = None
        self._closed = False
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self.clock.monotonic_ns() // 1_000_000

    def actor(self, name: str, *, may_hang: bool = False) -> InlineActor:
        return InlineActor(name)

    def call_later(self, delay_ms: float, task: Task) -> Cancellable:
        return self._timer_runtime().call_later(delay_ms, self._unless_closed(task))

    def every(self, interval_ms: float, task: Task) -> Cancellable:
        return self._timer_runtime().every(interval_ms, self._unless_closed(task))

    def _unless_closed(self, task: Task) -> Task:
        """Skip a task after ``close``: the timers may belong to another runtime and go on."""

        def run() -> None:
            if not self._closed:
                task()

        return run

    def _timer_runtime(self) -> Runtime:
        timers = self._timers
        if timers is None:
            with self._lock:
                timers = self._timers
                if timers is None:
                    timers = self._timers = self._own = ThreadRuntime("client", self.clock)
        return timers

    def close(self) -> None:
        self._closed = True
        with self._lock:
            if self._timers is None:  # so that no later timer starts a thread
                self._timers = self._own = ThreadRuntime("client", self.clock)
            if self._own is not None:
                self._own.close()
