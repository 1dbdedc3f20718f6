"""Calls of listeners, in the order of the changes, one at a time, without locks."""

from __future__ import annotations

import threading
from collections.abc import Callable

from checkpoints.loggers import get_logger
from replication.coordination.base import Deliver

logger = get_logger(__name__)


class Notifications:
    """A queue of notifications beside the owner's lock.

    ``deliver`` runs them. By default that is the draining thread, and an exception is logged.
    """

    def __init__(self, lock: threading.Lock, deliver: Deliver | None) -> None:
        self._lock = lock
        self._deliver = deliver or _run
        self._waiting: list[Callable[[], None]] = []
        self._draining = False

    def add(self, notification: Callable[[], None]) -> None:
        """Add a notification. The lock is held."""
        self._waiting.append(notification)

    def clear(self) -> None:
        """Drop all notifications. The lock is held."""
        self._waiting.clear()

    def drain(self) -> None:
        """Run all notifications. The lock is not held.

        The running drain also runs those that a listener or another thread adds, so listeners
        neither nest nor overtake each other.
        """
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
