"""Three processes: one cluster for the tests of a file that leave it whole, or one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes.nodes import Nodes
from tests.support.lanes import missing
from tests.zookeeper.server import ZooKeeperUnavailable


@contextmanager
def running(directory: Path, **options: Any) -> Iterator[Nodes]:
    try:
        with Nodes(directory, **options) as nodes:
            yield nodes
    except ZooKeeperUnavailable as error:
        missing(f"no ZooKeeper: {error}")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running(tmp_path / "nodes") as nodes:
        yield nodes
