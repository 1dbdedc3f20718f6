"""A network thread that looks for the next request for a moment, before it sleeps.

A client that asks one thing after the other sends again as soon as it has its answer. To wake a
core that has gone idle takes longer than that, on a machine with nothing else to do. So a thread
whose answers were followed by a request several times looks on after the next answer, for a bounded
time. It does so only after an answer of a fast path: next to the work of any other request the
wakening is small, and whoever fetches has what it was sent to read first. So it costs nothing while
nobody asks, and followers and consumers that wait cost nothing either. A look takes a microsecond;
one that takes long shows that another thread wants the core, or the interpreter, and ends it.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sized

SPIN_NS = 100_000  # at most: a client that takes longer is not waiting for us alone
_LOOKS_MAX = 400  # where the clock stands still
_INTERRUPTED_NS = 20_000
_SOON_NS = 150_000  # with the time that it takes to wake the client and this thread
_ENOUGH = 4  # requests that came soon, one after the other


class Spin:
    """The wait of one network thread after its answers.

    Attributes:
        is_due: an answer of a fast path has left since the last wait.
    """

    __slots__ = ("_begun_ns", "_now_ns", "_poll", "_soon", "is_due")

    def __init__(self, epoll: select.epoll, now_ns: Callable[[], int]) -> None:
        self._poll, self._now_ns = epoll.poll, now_ns
        self._soon = 0  # how many requests came soon without a miss
        self._begun_ns = 0
        self.is_due = False

    def look(self, inbox: Sized) -> list[tuple[int, int]]:
        """The events that come soon. None of them where it does not pay to look, or something is
        in ``inbox``, which other threads fill."""
        self._begun_ns = last_ns = self._now_ns()
        if self._soon < _ENOUGH:
            return []
        end_ns = last_ns + SPIN_NS
        for _ in range(_LOOKS_MAX):
            events = self._poll(0)
            if events or inbox:
                self.is_due = False
                return events
            now_ns = self._now_ns()
            if now_ns >= end_ns or now_ns - last_ns > _INTERRUPTED_NS:
                break
            last_ns = now_ns
        self._soon, self.is_due = 0, False
        return []

    def woken(self) -> None:
        """The thread has slept after ``look``."""
        self.is_due = False
        came_soon = self._now_ns() - self._begun_ns < _SOON_NS
        self._soon = self._soon + 1 if came_soon else 0
