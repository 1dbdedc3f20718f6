"""``python -m tests.verify_lives --lives N``: what does a verification invent?"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

from tests.verify_lives.life import Life, live


def report(life: Life) -> None:
    print(f"\nseed {life.seed}:")
    for line in [*life.trace, *life.told]:
        print(f"    {line}")
    print(f"Repeat it with: python -m tests.verify_lives --first {life.seed} --lives 1 --trace")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.verify_lives", description=__doc__)
    parser.add_argument("--first", type=int, help="first seed; another one each time")
    parser.add_argument("--lives", type=int, default=1000, help="how many")
    parser.add_argument("--steps", type=int, default=40, help="of each")
    parser.add_argument("--all", action="store_true", help="go on after a finding, and count them")
    parser.add_argument("--trace", action="store_true", help="print each life")
    args = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if args.first is None else args.first
    print(f"seeds from {first} on", flush=True)
    done, rules, checks, wrong = Counter[str](), Counter[str](), 0, 0
    for seed in range(first, first + args.lives):
        life = live(seed, args.steps)
        done += life.done
        checks += life.checks
        if life.told or args.trace:
            wrong += bool(life.told)
            rules[" ".join(life.told[0].split()[:2]) if life.told else "nothing"] += 1
            if not args.all or wrong <= 3:
                report(life)
            if life.told and not args.all:
                return 1
    print(f"{args.lives} lives, {checks} checks, {wrong} with findings: {dict(rules)}")
    print(", ".join(f"{name} {count}" for name, count in sorted(done.items())))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
