"""The files of the brokers of ``serve``: in the cluster's directory, or where another
cluster left them; and what of it may change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from checkpoints.meta_properties import META_PROPERTIES
from logstore.common.clock import SystemClock
from logstore.common.config import MAX_INT, LogConfig
from logstore.common.errors import ConfigError
from logstore.manager.log_dir import LOCK
from logstore.storage.base import Storage
from logstore.storage.broker_directories import broker_directories
from logstore.storage.local import LocalStorage
from logstore.storage.overlay import OverlayStorage
from logstore.storage.paths import absolute_path
from logstore.storage.uri import log_directory, open_storage, shown
from replication.adopt import (
    COORDINATOR,
    AdoptedCluster,
    Adoption,
    AdoptionRules,
    adopted_before,
    expanded,
    has_tree,
    make_home,
    plan_adoption,
    read_home,
    write_tree,
)
from replication.coordinators.groups.config import GroupConfig
from replication.protocol import ApiKey
from replication.server.config import ServerConfig

NOWHERE = "/.logstore-read-only"
"""A directory that is in the overlay alone, of a coordinator whose tree is in memory."""

NEVER_MS = 100 * 365 * 86_400_000
INDEX_BYTES = 1 << 20  # an index that is appended to has its full size in memory

REFUSED = (
    ApiKey.PRODUCE,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.ELECT_LEADERS,
    ApiKey.WRITE_TXN_MARKERS,
)
"""Requests that brokers refuse that are read-only. Groups join and commit, in memory."""


class ClusterFiles(NamedTuple):
    """The files of a cluster.

    Attributes:
        log_dirs: of brokers that do not have theirs in ``directory``.
        brokers: all ids, if the files say which there are.
        report: of the adoption, by this start.
    """

    directory: str | os.PathLike[str] | None
    storage: Storage
    brokers: Sequence[int] | None = None
    log_dirs: Mapping[int, tuple[str, ...]] = {}
    report: Adoption | None = None


def locate_files(
    directory: str | os.PathLike[str] | None,
    adopt: Sequence[str | os.PathLike[str]],
    read_only: bool,
    storage: Storage,
    config: ServerConfig,
    brokers: int | None = None,
) -> ClusterFiles:
    """Adopt what is to be adopted, and say where the brokers find their files.

    Args:
        brokers: how many there are to be.
    Raises:
        ConfigError: the directories do not fit; nothing was changed.
        LogDirLockedError, StorageFailedError: as ``plan_adoption``.
        OSError: the disk refused.
    """
    if not adopt:
        if read_only:
            raise ConfigError("read-only brokers need directories to adopt")
        if directory is None:
            return ClusterFiles(None, storage)
        path = absolute_path(storage, directory)
        if storage.info(os.path.join(path, META_PROPERTIES)) is not None:
            raise ConfigError(
                f"{path} is the log directory of a broker itself: serve it with --adopt {path}, "
                "and with --read-only or another --dir"
            )
        log_dirs = read_home(storage, path)
        if log_dirs is None:
            return ClusterFiles(directory, storage)
        return ClusterFiles(directory, storage, _checked(log_dirs, brokers, config), log_dirs)
    if read_only:
        if directory is not None:
            raise ConfigError("read-only brokers keep nothing, so that they need no directory")
        storage, adopt = _viewed(adopt, storage)
    paths = [absolute_path(storage, path).rstrip("/") or "/" for path in adopt]
    if read_only:
        return _read_only(paths, OverlayStorage(storage), config, brokers)
    if directory is None:
        raise ConfigError(
            "give a directory for the tree of the adopted cluster, or adopt read-only"
        )
    home = absolute_path(storage, directory).rstrip("/")
    own = _cluster_of(paths, storage)
    if own is not None:
        raise ConfigError(f"{own} is a whole cluster of ours: serve it as it is (--dir {own})")
    paths = expanded(paths, storage)
    if adopted_before(storage, home, paths):
        log_dirs = read_home(storage, home) or {}
        return ClusterFiles(home, storage, _checked(log_dirs, brokers, config), log_dirs)
    cluster = _adopt(paths, OverlayStorage(storage), config, read_only=False)
    ids = _checked(cluster.brokers, brokers, config)
    with ExitStack() as locks:  # as brokers take them, who may have come since, or cannot write
        for path in chain.from_iterable(cluster.brokers.values()):
            locks.callback(storage.lock(os.path.join(path, LOCK)).release)
        make_home(storage, home, cluster)
    return ClusterFiles(home, storage, ids, cluster.brokers, cluster.report)


def _viewed(
    adopt: Sequence[str | os.PathLike[str]], storage: Storage
) -> tuple[Storage, Sequence[str | os.PathLike[str]]]:
    """Where to read directories that are a backup, or a tier of a broker; else as they are.

    Raises:
        ConfigError: it is one among several directories.
        OSError: the store refused.
    """
    if not isinstance(storage, LocalStorage):
        return storage, adopt
    given = [os.fspath(path) for path in adopt]
    found = [log_directory(path) for path in given]
    if found == given and not any("://" in path for path in given):
        return storage, adopt
    if len(found) > 1:
        raise ConfigError(f"{shown(found[0])} is a store: adopt it alone")
    from logstore.tiers import TierStorage  # few adopt a store

    view, path = open_storage(found[0])
    if not isinstance(view, TierStorage):
        raise ConfigError(f"{shown(given[0])}: of a store only a backup can be adopted, read-only")
    _, _, below = path.rpartition("://")
    path = f"/{below.lstrip('/')}"
    return view.under(path), [path]


def _checked(found: Iterable[int], brokers: int | None, config: ServerConfig) -> list[int]:
    """The ids of the brokers that were found.

    Raises:
        ConfigError: others are asked for.
    """
    ids = sorted(found)
    if brokers not in (None, len(ids)):
        raise ConfigError(f"{brokers} brokers, but {len(ids)} are adopted")
    if config.node.is_given and config.node.first_id not in ids:
        raise ConfigError(
            f"node.id = {config.node.first_id}, but the directories are those of "
            f"{', '.join(map(str, ids))}"
        )
    return ids


def _read_only(
    paths: Sequence[str], overlay: OverlayStorage, config: ServerConfig, brokers: int | None
) -> ClusterFiles:
    own = _cluster_of(paths, overlay)
    if own is not None:
        log_dirs = read_home(overlay, own) or {}
        names = broker_directories(overlay, own)
        ids = log_dirs or [int(name.rpartition("-")[2]) for name in names]
        return ClusterFiles(own, overlay, _checked(ids, brokers, config), log_dirs)
    cluster = _adopt(expanded(paths, overlay), overlay, config, read_only=True)
    ids = _checked(cluster.brokers, brokers, config)
    write_tree(overlay, os.path.join(NOWHERE, COORDINATOR), cluster)
    return ClusterFiles(NOWHERE, overlay, ids, cluster.brokers, cluster.report)


def _adopt(
    paths: Sequence[str], overlay: OverlayStorage, config: ServerConfig, *, read_only: bool
) -> AdoptedCluster:
    usual, own, node = LogConfig(), config.log, config.node
    is_usual = (own.retention_ms, own.retention_bytes) == (
        usual.retention_ms,
        usual.retention_bytes,
    )
    rules = AdoptionRules(SystemClock().wall_ms(), read_only, pins_retention=is_usual)
    return plan_adoption(paths, overlay, rules, node.first_id if node.is_given else None)


def _cluster_of(paths: Sequence[str], storage: Storage) -> str | None:
    """The one directory, if it is a cluster's with its coordinator's tree."""
    return paths[0] if len(paths) == 1 and has_tree(storage, paths[0]) else None


def keeping_offsets(config: ServerConfig, place: ClusterFiles) -> ServerConfig:
    """Let an adopted cluster keep the offsets of groups, as it keeps records: the retention of its
    brokers is not known, and all groups of an old backup are past the usual one."""
    groups = config.groups
    is_given = groups.offsets_retention_minutes != GroupConfig().offsets_retention_minutes
    if is_given or not place.log_dirs:
        return config
    return config._replace(groups=replace(groups, offsets_retention_minutes=MAX_INT))


def read_only_config(config: ServerConfig) -> ServerConfig:
    """Nothing of an old copy expires, is deleted or compacted, and no topic is made (R-185)."""
    return config._replace(
        log=replace(config.log, segment_index_bytes=INDEX_BYTES),
        broker=replace(
            config.broker,
            log_cleaner_enable=False,
            log_initial_task_delay_ms=NEVER_MS,
            producer_id_expiration_ms=NEVER_MS,
        ),
        groups=replace(
            config.groups,
            offsets_retention_minutes=MAX_INT,
            offsets_retention_check_interval_ms=NEVER_MS,
        ),
        transactions=replace(
            config.transactions, id_expiration_ms=MAX_INT, forget_interval_ms=MAX_INT
        ),
        apis=replace(config.apis, auto_create_topics_enable=False),
    )
