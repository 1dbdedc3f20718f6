"""Whose tree is this? It is asked before a broker registers or changes a log (R-178).

To a broker that meets an empty tree, or another cluster's, all its logs would seem to be left over.
So the tree must have the cluster id of the log directories, and must know at least one of the
topics whose logs they hold.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from checkpoints.loggers import get_logger
from checkpoints.partition_metadata import topic_id_to_text
from checkpoints.types import TopicPartition
from logstore.common.random_id import new_uuid, random_id
from logstore.manager import peek
from logstore.storage.base import Storage
from replication.common.errors import InconsistentClusterIdError, TopicsWithoutIdsError
from replication.common.internal_topics import INTERNAL_TOPICS
from replication.common.state import TopicAssignment
from replication.coordination import Coordinator, CorruptNodeError, NodeExistsError, nodes

logger = get_logger(__name__)

SAME_UP_TO = 2  # partitions: with so few both rules say the same
NAMED = 3  # how many logs an error names

LogTopicIds = Mapping[TopicPartition, uuid.UUID | None]
"""Logs, and the ids of their topics; None for one that has no id."""


class BrokerHome(NamedTuple):
    """The log directories of one broker.

    ``directory`` is named by errors. ``cluster_id`` is that of ``meta.properties``, if it is known.
    """

    directory: str
    cluster_id: str | None
    logs: LogTopicIds


def read_homes(directory: str, log_dirs: Iterable[str], storage: Storage) -> list[BrokerHome]:
    """What the log directories of a broker say of their cluster, and all of them as one, with the
    logs. They are neither locked nor changed.

    Args:
        directory: the name of all of them in errors.
    """
    logs: dict[TopicPartition, uuid.UUID | None] = {}
    homes = []
    for log_dir in log_dirs:
        content = peek(log_dir, storage)
        cluster_id = None if content.meta is None else content.meta.cluster_id
        homes.append(BrokerHome(log_dir, cluster_id, {}))
        logs |= content.logs
    return [*homes, BrokerHome(directory, None, logs)]


def new_cluster_id() -> str:
    return topic_id_to_text(new_uuid(random_id))


class TreeIdentity(NamedTuple):
    """Whose tree it is, and whether it was made with Kafka's placement of keys (W-100)."""

    cluster_id: str
    has_kafkas_placement: bool


def settle_identity(
    session: Coordinator, homes: Collection[BrokerHome], new_id: str
) -> TreeIdentity:
    """That of the tree, whose id becomes that of ``homes`` or ``new_id`` if it has none.

    Nothing is created before all ``homes`` are found to belong to the tree.

    Raises:
        InconsistentClusterIdError: one does not.
        CoordinationError: the coordinator does not answer.
    """
    identity = _read(session, homes)
    known = None if identity is None else identity.cluster_id
    for home in homes:
        expected = known if known is not None else next(iter(_ids(homes)), None)
        if None not in (expected, home.cluster_id) and expected != home.cluster_id:
            raise _inconsistent(home, known, f"another directory to {expected}")
    for home in homes:
        if home.logs and not knows_any(session, home.logs):
            raise _unknown(home, known)
    if identity is not None:
        return identity
    own = next(iter(_ids(homes)), new_id)
    try:
        session.create(nodes.CLUSTER_ID, nodes.encode_cluster_id(own), parents=True)
    except NodeExistsError:  # another broker was faster
        return settle_identity(session, homes, new_id)
    return TreeIdentity(own, has_kafkas_placement=True)


def check_cluster_id(session: Coordinator, home: BrokerHome) -> TreeIdentity:
    """As ``settle_identity``, in a later session: only the ids are compared."""
    return settle_identity(session, [home._replace(logs={})], "")


def _ids(homes: Iterable[BrokerHome]) -> Iterable[str]:
    return (home.cluster_id for home in homes if home.cluster_id is not None)


