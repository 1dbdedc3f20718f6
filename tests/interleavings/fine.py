"""More places to switch: every call of a function of the log's own modules.

Locks and the storage seam are where threads meet most, but a thread may lose the processor
anywhere: between taking a snapshot and looking at a segment, for instance. With these steps a
schedule can say so. A run takes three times as many steps with them, so only some seeds use them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

from tests.interleavings.scheduler import Scheduler

try:
    from logstore.segments import open_files
except ImportError:  # the log as it was when files stayed open
    open_files = None  # type: ignore[assignment]

_MODULES = ("logstore.log", "logstore.segments")

_running: list[Scheduler] = []

_SHARED = getattr(open_files, "_lock", threading.Lock())
"""All logs of the process share it, and it is a real one: nobody is switched to inside it."""


def _stepping(call: FunctionType) -> Callable[..., Any]:
    @functools.wraps(call)
    def step(*args: Any, **kwargs: Any) -> Any:
        if _running and not _SHARED.locked():
            _running[-1].point(call.__qualname__)
        return call(*args, **kwargs)

    return step


@cache
def _places() -> tuple[tuple[Any, str, Any, Any], ...]:
    """``(owner, name, function, function with a step)`` for all of them."""
    modules = [m for name, m in sorted(sys.modules.items()) if name.startswith(_MODULES)]
    made: dict[Any, Any] = {}
    places: list[tuple[Any, str, Any, Any]] = []

    def note(owner: Any, name: str, value: Any) -> None:
        ours = isinstance(value, FunctionType) and value.__module__.startswith(_MODULES)
        if ours and not name.startswith("__"):
            places.append((owner, name, value, made.setdefault(value, _stepping(value))))

    for module in modules:
        for name, value in list(vars(module).items()):
            note(module, name, value)
            if inspect.isclass(value) and value.__module__ == module.__name__:
                for attribute, function in list(vars(value).items()):
                    note(value, attribute, function)
    return tuple(places)


@contextmanager
def steps_at_calls(scheduler: Scheduler, wanted: bool) -> Iterator[None]:
    """Inside the block, a step before every call, if ``wanted``."""
    if not wanted:
        yield
        return
    places = [p for p in _places() if vars(p[0]).get(p[1]) is p[2]]  # not those a mutant replaced
    for owner, name, _, stepping in places:
        setattr(owner, name, stepping)
    _running.append(scheduler)
    try:
        yield
    finally:
        _running.pop()
        for owner, name, function, _ in places:
            setattr(owner, name, function)


__all__ = ["steps_at_calls"]
