"""Waits for changes of a log, and notices of truncations to its readers."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

from logstore.common.locks import Rank, make_lock
from logstore.kernels import ListenerCell

NO_TRUNCATION = 2**63


class TruncationWatch:
    """The lowest truncation since a reader last asked."""

    __slots__ = ("__weakref__", "lowest")

    def __init__(self) -> None:
        self.lowest = NO_TRUNCATION


class ChangeListeners(ListenerCell):
    """An append only checks ``waiting``, which is empty while no reader waits."""

    def __init__(self) -> None:
        self.waiting = ()
        # Few logs have one, and each of a broker's thousands would be eight objects more.
        self._watches: WeakSet[TruncationWatch] | None = None
        self._lock = make_lock(Rank.CHANGE_LISTENERS)

    def add(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` once, at the next change. Register first, then check the log, then wait.

        ``wake`` may be called under the locks of the log, so it must not wait or take one of them.
        """
        with self._lock:
            self.waiting = (*self.waiting, wake)

    def discard(self, wake: Callable[[], object]) -> None:
        with self._lock:
            self.waiting = tuple(known for known in self.waiting if known is not wake)

    def wake_all(self) -> None:
        with self._lock:
            waiting, self.waiting = self.waiting, ()
        for wake in waiting:
            wake()

    def forget(self) -> None:
        """Wake nobody: the threads that waited are not in this process."""
        self.waiting = ()

    def new_watch(self) -> TruncationWatch:
        watch = TruncationWatch()
        with self._lock:
            if self._watches is None:
                self._watches = WeakSet()
            self._watches.add(watch)
        return watch

    def note_truncation(self, offset: int) -> None:
        """Note that the log will end at ``offset``, before readers can see that."""
        with self._lock:
            for watch in self._watches or ():
                watch.lowest = min(watch.lowest, offset)

    def take_truncation(self, watch: TruncationWatch) -> int:
        """The lowest truncation since the last call; ``NO_TRUNCATION`` if there was none."""
        with self._lock:
            lowest, watch.lowest = watch.lowest, NO_TRUNCATION
        return lowest
