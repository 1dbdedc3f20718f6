"""The client's side: asks and changes a running cluster, ours or a real Kafka's, over TCP.

Begin with ``AdminClient``, which finds the broker to be asked. ``topics`` and ``groups`` say what
is asked, ``status`` puts it together for ``logstore status``; ``membership`` is a member of a
group. A real Kafka is asked too, so only Kafka's messages go out.
"""

from replication.admin.admin_client import AdminClient, Answered, WireConnection, WireError
from replication.admin.groups import GroupOffset, GroupStatus, MemberStatus
from replication.admin.status import BrokerStatus, ClusterStatus, cluster_status
from replication.admin.topics import PartitionStatus, TopicStatus

__all__ = [
    "AdminClient",
    "Answered",
    "BrokerStatus",
    "ClusterStatus",
    "GroupOffset",
    "GroupStatus",
    "MemberStatus",
    "PartitionStatus",
    "TopicStatus",
    "WireConnection",
    "WireError",
    "admin_client",
    "cluster_status",
    "groups",
    "membership",
    "reassignment_plans",
    "reassignments",
    "status",
    "topics",
]
