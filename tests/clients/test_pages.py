"""The snippets with clients of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages.running import run
from tests.pages.snippets import PROGRAMS, Script, scripts
from tests.support.lanes import missing

CLIENTS = {"confluent-kafka", *PROGRAMS}
CHOSEN = [s for s in scripts() if s.names & CLIENTS and not s.why_not]


@pytest.mark.parametrize("script", CHOSEN, ids=[script.name for script in CHOSEN])
def test_it_runs_twice(script: Script, tmp_path: Path) -> None:
    if script.lacks:
        missing(f"needs {script.lacks}")
    run([script], tmp_path)
