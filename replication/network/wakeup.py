"""Wakes a thread that waits in ``epoll``."""

from __future__ import annotations

import os
import select
import threading

from logstore.common.forks import free_in_child


class Wakeup:
    """A descriptor that becomes readable when any thread says so.

    After ``close`` a call does nothing: the descriptor's number may be that of another file then.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        epoll.register(self.descriptor, select.EPOLLIN)
        self._lock = free_in_child(threading.Lock())
        self._is_open = True

    def set(self) -> None:
        """Wake the thread. Any thread may call it; it never blocks."""
        with self._lock:
            if self._is_open:
                os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Forget past calls of ``set``. For the thread that was woken."""
        os.eventfd_read(self.descriptor)

    def close(self) -> None:
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self.descriptor)
