"""Time as a seam: only this module asks the operating system what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time and elapsed time. These are two clocks, and must not be compared."""

    def wall_ms(self) -> int:
        """Ms since the epoch, for timestamps. May jump in either direction."""
        ...

    def monotonic_ns(self) -> int:
        """Ns since an arbitrary moment, for timeouts and lag. Never goes back."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)
