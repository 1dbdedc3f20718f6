"""From the URI of a store to its view, and back: which directories are stores of segments.

A user names a store as it is: ``s3://bucket/base``, ``/backups/orders``. What reads directories
then needs a URI whose paths go on below (``…/orders-0``), and that another process opens by itself,
and finds the same. So ``pinned`` writes three things in front of the scheme: that it is a view, how
many components of the path are the store's own, and the moment that is shown::

    s3://bucket/base?region=…  ->  tier2.17+s3://bucket/base?region=…

The moment is the number of a backup, or for a listing the time of the first look.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from checkpoints.loggers import get_logger
from checkpoints.meta_properties import META_PROPERTIES
from logstore.common.clock import SystemClock
from logstore.common.errors import ConfigError
from logstore.format.filenames import partition_dir
from logstore.storage.base import FileInfo, Storage
from logstore.storage.uri import ESCAPED, TIER_SCHEME, join_uri, open_plain, shown
from logstore.tiers import keys
from logstore.tiers.errors import BrokenTierError, MalformedManifestError, broken
from logstore.tiers.layouts import BackupLayout, LocalTieredLayout, RemoteLayout, TieredLayout
from logstore.tiers.manifest import COMMIT_SIZE_MAX, BackupCommit
from logstore.tiers.sources import Objects
from logstore.tiers.view import TierStorage

logger = get_logger(__name__)

_LOCAL_TIER: Final = "kafka-tiered-storage"
"""What ``LocalTieredStorage`` makes in the directory that it is given."""

_PINNED: Final = re.compile(rf"{TIER_SCHEME}(\d{{1,4}})(?:\.(\d{{1,19}}))?\+(.*)", re.DOTALL)


class StoreKind(Enum):
    """Who wrote a store."""

    BACKUP = "backup"
    TIERED = "tiered"
    LOCAL_TIERED = "local tiered"


def kind_of(storage: Storage, path: str, entries: Collection[FileInfo]) -> StoreKind | None:
    """What kind of store a directory with these entries is; ``None`` for any other directory.

    A log directory is none, whatever folders somebody puts in it: who reads it wants its logs.
    Of Aiven's layout and of Kafka's the folders have the same form. What they hold tells them
    apart: folders of partitions, or files of segments.
    """
    folders = [entry.name for entry in entries if entry.is_dir]
    if _is_log_directory(entries):
        return None
    if keys.COMMITS in folders:
        return StoreKind.BACKUP
    for name in folders:
        if keys.parse_topic_dir(name) is None:
            continue
        for entry in storage.scan_dir(f"{path}/{name}"):
            if entry.is_dir and keys.parse_partition(entry.name) is not None:
                return StoreKind.TIERED
            stem, _, _ = entry.name.partition(".")
            if entry.is_file and keys.parse_segment_name(f"{stem}{keys.LOG}"):
                return StoreKind.LOCAL_TIERED
    return None


def _is_log_directory(entries: Collection[FileInfo]) -> bool:
    """Whether brokers' logs are there: whatever else somebody put beside them, they are read."""
    return any(
        (entry.is_file and entry.name == META_PROPERTIES)
        or (
            entry.is_dir
            and partition_dir(entry.name) is not None
            and keys.parse_topic_dir(entry.name) is None
        )
        for entry in entries
    )


def pinned(uri: str, entries: Collection[FileInfo]) -> str:
    """The URI of the view of a store as it is now, ``uri`` itself if it is none.

    Raises:
        OSError: the store refused, or has no whole backup.
    """
    storage, path = open_plain(uri)
    in_there = any(entry.is_dir and entry.name == _LOCAL_TIER for entry in entries)
    if in_there and not _is_log_directory(entries):
        below = join_uri(uri, _LOCAL_TIER)
        return pinned(below, storage.scan_dir(f"{path}/{_LOCAL_TIER}"))
    kind = kind_of(storage, path, entries)
    if kind is None:
        return uri
    if kind is StoreKind.BACKUP:
        return _with_pin(uri, _newest_backup(storage, path).number)
    return _with_pin(uri, SystemClock().wall_ms())


def _with_pin(uri: str, moment: int) -> str:
    if "://" not in uri:
        uri = f"file://{quote(os.path.abspath(uri), errors=ESCAPED)}"
    return f"{TIER_SCHEME}{_depth(uri)}.{moment}+{uri.rstrip('/')}"


def _depth(uri: str) -> int:
    return len([part for part in urlsplit(uri).path.split("/") if part])


