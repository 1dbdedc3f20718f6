"""The time of each of many names. Bounded, because a client can make up names without end."""

from __future__ import annotations

from collections import OrderedDict


class RecentTimes:
    """Times by name; old ones are forgotten. Not safe for threads.

    Each new name makes it check two others, those that it checked longest ago. So no call checks
    all names, and there are never many more names than have a recent time.
    """

    def __init__(self) -> None:
        self._times: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def get(self, name: str) -> float:
        """The time of a name; 0 where it is not known."""
        return self._times.get(name, 0.0)

    def put(self, name: str, time: float, old: float) -> None:
        """Set the time of ``name``. Times up to ``old`` need not be known any more."""
        times = self._times
        if name not in times:
            for _ in range(min(2, len(times))):
                oldest = next(iter(times))
                if times[oldest] <= old:
                    del times[oldest]
                else:
                    times.move_to_end(oldest)
        times[name] = time
