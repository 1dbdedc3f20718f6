"""A short run of ``python -m tests.clients.transactions``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import transactions


@pytest.mark.slow
def test_transactions_are_atomic_while_a_leader_crashes(tmp_path: Path) -> None:
    """W-150 to W-159."""
    libraries = ("confluent", "confluent")
    result = transactions.run(tmp_path / "cluster", 1, 4.0, 2.5, libraries)
    assert result.crashes > 0
    assert result.fates["committed"] > 0
    assert result.fates["aborted"] > 0
    assert result.copies["committed"] > 0
    assert result.records == result.seen
