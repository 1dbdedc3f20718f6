"""``python -m tests.lives --seeds N``: search for something that outlives its log."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback
from collections import Counter

from tests.lives.search import Run, run


def report(failed: Run) -> None:
    print(f"\nseed {failed.seed} failed: {failed.error}")
    for line in failed.trace:
        print(f"    {line}")
    if failed.error is not None:
        traceback.print_exception(failed.error)
    print(f"Repeat it with: python -m tests.lives --one {failed.seed}")


def search(first: int, seeds: int) -> int:
    print(f"seeds from {first} on", flush=True)
    started, crashes, done = time.monotonic(), 0, Counter[str]()
    shown = started
    for seed in range(first, first + seeds):
        found = run(seed)
        if found.error is not None:
            report(found)
            return 1
        crashes += found.crashes
        done += found.done
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{seed - first + 1} of {seeds} seeds, {crashes} crashes", flush=True)
    print(f"{crashes} crashes in {seeds} runs, {time.monotonic() - started:.1f} s")
    for kind, count in sorted(done.items()):
        print(f"    {kind:20} {count}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lives", description=__doc__)
    parser.add_argument("--first", type=int, help="seed of the first run; another one each time")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many runs")
    parser.add_argument("--one", type=int, metavar="SEED", help="repeat one run, with its trace")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if args.one is None:
        first = random.SystemRandom().randrange(10**9) if args.first is None else args.first
        return search(first, args.seeds)
    found = run(args.one)
    if found.error is not None:
        report(found)
        return 1
    print("\n".join(found.trace))
    return 0


if __name__ == "__main__":
    sys.exit(main())
