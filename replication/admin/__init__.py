"""The client's side: asks a running cluster, ours or a real Kafka's, over TCP.

Begin with ``status``, which ``logstore status`` prints; ``connection`` asks one broker.
"""

from replication.admin.connection import Connector, WireConnection, WireError
from replication.admin.status import ClusterStatus, cluster_status

__all__ = ["ClusterStatus", "Connector", "WireConnection", "WireError", "cluster_status", "status"]