def _read(session: Coordinator, homes: Iterable[BrokerHome]) -> TreeIdentity | None:
    node = session.get(nodes.CLUSTER_ID)
    if node is None:
        return None
    try:
        return TreeIdentity(
            nodes.decode_cluster_id(node.data), nodes.has_kafkas_placement(node.data)
        )
    except CorruptNodeError as error:
        directory = next((home.directory for home in homes), "")
        own = next(iter(_ids(homes)), None)
        raise InconsistentClusterIdError(directory, own, None, str(error)) from error


def _inconsistent(home: BrokerHome, tree_id: str | None, other: str) -> InconsistentClusterIdError:
    whom = other if tree_id is None else f"the coordinator's tree to {tree_id}"
    reason = f"its meta.properties belongs to cluster {home.cluster_id}, {whom}"
    return InconsistentClusterIdError(home.directory, home.cluster_id, tree_id, reason)


def _unknown(home: BrokerHome, tree_id: str | None) -> InconsistentClusterIdError:
    names = [f"{topic}-{partition}" for topic, partition in sorted(home.logs)]
    more = "" if len(names) <= NAMED else f" and {len(names) - NAMED} more"
    reason = (
        f"the coordinator's tree knows none of the topics whose logs are there "
        f"({', '.join(names[:NAMED])}{more}), so it is empty, or another cluster's"
    )
    return InconsistentClusterIdError(home.directory, home.cluster_id, tree_id, reason)


def refuse_topics_without_ids(session: Coordinator) -> None:
    """
    Raises:
        TopicsWithoutIdsError: real Kafka brokers are registered, and have such topics.
    """
    ids = map(nodes.broker_of, session.children(nodes.BROKER_IDS))
    if any(_is_foreign(session, broker_id) for broker_id in ids if broker_id is not None):
        found = {
            name: session.get(nodes.topic_path(name)) for name in session.children(nodes.TOPICS)
        }
        nameless = [n for n, node in found.items() if node and nodes.lacks_topic_id(n, node.data)]
        if nameless:
            raise TopicsWithoutIdsError(*nameless)


def _is_foreign(session: Coordinator, broker_id: int) -> bool:
    node = session.get(nodes.broker_path(broker_id))
    try:
        return node is not None and nodes.decode_broker(broker_id, node.data).is_foreign
    except CorruptNodeError:  # the controller says so
        return False


# -- what the tree knows --------------------------------------------------------------------------


def knows_any(session: Coordinator, logs: LogTopicIds) -> bool:
    """Whether the tree has, or had, the topic of any of these logs: by its id, under any name."""
    ids = {topic_id for topic_id in logs.values() if topic_id is not None}
    for topic in sorted({tp.topic for tp in logs}):
        found = _topic(session, topic)
        nameless = any(tp.topic == topic and logs[tp] is None for tp in logs)
        if found is not None and (nameless or found.topic_id in ids):
            return True
    if not ids.isdisjoint(_deleted(session)):
        return True
    return any(found.topic_id in ids for found in read_topics(session).values())


def read_topics(session: Coordinator) -> dict[str, TopicAssignment]:
    """All topics of the tree that can be read."""
    found = {name: _topic(session, name) for name in session.children(nodes.TOPICS)}
    return {name: topic for name, topic in found.items() if topic is not None}


def _topic(session: Coordinator, name: str) -> TopicAssignment | None:
    node = session.get(nodes.topic_path(name))
    try:
        return None if node is None else nodes.decode_topic(name, node.data)
    except CorruptNodeError:  # the controller says so
        return None


def _deleted(session: Coordinator) -> list[uuid.UUID]:
    node = session.get(nodes.DELETED_TOPICS)
    try:
        return [] if node is None else nodes.decode_topic_ids(nodes.DELETED_TOPICS, node.data)
    except CorruptNodeError:
        return []


# -- where the keys of internal topics lie --------------------------------------------------------


def settle_masked_topics(session: Coordinator) -> frozenset[uuid.UUID]:
    """The ids of the internal topics that keep the earlier rule (W-100), in a tree that was not
    made with Kafka's. It is decided once for a cluster.

    Earlier versions took another partition than Kafka for half of the keys. Topics that they filled
    keep that rule, since a group or a transactional id must have one coordinator: were its records
    moved, two leaders would have to agree on each. A topic that is created from now on has Kafka's.

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
