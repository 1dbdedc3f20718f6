"""Search by command; see docs/interleavings.md.

python -m tests.interleavings --seeds 1:100000 --jobs 2
python -m tests.interleavings --one 4711 [--trace]
python -m tests.interleavings --exhaustive
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.interleavings.exhaustive import PAIRS, explore
from tests.interleavings.program import draw
from tests.interleavings.run import execute_drawn
from tests.interleavings.shrink import Shrinker


def run_seed(seed: int, strict: bool = True) -> tuple[int, str, str, int]:
    """``(seed, kind of failure or nothing, what happened, steps)``."""
    program, schedule = draw(seed, plain=not strict)
    result = execute_drawn(program, schedule, strict=strict)
    kind, detail = (result.found.kind, result.found.detail) if result.found else ("", "")
    return seed, kind, detail, result.steps


def search(first: int, last: int, *, jobs: int, strict: bool) -> int:
    """Run seeds, tell each kind of failure with its first seed; the exit code."""
    begun = time.monotonic()
    kinds: Counter[str] = Counter()
    firsts: dict[str, tuple[int, str]] = {}
    steps = 0
    with ProcessPoolExecutor(jobs) as pool:
        seeds = range(first, last + 1)
        for seed, kind, detail, taken in pool.map(
            partial(run_seed, strict=strict), seeds, chunksize=50
        ):
            steps += taken
            if kind:
                if kind not in kinds:
                    print(f"seed {seed}: {kind}", flush=True)
                kinds[kind] += 1
                firsts.setdefault(kind, (seed, detail))
    spent = time.monotonic() - begun
    print(f"{len(seeds)} schedules, {steps} steps, {spent:.0f} s: {sum(kinds.values())} failed")
    for kind, count in kinds.most_common():
        seed, detail = firsts[kind]
        print(f"{count:6} {kind}; first: python -m tests.interleavings --one {seed}")
        print(f"       {detail[:400]}")
    return 1 if kinds else 0


def show(seed: int, *, strict: bool, trace: bool, seconds: float) -> int:
    """Run one seed, and shrink what it finds."""
    program, schedule = draw(seed, plain=not strict)
    result = execute_drawn(program, schedule, strict=strict, traced=True)
    if trace:
        for step, actor, label in result.trace:
            print(f"{step:6} actor {actor} {label}")
    if result.found is None:
        print(program.text())
        print(f"seed {seed}: nothing found in {result.steps} steps")
        return 0
    traceback.print_exception(result.found)
    program, schedule = Shrinker(result.found.kind, strict=strict, seconds=seconds).shrink(
        program, schedule
    )
    print(program.text())
    print(schedule)
    small = execute_drawn(program, schedule, strict=strict, traced=True)
    if trace:
        for step, actor, label in small.trace:
            print(f"{step:6} actor {actor} {label}")
    print(small.found)
    return 1


def exhaust(preemptions: int, limit: int, *, strict: bool) -> int:
    """Run all schedules of the small programs; the exit code."""
    failed = 0
    for name, program in PAIRS.items():
        begun = time.monotonic()
        outcome = explore(program, preemptions, limit=limit, strict=strict)
        spent = time.monotonic() - begun
        whole = "all" if outcome.complete else "the first"
        print(f"{name}: {whole} {outcome.schedules} schedules, {spent:.1f} s: ", end="")
        print(f"{outcome.found} at {outcome.switches}" if outcome.found else "nothing")
        failed += outcome.found is not None
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.interleavings", description=__doc__)
    parser.add_argument("--seeds", default="1:1000", metavar="FIRST:LAST")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--one", type=int, metavar="SEED", help="run one seed, shrink its failure")
    parser.add_argument("--trace", action="store_true", help="print every step of it")
    parser.add_argument("--shrink", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--exhaustive", action="store_true", help="every schedule of two actors")
    parser.add_argument("--preemptions", type=int, default=2)
    parser.add_argument("--limit", type=int, default=200_000, help="schedules of each pair")
    parser.add_argument("--lax", action="store_true", help="for the log of commit 97b23b6")
    options = parser.parse_args()
    strict = not options.lax
    if options.exhaustive:
        return exhaust(options.preemptions, options.limit, strict=strict)
    if options.one is not None:
        return show(options.one, strict=strict, trace=options.trace, seconds=options.shrink)
    first, _, last = options.seeds.partition(":")
    return search(int(first), int(last or first), jobs=options.jobs, strict=strict)


if __name__ == "__main__":
    sys.exit(main())
