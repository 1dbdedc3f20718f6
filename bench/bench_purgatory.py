"""Waiting requests: registered and completed, or expired; many at a time."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from workloads import ROUNDS, in_turns, rates, resident_bytes, scaled, timed

from replication.replica_manager.purgatory import DelayedOperation, Purgatory

KEYS = [("orders", partition) for partition in range(1000)]
TIMEOUT_MS = 30_000
LIMIT = 100_000
UNIT = "operations/s"
WAITING = [10_000, 1_000_000]


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


@pytest.mark.parametrize("collector", ["", ", Python's collector off"])
@pytest.mark.parametrize("waiting", WAITING)
def test_registered_and_completed(benchmark: Any, claim: Any, waiting: int, collector: str) -> None:
    """All wait at once, 1,000 keys, 30 s; then each key is checked.

    Python's collector walks over all that waits about as often as a quarter of it is new; without
    it, the cost is ours alone.
    """
    count = scaled(waiting, 1000)
    before = growth = left = 0

    def setup() -> None:
        nonlocal before
        gc.collect()
        before = resident_bytes()

    def run() -> None:
        nonlocal growth, left
        purgatory: Purgatory[Wait] = Purgatory("Produce")
        offset = Offset()
        register(purgatory, offset, count, per_ms=300)
        growth = resident_bytes() - before
        offset.value = 1
        completed = sum(purgatory.check_and_complete(key) for key in KEYS)
        assert completed == count
        assert (purgatory.watched, purgatory.delayed) == (0, 0)
        left = resident_bytes() - before

    if collector:
        gc.disable()
    try:
        benchmark.pedantic(run, setup=setup, rounds=ROUNDS)
    finally:
        gc.enable()
    note = f"{growth / count:.0f} bytes each while waiting; {left / 1e6:.1f} MB kept afterwards"
    what = f"{waiting:,} delayed operations, registered and completed{collector}"
    claim(what, rates(count, timed(benchmark)), UNIT, limit=LIMIT, note=note)


@pytest.mark.parametrize("waiting", WAITING)
def test_expired(benchmark: Any, claim: Any, waiting: int) -> None:
    """Registered 300 a ms; then the clock goes from deadline to deadline, as its owner's does."""
    count = scaled(waiting, 1000)
    longest = 0.0

    def setup() -> tuple[tuple[Purgatory[Wait]], dict[str, object]]:
        gc.collect()
        purgatory: Purgatory[Wait] = Purgatory("Produce")
        register(purgatory, Offset(), count, per_ms=300)
        return (purgatory,), {}

    def run(purgatory: Purgatory[Wait]) -> None:
        nonlocal longest
        end_ms = count // 300 + TIMEOUT_MS
        last = time.perf_counter()
        longest = 0.0
        while (now_ms := purgatory.deadlines.next_deadline_ms()) is not None:
            assert now_ms <= end_ms
            purgatory.advance(now_ms)
            this = time.perf_counter()
            longest, last = max(longest, this - last), this
        assert purgatory.delayed == 0

    benchmark.pedantic(run, setup=setup, rounds=ROUNDS)
    claim(
        f"{waiting:,} delayed operations, expired",
        rates(count, timed(benchmark)),
        UNIT,
        limit=LIMIT,
        note=f"the longest advance of the last round took {longest * 1e3:.1f} ms",
    )


def test_watched_one_at_a_time(benchmark: Any, claim: Any) -> None:
    """A key that nobody else watches: its list is made and dropped each time."""
    count = scaled(100_000)
    purgatory: Purgatory[Wait] = Purgatory("Produce")

    def run() -> None:
        for number in range(count):
            offset = Offset()
            key = KEYS[number % 1000]
            purgatory.try_complete_else_watch(Wait(offset, 1), (key,))
            offset.value = 1
            assert purgatory.check_and_complete(key) == 1

    took = in_turns(benchmark, run)["ours"]
    what = "a delayed operation alone on its key, registered and completed"
    claim(what, rates(count, took), UNIT, limit=LIMIT)
