"""Replicas of partitions on several brokers: Kafka's replication, on ``logstore``'s logs.

Start with ``Cluster`` (brokers in one process, for services and for tests); ``Broker`` is one of
them, behind the seams ``Transport``, ``Coordinator`` and ``Runtime``. See docs/replication.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replication.broker import Broker, BrokerState
    from replication.client import Client, Consumer, Producer, RecordMetadata
    from replication.cluster import Cluster
    from replication.config import ReplicationConfig
    from replication.coordination import Coordinator, open_coordinator
    from replication.error_codes import ErrorCode, error_code_of
    from replication.errors import ReplicationError
    from replication.runtime import Runtime, ThreadRuntime
    from replication.transport import LocalNetwork, LocalTransport, Transport

# Where each name lives; imported when first asked for.
_HOMES = {
    "replication.broker": ("Broker", "BrokerState"),
    "replication.client": ("Client", "Consumer", "Producer", "RecordMetadata"),
    "replication.cluster": ("Cluster",),
    "replication.config": ("ReplicationConfig",),
    "replication.coordination": ("Coordinator", "open_coordinator"),
    "replication.error_codes": ("ErrorCode", "error_code_of"),
    "replication.errors": ("ReplicationError",),
    "replication.runtime": ("Runtime", "ThreadRuntime"),
    "replication.transport": ("LocalNetwork", "LocalTransport", "Transport"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from logstore import siblings

    value = getattr(siblings.load(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "Broker",
    "BrokerState",
    "Client",
    "Cluster",
    "Consumer",
    "Coordinator",
    "ErrorCode",
    "LocalNetwork",
    "LocalTransport",
    "Producer",
    "RecordMetadata",
    "ReplicationConfig",
    "ReplicationError",
    "Runtime",
    "ThreadRuntime",
    "Transport",
    "error_code_of",
    "open_coordinator",
]
