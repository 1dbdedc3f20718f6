"""Locks at which the scheduler may switch, in the place of those of the log."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any

from tests.interleavings.scheduler import Scheduler


class ExplorerLock:
    """A lock of greenlets. ``rank`` is the place in the order of locks, if it has one."""

    def __init__(self, scheduler: Scheduler, rank: Any = None, *, reentrant: bool = False) -> None:
        self.rank = rank
        self._scheduler = scheduler
        self._reentrant = reentrant
        self._owner: object = None
        self._depth = 0

    def __repr__(self) -> str:
        return "a lock" if self.rank is None else self.rank.name

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler
        if scheduler.stopping:
            return True
        scheduler.point(f"acquire {self!r}")
        actor = scheduler.current
        if self._owner is actor:
            if not self._reentrant:
                raise scheduler.fail(
                    "deadlock", f"actor {actor.index} takes {self!r} a second time"
                )
            self._depth += 1
            return True
        self._check_order(actor.held)
        if self._owner is not None:
            if not blocking:
                return False
            if not scheduler.wait(self._is_free, repr(self), timed=timeout >= 0):
                return False
        self._owner, self._depth = actor, 1
        actor.held.append(self)
        return True

    def _is_free(self) -> bool:
        return self._owner is None

    def _check_order(self, held: list[Any]) -> None:
        if self.rank is None:
            return
        for lock in held:
            if lock.rank is not None and lock.rank >= self.rank:
                raise self._scheduler.fail(
                    "lock order", f"{self!r} taken by an actor that holds {held}"
                )

    def release(self) -> None:
        scheduler = self._scheduler
        if scheduler.stopping:
            return
        actor = scheduler.current
        if self._owner is not actor:
            raise scheduler.fail(
                "lock order", f"{self!r} released by an actor that does not hold it"
            )
        self._depth -= 1
        if not self._depth:
            self._owner = None
            actor.held.remove(self)
            scheduler.point(f"release {self!r}")

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


class ExplorerEvent:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._scheduler.point("event set")

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._scheduler.point("event wait")
        self._scheduler.wait(self.is_set, "an event", timed=timeout is not None)
        return self._set


class ExplorerCondition:
    def __init__(self, scheduler: Scheduler, lock: ExplorerLock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = lock or ExplorerLock(scheduler, reentrant=True)
        self._woken: list[list[bool]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        woken = [False]
        self._woken.append(woken)
        self._lock.release()
        self._scheduler.wait(lambda: woken[0], "a condition", timed=timeout is not None)
        if woken in self._woken:
            self._woken.remove(woken)
        self._lock.acquire()
        return woken[0]

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            if not self.wait(timeout):
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        for woken in self._woken[:n]:
            woken[0] = True
        del self._woken[:n]

    def notify_all(self) -> None:
        self.notify(len(self._woken))


class _Threading:
    """What stands for the module ``threading`` inside the modules of the log."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.Lock = partial(ExplorerLock, scheduler)
        self.RLock = partial(ExplorerLock, scheduler, reentrant=True)
        self.Event = partial(ExplorerEvent, scheduler)
        self.Condition = partial(ExplorerCondition, scheduler)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


_OWN_LOCKS = (
    "logstore.storage",
    "logstore.testing",
    "logstore.common.locks",
)  # real, never contended


@cache
def _users_of_threading() -> tuple[ModuleType, ...]:
    import logstore.log  # noqa: F401  (its modules are what is looked for)

    return tuple(
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("logstore.")
        and not name.startswith(_OWN_LOCKS)
        and getattr(module, "threading", None) is threading
    )


@contextmanager
def explorer_locks(scheduler: Scheduler) -> Iterator[None]:
    """Every lock that the log makes inside the block is one of the scheduler's."""
    stand_in = _Threading(scheduler)
    modules = _users_of_threading()
    with ExitStack() as stack:
        try:
            from logstore.common import locks
        except ImportError:  # the log as it was before its locks had names
            pass
        else:
            stack.enter_context(locks.replace_factory(partial(ExplorerLock, scheduler)))
        for module in modules:
            module.threading = stand_in  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for module in modules:
                module.threading = threading  # type: ignore[attr-defined]
