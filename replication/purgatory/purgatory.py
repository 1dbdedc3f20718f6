"""Requests that wait for an offset, bytes or a deadline (R-88 … R-90; Kafka's
``DelayedOperationPurgatory``).

Nothing here waits for another thread: an operation that is being looked at is looked at again by
whoever does (``DelayedOperation``), answers run without any lock, and a key's lock and the timer's
are held for a few instructions that call nothing. So an answer may register, check, or take locks
of its own. Callers hold no lock that a ``try_complete`` takes.

Of the interpreter this module needs that single dict operations are whole (``get``,
``setdefault``, ``in``, and ``list`` of one, with keys of str, int and tuples); builds with and
without a global lock promise it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar, cast

from replication.kernels import DelayedOperation, Timer, Watchers, raise_all

__all__ = ["DelayedOperation", "Purgatory"]

Op = TypeVar("Op", bound=DelayedOperation)


class _Checking(threading.local):
    keys: dict[Hashable, None] | None = None  # None: this thread is in no check of the purgatory


class Purgatory(Generic[Op]):
    """Waiting operations of one kind, found by key or by deadline; safe from any thread.

    Each key has a lock of its own, where Kafka has 512 for all of them.

    Args:
        name: as in Kafka's metric: ``Produce``, ``Fetch``, ``DeleteRecords``.
        timer: one for this purgatory alone, as ``delayed`` is its size.
        purge_interval: so many completed operations may stay in watch lists before a sweep.
        now_ms: the time that delays count from, see ``Timer.add``; without it, the last advance.
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
        self._watchers: dict[Hashable, Watchers] = {}
        self._checking = _Checking()
        self._lock = threading.Lock()  # for ``expirations``
        self._closed = False
        # Registered since the last sweep, and what waited then. Two threads may lose a step of
        # each other: it is an estimate, and only the time of the next sweep hangs on it.
        self._estimated = 0

    def try_complete_else_watch(self, operation: Op, keys: Iterable[Hashable]) -> bool:
        """Complete ``operation`` at once if it can be, else watch it under all ``keys`` (R-89).

        Looks, watches, looks again: the second look sees an event before it, and an event after it
        finds the operation under its key.

        Returns:
            True: completed, be it by a delay of 0 ms or less, or as the purgatory is shut down.
            False: it waits.
        Raises:
            ValueError: there are no keys.
            Exception: what ``try_complete`` or the answer raised. If it was ``try_complete``, the
                operation is forgotten and nobody answers it.
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
        """Something happened to ``key``: look at all operations that watch it.

        A check from inside an answer that a check of the same thread gave is put off until the
        outer one is through its key, and returns 0: a chain of answers stays flat.

        An exception of one operation does not keep the others from being looked at; it is raised
        at the end, in an ``ExceptionGroup`` where there are several.

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
        """Forget the key and the deadlines of what watches it; nothing is completed.

        Returns:
            The open operations, in the order of registration. One that watches other keys too is
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
        """Expire what is due, then sweep the watch lists if enough has gathered (R-90).

        Raises what answers raised, when all of this is done.

        Returns:
            How many deadlines fell due.
        """
        try:
            return self.timer.advance(now_ms)
        finally:
            # Kafka's rule, but not before as many were completed as wait: a sweep looks at all
            # that wait, and so costs O(1) for each operation.
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
        """Kafka's PurgatorySize: entries of all watch lists, completed ones not yet swept too."""
        return sum(len(watchers) for watchers in list(self._watchers.values()))

    @property
    def delayed(self) -> int:
        """Kafka's NumDelayedOperations: operations with a deadline to come."""
        return len(self.timer)

    def shutdown(self) -> list[Op]:
        """Forget all that waits. What is registered from now on expires at once: nobody waits for
        ever.

        Returns:
            The open operations, none completed: whether to answer them is the owner's choice.
        """
        self._closed = True
        return list(
            dict.fromkeys(op for key in list(self._watchers) for op in self.cancel_for_key(key))
        )

    def count_expiration(self) -> None:
        """For operations, when their deadline has completed them."""
        with self._lock:
            self.expirations += 1
