"""Pytest fixtures for code that talks to a replicated log; loaded by pytest itself.

``logstore_cluster`` is three brokers in this process on ``tmp_path``; ``make_logstore_cluster``
builds others (arguments as ``Cluster``). All are closed when the test ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from replication.cluster import Cluster


@pytest.fixture
def make_logstore_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """``make(brokers=3, **options)`` -> ``Cluster``, each in its own directory."""
    from replication.cluster import Cluster

    clusters: list[Cluster] = []

    def make(brokers: int = 3, **options: Any) -> Cluster:
        options.setdefault("directory", tmp_path / f"cluster-{len(clusters)}")
        clusters.append(Cluster(brokers, **options))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def logstore_cluster(make_logstore_cluster: Callable[..., Cluster]) -> Cluster:
    """Three brokers, numbered 0 to 2."""
    return make_logstore_cluster()
