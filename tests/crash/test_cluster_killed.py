"""A few real kills of a cluster; ``python -m tests.crash.cluster_killed --runs 100`` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import cluster_killed


@pytest.mark.slow
def test_a_killed_cluster_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """S-22, I-22: the process with all brokers and their coordinator dies, three times."""
    kills = cluster_killed.run(tmp_path / "cluster", runs=3, seed=2)
    assert any(kill.acknowledged for kill in kills)
    assert kills[-1].found >= sum(kill.acknowledged for kill in kills)  # a batch has 1 to 4 values
