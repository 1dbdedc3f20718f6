"""The snippets on Spark run, in one process for each time: a JVM takes seconds to start."""

from __future__ import annotations

from pathlib import Path

from tests.pages.running import run
from tests.pages.snippets import scripts


def test_they_run_twice(tmp_path: Path) -> None:
    chosen = [
        script
        for script in scripts()
        if "spark" in script.names and "confluent-kafka" not in script.names and not script.why_not
    ]
    assert len(chosen) > 5
    run(chosen, tmp_path)