def open_tier(uri: str) -> tuple[Storage, str]:
    """The view and the path in it that a URI of ``pinned`` names. One without a moment, as a user
    may write it (``tier+s3://bucket/base``), names the root of the store as it is now.

    Raises:
        ConfigError: it is malformed, or what it needs is not installed.
        OSError: the store refused, has no such backup, or is no store of segments.
    """
    match = _PINNED.fullmatch(uri)
    if match is None:
        plain = uri.removeprefix(f"{TIER_SCHEME}+")
        if plain == uri or "://" not in plain:
            raise ConfigError(f"{shown(uri)}: a store is tier+scheme://…")
        storage, path = open_plain(plain)
        found = pinned(plain, storage.scan_dir(path))
        if found == plain:
            raise ConfigError(f"{shown(uri)}: this is no backup, and no tier of a broker")
        return open_tier(found)
    depth, moment, plain = int(match[1]), int(match[2] or 0), match[3]
    parts = urlsplit(plain)
    components = [part for part in parts.path.split("/") if part]
    if len(components) < depth:
        raise ConfigError(f"{shown(uri)}: its store has {depth} components, and it has fewer")
    base = urlunsplit(parts._replace(path="/" + "/".join(components[:depth])))
    if parts.scheme == "file" and not parts.netloc:  # which urlunsplit writes without its slashes
        base = f"file:///{'/'.join(components[:depth])}"
    storage, root = _opened(base, moment)
    below = (unquote(each, errors=ESCAPED) for each in components[depth:])
    return storage, "/".join([root, *below])


@lru_cache(maxsize=16)
def _opened(base: str, moment: int) -> tuple[Storage, str]:
    storage, path = open_plain(base)
    path = path.rstrip("/")
    objects = Objects(storage)
    layout: RemoteLayout
    is_backup = 0 < moment <= keys.COMMIT_NUMBER_MAX  # known without a listing
    kind = StoreKind.BACKUP if is_backup else kind_of(storage, path, storage.scan_dir(path))
    if kind is StoreKind.BACKUP:
        commit = _kept_commit(storage, path, moment) if moment else _newest_backup(storage, path)
        layout = BackupLayout(commit, path)
    elif kind is StoreKind.TIERED:
        layout = TieredLayout(objects, path)
    elif kind is StoreKind.LOCAL_TIERED:
        layout = LocalTieredLayout(objects, path)
    else:
        raise broken(path, "is no backup, and no tier of a broker")
    view: Any = TierStorage(path, layout, objects)  # a ``Storage`` but for the names of arguments
    return view, path


_last_read: list[tuple[str, BackupCommit]] = []
"""The commit that was read last, and its store: it is read where a store is recognised, and used
where it is opened."""


def _kept_commit(storage: Storage, root: str, number: int) -> BackupCommit:
    for of, commit in _last_read:
        if (of, commit.number) == (root, number):
            return commit
    return read_commit(storage, root, number)


def _keep(root: str, commit: BackupCommit) -> None:
    """Keep the newest commit of a store, and no view of another store that had its place."""
    if (root, commit) not in _last_read:
        _opened.cache_clear()
        _last_read[:] = [(root, commit)]


def read_commit(storage: Storage, root: str, number: int) -> BackupCommit:
    """The backup with this number.

    Raises:
        BrokenTierError: there is none, or its commit is damaged.
        OSError: the store refused.
    """
    key = keys.commit_key(number)
    path = f"{root}/{key}"
    try:
        commit = BackupCommit.from_json(key, storage.read_file(path, COMMIT_SIZE_MAX))
    except FileNotFoundError:
        raise broken(path, "there is no such backup") from None
    except MalformedManifestError as error:
        raise broken(path, error.reason) from None
    if commit.number != number:
        raise broken(path, f"it is the commit of backup {commit.number}")
    return commit


def _newest_backup(storage: Storage, root: str) -> BackupCommit:
    """The newest commit that is whole. One that is not counts as never made, and is named."""
    entries = storage.scan_dir(f"{root}/{keys.COMMITS}")
    names = (keys.parse_commit_key(f"{keys.COMMITS}/{entry.name}") for entry in entries)
    reasons = []
    for number in sorted((n for n in names if n), reverse=True):
        try:
            commit = read_commit(storage, root, number)
        except OSError as error:
            if not isinstance(error, BrokenTierError):
                raise
            logger.warning("%s: backup %d is left out: %s", root, number, error.strerror)
            reasons.append(error.strerror or "")
        else:
            _keep(root, commit)
            return commit
    raise broken(f"{root}/{keys.COMMITS}", reasons[0] if reasons else "has no backup yet")


__all__ = ["StoreKind", "kind_of", "open_tier", "pinned", "read_commit"]
