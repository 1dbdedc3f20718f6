"""A short search with a fixed seed, the stored cases, and proof that the oracle bites."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DIRECTORIES = 60


def _fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _assert_nothing_found(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_drawn_directories() -> None:
    _assert_nothing_found(
        _fuzz("--seed", "1", "--directories", str(DIRECTORIES), "--jobs", "1", "--quick")
    )


@pytest.mark.slow
def test_stored_directories() -> None:
    """Each found something once."""
    _assert_nothing_found(_fuzz("--corpus"))
