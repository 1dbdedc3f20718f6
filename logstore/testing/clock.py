"""A clock that moves when a test says so."""

from __future__ import annotations

_NANOSECONDS_PER_MS = 1_000_000


class ManualClock:
    """``Clock`` under a test's control.

    The two times start far apart, so that mixing them up shows at once.
    """

    __slots__ = ("_monotonic_ns", "_wall_ms")

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ns: int = 1_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ns = monotonic_ns

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass on both clocks."""
        if ms < 0:
            raise ValueError("elapsed time never goes back; set_wall_ms moves the wall clock")
        self._wall_ms += ms
        self._monotonic_ns += ms * _NANOSECONDS_PER_MS

    def set_wall_ms(self, wall_ms: int) -> None:
        """Make the wall clock jump, forward or back; elapsed time stays as it is."""
        self._wall_ms = wall_ms
