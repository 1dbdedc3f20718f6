"""One broker of ours for all tests of the matrix, in this process; or the one that is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import servers
from tests.clients.matrix.clients import CLIENTS, MatrixClient
from tests.clients.toolchain import SuiteUnavailable

SERVER = os.environ.get("LOGSTORE_CLIENTS_SERVER", "logstore")


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a broker whose topics are created by name only."""
    directory = tmp_path_factory.mktemp("matrix")
    with servers.running(SERVER, Path(directory)) as address:
        yield address


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(client, id=client.name, marks=() if client.cheap else pytest.mark.long)
        for client in CLIENTS
    ],
)
def client(request: pytest.FixtureRequest) -> MatrixClient:
    """Return each client in turn; those that need a build only in long runs."""
    found: MatrixClient = request.param
    try:
        found.command("", [])
        found.environment()
    except SuiteUnavailable as error:
        pytest.skip(str(error))
    return found


@pytest.fixture(scope="session")
def crashes(request: pytest.FixtureRequest) -> int:
    """How many leaders crash under each client."""
    return 4 if request.config.getoption("--long", default=False) else 1
