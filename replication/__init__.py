"""Replicas of partitions on several brokers: Kafka's replication, on ``logstore``'s logs.

Start with ``Cluster`` (brokers in one process, for services and for tests), or with ``serve``,
which lets Kafka's clients talk to them. ``Broker`` is one of them, behind the seams ``Transport``,
``Coordinator`` and ``Runtime``. See docs/replication.md and docs/server.md.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from logstore.common import siblings

    return siblings.lazy_name(__name__, name)


def __dir__() -> list[str]:
    return __getattr__("__all__")
