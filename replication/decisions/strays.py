"""Which logs a broker sets aside when a controller names all of its replicas (R-179).

A log goes only if the tree *knows* that its place is elsewhere or nowhere. A tree that does not
know its topic at all may be an empty one, an older one, or another cluster's. Then the log stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from enum import Enum

from replication.common.state import TopicAssignment, TopicPartition


class Belonging(Enum):
    """The place of a log in the tree."""

    HERE = "here"
    """Its replica is assigned to this broker, in a role or not."""
    MOVED = "moved"
    """Its topic is there, and has no such replica on this broker."""
    DELETED = "deleted"
    """The tree remembers that its topic was deleted."""
    REPLACED = "replaced"
    """Another topic has the name, and nothing is known of this one."""
    UNKNOWN = "unknown"
    """Nothing is known of its topic."""


GONE = frozenset((Belonging.MOVED, Belonging.DELETED, Belonging.REPLACED))


def belonging(
    tp: TopicPartition,
    topic_id: uuid.UUID | None,
    broker_id: int,
    topics: Mapping[str, TopicAssignment],
    deleted: Collection[uuid.UUID],
) -> Belonging:
    """
    Args:
        topic_id: that of the log; None if it has none, or cannot be read. Its name counts then.
        topics: all topics of the tree.
        deleted: ids of topics that were deleted.
    """
    namesake = topics.get(tp.topic)
    if namesake is not None and topic_id in (None, namesake.topic_id):
        is_here = broker_id in namesake.partitions.get(tp.partition, ())
        return Belonging.HERE if is_here else Belonging.MOVED
    if topic_id is None:
        return Belonging.UNKNOWN
    if topic_id in deleted:
        return Belonging.DELETED
    # Under another name it is there if somebody has renamed its directory.
    for topic in topics.values():
        if topic.topic_id == topic_id:
            is_here = broker_id in topic.partitions.get(tp.partition, ())
            return Belonging.HERE if is_here else Belonging.MOVED
    return Belonging.UNKNOWN if namesake is None else Belonging.REPLACED
