"""``python -m tests.adopt``: see ``--help``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.adopt import proofs
from tests.adopt.histories import PLANS, History
from tests.adopt.kafkas import Node


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.adopt",
        description="Adopt directories of real Kafkas, and compare what clients see.",
    )
    parser.add_argument("plans", nargs="*", metavar="PLAN", help=f"of {', '.join(PLANS)}; or all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the directories there, and take them again"
    )
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="logstore-adopt-") as temporary:
        base = options.keep or Path(temporary)
        for name in options.plans or PLANS:
            wrong += _prove(name, options.seed, base / f"{name}-{options.seed}")
    sys.exit(wrong > 0)


def _prove(name: str, seed: int, directory: Path) -> int:
    """How many differences have no reason."""
    plan, started = PLANS[name], time.monotonic()
    if (directory / "whole").exists():
        node = Node(plan.release, directory / ("copied-live" if plan.copied_live else "node"))
    else:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        node = History(plan, directory / "node", seed).run()
        (directory / "whole").touch()
    wrong = 0
    for each in ("kafka", "read-only", "writable"):
        shutil.rmtree(directory / each, ignore_errors=True)
    theirs = proofs.what_kafka_shows(node, directory / "kafka")
    print(f"{name} --seed {seed}, Kafka: {time.monotonic() - started:.0f} s", flush=True)
    found = proofs.read_only(node, theirs, directory / "read-only")
    wrong += len(found.wrong)
    print(f"{name} --seed {seed}, read-only: {time.monotonic() - started:.0f} s\n{found.text()}")
    for_good = proofs.writable(node, theirs, directory / "writable")
    wrong += len(for_good.wrong)
    print(f"{name} --seed {seed}, for good: {time.monotonic() - started:.0f} s\n{for_good.text()}")
    return wrong


if __name__ == "__main__":
    main()
