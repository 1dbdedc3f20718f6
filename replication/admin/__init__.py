"""The client's side: asks and changes a running cluster, ours or a real Kafka's, over TCP.

Begin with ``AdminClient``, which finds the broker to be asked. ``topics`` and ``groups`` say what
is asked, ``status`` puts it together for ``logstore status``; ``connection`` asks one broker.
"""

from replication.admin.admin_client import AdminClient, Answered
from replication.admin.connection import Connector, WireConnection, WireError
from replication.admin.status import ClusterStatus, cluster_status

__all__ = [
    "AdminClient",
    "Answered",
    "ClusterStatus",
    "Connector",
    "WireConnection",
    "WireError",
    "admin_client",
    "cluster_status",
    "groups",
    "status",
    "topics",
]
