"""Runs many schedules, with one worker process for each core, and adds up their results."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from logstore.common.json_fields import json_fields
from replication.simulator.search.run import run_seed
from replication.simulator.world.plan import Result, SearchOptions

CHUNK = 24  # schedules in one task of a worker


@dataclass(slots=True)
class Summary:
    """The result of a search.

    ``failures`` are in order of their seeds. ``counters`` are sums over all schedules, and
    ``reached`` says in how many schedules a counter was above 0.
    """

    schedules: int = 0
    events: int = 0
    failures: list[Result] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.schedules += 1
        self.events += result.events
        self.counters.update(result.counters)
        self.reached.update(name for name, count in result.counters.items() if count)
        if result.failed:
            self.failures.append(result)
            self.failures.sort(key=lambda failed: failed.seed)

    def to_dict(self) -> dict[str, Any]:
        found = json_fields(self)
        for name in ("counters", "reached"):
            found[name] = dict(sorted(found[name].items()))
        return found


def run_seeds(first: int, count: int, options: SearchOptions) -> list[Result]:
    """Run schedules in this process."""
    results = []
    enabled = gc.isenabled()
    gc.disable()  # a cluster is one big cycle, collected as a whole when it is done
    gc.freeze()  # older objects are not scanned each time
    try:
        for seed in range(first, first + count):
            results.append(run_seed(seed, options))
            gc.collect()  # at once, so that the next cluster reuses memory in the caches
    finally:
        # The next call freezes what is left here, and then it is never collected. A native snapshot
        # hides its files from the collector, so a second round is needed.
        while gc.collect():
            pass
        gc.unfreeze()
        if enabled:
            gc.enable()
    return results


def _chunks(first: int, count: int) -> Iterator[tuple[int, int]]:
    for start in range(first, first + count, CHUNK):
        yield start, min(CHUNK, first + count - start)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that end with this one, and at once after an interrupt."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, initializer=_begin_worker)
    # Ctrl-C is for this process. Workers block the signal from their start on.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool.submit(int)  # the first task starts them all
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - before:
            worker.kill()
            worker.join()
        raise
    pool.shutdown()


def _begin_worker() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def search(
    first: int,
    count: int,
    options: SearchOptions,
    *,
    workers: int | None = None,
    progress: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """Run the schedules of ``count`` seeds from ``first`` on.

    Args:
        progress: called after each chunk.
    """
    summary = Summary()
    workers = workers or os.cpu_count() or 1
    if workers == 1 or count <= CHUNK:
        for start, size in _chunks(first, count):
            for result in run_seeds(start, size, options):
                summary.add(result)
            progress(summary)
        return summary
    todo = _chunks(first, count)
    with _pool(workers) as pool:
        running: set[Future[list[Result]]] = set()
        while True:
            while len(running) < workers * 2:
                part = next(todo, None)
                if part is None:
                    break
                running.add(pool.submit(run_seeds, *part, options))
            if not running:
                return summary
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                for result in future.result():
                    summary.add(result)
            progress(summary)
