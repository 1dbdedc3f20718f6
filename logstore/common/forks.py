"""The rule for a forked child: it reads or closes what its parent opened, and nothing else.

A fork copies objects and descriptors, and neither locks of the file system nor threads. So two
processes would believe that they own one log. Here, before any other code of a child runs, each
open thing learns that it is not the child's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from logstore.common.errors import ForkedError


class Inherited(Protocol):
    """Something open that a child must not change."""

    def disown(self, pid: int) -> None:
        """Note in a child, or in a child of it, that process ``pid`` opened it.

        No other thread runs. Nothing may be waited for, and nothing changed that the parent sees.
        """
        ...


L = TypeVar("L")

_pid = os.getpid()
_locks: WeakSet[Any] = WeakSet()  # each can be recreated, as those of ``threading``
_actions: list[Callable[[], None]] = []
_open: WeakSet[Inherited] = WeakSet()


def free_in_child(lock: L) -> L:
    """Let ``lock`` be free in a child, though another thread holds it at the fork."""
    _locks.add(lock)
    return lock


def in_child(action: Callable[[], None]) -> Callable[[], None]:
    """Call ``action`` in each child, before what is open learns of the fork. A decorator."""
    _actions.append(action)
    return action


def register(opened: Inherited) -> None:
    """Call ``opened.disown`` in each child, as long as it is referenced elsewhere."""
    _open.add(opened)


class Ownership:
    """Whether this process opened something, or a process that it was forked from.

    Attributes:
        name: what was opened, for the error.
        lost: the error for its use; None in the process that opened it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost: ForkedError | None = None
        register(self)

    def disown(self, pid: int) -> None:
        self.lost = self.lost or ForkedError(self.name, pid)

    def check(self) -> None:
        """
        Raises:
            ForkedError: another process opened it.
        """
        if self.lost is not None:
            raise self.lost


def _after_fork() -> None:
    global _pid
    parent, _pid = _pid, os.getpid()
    for lock in _locks:  # recreated as the standard library does with its own
        lock._at_fork_reinit()
    for action in _actions:
        action()
    for opened in _open:
        with suppress(OSError):  # of a close: the others must still learn of it
            opened.disown(parent)


os.register_at_fork(after_in_child=_after_fork)


__all__ = ["Inherited", "Ownership", "free_in_child", "in_child", "register"]
