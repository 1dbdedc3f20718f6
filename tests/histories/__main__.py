"""``python -m tests.histories NAME``: search random histories for one that breaks a promise."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from itertools import count, islice
from pkgutil import resolve_name

from tests.histories.history import HISTORIES, report, run_all, run_one


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("name", choices=HISTORIES)
    parser.add_argument("--first", type=int, help="the first seed; another one each time")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--one", type=int, metavar="SEED", help="repeat one, with its trace")
    parser.add_argument("--all", action="store_true", help="go on after a failure, and count them")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    resolve_name(HISTORIES[options.name])  # before the processes
    if options.one is not None:
        found = run_one(options.name, options.one)
        print(report(options.name, found) if found.error else "\n".join(found.trace))
        return 1 if found.error else 0
    first = random.SystemRandom().randrange(10**9) if options.first is None else options.first
    print(f"seeds from {first} on", flush=True)
    done, failed = Counter[str](), 0
    seeds = islice(count(first), options.seeds)
    for number, found in enumerate(run_all(options.name, seeds, options.jobs), 1):
        done += found.done
        if found.error is not None:
            failed += 1
            if failed <= 3:
                print(report(options.name, found), flush=True)
            if not options.all:
                return 1
        if number % 500 == 0:
            print(f"{number} of {options.seeds} seeds", flush=True)
    print(f"{options.seeds} histories, {failed} failed")
    for kind, times in sorted(done.items()):
        print(f"    {kind:22} {times}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
