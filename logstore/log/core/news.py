"""Who waits for a log to change, and who must hear that it was cut."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

from logstore.common.locks import Rank, make_lock

NO_CUT = 2**63


class Place:
    """A reader's place in the log: how low the log was cut since it last asked."""

    __slots__ = ("__weakref__", "cut_to")

    def __init__(self) -> None:
        self.cut_to = NO_CUT


class News:
    """An append looks at ``waiting`` alone, which is empty while nobody waits."""

    def __init__(self) -> None:
        self.waiting: tuple[Callable[[], object], ...] = ()
        self._places: WeakSet[Place] = WeakSet()
        self._lock = make_lock(Rank.NEWS)

    def add(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` once, at the next change. Look at the log after this, then wait.

        It may be called under the locks of the log: it does not wait, and takes none of them.
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

    def new_place(self) -> Place:
        place = Place()
        with self._lock:
            self._places.add(place)
        return place

    def note_cut(self, offset: int) -> None:
        """The log is about to end at ``offset``; call it before readers can see that."""
        with self._lock:
            for place in self._places:
                place.cut_to = min(place.cut_to, offset)

    def take_cut(self, place: Place) -> int:
        """The lowest cut since the last call; ``NO_CUT`` if there was none."""
        with self._lock:
            cut, place.cut_to = place.cut_to, NO_CUT
        return cut
