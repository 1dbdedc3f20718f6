"""Clean directories to plant in, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import engine


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Log directories of three brokers; take ``copied`` ones to change them."""
    directory: Path = tmp_path_factory.mktemp("clean")
    return engine.build(directory)
