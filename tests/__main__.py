"""``python -m tests PLAN``: the lanes of a plan, one after the other, each alone on the machine.

python -m tests quick                 all that needs nothing but Python, a sample of the slow
python -m tests test                  and what matters of Spark, a real Kafka, ZooKeeper
python -m tests build                 and the browser, one suite of clients
python -m tests all [--lane kafka]    every test; goes on where the last run on this code ended
python -m tests table                 writes the times of the last runs into tests/README.md
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.lanes import LANES
from tests.support.times import FILE as TIMES

ROOT = Path(__file__).resolve().parents[1]
DONE = ROOT / "build" / "test-all.json"
PAGE = ROOT / "tests" / "README.md"
BEGIN, END = "<!-- times: begin -->", "<!-- times: end -->"
NO_TESTS = 5  # pytest's exit status for a selection that is empty
DRAWN = "quick"
TEST = ("quick", "spark", "kafka", "zookeeper", "processes")
PLANS = {
    "quick": ("quick",),
    "test": TEST,
    "build": (*TEST, "browser", "clients"),
    "all": tuple(LANES),
}
# Each interpreter that a test starts would else compile the library again.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


class Step(NamedTuple):
    """One lane of a plan; ``whole`` with every case of it."""

    lane: str
    whole: bool

    @property
    def name(self) -> str:
        return f"{self.lane}, all" if self.whole else self.lane

    def command(self, seed: int, more: Sequence[str]) -> list[str]:
        lane = LANES[self.lane]
        command = [sys.executable, "-m", "pytest", "-q", "--lane", self.lane]
        if lane.workers > 1:
            command += ["-n", str(lane.workers), "--dist", "loadscope"]
        if self.whole:
            command += ["--long"]
        elif self.lane == DRAWN:
            command += ["--sample", str(seed)]
        else:
            command += ["-m", "essential"]
        return [*command, *more]


class Result(NamedTuple):
    step: Step
    status: int
    wall_s: float


def state() -> str:
    """The commit, or nothing if files differ from it: then nothing can be gone on with."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else "unknown"

    return "" if git("status", "--porcelain") else git("rev-parse", "HEAD")


def passed_before(code: str) -> set[str]:
    found = json.loads(DONE.read_text()) if code and DONE.exists() else {}
    return set(found.get("passed", ())) if found.get("commit") == code else set()


def run(steps: Sequence[Step], seed: int, more: Sequence[str]) -> list[Result]:
    times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    code = state()
    for number, step in enumerate(steps, 1):
        known = times.get(step.name, {}).get("wall_s")
        last = f"; {known / 60:.1f} min the last time" if known else ""
        print(
            f"{number}/{len(steps)} {step.name}: needs {LANES[step.lane].needs}{last}", flush=True
        )
    print(f"seed of the sample: {seed}; SEED={seed} repeats it", flush=True)
    results = []
    for number, step in enumerate(steps, 1):
        print(f"\n== {number}/{len(steps)} {step.name}", flush=True)
        started = time.monotonic()
        command = step.command(seed, more)
        status = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False).returncode
        results.append(Result(step, status, time.monotonic() - started))
        if status not in (0, NO_TESTS, 1):
            break  # a signal, or a call that pytest does not take
        if status == 0 and step.whole and not more and code and code == state():
            DONE.parent.mkdir(exist_ok=True)
            passed = sorted(passed_before(code) | {step.name})
            DONE.write_text(json.dumps({"commit": code, "passed": passed}) + "\n")
    return results


def summary(results: Sequence[Result]) -> None:
    times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    print(f"\n{'lane':16} {'cases':>6} {'CPU s':>7} {'min':>6}")
    for result in results:
        known = times.get(result.step.name, {})
        said = {0: "passed", NO_TESTS: "NO TESTS"}.get(result.status, "FAILED")
        print(
            f"{result.step.name:16} {known.get('cases', 0):6} {known.get('cpu_s', 0):7.0f} "
            f"{result.wall_s / 60:6.1f}  {said}"
        )


def table() -> None:
    """The times of the last run of each lane, as the table of ``tests/README.md``."""
    lines = ["| lane | folder | cases | CPU seconds |", "| --- | --- | --- | --- |"]
    for name, lane in json.loads(TIMES.read_text()).items():
        wall = f", {lane['wall_s'] / 60:.1f} min" if lane["wall_s"] else ""
        lines.append(f"| **{name}** | | {lane['cases']} | {lane['cpu_s']:.0f}{wall} |")
        for folder, each in sorted(lane["folders"].items(), key=lambda row: -row[1]["cpu_s"]):
            lines.append(f"| | `{folder}/` | {each['cases']} | {each['cpu_s']:.0f} |")
    text = PAGE.read_text()
    made = "\n".join([BEGIN, *lines, END])
    PAGE.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: made, text, flags=re.DOTALL))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plan", choices=[*PLANS, "table"])
    parser.add_argument("--lane", choices=LANES, help="only this one")
    parser.add_argument("--seed", type=int, help="of the sample; another one each time")
    parser.add_argument("--again", action="store_true", help="also what passed on this code")
    options, more = parser.parse_known_args()
    if options.plan == "table":
        table()
        return 0
    if options.lane and options.lane not in PLANS[options.plan]:
        parser.error(f"{options.plan} has no lane {options.lane}")
    steps = [
        Step(name, options.plan == "all")
        for name in PLANS[options.plan]
        if options.lane in (None, name)
    ]
    if options.plan == "all" and not options.again:
        passed = passed_before(state())
        for step in steps:
            if step.name in passed:
                print(f"{step.name} passed on this code; --again repeats it")
        steps = [step for step in steps if step.name not in passed]
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    results = run(steps, seed, more)
    summary(results)
    whole = len(results) == len(steps) and all(result.status == 0 for result in results)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
