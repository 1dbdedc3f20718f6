"""A process whose wall clock is moved while it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.clock import MovedClock, build
from tests.support.lanes import missing

CHILD = (
    "import time, datetime\n"
    "while input():\n"
    "    print(time.time(), datetime.datetime.now().timestamp(), time.monotonic(), flush=True)"
)


def test_the_wall_clock_moves_and_the_other_one_does_not(tmp_path: Path) -> None:
    if (library := build(tmp_path)) is None:
        missing("no C compiler")
    clock = MovedClock(library, tmp_path / "clock")
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env={**os.environ, **clock.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def told() -> list[float]:
        assert child.stdin is not None
        assert child.stdout is not None
        print("go", file=child.stdin, flush=True)
        return [float(word) for word in child.stdout.readline().split()]

    with child:
        before = told()
        for offset in (3600.0, -86400.0):
            clock.set(offset)
            wall, date, monotonic = told()
            assert wall - before[0] == pytest.approx(offset, abs=60)
            assert date - before[1] == pytest.approx(offset, abs=60)
            assert 0 <= monotonic - before[2] < 60
        child.kill()
    clock.close()
