"""``python -m tests.fuzz --seed N --directories M``: mutate log directories, judge the outcome."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.fuzz import originals
from tests.fuzz.children import LIMITS, preload
from tests.fuzz.search import (
    CORPUS,
    Judged,
    drawn,
    mutated,
    run_drawn,
    scratch_directory,
    shrunk,
    stored,
)
from tests.fuzz.tree import write_tree

CASES_OF_A_SEED = 1_000_000
_SHOWN_SECONDS = 10.0


def _work(numbers: list[int], quick: bool) -> list[Judged]:
    with scratch_directory() as scratch:
        return [run_drawn(number, scratch, quick=quick) for number in numbers]


def _judged(first: int, count: int, jobs: int, quick: bool) -> Iterator[Judged]:
    """All cases, in any order. A process is renewed now and then, so that it stays small."""
    chunks = [
        list(range(at, min(at + 20, first + count))) for at in range(first, first + count, 20)
    ]
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=50) as pool:
        for found in pool.imap_unordered(partial(_work, quick=quick), chunks):
            yield from found


def search(seed: int, count: int, jobs: int, keep: Path | None, quick: bool) -> int:
    begun = shown = time.monotonic()
    done, labels, codes, reasons = 0, Counter[str](), Counter[str](), Counter[str]()
    failures: Counter[str] = Counter()
    smallest: dict[str, Judged] = {}
    for judged in _judged(seed * CASES_OF_A_SEED, count, jobs, quick):
        done += 1
        labels.update(m.label for m in judged.mutations)
        codes += judged.codes
        reasons += judged.reasons
        for signature in {failure.signature for failure in judged.failures}:
            failures[signature] += 1
            if signature not in smallest:
                print(f"case {judged.number}: {signature}", flush=True)
            before = smallest.get(signature)
            if before is None or len(before.mutations) > len(judged.mutations):
                smallest[signature] = judged
        if time.monotonic() - shown > _SHOWN_SECONDS:
            shown = time.monotonic()
            print(f"{done} of {count}, {done / (shown - begun):.1f} per s", flush=True)
    seconds = time.monotonic() - begun
    print(
        f"\nseed {seed}: {done} directories, {sum(codes.values())} runs, {seconds:.0f} s, ", end=""
    )
    print(f"{done / seconds:.1f} per s")
    for title, counts in (("mutations", labels), ("exit codes", codes), ("explained", reasons)):
        print(f"\n{title}:")
        for name, number in sorted(counts.items()):
            print(f"{number:8} {name}")
    print(f"\nfailures: {sum(failures.values())} in {len(failures)} groups")
    with scratch_directory() as scratch:
        for signature, number in failures.most_common():
            _tell(smallest[signature], signature, number, scratch, keep)
    return 1 if failures else 0


def _tell(judged: Judged, signature: str, number: int, scratch: str, keep: Path | None) -> None:
    small = shrunk(judged, signature, scratch)
    print(f"{number:8} {signature}")
    print(f"         python -m tests.fuzz --one {judged.number}; of original {judged.original}:")
    for mutation in small.mutations:
        print(f"           {json.dumps(mutation.to_json())[:300]}")
    for failure in small.failures:
        if failure.signature == signature:
            print("         | " + failure.detail[-600:].replace("\n", "\n         | "))
            break
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{judged.number}.json").write_text(json.dumps(small.to_json(), indent=1))


def show(judged: Judged) -> int:
    print(f"original {judged.original}")
    for mutation in judged.mutations:
        print(json.dumps(mutation.to_json())[:2000])
    for name in sorted(judged.codes):
        print(f"    {name}")
    for failure in judged.failures:
        print(f"{failure.signature}\n    {failure.detail}")
    return 1 if judged.failures else 0


def replay(paths: list[Path]) -> int:
    """Run stored cases."""
    failed = 0
    with scratch_directory() as scratch:
        for path in paths:
            judged = stored(path, scratch)
            failed += bool(judged.failures)
            if judged.failures or len(paths) == 1:
                print(path)
                show(judged)
    print(f"{len(paths)} stored cases, {failed} failed")
    return 1 if failed else 0


def write(number: int, directory: str) -> int:
    """The mutated directory of a case, to look at."""
    which, mutations = drawn(number)
    write_tree(mutated(originals.original(which), mutations), directory)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directories", type=int, default=1000, help="how many to mutate")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="store each failure's case there")
    parser.add_argument("--one", type=int, metavar="CASE", help="repeat one case")
    parser.add_argument("--write", metavar="DIR", help="with --one: leave the directory there")
    parser.add_argument("--stored", type=Path, nargs="+", metavar="FILE", help="run stored cases")
    parser.add_argument("--corpus", action="store_true", help="run all that are in the corpus")
    parser.add_argument("--quick", action="store_true", help="fewer runs of each directory")
    parser.add_argument("--seconds", type=float, default=10.0, help="after which a run hangs")
    options = parser.parse_args()
    LIMITS.seconds = options.seconds
    if options.one is not None and options.write is not None:
        return write(options.one, options.write)
    preload()
    if options.corpus or options.stored:
        return replay(options.stored or sorted(CORPUS.glob("*.json")))
    if options.one is None:
        return search(options.seed, options.directories, options.jobs, options.keep, options.quick)
    with scratch_directory() as scratch:
        return show(run_drawn(options.one, scratch))


if __name__ == "__main__":
    sys.exit(main())
