"""Waiting requests: registered and completed, or expired; many at a time."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from workloads import resident_bytes

from replication.purgatory.purgatory import DelayedOperation, Purgatory
from replication.purgatory.timer import Timer

KEYS = [("orders", partition) for partition in range(1000)]
TIMEOUT_MS = 30_000
GOAL = 300_000


class Offset:
    """What operations wait for."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Wait(DelayedOperation):
    """As DelayedProduce: an offset to wait for, and an answer to give."""

    __slots__ = ("offset", "required")

    def __init__(self, offset: Offset, required: int) -> None:
        super().__init__(TIMEOUT_MS)
        self.offset, self.required = offset, required

    def try_complete(self) -> bool:
        return self.force_complete() if self.offset.value >= self.required else False

    def on_complete(self) -> None:
        pass

    def on_expiration(self) -> None:
        pass


def register(purgatory: Purgatory[Wait], offset: Offset, count: int, per_ms: int) -> None:
    key_count = len(KEYS)
    for number in range(count):
        if number % per_ms == 0:
            purgatory.advance(number // per_ms)
        purgatory.try_complete_else_watch(Wait(offset, 1), (KEYS[number % key_count],))


def figure(claim: Any, what: str, per_s: float, note: str = "") -> None:
    claim(
        what=what,
        ours=round(per_s),
        unit="operations/s",
        peer="",
        ratio="",
        goal=f"{GOAL} operations/s",
        met=per_s >= GOAL,
        note=note,
    )


@pytest.mark.parametrize("collector", ["gc", "no-gc"])
@pytest.mark.parametrize("waiting", [10_000, 100_000, 1_000_000])
def test_registered_and_completed(benchmark: Any, claim: Any, waiting: int, collector: str) -> None:
    """All wait at once, 1,000 keys, 30 s; then each key is checked. Best of the rounds.

    Python's collector walks over all that waits about as often as a quarter of it is new; without
    it, the cost is ours alone.
    """
    best_s = float("inf")
    growth = left = 0

    def run() -> None:
        nonlocal best_s, growth, left
        gc.collect()
        before = resident_bytes()
        purgatory: Purgatory[Wait] = Purgatory("Produce", Timer(0))
        offset = Offset()
        started = time.perf_counter()
        register(purgatory, offset, waiting, per_ms=300)
        registered = time.perf_counter()
        growth = resident_bytes() - before
        offset.value = 1
        resumed = time.perf_counter()
        completed = sum(purgatory.check_and_complete(key) for key in KEYS)
        ended = time.perf_counter()
        best_s = min(best_s, registered - started + ended - resumed)
        assert completed == waiting
        assert (purgatory.watched, purgatory.delayed) == (0, 0)
        left = resident_bytes() - before

    if collector == "no-gc":
        gc.disable()
    try:
        benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    finally:
        gc.enable()
    figure(
        claim,
        f"{waiting:,} delayed operations, registered and completed"
        + (", Python's collector off" if collector == "no-gc" else ""),
        waiting / best_s,
        f"{growth / waiting:.0f} bytes each while waiting; {left / 1e6:.1f} MB kept afterwards"
        if collector == "gc"
        else "",
    )


@pytest.mark.parametrize("waiting", [10_000, 100_000, 1_000_000])
def test_expired(benchmark: Any, claim: Any, waiting: int) -> None:
    """Registered 300 a ms; then the clock goes from deadline to deadline, as its owner's does."""
    best_s = float("inf")
    longest_ms = 0.0

    def run() -> None:
        nonlocal best_s, longest_ms
        gc.collect()
        purgatory: Purgatory[Wait] = Purgatory("Produce", Timer(0))
        register(purgatory, Offset(), waiting, per_ms=300)
        end_ms = waiting // 300 + TIMEOUT_MS
        started = last = time.perf_counter()
        longest = 0.0
        while (now_ms := purgatory.timer.next_deadline_ms()) is not None:
            assert now_ms <= end_ms
            purgatory.advance(now_ms)
            this = time.perf_counter()
            longest, last = max(longest, this - last), this
        best_s, longest_ms = min(best_s, last - started), longest * 1e3
        assert purgatory.expirations == waiting

    benchmark.pedantic(run, rounds=3)
    figure(
        claim,
        f"{waiting:,} delayed operations, expired",
        waiting / best_s,
        f"the longest advance took {longest_ms:.1f} ms",
    )


def test_watched_one_at_a_time(benchmark: Any, claim: Any) -> None:
    """A key that nobody else watches: its list is made and dropped each time."""
    count = 100_000
    purgatory: Purgatory[Wait] = Purgatory("Produce", Timer(0))

    def run() -> None:
        for number in range(count):
            offset = Offset()
            key = KEYS[number % 1000]
            purgatory.try_complete_else_watch(Wait(offset, 1), (key,))
            offset.value = 1
            assert purgatory.check_and_complete(key) == 1

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    figure(
        claim,
        "a delayed operation alone on its key, registered and completed",
        count / benchmark.stats.stats.min,
    )
