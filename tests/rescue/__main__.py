"""``python -m tests.rescue --seeds 0:10000``: damage, rescue, compare; prints what fails."""

from __future__ import annotations

import argparse
import logging
from collections import Counter

from tests.rescue.search import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="first:end")
    first, end = map(int, parser.parse_args().seeds.split(":"))
    logging.disable(logging.CRITICAL)
    failed, seen = 0, Counter[str]()
    for seed in range(first, end):
        outcome = run(seed)
        seen.update(kind.split()[0] for kind in outcome.done)
        seen["whole" if outcome.whole else "not whole"] += 1
        if outcome.problems:
            failed += 1
            print(f"seed {seed}:", *outcome.done, "->", *outcome.problems, sep="\n    ")
    print(f"{end - first} rescues, {failed} failed;", dict(seen))
    return 1 if failed else 0


raise SystemExit(main())
