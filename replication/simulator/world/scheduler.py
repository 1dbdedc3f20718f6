"""Virtual time: events in one thread, in an order that a seed decides.

Times are µs of the simulation. Nothing here knows brokers: a ``Process`` is an owner of events that
may die or stall.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

from logstore.common.clock import Clock
from replication.common.runtime import Task

US_PER_MS = 1000
START_US = 1_000_000
START_WALL_MS = 1_700_000_000_000
STORY = "*"  # marks lines of the trace that say what happened, not only what ran


class Process:
    """One incarnation of a process.

    Its events vanish when it dies, and wait while it stalls (a long pause, a slow disk).

    Attributes:
        busy_until_us: no event runs before this time.
        held_until_us: until when events wait at most that a stall has already delayed.
        control_us: how long it takes for a request of the controller, while it goes on with the
            rest.
        control_until_us: until when it is busy with those that it has.
        slow_controls: how many requests have taken so long.
        hurry: ends that.
    """

    __slots__ = (
        "alive",
        "busy_until_us",
        "control_until_us",
        "control_us",
        "held_until_us",
        "hurry",
        "name",
        "node",
        "slow_controls",
    )

    def __init__(self, name: str, node: int) -> None:
        self.name = name
        self.node = node
        self.alive = True
        self.busy_until_us = self.held_until_us = 0
        self.control_us = self.control_until_us = self.slow_controls = 0
        self.hurry: Task = lambda: None

    def stall(self, until_us: int) -> None:
        self.busy_until_us = max(self.busy_until_us, until_us)
        self.held_until_us = max(self.held_until_us, until_us)


class Event:
    """One event, which is also the handle to cancel it."""

    __slots__ = ("cancelled", "label", "process", "task")

    def __init__(self, process: Process | None, label: str, task: Task) -> None:
        self.process, self.label, self.task = process, label, task
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Scheduler:
    """The queue of events, the one source of randomness, and the trace.

    Attributes:
        random: the generator for everything that happens while the schedule runs.
        events: how many events ran.
        trace: a line for each event if requested, else None.
    """

    def __init__(self, source: random.Random, *, keep_trace: bool = False) -> None:
        self.now_us = START_US
        self.random = source
        self._draw = source.random
        self.events = 0
        self.trace: list[str] | None = [] if keep_trace else None
        self._heap: list[tuple[int, int, Event]] = []
        self._number = 0
        self._said: list[str] = []  # the lines that are hashed

    @property
    def now_ms(self) -> int:
        return self.now_us // US_PER_MS

    @property
    def trace_hash(self) -> str:
        return hashlib.blake2b("".join(self._said).encode(), digest_size=16).hexdigest()

    def at(self, time_us: int, process: Process | None, label: str, task: Task) -> Event:
        """Run ``task`` at a time.

        Events with equal times run in the order in which they were added.
        """
        event = Event(process, label, task)
        self._number += 1
        heappush(self._heap, (time_us, self._number, event))
        return event

    def after(self, delay_us: int, process: Process | None, label: str, task: Task) -> Event:
        return self.at(self.now_us + delay_us, process, label, task)

    def below(self, bound: int) -> int:
        """A number in [0, bound)."""
        return int(self._draw() * bound)

    def note(self, line: str) -> None:
        """Add a marked line to the trace that says what an event did."""
        self._said.append(line)
        if self.trace is not None:
            self.trace.append(f"{(self.now_us - START_US) / US_PER_MS:9.3f} {STORY} {line}")

    def forget(self) -> None:
        """Drop all events that have not run."""
        self._heap.clear()

    def next_event(self, until_us: int) -> Event | None:
        """Advance to the next event that can run before ``until_us``; None if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            time_us, number, event = heappop(heap)
            if event.cancelled:
                continue
            process = event.process
            if process is not None:
                if not process.alive:
                    continue
                if process.busy_until_us > time_us:
                    heappush(heap, (process.busy_until_us, number, event))
                    continue
            self.now_us = time_us
            self.events += 1
            self._said.append(f"{time_us} {event.label}\n")
            if self.trace is not None and event.label:
                self.trace.append(f"{(time_us - START_US) / US_PER_MS:9.3f}  {event.label}")
            return event
        self.now_us = max(self.now_us, until_us)
        return None


class SimClock:
    """A broker's clocks. Elapsed time is the same for all; the wall clock may drift and jump."""

    __slots__ = ("_scheduler", "drift", "offset_ms")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.offset_ms = 0
        self.drift = 0.0  # ms gained for each ms

    def wall_ms(self) -> int:
        passed = (self._scheduler.now_us - START_US) // US_PER_MS
        return START_WALL_MS + passed + self.offset_ms + int(passed * self.drift)

    def monotonic_ns(self) -> int:
        return self._scheduler.now_us * 1000


