"""Deadlines by the million: hierarchical timing wheels (R-91; Kafka's ``SystemTimer``).

A wheel has ``wheel_size`` buckets of ``tick_ms``; what lies beyond its end goes to the next wheel,
whose tick is the whole of this one: 1 ms, 20 ms, 400 ms, 8 s, … Buckets, not tasks, stand in a heap
by their start. When a bucket falls due the clocks of all wheels move to its start, and its tasks
run, or go down to a finer bucket. Adding and cancelling cost the same however many tasks wait.

There is no clock and no thread in here: whoever owns a timer calls ``advance``, and only
``advance`` runs tasks.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator
from threading import Lock


class TimerTask(ABC):
    """What runs at a deadline. In one timer at a time; hash and equality are by identity."""

    __slots__ = ("_bucket", "expiry_ms")

    expiry_ms: int
    """When it falls due, in ms of the timer's time; means nothing before the first ``add``."""
    _bucket: _Bucket | None

    def __init__(self) -> None:
        self.expiry_ms = 0
        self._bucket = None

    @abstractmethod
    def run(self) -> None:
        """Called once per ``add`` that was not cancelled, by ``advance``, without any lock."""

    @property
    def waiting(self) -> bool:
        return self._bucket is not None

    def cancel(self) -> bool:
        """Leave the timer, in O(1), from any thread.

        Returns:
            True: it was waiting and will not run. False: it was not in a timer, or ``advance`` has
            taken it out and it runs now, soon, or has run.
        """
        bucket = self._bucket
        if bucket is None:
            return False
        with bucket.lock:  # of the timer: the same one for whatever bucket it is moved to
            return self._leave()

    def _leave(self) -> bool:
        """Under the timer's lock."""
        bucket = self._bucket
        if bucket is None:
            return False
        self._bucket = None
        tasks = bucket.tasks
        del tasks[self]
        if not tasks:
            tasks.clear()  # an empty dict keeps the table of its largest size until told not to
        return True


class _Bucket:
    """Tasks of one tick of one wheel, in the order of adding."""

    __slots__ = ("lock", "slot", "start_ms", "tasks", "wheel")

    def __init__(self, lock: Lock, wheel: TimingWheel, slot: int, start_ms: int) -> None:
        self.lock, self.wheel, self.slot, self.start_ms = lock, wheel, slot, start_ms
        # A dict, not a linked list: in order, O(1) out of the middle, no cycles of references.
        self.tasks: dict[TimerTask, None] = {}


class TimingWheel:
    """One level; its owner's lock guards it."""

    __slots__ = ("buckets", "current_ms", "end_ms", "interval_ms", "overflow", "size", "tick_ms")

    def __init__(self, tick_ms: int, size: int, start_ms: int) -> None:
        self.tick_ms, self.size = tick_ms, size
        self.interval_ms = tick_ms * size
        self.current_ms = start_ms - start_ms % tick_ms
        self.end_ms = self.current_ms + self.interval_ms
        self.buckets: list[_Bucket | None] = [None] * size
        self.overflow: TimingWheel | None = None

    def advance(self, now_ms: int) -> None:
        """Move the clocks of this and all coarser wheels, in whole ticks, never back."""
        if now_ms >= self.current_ms + self.tick_ms:
            self.current_ms = now_ms - now_ms % self.tick_ms
            self.end_ms = self.current_ms + self.interval_ms
            if self.overflow is not None:
                self.overflow.advance(self.current_ms)

    def coarser(self) -> TimingWheel:
        if self.overflow is None:
            self.overflow = TimingWheel(self.interval_ms, self.size, self.current_ms)
        return self.overflow


