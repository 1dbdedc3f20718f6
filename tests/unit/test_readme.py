"""The README's first lines of code run, and print what it says they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.until import patience

ROOT = Path(__file__).resolve().parents[2]
PAIRS = re.findall(
    r"```python\n([^`]*)```\n\nIt prints:\n\n```\n([^`]*)```", (ROOT / "README.md").read_text()
)


def test_both_are_found() -> None:
    assert [code.split()[1] for code, _ in PAIRS] == ["logstore", "replication"]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "output"), PAIRS, ids=["log", "cluster"])
def test_it_prints_what_it_says(code: str, output: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=patience(),
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output
