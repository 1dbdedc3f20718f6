"""A broker behind a socket, shared by the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replication.server.serving import ServedCluster
from tests.support.served import served


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served() as running:
        yield running
