"""Requests that wait for an offset, bytes or a deadline (R-88 … R-90; Kafka's
``DelayedOperation`` and ``DelayedOperationPurgatory``).

What is safe beside what, and why. An operation's lock is held only while ``try_complete`` looks;
what answers (``on_complete``, ``on_expiration``) runs when it has been let go, so an answer may do
anything: register, check, wait for another thread. Below that lock stand only those that
``try_complete`` takes, a key's lock and the timer's; the last two are held for a few instructions
and call nothing. Callers hold no lock that a ``try_complete`` takes.

Of the interpreter this needs no more than that single dict operations are whole (``get``,
``setdefault``, ``pop`` on keys of str, int and tuples, and ``list`` of one), which both the builds
with and without a global lock promise. The rest is under locks, except one count which may be off.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from replication.timer import Timer, TimerTask, raise_all


class DelayedOperation(TimerTask):
    """Something to answer once: when a condition holds, or ``delay_ms`` after its registration."""

    __slots__ = ("_attempting", "_lock", "completed", "delay_ms")

    completed: bool
    """True from the moment it is decided, just before ``on_complete`` runs."""

    def __init__(self, delay_ms: int) -> None:
        # As ``super().__init__()``, whose call would be a tenth of the cost of an operation.
        self.expiry_ms = 0
        self._bucket = None
        self.delay_ms = delay_ms
        self.completed = False
        self._attempting = False
        self._lock = threading.RLock()

    @abstractmethod
    def try_complete(self) -> bool:
        """If the condition holds, ``return self.force_complete()``, else return False.

        Called by one thread at a time, under the operation's lock: it looks, and waits for nobody.
        """

    @abstractmethod
    def on_complete(self) -> None:
        """Answer. Called exactly once, without locks, by whoever completed the operation."""

    @abstractmethod
    def on_expiration(self) -> None:
        """Called after ``on_complete`` when it was the deadline that completed it."""

    def force_complete(self) -> bool:
        """Complete now, unless it is completed already: True for exactly one caller (R-88).

        From any thread. Inside ``try_complete`` the answer follows as soon as that returns.
        """
        with self._lock:
            if self.completed:
                return False
            self.completed = True
            if self._attempting:
                return True
        self._finish()
        return True

    def run(self) -> None:
        """The deadline: complete with what there is."""
        if self.force_complete():
            self.on_expiration()

    def _attempt(self) -> bool:
        """One look under the lock, which the caller holds; True: completed by it, to be finished.

        While the lock is held nobody else can complete it, so what counts is ``completed`` and not
        what a subclass happens to return.
        """
        self._attempting = True
        try:
            self.try_complete()
        finally:
            self._attempting = False
        return self.completed

    def _finish(self) -> None:
        self.cancel()
        self.on_complete()


Op = TypeVar("Op", bound=DelayedOperation)


class _Watchers(Generic[Op]):
    """The operations of one key; guarded by its lock, and dropped from the map when empty."""

    __slots__ = ("dropped", "lock", "operations")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.operations: list[Op] = []
        self.dropped = False


class _Nested(threading.local):
    keys: dict[Hashable, None] | None = None  # None: this thread is in no check of the purgatory


class Purgatory(Generic[Op]):
    """Waiting operations of one kind, found by key or by deadline.

    Safe from any thread. Each key has a lock of its own, where Kafka has 512 for all of them.

    Args:
        name: as in Kafka's metric: ``Produce``, ``Fetch``, ``DeleteRecords``.
        timer: its own; its size is ``delayed``.
        purge_interval: so many completed operations may stay in watch lists before a sweep.
        now_ms: the time that delays count from, as ``Timer.add``; without it, the last advance.
    """

    def __init__(
        self,
        name: str,
        timer: Timer,
        purge_interval: int = 1000,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.name, self.timer, self.purge_interval = name, timer, purge_interval
        self.expirations = 0
        """Operations that their deadline completed."""
        self._now_ms = now_ms
        self._watchers: dict[Hashable, _Watchers[Op]] = {}
        self._nested = _Nested()
        self._lock = threading.Lock()  # for ``expirations``
        self._closed = False
        # Registered since the last sweep, and those that waited then. Threads may overwrite each
        # other's step: an estimate, only the time of the next sweep hangs on it.
        self._estimated = 0

    def try_complete_else_watch(self, operation: Op, keys: Iterable[Hashable]) -> bool:
        """Complete ``operation`` at once if it can be, else watch it under all ``keys`` (R-89).

        It looks, watches, and looks again under the operation's lock: an event before the second
        look is seen by it, one after it finds the operation under its key.

        Returns:
            True: it was completed before this returned, also by a delay of 0 ms or less or by a
            purgatory that is shut down. False: it waits, or another thread completes it.
        Raises:
            ValueError: there are no keys.
        """
        keys = tuple(keys)
        if not keys:
            raise ValueError(f"an operation for purgatory {self.name} has no keys to watch")
        with operation._lock:
            done = operation.completed or operation._attempt()
            expired = not done and (operation.delay_ms <= 0 or self._closed)
            if not done and not expired:
                self._estimated += 1
                for key in keys:
                    self._watch(key, operation)
                done = operation._attempt()
                if not done:
                    # Under its lock: who completes it from here on finds it in the timer.
                    now_ms = self._now_ms() if self._now_ms is not None else None
                    self.timer.add(operation, operation.delay_ms, now_ms)
                    expired = self._closed  # else ``shutdown`` is still to come, and sees it
        if done:
            operation._finish()
        elif expired:
            self._expire(operation)
        return operation.completed

    def check_and_complete(self, key: Hashable) -> int:
        """Something happened to ``key``: try all operations that watch it.

        A check from inside an answer of the same purgatory, in the same thread, is put off until
        the outer one is through its key, and returns 0: a chain of answers stays flat.

        An exception of one operation does not keep the others from being tried; it is raised at
        the end.

        Returns:
            How many operations this call completed. Cost: O(operations that watch the key).
        """
        if key not in self._watchers:
            return 0
        nested = self._nested
        if nested.keys is not None:
            nested.keys[key] = None
            return 0
        nested.keys = keys = {key: None}
        completed = 0
        errors: list[Exception] = []
        try:
            while keys:
                key = next(iter(keys))
                del keys[key]
                watchers = self._watchers.get(key)
                if watchers is not None:
                    completed += self._try_watched(key, watchers, errors)
        finally:
            nested.keys = None
        raise_all(errors)
        return completed

    def cancel_for_key(self, key: Hashable) -> list[Op]:
        """Forget the key and the deadlines of what watches it; nothing is completed.

        Returns:
            The open operations, in the order of registration. One that watches other keys too is
            still found there.
        """
        watchers = self._watchers.get(key)
        if watchers is None:
            return []
        with watchers.lock:
            operations, watchers.operations = watchers.operations, []
            self._drop_if_empty(key, watchers)
        for operation in operations:
            with operation._lock:  # a registration under way reaches the timer first
                operation.cancel()
        return [operation for operation in operations if not operation.completed]

    def advance(self, now_ms: int) -> int:
        """Expire what is due, then sweep the watch lists if enough has gathered (R-90).

        Raises what answers raised, when all of this is done.

        Returns:
            How many operations expired.
        """
        before = self.expirations
        errors: list[Exception] = []
        for task in self.timer.expired(now_ms):
            try:
                self._expire(task)
            except Exception as error:
                errors.append(error)
        waiting = self.delayed
        # Kafka's rule, but never more often than the number of those that wait has been completed:
        # a sweep looks at all of them, and so costs O(1) for each operation.
        if self._estimated - waiting > max(self.purge_interval, waiting):
            self._estimated = waiting
            self.purge()
        raise_all(errors)
        return self.expirations - before

    def purge(self) -> None:
        """Drop completed operations from all watch lists."""
        for key, watchers in list(self._watchers.items()):
            with watchers.lock:
                self._sweep(key, watchers)

    @property
    def watched(self) -> int:
        """Kafka's PurgatorySize: entries of all watch lists, completed ones not yet swept too."""
        return sum(len(watchers.operations) for watchers in list(self._watchers.values()))

    @property
    def delayed(self) -> int:
        """Kafka's NumDelayedOperations: operations with a deadline to come."""
        return len(self.timer)

    def shutdown(self) -> list[Op]:
        """Forget all that waits. What is registered from now on expires at once, so that nobody
        waits for ever.

        Returns:
            The open operations, none completed: whether to answer them is the owner's choice.
        """
        self._closed = True
        cancelled = {
            operation: None
            for key in list(self._watchers)
            for operation in self.cancel_for_key(key)
        }
        return list(cancelled)

    def _expire(self, operation: TimerTask) -> None: ...

    def _watch(self, key: Hashable, operation: Op) -> None:
        while True:
            watchers = self._watchers.get(key)
            if watchers is None:
                watchers = self._watchers.setdefault(key, _Watchers())
            with watchers.lock:
                if not watchers.dropped:
                    watchers.operations.append(operation)
                    return

    def _try_watched(self, key: Hashable, watchers: _Watchers[Op], errors: list[Exception]) -> int:
        with watchers.lock:
            operations = watchers.operations.copy()
        completed = 0
        for operation in operations:
            if operation.completed:
                continue
            with operation._lock:
                done = not operation.completed and operation._attempt()
            if done:
                completed += 1
                operation._finish()
        with watchers.lock:
            self._sweep(key, watchers)
        return completed

    def _sweep(self, key: Hashable, watchers: _Watchers[Op]) -> None:
        """Under the lock of the key."""
        watchers.operations = [op for op in watchers.operations if not op.completed]
        self._drop_if_empty(key, watchers)

    def _drop_if_empty(self, key: Hashable, watchers: _Watchers[Op]) -> None:
        """Under the lock of the key: who waits for that to add to it then looks for a new one."""
        if not watchers.operations and not watchers.dropped:
            watchers.dropped = True
            del self._watchers[key]
