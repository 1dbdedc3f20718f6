"""The seam to coordination: sessions with a tree of versioned nodes, and where they come from.

``embedded:DIRECTORY`` keeps the tree in this process, ``zookeeper://host:port,…/chroot`` is a real
ZooKeeper (extra ``zookeeper``), and other packages add theirs as entry points of the group
``logstore.coordinators``: a callable that takes what follows the scheme and options by keyword, and
returns a ``CoordinatorService``.
"""

from __future__ import annotations

from typing import Any

from logstore.common.errors import ConfigError
from logstore.common.extras import Extra, load
from logstore.common.suggestions import unknown
from replication.common.addresses import split_address
from replication.coordination.base import (
    Check,
    Coordinator,
    CoordinatorFactory,
    CoordinatorService,
    Create,
    Delete,
    EventKind,
    Node,
    Op,
    SessionState,
    Set,
    WatchEvent,
    check_path,
)
from replication.coordination.errors import (
    BadVersionError,
    CoordinationError,
    CoordinatorUnavailableError,
    CoordinatorWentBackError,
    CorruptNodeError,
    CorruptStoreError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    NotPermittedError,
    SessionExpiredError,
)

ENTRY_POINT_GROUP = "logstore.coordinators"

# Known without metadata too, so that a source tree which was never installed works.
_BUILT_IN = {
    "embedded": "replication.coordination:open_embedded",
    "zookeeper": "replication.coordination:open_zookeeper",
}


def open_coordinator(url: str, **options: Any) -> CoordinatorService:
    """The service that ``url`` names; its ``connect`` is a ``CoordinatorFactory``.

    Raises:
        ConfigError: no such scheme (the message lists the known ones), or a missing extra.
        TypeError: an option which that service does not have.
    """
    from importlib.metadata import EntryPoint, entry_points  # 60 ms, needed by few

    points = {key: EntryPoint(key, value, ENTRY_POINT_GROUP) for key, value in _BUILT_IN.items()}
    points.update((point.name, point) for point in entry_points(group=ENTRY_POINT_GROUP))
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in points:
        raise unknown("coordinator", url, points)
    service: CoordinatorService = points[scheme].load()(rest, **options)
    return service


def open_embedded(directory: str, **options: Any) -> CoordinatorService:
    """A ``CoordinatorStore`` on this machine's disk and clock unless ``options`` bring others."""
    from logstore.common.clock import SystemClock
    from logstore.storage.local import LocalStorage
    from replication.coordination.embedded import CoordinatorStore

    if not directory:
        raise ConfigError("embedded: needs a directory, as in embedded:/var/lib/logstore")
    options = {"storage": LocalStorage(), "clock": SystemClock(), **options}
    return CoordinatorStore(directory, **options)


def open_zookeeper(address: str, **options: Any) -> CoordinatorService:
    """``ZooKeeper`` at ``//host:port,host:port/chroot``.

    Raises:
        ConfigError: kazoo is not installed, or the address is no such address.
    """
    hosts, _, chroot = address.removeprefix("//").rstrip("/").partition("/")
    try:
        check_path(f"/{chroot}")
    except ValueError:
        hosts = ""
    places = [split_address(each if ":" in each else f"{each}:2181") for each in hosts.split(",")]
    if not address.startswith("//") or not all(place and all(place) for place in places):
        raise ConfigError(f"zookeeper:{address} is not zookeeper://host:port/chroot")
    zookeeper = load("replication.coordination.zookeeper", Extra.ZOOKEEPER, "ZooKeeper")
    service: CoordinatorService = zookeeper.ZooKeeper(f"{hosts}/{chroot}", **options)
    return service


__all__ = [
    "ENTRY_POINT_GROUP",
    "BadVersionError",
    "Check",
    "CoordinationError",
    "Coordinator",
    "CoordinatorFactory",
    "CoordinatorService",
    "CoordinatorUnavailableError",
    "CoordinatorWentBackError",
    "CorruptNodeError",
    "CorruptStoreError",
    "Create",
    "Delete",
    "EventKind",
    "NoChildrenForEphemeralsError",
    "NoNodeError",
    "Node",
    "NodeExistsError",
    "NotEmptyError",
    "NotPermittedError",
    "Op",
    "SessionExpiredError",
    "SessionState",
    "Set",
    "WatchEvent",
    "base",
    "embedded",
    "errors",
    "journal",
    "nodes",
    "open_coordinator",
    "served",
    "tree",
]
