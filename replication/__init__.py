"""Replicas of partitions on several brokers: Kafka's replication, on ``logstore``'s logs.

Start with ``Cluster`` (brokers in one process, for services and for tests), or with ``serve``,
which lets Kafka's clients talk to them; ``connect`` makes a client of a cluster that runs, ours or
a real Kafka's. ``Broker`` is one broker, behind the seams ``Transport``, ``Coordinator`` and
``Runtime``. See docs/replication.md and docs/server.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replication.broker.broker import Broker, BrokerState
    from replication.client import Client, Consumer, Producer, RecordMetadata
    from replication.common.config import ReplicationConfig
    from replication.common.error_codes import ErrorCode, error_code_of
    from replication.common.errors import ReplicationError
    from replication.common.runtime import Runtime, ThreadRuntime
    from replication.common.transport import LocalNetwork, LocalTransport, Transport
    from replication.coordination import Coordinator, open_coordinator
    from replication.embedded.cluster import Cluster
    from replication.server.serving import ServedCluster, serve, serve_async
    from replication.wire.connecting import connect

# Where each name lives; imported when first asked for.
_HOMES = {
    "replication.broker.broker": ("Broker", "BrokerState"),
    "replication.client": ("Client", "Consumer", "Producer", "RecordMetadata"),
    "replication.embedded.cluster": ("Cluster",),
    "replication.server.serving": ("ServedCluster", "serve", "serve_async"),
    "replication.wire.connecting": ("connect",),
    "replication.common.config": ("ReplicationConfig",),
    "replication.coordination": ("Coordinator", "open_coordinator"),
    "replication.common.error_codes": ("ErrorCode", "error_code_of"),
    "replication.common.errors": ("ReplicationError",),
    "replication.common.runtime": ("Runtime", "ThreadRuntime"),
    "replication.common.transport": ("LocalNetwork", "LocalTransport", "Transport"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from logstore.common import siblings

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
    "ServedCluster",
    "ThreadRuntime",
    "Transport",
    "connect",
    "error_code_of",
    "open_coordinator",
    "serve",
    "serve_async",
]
