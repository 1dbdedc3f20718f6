"""One partition on one broker: leader or follower (Kafka's ``Partition``).

The decisions are pure functions in ``replication.decisions``. Here they are applied to the log.
In reading order: ``replica`` (the state of all parts; its role is one immutable value), the parts
``isr_changes`` (high watermark and ISR), ``leader`` and ``follower``, and ``partition``, which has
these and changes the role.

One lock guards the role and the progress of followers. It is never held while a callback runs, nor
while records are appended or read. Appends use the log's own lock, and the log refuses those of
another leadership. A read checks the role again afterwards. The log's lock is taken inside this
one, or alone.
"""

from replication.partition.env import (
    FetchRead,
    IsrChannel,
    LeaderAppend,
    PartitionContext,
    TruncationEvent,
)
from replication.partition.follower import FollowerSide, finish_changes
from replication.partition.partition import Partition
from replication.partition.replica import UNASSIGNED, Leadership, Role, storage_error

__all__ = [
    "UNASSIGNED",
    "FetchRead",
    "FollowerSide",
    "IsrChannel",
    "LeaderAppend",
    "Leadership",
    "Partition",
    "PartitionContext",
    "Role",
    "TruncationEvent",
    "finish_changes",
    "storage_error",
]
