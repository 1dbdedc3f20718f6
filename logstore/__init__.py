"""Kafka's storage layer as a library: durable logs, byte-compatible with Apache Kafka's files.

Start with ``LogManager`` (several log directories, topics and partitions) or ``PartitionLog``
(one partition). See README.md.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from logstore.common import siblings

    return siblings.lazy_name(__name__, name)


def __dir__() -> list[str]:
    return __getattr__("__all__")
