"""What a first session leaves on stderr: nothing, unless something is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.until import patience

pytestmark = pytest.mark.slow

FIXED = "WARNING: Using incubator modules: jdk.incubator.vector"
"""The JVM says so before it reads any configuration, for an option that Spark gives it."""


def run(logs: Path, target: Path, ends: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.spark.quiet_session", str(logs), str(target), ends]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=4 * patience()
    )


@pytest.mark.essential
def test_a_session_that_goes_well_says_nothing(logs: Path, tmp_path: Path) -> None:
    """Nor does a query that reads some of the rows that a worker has for it."""
    done = run(logs, tmp_path / "target", "well")
    assert [line for line in done.stderr.splitlines() if line != FIXED] == []
    assert done.stdout.count("1200\n") == 2
    assert "<VerifyReport " in done.stdout


def test_what_goes_wrong_is_still_told(logs: Path, tmp_path: Path) -> None:
    done = run(logs, tmp_path / "target", "badly")
    assert "ZeroDivisionError" in done.stderr
    assert "ERROR" in done.stderr
