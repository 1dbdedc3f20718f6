"""Run many calls that wait for a storage at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar, cast

from logstore.manager.parallel import run_all

_THREADS = 16  # an object store answers in tens of milliseconds
_T = TypeVar("_T")
_R = TypeVar("_R")


def at_once(call: Callable[[_T], _R], items: Collection[_T]) -> list[_R]:
    """Call ``call`` with every item. Results are in order.

    Errors are raised after all have ended.
    """
    threads = min(_THREADS, len(items))
    results: list[_R] = []
    for value, error in run_all((partial(call, item) for item in items), threads, "logstore-spark"):
        if error is not None:
            raise error
        results.append(cast(_R, value))
    return results
