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
    """The rank of a lock by what it protects, the outermost first."""

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
    CHANGE_LISTENERS = 70  # beginning or ending a wait for a change of one log
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


def make_lock(rank: Rank, plain: Callable[[], Lock] | None = None) -> Lock:
    """A lock that is not reentrant. ``plain`` makes it in place of ``threading.Lock``."""
    if plain is not None and _factory is _plain:
        return free_in_child(plain())
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
