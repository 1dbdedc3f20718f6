"""The directory of a cluster that was adopted: its coordinator's tree, and where its logs are.

The log directories stay where they are, and as a Kafka can load them, which refuses a directory
that is no partition. So the tree lies elsewhere, beside ``adopted.json``, which names them. That
file is written first, and the journal with its rename as the last: an adoption without a journal
has not happened (R-186).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping

from checkpoints.files import replace_file
from checkpoints.printable import printable
from logstore.common.errors import ConfigError
from logstore.storage.base import Storage
from replication.adopt.plan import AdoptedCluster
from replication.coordination import Create, nodes
from replication.coordination.base import ancestors_of, parent_of
from replication.coordination.embedded import LOCK_NAME, make_durable_dir
from replication.coordination.journal import FILE_NAME, Journal
from replication.coordination.tree import Tree

ADOPTED = "adopted.json"
COORDINATOR = "coordinator"
VERSION = 1
_SIZE_MAX = 1 << 20

LogDirsByBroker = Mapping[int, tuple[str, ...]]


def read_home(storage: Storage, home: str) -> LogDirsByBroker | None:
    """The log directories of the cluster that was adopted there; None without one.

    Raises:
        ConfigError: the file makes no sense, an adoption was interrupted, or a directory is gone.
    """
    found = _read(storage, home)
    if found is None:
        return None
    if not has_tree(storage, home):
        raise ConfigError(
            f"{home}: the adoption there was interrupted; nothing was changed in the log "
            f"directories: adopt them again (--adopt {' --adopt '.join(_all(found))})"
        )
    for path in _all(found):
        info = storage.info(path)
        if info is None or not info.is_dir:
            raise ConfigError(f"{path} is not there; {os.path.join(home, ADOPTED)} names it")
    return found


def has_tree(storage: Storage, home: str) -> bool:
    return storage.info(os.path.join(home, COORDINATOR, FILE_NAME)) is not None


def adopted_before(storage: Storage, home: str, paths: list[str]) -> bool:
    """Whether ``home`` is the cluster of just these log directories already.

    Raises:
        ConfigError: it is that of others, or anything else is there; or as ``read_home``.
    """
    for path in paths:
        real, own = storage.real_path(path), storage.real_path(home)
        if real == own or own.startswith(f"{real}/"):
            raise ConfigError(
                f"{home} is inside of the log directory {path}: a Kafka would refuse to load it"
            )
    found = _read(storage, home)
    if found is not None and has_tree(storage, home):
        if sorted(map(storage.real_path, _all(found))) == sorted(map(storage.real_path, paths)):
            return True
        raise ConfigError(
            f"{home} is the cluster of {', '.join(_all(found))}: give another directory"
        )
    left = {f"{ADOPTED}.tmp"}  # of an adoption that was killed
    if not has_tree(storage, home):
        left.add(COORDINATOR)
    is_there = storage.info(home) is not None
    if found is None and is_there and any(each.name not in left for each in storage.scan_dir(home)):
        raise ConfigError(f"{home} is not empty: give a new directory to the adopted cluster")
    return False


def make_home(storage: Storage, home: str, cluster: AdoptedCluster) -> None:
    """
    Raises:
        ConfigError: somebody else made a cluster there since ``adopted_before``.
        LogDirLockedError: somebody else is about to.
        OSError: the disk refused; the adoption can be repeated.
    """
    coordinator = os.path.join(home, COORDINATOR)
    make_durable_dir(storage, coordinator)
    lock = storage.lock(os.path.join(coordinator, LOCK_NAME))
    try:
        if has_tree(storage, home):
            raise ConfigError(f"{home}: another process made a cluster there at the same time")
        _write(storage, home, cluster)
    finally:
        lock.release()


def _write(storage: Storage, home: str, cluster: AdoptedCluster) -> None:
    brokers = {str(broker): list(paths) for broker, paths in cluster.brokers.items()}
    text = json.dumps({"version": VERSION, "brokers": brokers}, indent=2) + "\n"
    replace_file(storage, os.path.join(home, ADOPTED), text.encode())
    write_tree(storage, os.path.join(home, COORDINATOR), cluster)


def _all(brokers: LogDirsByBroker) -> list[str]:
    return [path for paths in brokers.values() for path in paths]


def _read(storage: Storage, home: str) -> LogDirsByBroker | None:
    path = os.path.join(home, ADOPTED)
    try:
        value = json.loads(storage.read_file(path, _SIZE_MAX))
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']!r}")
        brokers = {int(broker): tuple(paths) for broker, paths in value["brokers"].items()}
        if not brokers or not all(isinstance(each, str) and each for each in _all(brokers)):
            raise ValueError("no log directories")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: {printable(str(error))}") from None
    return brokers


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
    make_durable_dir(storage, directory)
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
