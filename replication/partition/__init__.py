"""One partition on one broker: leader or follower (Kafka's ``Partition``).

The decisions are pure functions in ``replication.decisions``; here they meet the log. In reading
order: ``role`` (what a replica is, as one immutable value), ``base`` (how it is looked at),
``isr_changes`` (high watermark and ISR), ``leader``, ``follower``, and ``partition``, which changes
the role.

One lock guards the role and what is known of followers. It is never held while a caller is told
something, nor while records are appended or read: appends go under the log's own lock, which
refuses those of another leadership, and whoever reads looks at the role again afterwards. The
log's lock is taken inside this one, or alone.
"""

from replication.partition.env import (
    FetchLimit,
    FetchRead,
    IsrChannel,
    LeaderAppend,
    PartitionEnv,
)
from replication.partition.partition import Partition
from replication.partition.role import Leadership, Role

__all__ = [
    "FetchLimit",
    "FetchRead",
    "IsrChannel",
    "LeaderAppend",
    "Leadership",
    "Partition",
    "PartitionEnv",
    "Role",
]
