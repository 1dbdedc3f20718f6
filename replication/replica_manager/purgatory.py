"""Requests that wait for an offset, bytes or a deadline (R-88 … R-91; Kafka's
``DelayedOperationPurgatory``).

Nothing here waits for another thread. An operation that is being checked is checked again by the
same thread (``DelayedOperation``). Answers run without a lock, and the locks are held only for a
few instructions without calls of others. So an answer may register, check, or take its own locks.
Callers hold no lock that a ``try_complete`` takes. A finalizer must not call anything here, since
its thread may hold one of the locks.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, Self, TypeVar

__all__ = ["Deadlines", "DelayedOperation", "Purgatory"]

MAX_WAIT_MS = 2**31 - 1
"""The longest wait of the protocol, 24 days."""
_STEP = threading.Lock()  # of any operation: held for the few instructions of one step


class DelayedOperation:
    """A request to answer once: if a condition holds, or ``delay_ms`` after its registration.

    One thread at a time checks (``try_complete``). Another that wants to check leaves word, and the
    first one checks again: nobody waits for a lock here, and no check is lost. Whoever completes it
    answers; during a check, the thread that checks does, right after it. So answers never run
    beside a check, and run without any lock.
    """

    completed = False
    """True from the moment it is decided, just before ``on_complete`` runs."""
    expiry_ms: int | None = None
    """When its deadline is; None while it is in no timer."""
    checks_first = True
    """False if the caller has just checked: then the check after watching is the first."""
    _is_checked = _again = _expired = False
    _purgatory: Any = None  # Purgatory[Self]

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms

    def try_complete(self) -> bool:
        """If the condition holds, ``return self.force_complete()``, else return False.

        By one thread at a time. The condition is read under a lock under which it changes: that
        lock puts the order into R-89.
        """
        raise NotImplementedError

    def on_complete(self) -> None:
        """Answer. Called exactly once, without locks."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """Called after ``on_complete`` when it was the deadline that completed it."""
        raise NotImplementedError

    def force_complete(self) -> bool:
        """Complete now, unless it is completed already: True for exactly one caller (R-88).

        From any thread. If a check is under way, the answer follows right after it, from there.
        """
        with _STEP:
            if self.completed:
                return False
            self.completed = True
            if self._is_checked:
                return True
        self._finish()
        return True

    def expire(self) -> None:
        """Complete at the deadline, with what there is."""
        with _STEP:
            if self.completed:
                return
            self.completed = self._expired = True
            if self._is_checked:
                return
        self._finish()

    def check(self) -> bool:
        """Check, from any thread: Kafka's ``safeTryComplete``. True if this call answered it."""
        with _STEP:
            if self.completed:
                return False
            if self._is_checked:
                self._again = True  # the other thread does it
                return False
            self._is_checked = True
        try:
            self.try_complete()
        except BaseException as error:
            return self._end_check(error)
        return self._end_check()

    def register(self, purgatory: Purgatory[Self], keys: tuple[Hashable, ...]) -> bool:
        """Check, watch under every key, check again, and into the timer if still open (R-89).

        False if it does not wait: completed before, there is no delay, or the purgatory is closed.
        """
        with _STEP:
            if self.completed:
                return False
            if self._is_checked:
                raise RuntimeError(f"{self!r} is registered by another thread, too")
            self._is_checked = True
        self._purgatory = purgatory
        try:
            if self.checks_first:
                self.try_complete()
            waits = not self.completed and self.delay_ms > 0 and purgatory.watch(self, keys)
            if waits:
                self.try_complete()
                if not self.completed:
                    purgatory.deadlines.add(self, self.delay_ms, purgatory.now_ms())
        except BaseException:  # nobody answers it any more
            with _STEP:
                completed, self.completed, self._is_checked = self.completed, True, False
            if completed:
                self._finish()
            raise
        self._end_check()  # from here on others may complete it, and find it in the timer
        return waits

    def _end_check(self, error: BaseException | None = None) -> bool:
        """Check again as often as others asked for it, then answer. True if completed."""
        while True:
            with _STEP:
                if self.completed or not self._again:
                    self._is_checked = False
                    completed = self.completed
                    break
                self._again = False
            try:
                self.try_complete()
            except BaseException as caught:
                error = caught
        if completed:
            self._finish()
        if error is not None:
            raise error
        return completed

    def _finish(self) -> None:
        purgatory = self._purgatory
        if purgatory is not None and self.expiry_ms is not None:
            purgatory.deadlines.cancel(self)
        self.on_complete()
        if self._expired:
            self.on_expiration()


Op = TypeVar("Op", bound=DelayedOperation)


