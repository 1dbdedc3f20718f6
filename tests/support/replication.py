"""A runtime and a transport under a test's control: nothing happens until the test says so."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from typing import NamedTuple

from logstore.testing import ManualClock
from replication.common.messages import Request, Response
from replication.common.runtime import Task
from replication.common.transport import DEFAULT_TIMEOUT_MS, OnReply


class ManualActor:
    def __init__(self, name: str, queue: deque[tuple[ManualActor, Task]]) -> None:
        self.name = name
        self.closed = False
        self._queue = queue

    def post(self, task: Task) -> None:
        if not self.closed:
            self._queue.append((self, task))

    offer = post

    def close(self, wait: bool = False) -> None:
        self.closed = True


class ManualTimer:
    def __init__(self, task: Task, interval_ms: float | None) -> None:
        self.task, self.interval_ms = task, interval_ms
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualRuntime:
    """One thread, tasks in the order of posting. Exceptions reach the test."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.random = random.Random(0)
        self._queue: deque[tuple[ManualActor, Task]] = deque()
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._numbers = itertools.count()

    def now_ms(self) -> int:
        return self.clock.monotonic_ns() // 1_000_000

    def actor(self, name: str, *, may_hang: bool = False) -> ManualActor:
        return ManualActor(name, self._queue)

    def call_later(self, delay_ms: float, task: Task) -> ManualTimer:
        return self._add(delay_ms, ManualTimer(task, None))

    def every(self, interval_ms: float, task: Task) -> ManualTimer:
        return self._add(interval_ms, ManualTimer(task, interval_ms))

    def _add(self, delay_ms: float, timer: ManualTimer) -> ManualTimer:
        heapq.heappush(self._timers, (self.now_ms() + delay_ms, next(self._numbers), timer))
        return timer

    def run_until_idle(self, limit: int = 100_000) -> int:
        """Run what is posted, and what that posts; the number of tasks."""
        for count in range(limit):
            if not self._queue:
                return count
            actor, task = self._queue.popleft()
            if not actor.closed:
                task()
        raise AssertionError(f"still busy after {limit} tasks")

    def run_actor(self, prefix: str) -> None:
        """Run what is posted to one actor, and nothing else."""
        while mine := [each for each in self._queue if each[0].name.startswith(prefix)]:
            for each in mine:
                self._queue.remove(each)
                if not each[0].closed:
                    each[1]()

    def advance(self, ms: int) -> None:
        """Let time pass; run timers when they are due, and everything they post."""
        self.run_until_idle()
        end = self.now_ms() + ms
        while (due := self.next_timer_ms()) is not None and due <= end:
            timer = heapq.heappop(self._timers)[2]
            self.clock.advance(max(0, int(-(-due // 1)) - self.now_ms()))
            timer.task()
            if timer.interval_ms is not None and not timer.cancelled:
                self._add(timer.interval_ms, timer)
            self.run_until_idle()
        self.clock.advance(end - self.now_ms())

    def next_timer_ms(self) -> float | None:
        """When the next timer is due, None without one."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def close(self) -> None:
        self._queue.clear()
        self._timers.clear()


class Sent(NamedTuple):
    broker_id: int
    request: Request
    reply: OnReply
    timeout_ms: int = DEFAULT_TIMEOUT_MS


class RecordingTransport:
    """Keeps what is sent until the test replies to it."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []  # without a reply so far

    def send(
        self,
        broker_id: int,
        request: Request,
        on_reply: OnReply,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        self.sent.append(Sent(broker_id, request, on_reply, timeout_ms))

    def take(self) -> Sent:
        """The oldest without a reply."""
        return self.sent.pop(0)

    def reply(self, response: Response | None) -> None:
        """Answer the oldest; None loses it."""
        self.take().reply(response)
