"""The client's side: asks a running cluster, ours or a real Kafka's, over TCP.

Begin with ``status``, which ``logstore status`` prints; ``connection`` asks one broker.
"""

from replication.admin.connection import WireConnection, WireError
from replication.admin.status import (
    BrokerStatus,
    ClusterStatus,
    GroupOffset,
    GroupStatus,
    PartitionStatus,
    cluster_status,
)

__all__ = [
    "BrokerStatus",
    "ClusterStatus",
    "GroupOffset",
    "GroupStatus",
    "PartitionStatus",
    "WireConnection",
    "WireError",
    "cluster_status",
    "status",
]
