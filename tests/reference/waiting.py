"""What waits, in plain Python: the definition of right for ``_waiting.pyx``, its native twin.

Hierarchical timing wheels (R-91; Kafka's ``SystemTimer``). A wheel has ``wheel_size`` buckets of
``tick_ms``; what lies beyond its end goes to the next wheel, whose tick is the whole of this one:
1 ms, 20 ms, 400 ms, 8 s, … Buckets, not tasks, stand in a heap by their start. When a bucket falls
due the clocks of all wheels move to its start, and its tasks run, or go down to a finer bucket.
Adding and cancelling cost the same however many tasks wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from threading import Lock
from typing import Any


class TimerTask:
    __slots__ = ("_bucket", "_index", "expiry_ms")

    expiry_ms: int
    """When it falls due, in ms of the timer's time; means nothing before the first ``add``."""
    _bucket: _Bucket | None
    _index: int  # in the bucket

    def __init__(self) -> None:
        self.expiry_ms = self._index = 0
        self._bucket = None

    def run(self) -> None:
        raise NotImplementedError

    @property
    def waiting(self) -> bool:
        return self._bucket is not None

    def cancel(self) -> bool:
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
        bucket.tasks[self._index] = None
        bucket.gone += 1
        if 2 * bucket.gone > len(bucket.tasks):
            bucket.close_gaps()
        return True


class _Bucket:
    """Tasks of one tick of one wheel, in the order of adding; under the timer's lock.

    A cancelled task leaves a gap. Gaps are closed when they are more than the tasks: cancelling
    costs O(1), and the memory of what is gone is given back.
    """

    __slots__ = ("gone", "lock", "slot", "start_ms", "tasks", "wheel")

    def __init__(self, lock: Lock, wheel: TimingWheel, slot: int, start_ms: int) -> None:
        self.lock, self.wheel, self.slot, self.start_ms = lock, wheel, slot, start_ms
        self.tasks: list[TimerTask | None] = []
        self.gone = 0

    def add(self, task: TimerTask) -> None:
        task._bucket, task._index = self, len(self.tasks)
        self.tasks.append(task)

    def close_gaps(self) -> None:
        before, self.tasks, self.gone = self.tasks, [], 0
        for task in before:
            if task is not None:
                self.add(task)

    def __len__(self) -> int:
        return len(self.tasks) - self.gone


class TimingWheel:
    __slots__ = ("buckets", "current_ms", "end_ms", "interval_ms", "overflow", "size", "tick_ms")

    def __init__(self, tick_ms: int, size: int, start_ms: int) -> None:
        if start_ms < 0 or tick_ms < 1 or size < 2:
            raise ValueError(f"start {start_ms} ms, tick {tick_ms} ms, {size} buckets")
        self.tick_ms, self.size = tick_ms, size
        self.interval_ms = tick_ms * size
        self.current_ms = start_ms - start_ms % tick_ms
        self.end_ms = self.current_ms + self.interval_ms
        self.buckets: list[_Bucket | None] = [None] * size
        self.overflow: TimingWheel | None = None

    def advance(self, now_ms: int) -> None:
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
    def __init__(self, start_ms: int, tick_ms: int = 1, wheel_size: int = 20) -> None:
        self._lock = Lock()
        self._now_ms = start_ms
        self.wheel = TimingWheel(tick_ms, wheel_size, start_ms)
        self._queue: list[tuple[int, int, _Bucket]] = []  # start, number of the bucket, bucket
        self._bucket_count = 0

    def add(self, task: TimerTask, delay_ms: int, now_ms: int | None = None) -> None:
        with self._lock:
            if task._bucket is not None:
                task._leave()
            task.expiry_ms = (self._now_ms if now_ms is None else now_ms) + delay_ms
            self._place(task)

    def advance(self, now_ms: int) -> int:
        count = 0
        errors: list[Exception] = []
        while (due := self._next_due(now_ms)) is not None:
            taken = 0
            try:
                for task in due:
                    taken += 1
                    try:
                        task.run()
                    except Exception as error:
                        errors.append(error)
            finally:
                count += taken
                if taken < len(due):  # the thread is being stopped: the rest stays due
                    self._put_back(due[taken:])
        raise_all(errors)
        return count

    def next_deadline_ms(self) -> int | None:
        with self._lock:
            while self._queue and not self._queue[0][2]:
                self._pop()
            return self._queue[0][0] if self._queue else None

    def __len__(self) -> int:
        with self._lock:
            return sum(len(bucket) for _, _, bucket in self._queue)

    def _put_back(self, tasks: list[TimerTask]) -> None:
        with self._lock:
            for task in tasks:
                if task._bucket is None:  # else it was added anew meanwhile
                    self._place(task)

    def _tick(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)
        self.wheel.advance(now_ms)

    def _place(self, task: TimerTask) -> None:
        wheel = self.wheel
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
        bucket.add(task)

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
            tick_end_ms = self.wheel.current_ms + self.wheel.tick_ms
            due = []
            for task in bucket.tasks:
                if task is None:
                    continue
                if task.expiry_ms < tick_end_ms:
                    task._bucket = None
                    due.append(task)
                else:
                    self._place(task)
            return due


