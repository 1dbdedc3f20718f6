"""What listeners are told: in the order of the changes, one at a time, with no lock held."""

from __future__ import annotations

import threading
from collections.abc import Callable

from checkpoints.loggers import get_logger
from replication.coordination.base import Deliver

logger = get_logger(__name__)


class Notifications:
    """A queue beside somebody's lock. ``deliver`` is the one who runs them; by default that is the
    thread that drains, and an exception is logged."""

    def __init__(self, lock: threading.Lock, deliver: Deliver | None) -> None:
        self._lock = lock
        self._deliver = deliver or _run
        self._waiting: list[Callable[[], None]] = []
        self._draining = False

    def add(self, notification: Callable[[], None]) -> None:
        """Under the lock."""
        self._waiting.append(notification)

    def clear(self) -> None:
        """Under the lock."""
        self._waiting.clear()

    def drain(self) -> None:
        """Without the lock. What is added meanwhile, by a listener or another thread, is told by
        the drain that is under way: listeners neither nest nor overtake each other."""
        while True:
            with self._lock:
                if self._draining or not self._waiting:
                    return
                self._draining = True
                batch, self._waiting = self._waiting, []
            try:
                for notification in batch:
                    self._deliver(notification)
            finally:
                self._draining = False


def _run(notification: Callable[[], None]) -> None:
    try:
        notification()
    except Exception:
        logger.exception("a listener failed")
