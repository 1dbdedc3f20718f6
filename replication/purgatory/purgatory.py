"""Requests that wait for an offset, bytes or a deadline (R-88 … R-90; Kafka's
``DelayedOperationPurgatory``).

Nothing here waits for another thread. An operation that is being checked is checked again by the
same thread (``DelayedOperation``). Answers run without a lock, and the locks of a key and of the
timer are held only for a few instructions without calls. So an answer may register, check, or take
its own locks. Callers hold no lock that a ``try_complete`` takes.

This module needs atomic single dict operations (``get``, ``setdefault``, ``in``, and ``list`` of a
dict, with keys of str, int and tuples). Interpreters with and without a global lock promise that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar, cast

from replication.kernels import DelayedOperation, Timer, Watchers, raise_all

__all__ = ["DelayedOperation", "Purgatory"]

Op = TypeVar("Op", bound=DelayedOperation)


class _Checking(threading.local):
    keys: dict[Hashable, None] | None = None  # None: this thread is not in a check of the purgatory


class Purgatory(Generic[Op]):
    """Waiting operations of one kind, found by key or by deadline. Thread-safe.

    Each key has its own lock, where Kafka has 512 for all keys.

    Args:
        name: as in Kafka's metric: ``Produce``, ``Fetch``, ``DeleteRecords``.
        timer: used only by this purgatory, because ``delayed`` is its size.
        purge_interval: so many completed operations may stay in watch lists before a sweep.
        now_ms: returns the time from which delays count, see ``Timer.add``; by default the last
            advance.
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
        """How many operations were completed by their deadline."""
        self._now_ms = now_ms
        self._watchers: dict[Hashable, Watchers] = {}
        self.keys = self._watchers.keys()
        """A live view of all keys that are or were watched: others need no check."""
        self._checking = _Checking()
        self._lock = threading.Lock()  # for ``expirations``
        self._closed = False
        # Registrations since the last sweep, and how many waited then. Threads may lose each
        # other's updates: it is an estimate, used only for the time of the next sweep.
        self._estimated = 0

    def try_complete_else_watch(self, operation: Op, keys: Iterable[Hashable]) -> bool:
        """Complete ``operation`` at once if possible, else watch it under all ``keys`` (R-89).

        It checks, watches, and checks again. The second check sees any event before it, and any
        later event finds the operation under its key.

        Returns:
            True if it is completed, also by a delay of 0 ms or less or because the purgatory is
            shut down. False if it waits.
        Raises:
            ValueError: there are no keys.
            Exception: raised by ``try_complete`` or the answer. If it was ``try_complete``, the
                operation is forgotten without an answer.
        """
        if not isinstance(keys, tuple):
            keys = tuple(keys)
        if not keys:
            raise ValueError(f"an operation for purgatory {self.name} has no keys to watch")
        now_ms = None if self._now_ms is None else self._now_ms()
        if operation._register(self, self._watchers, keys, self.timer, now_ms):
            self._estimated += 1
            if not self._closed:
                return operation.completed
        operation.run()  # does nothing to a completed one
        return True

    def check_and_complete(self, key: Hashable) -> int:
        """Check all operations that watch ``key`` after an event.

        A check inside an answer of another check of this thread is deferred until the outer one has
        finished its key, and returns 0, so a chain of answers does not nest. After an exception of
        one operation the others are still checked. It is raised at the end, in an
        ``ExceptionGroup`` if there are several.

        Returns:
            How many operations this call completed. Cost: O(operations that watch the key).
        """
        if key not in self._watchers:
            return 0
        checking = self._checking
        if checking.keys is not None:
            checking.keys[key] = None
            return 0
        checking.keys = keys = {key: None}
        completed = 0
        errors: list[Exception] = []
        try:
            while keys:
                key = next(iter(keys))
                del keys[key]
                watchers = self._watchers.get(key)
                if watchers is not None:
                    completed += watchers.try_complete(errors)
        finally:
            checking.keys = None
        raise_all(errors)
        return completed

    def cancel_for_key(self, key: Hashable) -> list[Op]:
        """Forget a key, and the deadlines of operations that watch it. Nothing is completed.

        Returns:
            The open operations in the order of registration. One that also watches other keys is
            still found there.
        """
        watchers = self._watchers.get(key)
        if watchers is None:
            return []
        operations = [op for op in watchers.take() if not op.completed]
        for operation in operations:
            operation.cancel()
        return cast("list[Op]", operations)

    def advance(self, now_ms: int) -> int:
        """Expire what is due, then sweep the watch lists if they have grown enough (R-90).

        Exceptions of answers are raised at the end.

        Returns:
            How many deadlines fell due.
        """
        try:
            return self.timer.advance(now_ms)
        finally:
            # Kafka's rule, but only once as many were completed as wait. A sweep visits all waiting
            # operations, so it costs O(1) for each operation.
            waiting = self.delayed
            if self._estimated - waiting > max(self.purge_interval, waiting):
                self._estimated = waiting
                self.purge()

    def purge(self) -> None:
        """Drop completed operations from all watch lists."""
        for watchers in list(self._watchers.values()):
            watchers.sweep()

    @property
    def watched(self) -> int:
        """Kafka's PurgatorySize: entries of all watch lists, including completed ones before a
        sweep.
        """
        return sum(len(watchers) for watchers in list(self._watchers.values()))

    @property
    def delayed(self) -> int:
        """Kafka's NumDelayedOperations: operations with a future deadline."""
        return len(self.timer)

    def shutdown(self) -> list[Op]:
        """Forget all waiting operations. Later ones expire at once, so that none waits forever.

        Returns:
            The open operations, not completed. The owner decides whether to answer them.
        """
        self._closed = True
        return list(
            dict.fromkeys(op for key in list(self._watchers) for op in self.cancel_for_key(key))
        )

    def count_expiration(self) -> None:
        """Count an operation that its deadline has completed."""
        with self._lock:
            self.expirations += 1
