"""An answer that waits for several others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Gathering(Generic[T]):
    """Collects one answer for each of several questions, then passes them on, in order.

    Args:
        count: of questions; with none ``done`` is called at once.
        done: called once, by the thread with the last answer.
    """

    def __init__(self, count: int, done: Callable[[Sequence[T]], None]) -> None:
        self._answers: dict[int, T] = {}
        self._count = count
        self._done = done
        self._lock = threading.Lock()
        if not count:
            done(())

    def take_answer(self, at: int, answer: T) -> None:
        """Take the answer to question ``at``. Only the first one counts."""
        with self._lock:
            if at in self._answers:
                return
            self._answers[at] = answer
            is_complete = len(self._answers) == self._count
        if is_complete:
            self._done([answer for _, answer in sorted(self._answers.items())])
