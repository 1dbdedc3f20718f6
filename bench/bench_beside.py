"""Appends and reads beside what waits for the disk: a roll of a large segment, a retention pass."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads import ROUNDS, ready_batch, scaled, seconds

from logstore import AppendOrigin, LogConfig, LogManager

SEGMENT = scaled(1 << 30)
SEGMENTS = scaled(300, 20)
PAUSE = 0.0005  # a client that appends or reads 2,000 times a second
LIMIT_MS = 5

Action = Callable[[], object]


def latencies(work: Action, actions: list[Action]) -> tuple[list[list[float]], float]:
    """Milliseconds that each action took, again and again, from half a second before ``work`` to
    half a second after it, sorted; and the milliseconds of the work."""
    done = threading.Event()
    results: list[list[float]] = [[] for _ in actions]

    def run(at: int) -> None:
        while not done.is_set():
            results[at].append(seconds(actions[at]) * 1e3)
            time.sleep(PAUSE)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(actions))]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    took = seconds(work) * 1e3
    time.sleep(0.5)
    done.set()
    for thread in threads:
        thread.join()
    return [sorted(times) for times in results], took


def p999(times: list[float]) -> float:
    """Of sorted times: 99.9 % were shorter."""
    return times[int(len(times) * 0.999)]


def claim_waits(
    benchmark: Any,
    claim: Any,
    where: str,
    work: Action,
    actions: dict[str, Action],
    *,
    setup: Action | None = None,
    rounds: int = ROUNDS,
) -> None:
    """A line for each action; beside nothing, what the machine alone makes it wait."""
    found: list[tuple[list[list[float]], float]] = []
    does = list(actions.values())
    benchmark.pedantic(lambda: found.append(latencies(work, does)), setup=setup, rounds=rounds)
    work_ms = statistics.median(took for _, took in found)
    alone, _ = latencies(lambda: time.sleep(work_ms / 1e3), does)
    for at, (what, quiet) in enumerate(zip(actions, alone, strict=True)):
        times = [latency[at] for latency, _ in found]
        claim(
            f"{what} beside {where}",
            [p999(each) for each in times],
            "ms p99.9",
            limit=LIMIT_MS,
            less=True,
            note=f"longest {max(each[-1] for each in times):.1f} of {sum(map(len, times))}, "
            f"the work took {work_ms:.0f} ms; "
            f"beside nothing p99.9 {p999(quiet):.2f}, longest {quiet[-1]:.1f}",
        )


def test_beside_a_roll(benchmark: Any, claim: Any, disk: Path) -> None:
    """The segment is full and nothing of it is synced; the disk needs long for it."""
    with LogManager([disk], LogConfig(segment_bytes=SEGMENT, retention_ms=-1)) as manager:
        log = manager.get_or_create("t", 0)
        block, one = ready_batch(100) * 70, ready_batch(1)

        def fill() -> None:
            while log.segments[-1].size < SEGMENT - len(block) - (8 << 20):
                log.append_as_leader(block, 0, AppendOrigin.COORDINATOR)

        def roll() -> None:
            log.roll()
            log.flush()

        claim_waits(
            benchmark,
            claim,
            "a roll of 1 GiB and its sync",
            roll,
            {
                "an append": lambda: log.append_as_leader(one, 0),
                "a read": lambda: log.read(0, 4096),
            },
            setup=fill,
        )


def test_beside_retention(benchmark: Any, claim: Any, disk: Path) -> None:
    with LogManager([disk], LogConfig(segment_bytes=4096, retention_ms=-1)) as manager:
        log = manager.get_or_create("t", 0)

        def fill() -> None:
            while len(log.segments) < SEGMENTS:
                log.append([(b"k", bytes(1000))] * 3)
            log.flush()
            log.delete_records(log.log_end_offset - 3)

        def clean_up() -> None:
            assert manager.housekeeper.clean_up() > SEGMENTS - 5

        claim_waits(
            benchmark,
            claim,
            "retention of 300 segments",
            clean_up,
            {
                "an append": lambda: log.append([(b"k", b"v")]),
                "a read": lambda: log.read(log.log_end_offset - 1, 4096),
            },
            setup=fill,
        )
