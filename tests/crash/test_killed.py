"""A few real kills; ``python -m tests.crash.killed --runs 200`` does more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash import killed


@pytest.mark.slow
def test_killed_processes_lose_nothing_they_acknowledged(tmp_path: Path) -> None:
    appends = 0
    for seed in range(5):
        directory = tmp_path / str(seed)
        os.mkdir(directory)
        appends += killed.run(seed, str(directory))[0]
    assert appends > 20
