"""``python -m tests.crash --seed S --points N``: search for a crash that breaks a promise."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter

from tests.crash.simulated import Run, run


def report_failure(failed: Run) -> None:
    print(f"\nseed {failed.seed} failed: {failed.error}")
    for line in failed.trace:
        print(f"    {line}")
    if failed.error is not None:
        traceback.print_exception(failed.error)
    print(f"Repeat it with: python -m tests.crash --one {failed.seed}")


def search(seed: int, points: int) -> int:
    started, done, struck, at = time.monotonic(), 0, Counter[str](), seed
    shown = started
    while done < points:
        found = run(at)
        if found.failed:
            report_failure(found)
            return 1
        done += found.points
        struck += found.struck
        at += 1
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{done} of {points} crash points, seed {at}", flush=True)
    seconds = time.monotonic() - started
    print(f"{done} crash points in {at - seed} runs, {seconds:.1f} s, {done / seconds:.0f} per s")
    for kind, count in sorted(struck.items()):
        print(f"    {kind:20} {count}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--points", type=int, default=10_000, help="crash points to try")
    parser.add_argument("--one", type=int, metavar="SEED", help="repeat one run, with its trace")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if args.one is None:
        return search(args.seed, args.points)
    found = run(args.one)
    if found.failed:
        report_failure(found)
        return 1
    print("\n".join(found.trace))
    return 0


if __name__ == "__main__":
    sys.exit(main())
