"""The locks of a log directory, and the one order in which they are taken.

A thread takes locks in the order of their rank, lowest first, and never one that it holds already.
A holder of ``WRITE`` never waits for a disk, because appends need it. Readers take no lock below
``INDEX``, unless they found an index that must be rebuilt.

Tests replace the factory (``replace_factory``) by locks that assert the order, or by locks at which
a scheduler switches between actors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Protocol

from logstore.common.forks import free_in_child


class Rank(IntEnum):
    """What a lock protects, the outermost first."""

    CREATION = 1  # creation and deletion of the log of one partition
    PRODUCERS = 5  # making an idempotent producer of a log
    PRODUCER = 6  # an append by such a producer
    CURSOR = 7  # the file of one cursor of a log
    STRUCTURE = 10  # removal of segments from a log: truncation, retention, close
    FLUSH = 20  # a sync of the files of a log
    CHECKPOINT = 25  # writing the checkpoint files of a log directory
    WRITE = 30  # changes of offsets, segments, producers or epochs; never held during a disk sync
    INDEX = 40  # mapping, cutting or searching one index file
    MANAGER = 60  # changes of the set of logs and directories
    NEWS = 70  # beginning or ending a wait for a change of one log
    RECENT = 80  # keeping or dropping bytes that were just appended


class Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


LockFactory = Callable[[Rank], Lock]


def _plain(rank: Rank) -> Lock:
    lock = threading.Lock()
    # Code of a caller, which may fork, runs under CREATION. In the child that thread releases it.
    return lock if rank is Rank.CREATION else free_in_child(lock)


_factory: LockFactory = _plain


def make_lock(rank: Rank) -> Lock:
    """A lock that is not reentrant."""
    return _factory(rank)


@contextmanager
def replace_factory(factory: LockFactory) -> Iterator[None]:
    """Make locks inside the block with ``factory``. For tests."""
    global _factory
    before, _factory = _factory, factory
    try:
        yield
    finally:
        _factory = before


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
