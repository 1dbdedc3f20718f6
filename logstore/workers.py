"""Several calls at once, or one after the other in the caller's thread; nothing else decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Outcome(NamedTuple, Generic[T]):
    """What a call returned, or what it raised."""

    value: T | None
    error: BaseException | None


def _outcome(task: Callable[[], T]) -> Outcome[T]:
    try:
        return Outcome(task(), None)
    except BaseException as error:
        return Outcome(None, error)


def run_all(tasks: Iterable[Callable[[], T]], threads: int, name: str) -> list[Outcome[T]]:
    """Run every task, on a pool where ``threads`` is above 1; outcomes in the order of the tasks.

    In the caller's thread whatever is no ``Exception``, such as an interrupt, ends the work: the
    outcomes end with it.
    """
    if threads > 1:
        with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
            futures = [pool.submit(_outcome, task) for task in tasks]
        return [future.result() for future in futures]
    outcomes: list[Outcome[T]] = []
    for task in tasks:
        outcomes.append(_outcome(task))
        error = outcomes[-1].error
        if error is not None and not isinstance(error, Exception):
            break
    return outcomes


__all__ = ["Outcome", "run_all"]
