"""``python -m tests.mutants [SEARCH [MUTANT]]``: which searches see which mutants, in what time.

    python -m tests.mutants simulator no-truncation --find

looks for a new seed or plan; a plan is saved, a seed is to be written at the mutant.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.mutants import MUTANTS
from tests.mutants.searches import SEARCHES, Search


def find(search: Search, name: str) -> None:
    for place in search.places(name):
        try:
            seen = search.see(name, place)
        except AssertionError as error:
            print(place, error)
            continue
        if seen:
            print(f"{name}: {place}: {seen}")
            return


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("search", nargs="?", choices=SEARCHES, metavar="SEARCH")
    parser.add_argument("mutant", nargs="?", choices=MUTANTS, metavar="MUTANT")
    parser.add_argument("--find", action="store_true", help="look for a new seed or plan")
    options = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())  # the simulator listens to the logs
    if options.find:
        find(SEARCHES[options.search], options.mutant)
        return 0
    print(f"{'search':16} {'mutants':>7} {'cases':>6} {'seen':>5} {'CPU s':>6}  longest")
    missed = 0
    for name in [options.search] if options.search else SEARCHES:
        search, seconds = SEARCHES[name], dict[str, float]()
        cases = [each for each in search.found if options.mutant in (None, each[0])]
        unseen = []
        for mutant, place in cases:
            begun = time.process_time()
            seen = search.see(mutant, place)
            seconds[mutant] = max(seconds.get(mutant, 0), time.process_time() - begun)
            if options.search:
                print(f"    {mutant}: {MUTANTS[mutant].what}\n        {seen or 'not seen'}")
            if not seen:
                unseen.append(mutant)
        longest = max(seconds, key=lambda each: seconds[each])
        print(
            f"{name:16} {len(seconds):7} {len(cases):6} {len(cases) - len(unseen):5} "
            f"{sum(seconds.values()):6.1f}  {longest} {seconds[longest]:.2f} {unseen or ''}",
            flush=True,
        )
        missed += len(unseen)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
