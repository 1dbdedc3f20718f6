"""Kernel fuzzers by command: see docs/fuzzing.md.

    python -m tests.fuzz.kernels --rounds 10000 --seed 1 [--only append,window]

A round depends on the name of the fuzzer and its seed alone, so a failure is repeated with what is
printed. A sanitizer ends the process: ``--each`` prints every seed before its round.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time

from logstore.kernels import _scan
from tests.fuzz.kernels.rounds import FUZZERS, run, seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kernels")
    parser.add_argument(
        "--rounds", type=int, default=1000, help="of each fuzzer; fewer of costly ones"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--each", action="store_true", help="print every seed before its round")
    arguments = parser.parse_args()
    names = [name for name in arguments.only.split(",") if name] or list(FUZZERS)
    if unknown := [name for name in names if name not in FUZZERS]:
        parser.error(f"no fuzzer {', '.join(unknown)}; there are {', '.join(FUZZERS)}")
    faulthandler.enable()
    print(f"kernels: {_scan.__file__}")
    failed = done = 0
    for name in names:
        those = seeds(name, arguments.seed, arguments.rounds)
        print(f"{name}: seeds {those.start}…{those.stop - 1} …", end="", flush=True)
        started, done = time.monotonic(), done + len(those)
        for seed in those:
            if arguments.each:
                print(f"\n--only {name} --seed {seed} --rounds 1", end="", flush=True)
            try:
                run(name, seed)
            except Exception as error:
                failed += 1
                print(f"\n--only {name} --seed {seed} --rounds 1: {type(error).__name__}: {error}")
        print(f" {time.monotonic() - started:.1f} s", flush=True)
    print(f"{failed} rounds failed of {done}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
