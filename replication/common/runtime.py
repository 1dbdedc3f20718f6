"""The seam for concurrency: where and when tasks run.

Nothing else in ``replication`` starts a thread or waits. ``ThreadRuntime`` is the real one; the
simulator has another, in which everything happens in one thread, in an order drawn from a seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from checkpoints.loggers import get_logger
from logstore.common.clock import Clock, SystemClock
from logstore.common.forks import Ownership, free_in_child

logger = get_logger(__name__)

Task = Callable[[], None]

SPARE_TIMERS = 64  # cancelled ones that may stay until they are due


class Cancellable(Protocol):
    def cancel(self) -> None:
        """Keep the task from starting. One that has started runs on. Idempotent."""
        ...


class Actor(Protocol):
    """Runs posted tasks one at a time, in the order of posting."""

    name: str

    def post(self, task: Task) -> None:
        """Post a task. Never blocks; after ``close`` it does nothing."""
        ...

    def offer(self, task: Task) -> None:
        """As ``post``, but the caller's thread may run the task if the actor is idle.

        For short tasks, where a change of threads would cost too much. The caller holds no lock.
        """
        ...

    def close(self, wait: bool = False) -> None:
        """Drop queued tasks. ``wait`` for a running task (not from the actor itself)."""
        ...


class Runtime(Protocol):
    """The actors and timers of one broker. ``close`` ends all of them.

    Attributes:
        random: for choices such as jitter. The simulator seeds it.
    """

    clock: Clock
    random: random.Random

    def now_ms(self) -> int:
        """Monotonic ms: for lag, timeouts and timers."""
        ...

    def actor(self, name: str, *, may_hang: bool = False) -> Actor:
        """
        Args:
            may_hang: its tasks call another system that may not answer for long. ``close`` neither
                waits for them nor drops them, because one of them may end a session there.
        """
        ...

    def call_later(self, delay_ms: float, task: Task) -> Cancellable:
        """Run ``task`` once. It must be short. An exception is logged and not fatal."""
        ...

    def every(self, interval_ms: float, task: Task) -> Cancellable:
        """Run ``task`` periodically, the first time after one interval. Runs never overlap."""
        ...

    def close(self) -> None: ...


_TURN = free_in_child(threading.Lock())
TURN_S = 0.005  # then a task is not kept up by another's slow disk


def in_turn(task: Task) -> None:
    """Run a task while no other thread of the process runs one so, unless that takes long.

    For copies of some batches on threads of their own. One thread at a time runs Python: two that
    copy take it from each other and from the producers at each of their steps, so each comes early,
    finds a batch or two, and comes again.
    """
    has_turn = _TURN.acquire(timeout=TURN_S)
    try:
        task()
    finally:
        if has_turn:
            _TURN.release()


_this_thread = threading.local()


def never_a_guest() -> None:
    """Let the calling thread run no task that it offers: it has others to serve, and must not wait
    for a disk."""
    _this_thread.is_no_guest = True


class ThreadActor:
    """A thread with a queue. The holder of its turn runs a task."""

    def __init__(self, name: str, *, may_hang: bool = False) -> None:
        self.name = name
        self.may_hang = may_hang
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        self._closed = False
        self._dropped = False  # guards the queue too
        self._turn = threading.Lock()
        self._lock = threading.Lock()  # guards the number of posted tasks that are not done
        self._posted = 0
        self._guest: int | None = None  # the caller's thread that runs a task in place of ours
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, task: Task) -> None:
        if not self._closed:
            with self._lock:
                self._posted += 1
            self._queue.put(task)

    def offer(self, task: Task) -> None:
        if hasattr(_this_thread, "is_no_guest"):
            self.post(task)
            return
        with self._lock:
            # No task may overtake or run beside one that was posted before.
            is_idle = not self._posted and not self._closed and self._turn.acquire(blocking=False)
        if not is_idle:
            self.post(task)
            return
        self._guest = threading.get_ident()
        try:
            _run_logged(task, self.name)
        finally:
            self._guest = None
            self._turn.release()

    def finish(self) -> None:
        """Take no more tasks. Queued ones still run, without a wait for them."""
        self._closed = True
        self._queue.put(None)

    def close(self, wait: bool = False) -> None:
        self._dropped = True
        self.finish()
        if wait and threading.get_ident() not in (self._thread.ident, self._guest):
            self._thread.join()
            with self._turn:  # of a caller's thread
                pass

    def _run(self) -> None:
        get = self._queue.get
        while (task := get()) is not None:
            with self._turn:
                if self._dropped:
                    return
                _run_logged(task, self.name)
            del task  # so that it does not keep objects alive until the next task
            with self._lock:
                self._posted -= 1


class _ScheduledTask:
    """``is_queued``: it is in the heap, and not cancelled."""

    __slots__ = ("cancelled", "interval_ms", "is_queued", "runtime", "task")

    def __init__(self, runtime: ThreadRuntime, task: Task, interval_ms: float | None) -> None:
        self.runtime, self.task, self.interval_ms = runtime, task, interval_ms
        self.cancelled = self.is_queued = False

    def cancel(self) -> None:
        self.cancelled = True
        if self.is_queued:
            self.runtime._forget(self)


class ThreadRuntime:
    """A runtime with a thread for each actor, and one for all timers."""

    def __init__(self, name: str = "logstore", clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.random = random.Random()
        self._heap: list[tuple[float, int, _ScheduledTask]] = []
        self._number = itertools.count()
        self._cancelled = 0  # entries of the heap that will not run
        self._changed = threading.Condition()
        self._ownership = Ownership(f"the threads of {name}")
        self._closed = False
        self._actors: list[ThreadActor] = []
        self._thread = threading.Thread(target=self._watch, name=f"{name}-timer", daemon=True)
        self._thread.start()

    def now_ms(self) -> int:
        return self.clock.monotonic_ns() // 1_000_000

    def actor(self, name: str, *, may_hang: bool = False) -> ThreadActor:
        actor = ThreadActor(name, may_hang=may_hang)
        with self._changed:
            self._actors = [a for a in self._actors if not a._closed]
            self._actors.append(actor)
        return actor

    def call_later(self, delay_ms: float, task: Task) -> _ScheduledTask:
        return self._add(delay_ms, _ScheduledTask(self, task, None))

    def every(self, interval_ms: float, task: Task) -> _ScheduledTask:
        return self._add(interval_ms, _ScheduledTask(self, task, interval_ms))

    def _precise_ms(self) -> float:
        return self.clock.monotonic_ns() / 1e6

    def _add(self, delay_ms: float, entry: _ScheduledTask) -> _ScheduledTask:
        with self._changed:
            item = (self._precise_ms() + delay_ms, next(self._number), entry)
            heapq.heappush(self._heap, item)
            entry.is_queued = True
            if self._heap[0] is item:
                self._changed.notify()
        return entry

    def _forget(self, entry: _ScheduledTask) -> None:
        """Let go of a cancelled task, which may be due in half an hour. Once half of the heap is
        cancelled it is rebuilt, so that each entry costs the same however many there are."""
        if self._ownership.lost is not None:  # its lock may be held for ever
            return
        with self._changed:
            if not entry.is_queued:
                return
            entry.is_queued = False
            entry.task = _nothing
            self._cancelled += 1
            self._drop_cancelled_locked()

    def _drop_cancelled_locked(self) -> None:
        if self._cancelled > max(SPARE_TIMERS, len(self._heap) // 2):
            self._heap = [item for item in self._heap if item[2].is_queued]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._closed:
                    wait_ms = self._heap[0][0] - self._precise_ms() if self._heap else None
                    if wait_ms is not None and wait_ms <= 0:
                        break
                    self._changed.wait(None if wait_ms is None else wait_ms / 1000)
                if self._closed:
                    return
                entry = heapq.heappop(self._heap)[2]
                if not entry.is_queued:
                    self._cancelled -= 1
                    continue
                entry.is_queued = False
                self._drop_cancelled_locked()  # those that are left may be most by now
            if entry.cancelled:
                continue
            _run_logged(entry.task, self._thread.name)
            if entry.interval_ms is not None and not entry.cancelled:
                self._add(entry.interval_ms, entry)

    def close(self) -> None:
        if self._ownership.lost is not None:  # a fork copies no thread that could end
            return
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()
            actors = list(self._actors)
        may_hang = [actor for actor in actors if actor.may_hang]
        others = [actor for actor in actors if not actor.may_hang]
        for actor in others:
            actor.close()
        for actor in may_hang:
            actor.finish()
        for actor in others:
            actor.close(wait=True)
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _nothing() -> None:
    pass


def _run_logged(task: Task, name: str) -> None:
    try:
        task()
    except Exception:
        logger.exception("a task of %s failed", name)
