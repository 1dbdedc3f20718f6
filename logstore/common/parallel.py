"""Run several calls at once or one after the other, and run others later on one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, NamedTuple, TypeVar, cast

from checkpoints.loggers import get_logger

logger = get_logger(__name__)

T = TypeVar("T")
_ItemT = TypeVar("_ItemT")
_STORAGE_CALLS = 16  # an object store answers in tens of milliseconds


class TaskOutcome(NamedTuple, Generic[T]):
    """The result that a call returned, or the error that it raised."""

    value: T | None
    error: BaseException | None


def _outcome(task: Callable[[], T]) -> TaskOutcome[T]:
    try:
        return TaskOutcome(task(), None)
    except BaseException as error:
        return TaskOutcome(None, error)


def run_all(tasks: Iterable[Callable[[], T]], threads: int, name: str) -> list[TaskOutcome[T]]:
    """Run every task, on a pool if ``threads`` is above 1. Outcomes have the order of the tasks.

    In the caller's thread anything that is not an ``Exception``, such as an interrupt, ends the
    work and the outcomes.
    """
    tasks = list(tasks)
    if threads > 1 and threading.main_thread().is_alive():  # else the interpreter begins no more
        with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
            futures = [pool.submit(_outcome, task) for task in tasks]
        return [future.result() for future in futures]
    outcomes: list[TaskOutcome[T]] = []
    for task in tasks:
        outcomes.append(_outcome(task))
        error = outcomes[-1].error
        if error is not None and not isinstance(error, Exception):
            break
    return outcomes


class LaterThread:
    """Runs tasks one after the other on a thread, which the first task starts."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._closed = False

    def submit(self, task: Callable[[], None]) -> None:
        """Run the task later. It is dropped if this is closed or the interpreter ends."""
        try:
            self._pool.submit(task)
        except RuntimeError as error:
            if not self._closed:
                logger.warning("a task for later was dropped: %s", error)

    def close(self, *, cancel: bool = False) -> None:
        """Wait for the running task and, unless ``cancel``, for the waiting ones. Idempotent."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=cancel)


def at_once(call: Callable[[_ItemT], T], items: Collection[_ItemT]) -> list[T]:
    """Call ``call``, which waits for a storage, with every item. Results are in order.

    Errors are raised after all have ended.
    """
    threads = min(_STORAGE_CALLS, len(items))
    results: list[T] = []
    for value, error in run_all((partial(call, item) for item in items), threads, "logstore-spark"):
        if error is not None:
            raise error
        results.append(cast(T, value))
    return results
