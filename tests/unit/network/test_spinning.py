"""When a network thread looks for the next request before it sleeps, and for how long."""

from __future__ import annotations

from typing import Any

from logstore.testing import ManualClock
from replication.network.spinning import SPIN_NS, Spin

US = 1000
EVENT = [(5, 1)]
ENOUGH = 4


class Times:
    """A thread: what it finds when it looks, and the time that passes meanwhile."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.looks = 0
        self.inbox: list[int] = []
        self.comes_at_ns: int | None = None  # a request
        self.look_ns = US
        self.spin = Spin(self, lambda: self.now_ns)  # type: ignore[arg-type]

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        assert timeout == 0
        self.looks += 1
        self.now_ns += self.look_ns
        has_come = self.comes_at_ns is not None and self.now_ns >= self.comes_at_ns
        return EVENT if has_come else []

    def wait(self, after_us: int) -> int:
        """Wait for a request that comes so long after an answer. Returns how often it looked."""
        before = self.looks
        self.spin.is_due = True
        self.comes_at_ns = self.now_ns + after_us * US
        if not self.spin.look(self.inbox) and not self.inbox:
            self.now_ns = max(self.now_ns, self.comes_at_ns)
            if self.spin.is_due:
                self.spin.woken()
        assert not self.spin.is_due
        return self.looks - before


def test_it_looks_once_requests_have_come_soon() -> None:
    times = Times()
    assert [times.wait(50) for _ in range(6)] == [0, 0, 0, 0, 50, 50]


def test_one_miss_ends_it() -> None:
    times = Times()
    for _ in range(ENOUGH):
        times.wait(50)
    most = SPIN_NS // US
    assert times.wait(500) == most
    assert [times.wait(50) for _ in range(6)] == [0, 0, 0, 0, 50, 50]


def test_a_slow_client_costs_nothing() -> None:
    times = Times()
    assert sum(times.wait(500) for _ in range(50)) == 0
    assert sum(times.wait(500 if each % 4 else 20) for each in range(50)) == 0


def test_a_long_look_ends_it() -> None:
    """Another thread had the core, or the interpreter."""
    times = Times()
    for _ in range(ENOUGH):
        times.wait(50)
    times.look_ns = 30 * US
    assert times.wait(90) == 1
    times.look_ns = US
    assert times.wait(50) == 0


def test_the_inbox_ends_it() -> None:
    times = Times()
    for _ in range(ENOUGH):
        times.wait(50)
    times.inbox.append(1)
    assert times.wait(50) == 1
    times.inbox.clear()
    assert times.wait(50) == 50


def test_a_clock_that_stands_still_does_not_keep_it() -> None:
    clock, looks = ManualClock(), 0

    class Poll:
        def poll(self, timeout: float) -> list[Any]:
            nonlocal looks
            looks += 1
            return []

    spin = Spin(Poll(), clock.monotonic_ns)  # type: ignore[arg-type]
    for _ in range(ENOUGH):
        spin.is_due = True
        spin.look(())
        spin.woken()
    assert spin.look(()) == []
    assert 0 < looks < 1000
