"""A real ZooKeeper: one for the session, or one of its own for a test that kills it, which a served
tree has to pass too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.lanes import missing
from tests.support.served_tree import CoordinatorProcess
from tests.zookeeper.server import ZooKeeperServer, ZooKeeperUnavailable

CHROOTS = itertools.count()
SERVED_TICK_MS = 500  # sessions of 1 to 10 s


@contextmanager
def running(directory: Path) -> Iterator[ZooKeeperServer]:
    try:
        with ZooKeeperServer(directory) as started:
            yield started
    except ZooKeeperUnavailable as error:
        missing(f"no ZooKeeper: {error}")


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def chroot(shared_server: ZooKeeperServer) -> str:
    """The URL of a tree that no other test sees."""
    return f"zookeeper://{shared_server.hosts}/test/{next(CHROOTS)}"


@pytest.fixture(params=["real", "served"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[ZooKeeperServer | CoordinatorProcess]:
    if request.param == "served":
        with CoordinatorProcess(tmp_path / "tree", SERVED_TICK_MS) as process:
            yield process
        return
    with running(tmp_path / "zookeeper") as server:
        yield server
