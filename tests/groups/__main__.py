"""``python -m tests.groups --seeds N``: search histories in which a coordinator of groups breaks a
promise."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.groups.search import Run, run


def report(failed: Run) -> None:
    print(f"\nseed {failed.seed} failed: {failed.error}")
    for line in failed.trace:
        print(f"    {line}")
    if failed.error is not None:
        traceback.print_exception(failed.error)
    print(f"Repeat it with: python -m tests.groups --one {failed.seed}")


def search(first: int, seeds: int) -> int:
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
    parser = argparse.ArgumentParser(prog="python -m tests.groups", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--one", type=int, help="only this seed, with its trace")
    options = parser.parse_args()
    if options.one is None:
        return search(options.first, options.seeds)
    found = run(options.one)
    report(found)
    return int(found.error is not None)


if __name__ == "__main__":
    sys.exit(main())