class SimActor:
    """An `Actor` whose tasks become events a little later, in the order of posting."""

    __slots__ = ("_closed", "_label", "_last_us", "_process", "_scheduler", "name")

    def __init__(self, scheduler: Scheduler, process: Process, name: str) -> None:
        self.name = name
        self._scheduler, self._process = scheduler, process
        self._label = f"{process.name} {name}"
        self._last_us = 0
        self._closed = False

    def post(self, task: Task) -> None:
        if self._closed:
            return
        scheduler = self._scheduler
        at_us = scheduler.now_us + scheduler.below(300)
        if at_us < self._last_us:
            at_us = self._last_us
        self._last_us = at_us
        scheduler.at(at_us, self._process, self._label, partial(self._run, task))

    offer = post

    def _run(self, task: Task) -> None:
        if not self._closed:
            task()

    def close(self, wait: bool = False) -> None:
        self._closed = True


class SimControlActor(SimActor):
    """The actor of the controller's requests, which may be slow by itself.

    Each request was delayed on its way, so an idle actor runs it in the event that brings it.
    """

    __slots__ = ("_late",)

    def __init__(self, scheduler: Scheduler, process: Process, name: str) -> None:
        super().__init__(scheduler, process, name)
        self._late: list[tuple[Event, Task]] = []
        process.hurry = self._hurry

    def post(self, task: Task) -> None:
        process = self._process
        if not process.control_us and not self._late:
            self._run(task)
            return
        process.slow_controls += 1
        now_us = self._scheduler.now_us
        process.control_until_us = max(now_us, process.control_until_us) + process.control_us
        self._add(task)

    def _add(self, task: Task) -> None:
        at_us = self._process.control_until_us
        event = self._scheduler.at(at_us, self._process, self._label, self._next)
        self._late.append((event, task))

    def _next(self) -> None:
        _, task = self._late.pop(0)
        self._run(task)

    def _hurry(self) -> None:
        """Be slow no more, and do at once what waits."""
        process, late = self._process, self._late
        process.control_us, process.control_until_us, self._late = 0, self._scheduler.now_us, []
        for event, task in late:
            event.cancel()
            self._add(task)


class _Repeated:
    """A periodic task; ``cancel`` ends it."""

    __slots__ = ("_event", "_interval_us", "_scheduler", "_task", "process")

    def __init__(
        self, scheduler: Scheduler, process: Process, interval_ms: float, task: Task
    ) -> None:
        self._scheduler, self.process, self._task = scheduler, process, task
        self._interval_us = max(1, int(interval_ms * US_PER_MS))
        self._event: Event | None = None
        self._arm()

    def _arm(self) -> None:
        self._event = self._scheduler.after(
            self._interval_us, self.process, f"{self.process.name} periodic", self._run
        )

    def _run(self) -> None:
        armed = self._event
        try:
            self._task()
        finally:
            if self._event is armed:
                self._arm()

    def cancel(self) -> None:
        if self._event is not None:
            self._event.cancel()
        self._event = None


class SimRuntime:
    """The `Runtime` of one incarnation, on the scheduler."""

    def __init__(self, scheduler: Scheduler, process: Process, clock: SimClock) -> None:
        self.clock: Clock = clock
        self.random = scheduler.random
        self.process = process
        self._scheduler = scheduler
        self._timer_label = f"{process.name} timer"

    def now_ms(self) -> int:
        return self._scheduler.now_us // US_PER_MS

    def actor(self, name: str, *, may_hang: bool = False) -> SimActor:
        kind = SimControlActor if name.startswith("control-") else SimActor
        return kind(self._scheduler, self.process, name)

    def call_later(self, delay_ms: float, task: Task) -> Event:
        scheduler = self._scheduler
        delay_us = max(0, int(delay_ms * US_PER_MS)) + scheduler.below(200)
        return scheduler.after(delay_us, self.process, self._timer_label, task)

    def every(self, interval_ms: float, task: Task) -> _Repeated:
        return _Repeated(self._scheduler, self.process, interval_ms, task)

    def run_later(self, task: Callable[[], None]) -> None:
        """Run background work, such as the flush of a rolled segment."""
        scheduler = self._scheduler
        scheduler.after(
            scheduler.below(20_000), self.process, f"{self.process.name} background", task
        )

    def close(self) -> None:
        self.process.alive = False
