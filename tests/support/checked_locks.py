"""Locks that refuse an order in which two threads could wait for each other."""

from __future__ import annotations

import threading

from logstore.common.locks import Rank


class LockOrderError(AssertionError):
    """A thread took locks in an order that can deadlock."""


class CheckedLock:
    """A lock that refuses to be taken out of order, or twice by one thread."""

    _held = threading.local()

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._lock = threading.Lock()
        self._holder: list[CheckedLock] = []  # all that the thread holds that took it

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        held: list[CheckedLock] = self._held.__dict__.setdefault("locks", [])
        highest = max((lock.rank for lock in held), default=0)
        if blocking and self.rank <= highest:  # a try without waiting cannot deadlock
            raise LockOrderError(
                f"{self.rank.name} taken by a thread that holds "
                f"{', '.join(lock.rank.name for lock in held)}"
            )
        if not self._lock.acquire(blocking, timeout):
            return False
        held.append(self)
        self._holder = held
        return True

    def release(self) -> None:  # by any thread
        self._holder.remove(self)
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        self.release()
