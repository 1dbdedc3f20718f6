"""Pytest fixtures for code that talks to a replicated log; pytest loads them itself.

``logstore_cluster`` is three brokers in this process on ``tmp_path``; ``make_logstore_cluster``
builds others (arguments as ``Cluster``). All are closed when the test ends. Nothing is imported
before a test asks for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def make_logstore_cluster(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``make(brokers=3, **options)`` -> ``Cluster``, each in its own directory."""
    from logstore.common import siblings

    with siblings.load("replication.pytest_fixtures").clusters(tmp_path) as make:
        yield make


@pytest.fixture
def logstore_cluster(make_logstore_cluster: Callable[..., Any]) -> Any:
    """``Cluster`` of three brokers, numbered 0 to 2."""
    return make_logstore_cluster()