class Deadlines(Generic[Op]):
    """Operations by deadline (R-91). There is no clock and no thread in here.

    Those of one ms are together, and the ms are in a heap. Any number may wait: adding and
    cancelling cost the same, since few ms are different.
    """

    def __init__(self, start_ms: int = 0) -> None:
        self.now_ms = start_ms  # of the latest ``take_due``
        # The first one of an ``OrderedDict`` is found at once also where many before it are gone.
        self._by_ms: dict[int, OrderedDict[Op, None]] = {}
        self._heap: list[int] = []  # all keys of ``_by_ms``, and some that are gone
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def add(self, operation: Op, delay_ms: int, now_ms: int) -> None:
        """Add one that is not here. If it is due already, the next ``take_due`` returns it."""
        with self._lock:
            operation.expiry_ms = expiry_ms = max(now_ms + delay_ms, self.now_ms)
            same = self._by_ms.get(expiry_ms)
            if same is None:
                same = self._by_ms[expiry_ms] = OrderedDict()
                heapq.heappush(self._heap, expiry_ms)
            same[operation] = None
            self._count += 1

    def cancel(self, operation: Op) -> bool:
        """True if it waited. False if it was not here, or ``take_due`` has returned it."""
        with self._lock:
            expiry_ms = operation.expiry_ms
            if expiry_ms is None:
                return False
            self._remove(operation, expiry_ms)
            return True

    def _remove(self, operation: Op, expiry_ms: int) -> None:
        operation.expiry_ms = None
        same = self._by_ms[expiry_ms]
        del same[operation]
        self._count -= 1
        if not same:
            del self._by_ms[expiry_ms]
            if len(self._heap) > 2 * len(self._by_ms) + 64:
                self._heap = list(self._by_ms)
                heapq.heapify(self._heap)

    def take_due(self, now_ms: int) -> Op | None:
        """The next one that is due, in the order of time, then of adding."""
        with self._lock:
            self.now_ms = max(self.now_ms, now_ms)
            due_ms = self._first_ms()
            if due_ms is None or due_ms > self.now_ms:
                return None
            operation = next(iter(self._by_ms[due_ms]))
            self._remove(operation, due_ms)
            return operation

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline; None when nothing waits."""
        with self._lock:
            return self._first_ms()

    def _first_ms(self) -> int | None:
        heap = self._heap
        while heap and heap[0] not in self._by_ms:
            heapq.heappop(heap)
        return heap[0] if heap else None


class _Checking(threading.local):
    keys: dict[Hashable, None] | None = None  # None: this thread is not in a check of the purgatory


class Purgatory(Generic[Op]):
    """Waiting operations of one kind, found by key or by deadline. Thread-safe.

    Args:
        name: as in Kafka's metric: ``Produce``, ``Fetch``, ``DeleteRecords``.
        purge_interval: so many completed operations may stay in watch lists before a sweep.
        now_ms: returns the time from which delays count; by default the last advance.
    """

    def __init__(
        self, name: str, purge_interval: int = 1000, now_ms: Callable[[], int] | None = None
    ) -> None:
        self.name, self.purge_interval = name, purge_interval
        self.deadlines: Deadlines[Op] = Deadlines(0 if now_ms is None else now_ms())
        self.now_ms = now_ms or (lambda: self.deadlines.now_ms)
        self._watchers: dict[Hashable, list[Op]] = {}
        self.keys = self._watchers.keys()
        """A live view of the keys that are watched: others need no check."""
        self._checking = _Checking()
        self._closed = False
        self._lock = threading.Lock()  # for these
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
        keys = tuple(keys)
        if not keys:
            raise ValueError(f"an operation for purgatory {self.name} has no keys to watch")
        if operation.register(self, keys):
            self._estimated += 1
            if not self._closed:  # else the shutdown may have come before its deadline was set
                return operation.completed
        operation.expire()  # does nothing to a completed one
        return True

    def watch(self, operation: Op, keys: tuple[Hashable, ...]) -> bool:
        """False after a ``shutdown``."""
        with self._lock:
            if self._closed:
                return False
            for key in keys:
                watching = self._watchers.get(key)
                if watching is None:
                    self._watchers[key] = [operation]
                else:
                    watching.append(operation)
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
                completed += self._check(key, errors)
        finally:
            checking.keys = None
        if errors:
            _raise_all(errors)
        return completed

    def _check(self, key: Hashable, errors: list[Exception]) -> int:
        with self._lock:
            operations = self._watchers.get(key, []).copy()
        completed = 0
        to_sweep = False
        for operation in operations:
            try:
                if operation.completed:
                    to_sweep = True
                elif operation.check():
                    completed += 1
            except Exception as error:
                errors.append(error)
                to_sweep = True
        if completed or to_sweep:
            self._sweep(key)
        return completed

    def _sweep(self, key: Hashable) -> None:
        with self._lock:
            before = self._watchers.get(key)  # released after the lock: it may run code
            left = [operation for operation in before or () if not operation.completed]
            if left:
                self._watchers[key] = left
            else:
                self._watchers.pop(key, None)

    def advance(self, now_ms: int) -> int:
        """Expire what is due, then sweep the watch lists if they have grown enough (R-90).

        An exception of an answer does not keep the others from expiring; it is raised at the end.

        Returns:
            How many deadlines fell due.
        """
        count = 0
        errors: list[Exception] = []
        while (operation := self.deadlines.take_due(now_ms)) is not None:
            count += 1
            try:
                operation.expire()
            except Exception as error:
                errors.append(error)
        # Kafka's rule, but not before the completed ones outnumber those that wait. A sweep visits
        # all of these, so it costs O(1) for each operation.
        waiting = self.delayed
        if self._estimated - waiting > max(self.purge_interval, waiting):
            self._estimated = waiting
            self.purge()
        if errors:
            _raise_all(errors)
        return count

    def purge(self) -> None:
        """Drop completed operations from all watch lists."""
        for key in list(self._watchers):
            self._sweep(key)

    @property
    def watched(self) -> int:
        """Kafka's PurgatorySize: entries of all watch lists, including completed ones before a
        sweep.
        """
        return sum(map(len, list(self._watchers.values())))

    @property
    def delayed(self) -> int:
        """Kafka's NumDelayedOperations: operations with a future deadline."""
        return len(self.deadlines)

    def shutdown(self) -> list[Op]:
        """Forget all waiting operations. Later ones expire at once, so that none waits forever.

        Returns:
            The open operations, not completed. The owner decides whether to answer them.
        """
        with self._lock:
            self._closed = True
            watching = list(self._watchers.values())
            self._watchers.clear()
        operations = dict.fromkeys(op for each in watching for op in each if not op.completed)
        for operation in operations:
            self.deadlines.cancel(operation)
        return list(operations)


def _raise_all(errors: list[Exception]) -> None:
    raise errors[0] if len(errors) == 1 else ExceptionGroup("several operations failed", errors)
