"""Waiting operations for tests, and threads that race."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from replication.replica_manager.purgatory import DelayedOperation
from tests.support.until import patience


class Operation(DelayedOperation):
    """Completes when ``ready``; ``events`` has what it was told, in order."""

    def __init__(self, delay_ms: int = 100_000, answer: Callable[[], Any] | None = None):
        super().__init__(delay_ms)
        self.ready = False
        self.events: list[str] = []
        self.answer = answer
        self.looks: Iterator[Callable[[], Any]] = iter(())

    def try_complete(self) -> bool:
        ready = self.ready
        for meanwhile in self.looks:  # happens between reading the condition and its answer
            meanwhile()
            break
        return self.force_complete() if ready else False

    def on_complete(self) -> None:
        self.events.append("complete")
        if self.answer is not None:
            self.answer()

    def on_expiration(self) -> None:
        self.events.append("expiration")


def in_another_thread(work: Callable[[], Any]) -> None:
    """Run it to its end in another thread; it must not wait for this one."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(patience())
    assert not thread.is_alive(), "it waits for a thread that waits for it"
    if errors:
        raise errors[0]


@contextmanager
def eager_switching() -> Iterator[None]:
    """Threads change places as often as the interpreter can make them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def race(*workers: Callable[[], None]) -> None:
    """Run all at once, to the end; raise what one of them raised."""
    barrier = threading.Barrier(len(workers))
    errors: list[BaseException] = []

    def run(worker: Callable[[], None]) -> None:
        barrier.wait()
        try:
            worker()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers]
    with eager_switching():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience())
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    if errors:
        raise errors[0]
