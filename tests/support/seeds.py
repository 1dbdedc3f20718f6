"""The command line of a search that draws one history from each seed: ``python -m tests.lives``."""

from __future__ import annotations

import argparse
import logging
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Protocol


class Run(Protocol):
    """What one seed did, and the error that ended it."""

    @property
    def seed(self) -> int: ...
    @property
    def done(self) -> Counter[str]: ...
    @property
    def trace(self) -> list[str]: ...
    @property
    def error(self) -> BaseException | None: ...


def main(program: str, description: str | None, run: Callable[[int], Run]) -> int:
    """Search, or repeat one seed.

    Returns:
        The exit status: 1 if a seed failed.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--first", type=int, help="the first seed; another one each time")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--one", type=int, metavar="SEED", help="repeat one, with its trace")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.one is None:
        first = random.SystemRandom().randrange(10**9) if options.first is None else options.first
        return _search(program, run, first, options.seeds)
    found = run(options.one)
    if found.error is not None:
        _report(program, found)
        return 1
    print("\n".join(found.trace))
    return 0


def _search(program: str, run: Callable[[int], Run], first: int, seeds: int) -> int:
    print(f"seeds from {first} on", flush=True)
    started, done = time.monotonic(), Counter[str]()
    shown = started
    for seed in range(first, first + seeds):
        found = run(seed)
        if found.error is not None:
            _report(program, found)
            return 1
        done += found.done
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{seed - first + 1} of {seeds} seeds", flush=True)
    print(f"{seeds} histories, {time.monotonic() - started:.1f} s")
    for kind, count in sorted(done.items()):
        print(f"    {kind:22} {count}")
    return 0


def _report(program: str, failed: Run) -> None:
    print(f"\nseed {failed.seed} failed: {failed.error}")
    for line in failed.trace:
        print(f"    {line}")
    if failed.error is not None:
        traceback.print_exception(failed.error)
    print(f"Repeat it with: {program} --one {failed.seed}")
