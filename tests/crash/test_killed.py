"""A few real kills; ``python -m tests.crash.killed --runs 200`` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import killed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_killed_processes_lose_nothing_they_acknowledged(tmp_path: Path, seed: int) -> None:
    appends, found = killed.run(seed, str(tmp_path))
    assert found >= appends > 0
