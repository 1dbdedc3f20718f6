"""Clusters for tests; as pytest fixtures they are in ``logstore.pytest_plugin``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from replication.embedded.cluster import Cluster
from replication.server.serving import ServedCluster, serve


@contextmanager
def clusters(directory: Path) -> Iterator[Callable[..., Cluster]]:
    """Gives ``make(brokers=3, **options)`` -> ``Cluster``; in the end all are closed."""
    with ExitStack() as opened:
        made = 0

        def make(brokers: int = 3, **options: Any) -> Cluster:
            nonlocal made
            options.setdefault("directory", directory / f"cluster-{made}")
            made += 1
            return opened.enter_context(Cluster(brokers, **options))

        yield make


@contextmanager
def kafkas(directory: Path) -> Iterator[Callable[..., ServedCluster]]:
    """Gives ``make(brokers=1, **options)`` -> ``ServedCluster``; in the end all are closed."""
    with ExitStack() as opened:
        made = 0

        def make(brokers: int = 1, **options: Any) -> ServedCluster:
            nonlocal made
            options.setdefault("directory", directory / f"kafka-{made}")
            made += 1
            return opened.enter_context(serve(brokers=brokers, **options))

        yield make


__all__ = ["clusters", "kafkas"]
