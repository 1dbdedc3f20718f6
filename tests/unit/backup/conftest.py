"""A log directory and a backup of it, made once for the tests of this folder."""

from __future__ import annotations

import pytest

from logstore.backup import Backup
from tests.support.backups import GrowingSource, RiggedStore


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> GrowingSource:
    """To be read only."""
    found = GrowingSource(tmp_path_factory.mktemp("written") / "data")
    found.write(transactions=True)
    return found


@pytest.fixture(scope="session")
def backed(written: GrowingSource) -> RiggedStore:
    """To be read only."""
    store = RiggedStore()
    Backup([written.path], store).run()
    return store
