"""The coordinator's tree of an adopted cluster: the snapshot with which its journal begins."""

from __future__ import annotations

import os
from collections.abc import Iterator

from logstore.storage.base import Storage
from replication.adopt.plan import AdoptedCluster
from replication.coordination import Create, nodes
from replication.coordination.base import ancestors_of, parent_of
from replication.coordination.journal import Journal
from replication.coordination.tree import Tree


def write_tree(storage: Storage, directory: str, cluster: AdoptedCluster) -> None:
    """Write the journal in ``directory``, durably and as a whole.

    Raises:
        OSError: the disk refused.
    """
    tree = Tree()
    # The epochs of brokers are numbers of transactions, and only rise.
    tree.zxid = max(0, cluster.broker_epoch)
    ops: list[Create] = []
    made = {"/"}
    for path, data in _nodes(cluster):
        above = [each for each in ancestors_of(parent_of(path)) if each not in made]
        ops += [Create(each) for each in reversed(above)]
        ops.append(Create(path, data))
        made.update((*above, path))
    tree.execute(ops, 0)
    storage.make_dir(directory)
    storage.sync_dir(os.path.dirname(directory))
    Journal(storage, directory, tree).close()


def _nodes(cluster: AdoptedCluster) -> Iterator[tuple[str, bytes]]:
    yield nodes.CLUSTER_ID, nodes.encode_cluster_id(cluster.cluster_id, not cluster.masked)
    if cluster.masked:
        ids = [cluster.topics[name].topic_id for name in sorted(cluster.masked)]
        yield nodes.MASKED_TOPICS, nodes.encode_topic_ids(ids)
    if cluster.producer_id >= 0:
        yield nodes.RESERVED_PRODUCER_IDS, nodes.encode_number(cluster.producer_id)
    for name, topic in cluster.topics.items():
        yield nodes.topic_path(name), nodes.encode_topic(topic)
        yield nodes.topic_config_path(name), nodes.encode_topic_config(topic.config)
    for tp, state in cluster.states.items():
        yield nodes.partition_state_path(tp), nodes.encode_partition(state)
