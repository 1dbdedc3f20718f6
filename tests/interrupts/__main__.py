"""Interrupt every public call at every place where a signal handler may raise."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.interrupts.searching import ALL, search


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts", description=__doc__)
    parser.add_argument("--call", default="", help="only calls with this in their name")
    parser.add_argument("--places", type=int, help="at most so many places a call")
    parser.add_argument("--seed", type=int, default=0, help="draws the places")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    count = 0
    for call in ALL:
        if given.call in call.name:
            findings = search(call, given.places, given.seed)
            print(f"{call.name}: {'no finding' if not findings else ''}", flush=True)
            for finding in findings:
                print(f"  at place {finding.place}: {finding.error}", flush=True)
            count += len(findings)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