def raise_all(errors: list[Exception]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several tasks failed", errors)


_TRANSITION = Lock()  # of any operation: held for the few instructions of one step


class DelayedOperation(TimerTask):
    __slots__ = ("_again", "_expired", "_looking", "_purgatory", "completed", "delay_ms")

    completed: bool
    """True from the moment it is decided, just before ``on_complete`` runs."""

    def __init__(self, delay_ms: int) -> None:
        super().__init__()
        self.delay_ms = delay_ms
        self.completed = False
        self._looking = self._again = self._expired = False
        self._purgatory: Any = None

    def try_complete(self) -> bool:
        raise NotImplementedError

    def on_complete(self) -> None:
        raise NotImplementedError

    def on_expiration(self) -> None:
        raise NotImplementedError

    def force_complete(self) -> bool:
        with _TRANSITION:
            if self.completed:
                return False
            self.completed = True
            if self._looking:
                return True
        self._finish()
        return True

    def run(self) -> None:
        """The deadline: complete with what there is."""
        with _TRANSITION:
            if self.completed:
                return
            self.completed = self._expired = True
            if self._looking:
                return
        self._finish()

    def attempt(self) -> bool:
        if not self._begin():
            return False
        try:
            self._look()
        except BaseException:
            self._end()
            raise
        return self._end()

    def _register(
        self,
        purgatory: Any,
        by_key: dict[Hashable, Watchers],
        keys: tuple[Hashable, ...],
        timer: Timer,
        now_ms: int | None,
    ) -> bool:
        if not self._begin():
            if self.completed:
                return False
            raise RuntimeError(f"{self!r} is registered by another thread, too")
        self._purgatory = purgatory
        try:
            waits = not self._look() and self.delay_ms > 0
            if waits:
                for key in keys:
                    self._watch(by_key, key)
                if not self._look():
                    timer.add(self, self.delay_ms, now_ms)
        except BaseException:
            self._abandon()
            raise
        self._end()  # from here on others may complete it, and find it in the timer
        return waits

    def _watch(self, by_key: dict[Hashable, Watchers], key: Hashable) -> None:
        while True:
            watchers = by_key.get(key)
            if watchers is None:
                watchers = by_key.setdefault(key, Watchers(by_key, key))
            if watchers.add(self):
                return

    def _begin(self) -> bool:
        """Become the thread that looks; ``_end`` must follow. False: it is completed, or another
        thread looks and now has word to look again."""
        with _TRANSITION:
            if self.completed:
                return False
            if self._looking:
                self._again = True
                return False
            self._looking = True
            return True

    def _look(self) -> bool:
        if not self.completed:
            self.try_complete()
        return self.completed

    def _end(self) -> bool:
        """Look again as often as others asked for it; then answer, if completed: True."""
        error: BaseException | None = None
        while True:
            with _TRANSITION:
                if self.completed or not self._again:
                    self._looking = False
                    completed = self.completed
                    break
                self._again = False
            try:
                self._look()
            except BaseException as caught:
                error = caught
        if completed:
            self._finish()
        if error is not None:
            raise error
        return completed

    def _abandon(self) -> None:
        """In place of ``_end`` when the registration has failed: nobody answers it any more."""
        with _TRANSITION:
            completed, self.completed = self.completed, True
            self._looking = False
        if completed:
            self._finish()

    def _finish(self) -> None:
        self.cancel()
        self.on_complete()
        if self._expired:
            self.on_expiration()
            if self._purgatory is not None:
                self._purgatory.count_expiration()


class Watchers:
    __slots__ = ("_by_key", "_dropped", "_key", "_lock", "_operations")

    def __init__(self, by_key: dict[Hashable, Watchers], key: Hashable) -> None:
        self._by_key, self._key = by_key, key
        self._lock = Lock()
        self._operations: list[DelayedOperation] = []
        self._dropped = False

    def __len__(self) -> int:
        return len(self._operations)

    def add(self, operation: DelayedOperation) -> bool:
        with self._lock:
            if not self._dropped:
                self._operations.append(operation)
            return not self._dropped

    def try_complete(self, errors: list[Exception]) -> int:
        with self._lock:
            operations = self._operations.copy()
        count = 0
        to_sweep = False
        for operation in operations:
            try:
                if operation.completed:
                    to_sweep = True
                elif operation.attempt():
                    count += 1
            except Exception as error:
                errors.append(error)
                to_sweep = True
        if count or to_sweep:
            self.sweep()
        return count

    def sweep(self) -> None:
        with self._lock:
            self._keep([op for op in self._operations if not op.completed])

    def take(self) -> list[DelayedOperation]:
        with self._lock:
            taken = self._operations
            self._keep([])
            return taken

    def _keep(self, operations: list[DelayedOperation]) -> None:
        self._operations = operations
        if not operations and not self._dropped:
            self._dropped = True
            del self._by_key[self._key]
