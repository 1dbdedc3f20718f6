"""Appends and reads beside what waits for the disk: a roll of a large segment, a retention pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads import ready_batch

from logstore import AppendOrigin, LogConfig, LogManager

SEGMENT = 1 << 30
SEGMENTS = 300
PAUSE = 0.0005  # a client that appends or reads 2,000 times a second


def latencies(action: Callable[[], object], until: threading.Event) -> list[float]:
    times = []
    while not until.is_set():
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
        time.sleep(PAUSE)
    return times


def beside(work: Callable[[], object], actions: list[Callable[[], object]]) -> list[list[float]]:
    """How long each action took, again and again, from half a second before ``work`` to half a
    second after it; sorted."""
    done = threading.Event()
    results: list[list[float]] = [[] for _ in actions]

    def run(at: int) -> None:
        results[at] = sorted(latencies(actions[at], done))

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(actions))]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    work()
    time.sleep(0.5)
    done.set()
    for thread in threads:
        thread.join()
    return results


def note(claim: Callable[..., None], what: str, times: list[float], work_ms: float) -> None:
    p999 = times[int(len(times) * 0.999)] * 1e3
    claim(
        what=what,
        ours=round(p999, 2),
        unit="ms p99.9",
        goal="below 5 ms",
        met=p999 < 5,
        note=f"longest {times[-1] * 1e3:.1f} ms of {len(times)}; the work took {work_ms:.0f} ms",
    )


def test_beside_a_roll(benchmark: Any, claim: Callable[..., None], disk: Path) -> None:
    """The segment is full and nothing of it is synced; the disk needs long for it."""
    with LogManager([disk], LogConfig(segment_bytes=SEGMENT, retention_ms=-1)) as manager:
        log = manager.get_or_create("t", 0)
        block = ready_batch(100) * 70
        while log.size < SEGMENT - len(block) - (8 << 20):
            log.append_as_leader(block, 0, AppendOrigin.COORDINATOR)
        one = ready_batch(1)
        took = []

        def roll() -> None:
            started = time.perf_counter()
            log.roll()
            log.flush()
            took.append((time.perf_counter() - started) * 1e3)

        found = benchmark.pedantic(
            beside,
            (roll, [lambda: log.append_as_leader(one, 0), lambda: log.read(0, 4096)]),
            rounds=1,
        )
    note(claim, "an append beside a roll of 1 GiB and its sync", found[0], took[0])
    note(claim, "a read beside the same", found[1], took[0])


def test_beside_retention(benchmark: Any, claim: Callable[..., None], disk: Path) -> None:
    with LogManager([disk], LogConfig(segment_bytes=4096, retention_ms=-1)) as manager:
        log = manager.get_or_create("t", 0)
        while len(log.segments) < SEGMENTS:
            log.append([(b"k", bytes(1000))] * 3)
        log.flush()
        log.delete_records(log.log_end_offset - 3)
        took = []

        def clean_up() -> None:
            started = time.perf_counter()
            assert manager.clean_up() > SEGMENTS - 5
            took.append((time.perf_counter() - started) * 1e3)

        found = benchmark.pedantic(
            beside,
            (
                clean_up,
                [
                    lambda: log.append([(b"k", b"v")]),
                    lambda: log.read(log.log_end_offset - 1, 4096),
                ],
            ),
            rounds=1,
        )
    note(claim, f"an append beside retention of {SEGMENTS} segments", found[0], took[0])
    note(claim, "a read beside the same", found[1], took[0])
