"""Where the keys of the internal topics lie: decided once for a cluster, by what its tree tells.

Earlier versions took another partition than Kafka for half of the keys. Topics that they filled
keep that rule, since a group or a transactional id must have one coordinator: were its records
moved, two leaders would have to agree on each. A topic that is created from now on has Kafka's.
"""

from __future__ import annotations

import uuid

from checkpoints.loggers import get_logger
from replication.common.internal_topics import INTERNAL_TOPICS
from replication.coordination import Coordinator, NodeExistsError, nodes

logger = get_logger(__name__)

SAME_UP_TO = 2  # partitions: with so few both rules say the same


def settle_masked_topics(session: Coordinator) -> frozenset[uuid.UUID]:
    """The ids of the internal topics that keep the earlier rule (W-100), in a tree that was not
    made with Kafka's.

    Call it before the broker is registered: a tree without the answer, in which brokers of ours
    were registered, is that of an earlier version.

    Raises:
        CoordinationError: the coordinator does not answer, or the node cannot be read.
    """
    node = session.get(nodes.MASKED_TOPICS)
    if node is not None:
        return frozenset(nodes.decode_topic_ids(nodes.MASKED_TOPICS, node.data))
    found: dict[uuid.UUID, str] = {}
    if session.children(nodes.BROKER_EPOCHS):
        for name in sorted(INTERNAL_TOPICS):
            topic = session.get(nodes.topic_path(name))
            known = None if topic is None else nodes.decode_topic(name, topic.data)
            if known is not None and len(known.partitions) > SAME_UP_TO:
                found[known.topic_id] = name
    try:
        session.create(nodes.MASKED_TOPICS, nodes.encode_topic_ids(found), parents=True)
    except NodeExistsError:  # another broker was faster
        return settle_masked_topics(session)
    for name in found.values():
        logger.warning(
            "an earlier version filled %s; its groups or transactional ids stay in the partitions "
            "where a real Kafka does not look for half of them, until the topic is created anew",
            name,
        )
    return frozenset(found)