class Timer:
    """Tasks by deadline. Any method from any thread; one short lock, never held by a task.

    Within one tick tasks run in the order in which they reached its bucket; between ticks in the
    order of time. A bucket is moved under the lock as a whole, as in Kafka: one of a million tasks
    keeps other threads waiting for some hundred ms, once, at most every 8 s.

    Args:
        start_ms: now, in ms of any clock that never goes back.
        tick_ms: length of a bucket of the finest wheel; a task may run that much, less 1 ms, early.
        wheel_size: buckets of a wheel, at least 2.
    """

    def __init__(self, start_ms: int, tick_ms: int = 1, wheel_size: int = 20) -> None:
        if tick_ms < 1 or wheel_size < 2:
            raise ValueError(f"tick of {tick_ms} ms, {wheel_size} buckets: at least 1 and 2")
        self._lock = Lock()
        self._now_ms = start_ms
        self._wheel = TimingWheel(tick_ms, wheel_size, start_ms)
        self._queue: list[tuple[int, int, _Bucket]] = []  # start, number of the bucket, bucket
        self._bucket_count = 0

    def add(self, task: TimerTask, delay_ms: int, now_ms: int | None = None) -> None:
        """Run ``task`` at the first ``advance`` to ``delay_ms`` from now or later.

        ``now_ms`` is the caller's time; without it, the time last advanced to. A task that waits
        already gets the new deadline. One that is due already runs at the next ``advance``,
        whatever its time: nothing ever runs in here.
        """
        with self._lock:
            if task._bucket is not None:
                task._leave()
            task.expiry_ms = (self._now_ms if now_ms is None else now_ms) + delay_ms
            self._place(task)

    def advance(self, now_ms: int) -> int:
        """Run all that falls due up to ``now_ms``; an earlier time than the last changes nothing.

        An exception of a task does not keep the others from running; it is raised at the end, in
        an ``ExceptionGroup`` where there are several.

        Returns:
            How many tasks ran, those that a task added and that fell due by then included.
        """
        count = 0
        errors: list[Exception] = []
        for task in self.expired(now_ms):
            count += 1
            try:
                task.run()
            except Exception as error:
                errors.append(error)
        raise_all(errors)
        return count

    def expired(self, now_ms: int) -> Iterator[TimerTask]:
        """As ``advance``, for a caller who runs the tasks.

        What was not taken when the iterator is closed stays due.
        """
        while (due := self._next_due(now_ms)) is not None:
            taken = 0
            try:
                for task in due:
                    taken += 1
                    yield task
            finally:
                if taken < len(due):
                    with self._lock:
                        for task in due[taken:]:
                            if task._bucket is None:  # else it was added anew meanwhile
                                self._place(task)

    def next_deadline_ms(self) -> int | None:
        """When ``advance`` next has something to do (run tasks, or sort a bucket of a coarser
        wheel), at or before the earliest expiry; None when nothing waits."""
        with self._lock:
            while self._queue and not self._queue[0][2].tasks:
                self._pop()
            return self._queue[0][0] if self._queue else None

    def __len__(self) -> int:
        """Tasks that wait. O(buckets), of which there are some dozens."""
        with self._lock:
            return sum(len(bucket.tasks) for _, _, bucket in self._queue)

    def _tick(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)
        self._wheel.advance(now_ms)

    def _place(self, task: TimerTask) -> None:
        wheel = self._wheel
        # What is late goes into the bucket of now, which is otherwise never used.
        expiry_ms = max(task.expiry_ms, wheel.current_ms)
        while expiry_ms >= wheel.end_ms:
            wheel = wheel.overflow or wheel.coarser()
        number = expiry_ms // wheel.tick_ms
        slot = number % wheel.size
        bucket = wheel.buckets[slot]
        if bucket is None:
            start_ms = number * wheel.tick_ms
            bucket = wheel.buckets[slot] = _Bucket(self._lock, wheel, slot, start_ms)
            self._bucket_count += 1  # breaks ties: equal starts come in the order of making
            heapq.heappush(self._queue, (start_ms, self._bucket_count, bucket))
        bucket.tasks[task] = None
        task._bucket = bucket

    def _pop(self) -> _Bucket:
        bucket = heapq.heappop(self._queue)[2]
        bucket.wheel.buckets[bucket.slot] = None
        return bucket

    def _next_due(self, now_ms: int) -> list[TimerTask] | None:
        """The tasks of the next bucket that must run; those that need not go down. None: done."""
        with self._lock:
            if not self._queue or self._queue[0][0] > now_ms:
                self._tick(now_ms)
                return None
            bucket = self._pop()
            self._tick(bucket.start_ms)
            tick_end_ms = self._wheel.current_ms + self._wheel.tick_ms
            due = []
            for task in bucket.tasks:
                if task.expiry_ms < tick_end_ms:
                    task._bucket = None
                    due.append(task)
                else:
                    self._place(task)
            return due


def raise_all(errors: list[Exception]) -> None:
    """Raise what was put aside so that the rest could be done: one as it is, several as a group."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several tasks failed", errors)
