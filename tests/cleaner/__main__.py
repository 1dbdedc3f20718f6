"""``python -m tests.cleaner --seeds N``: search histories in which the cleaner loses something."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback
from collections import Counter

from tests.cleaner.search import Run, run


def report(failed: Run) -> None:
    print(f"\nseed {failed.seed} failed: {failed.error}")
    for line in failed.trace:
        print(f"    {line}")
    if failed.error is not None:
        traceback.print_exception(failed.error)
    print(f"Repeat it with: python -m tests.cleaner --one {failed.seed}")


def search(first: int, seeds: int) -> int:
    print(f"seeds from {first} on", flush=True)
    started, done = time.monotonic(), Counter[str]()
    shown = started
    for seed in range(first, first + seeds):
        found = run(seed)
        if found.error is not None:
            report(found)
            return 1
        done += found.done
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{seed - first + 1} of {seeds} seeds", flush=True)
    print(f"{seeds} histories, {time.monotonic() - started:.1f} s")
    for kind, count in sorted(done.items()):
        print(f"    {kind:22} {count}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cleaner", description=__doc__)
    parser.add_argument("--first", type=int, help="seed of the first run; another one each time")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many histories")
    parser.add_argument("--one", type=int, metavar="SEED", help="repeat one, with its trace")
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
