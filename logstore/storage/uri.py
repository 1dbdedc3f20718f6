"""From a path or a URI to the storage that holds it.

A plain path and ``file:///…`` are local. Everything else is what ``pyarrow.fs`` reaches, read only:
``s3://bucket/logs?region=eu-central-1``, ``gs://…``, ``abfs://…``, ``hdfs://…``, with that file
system's options in the query. Credentials are best left to the environment; those in a URI travel
with every task, but belong in no message (``shown``): paths inside a storage have neither user nor
query.

A store of segments, such as a backup, has the names of its objects, not those of a log directory.
``log_directory`` recognises one where a user names a directory, and gives the URI under which it
reads as one: ``tier2.17+s3://bucket/backup`` (``logstore.tiers``).
"""

from __future__ import annotations

import importlib
import os
import posixpath
import re
from functools import lru_cache
from urllib.parse import SplitResult, quote, unquote, urlsplit

from logstore.common.errors import ConfigError
from logstore.common.extras import Extra, load
from logstore.storage.base import ShowsFiles, Storage
from logstore.storage.local import LocalStorage

TIER_SCHEME = "tier"
"""Begins the URI of a store that is shown as a log directory."""

ESCAPED = "surrogateescape"
"""How bytes of local paths that are no text are written in a URI, as everywhere in Python."""

_TIERS = "logstore.tiers.opening"  # by name: it is a room above this one, and seldom needed
_MAY_BE_A_STORE = re.compile(r"logstore-backup|kafka-tiered-storage|.*-[A-Za-z0-9_-]{22}", re.ASCII)
_IS_VIEW = re.compile(rf"{TIER_SCHEME}[0-9.]*\+", re.ASCII)
_ABOVE = 2  # how far above a missing directory a store is looked for: partition, and file
_SEPARATOR = "://"
_LOCAL = LocalStorage()


def open_storage(uri: str) -> tuple[Storage, str]:
    """The storage behind ``uri``, and the path in it.

    Cheap: one storage per process and file system, with its connections and their options.

    Raises:
        ConfigError: an unknown scheme or option, or what it needs is not installed.
        OSError: a store of segments refused, or is none.
    """
    if uri.startswith(TIER_SCHEME) and _IS_VIEW.match(uri):
        opened: tuple[Storage, str] = importlib.import_module(_TIERS).open_tier(uri)
        return opened
    return open_plain(uri)


def log_directory(uri: str) -> str:
    """The URI under which the directory ``uri`` reads as a log directory: ``uri`` itself, or that
    of a view, if it is a store of segments as it is now, or lies in such a view.

    One listing more than the directory takes anyway.

    Raises:
        ConfigError: as ``open_storage``.
        OSError: the store refused, or has no whole backup.
    """
    if uri.startswith(f"{TIER_SCHEME}+"):  # as a user writes it, who means it as it is now
        plain = unpinned(uri)
        found = log_directory(plain)
        if found == plain:
            raise ConfigError(f"{shown(uri)}: this is no backup, and no tier of a broker")
        return found
    if _IS_VIEW.match(uri):
        return uri
    above, below = uri, ""
    for _ in range(1 + _ABOVE):
        storage, path = open_plain(above)
        try:
            entries = storage.scan_dir(path or ".")
        except (FileNotFoundError, NotADirectoryError):
            name = posixpath.basename(path.rstrip("/"))
            if not name or storage.info(path) is not None:
                return uri
            below = f"{name}/{below}".rstrip("/")
            above = parent_uri(above)
            continue
        except OSError:
            return uri  # who reads it finds the same, and knows how to say it
        if not any(entry.is_dir and _MAY_BE_A_STORE.fullmatch(entry.name) for entry in entries):
            return uri
        found = importlib.import_module(_TIERS).pinned(above, entries)
        if found == above:
            return uri
        return join_uri(found, below) if below else found
    return uri


def open_plain(uri: str) -> tuple[Storage, str]:
    """As ``open_storage``, with the objects of a store under their own names."""
    if _SEPARATOR not in uri:
        return _LOCAL, uri
    parts = urlsplit(uri)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"{uri}: a file URI names no host: file:///path")
        return _LOCAL, unquote(parts.path, errors=ESCAPED)
    storage, root = _open_arrow(_with_path(parts, "/"))
    return storage, root + unquote(parts.path).rstrip("/")


@lru_cache(maxsize=64)
def _open_arrow(base: str) -> tuple[Storage, str]:
    """The storage for all paths below ``base``, and what they begin with (``s3://bucket``)."""
    place = shown(base).rstrip("/")
    feature = f"{place}: a path that is not local"
    fs = load("pyarrow.fs", Extra.ARROW, feature)
    arrow_fs = load("logstore.storage.arrow_fs", Extra.ARROW, feature)
    try:
        filesystem, root = fs.FileSystem.from_uri(base)
    except (OSError, ValueError, NotImplementedError) as error:
        reason = str(error).replace(base, place).partition("\n")[0]
        raise ConfigError(f"{place}: {reason}") from None
    scheme = urlsplit(base).scheme + _SEPARATOR
    return arrow_fs.ArrowStorage(filesystem, scheme), scheme + root.rstrip("/")


def unpinned(uri: str) -> str:
    """``uri``, or that of what a view shows as it is now."""
    return uri.partition("+")[2] if _IS_VIEW.match(uri) else uri


def shown_file(uri: str) -> str:
    """The local file that a storage shows as ``uri``; "" where it shows none, or is no such one."""
    storage, path = open_storage(uri)
    return storage.real_file(path) if isinstance(storage, ShowsFiles) else ""


def join_uri(uri: str, name: str) -> str:
    """``uri`` one component further down; its query stays where it is."""
    if _SEPARATOR not in uri:
        return os.path.join(uri, name)
    parts = urlsplit(uri)
    return _with_path(parts, f"{parts.path.rstrip('/')}/{quote(name, errors=ESCAPED)}")


def parent_uri(uri: str) -> str:
    """``uri`` one component further up, of an absolute path."""
    if _SEPARATOR not in uri:
        return os.path.dirname(os.path.abspath(uri))
    parts = urlsplit(uri)
    return _with_path(parts, posixpath.dirname(parts.path.rstrip("/")))


def shown(uri: str) -> str:
    """``uri`` for messages and logs: without user, password and query. A view is shown as the
    store."""
    if _IS_VIEW.match(uri):
        plain = uri.partition("+")[2]
        path = unquote(urlsplit(plain).path, errors=ESCAPED)
        return path if plain.startswith("file:") else shown(plain)
    if _SEPARATOR not in uri:
        return uri
    parts = urlsplit(uri)
    return f"{parts.scheme}{_SEPARATOR}{parts.netloc.rpartition('@')[2]}{parts.path}"


def _with_path(parts: SplitResult, path: str) -> str:
    # urlunsplit drops the slashes of an empty host (hdfs:///logs) for schemes it does not know.
    query = "?" + parts.query if parts.query else ""
    return f"{parts.scheme}{_SEPARATOR}{parts.netloc}{path}{query}"


__all__ = [
    "ESCAPED",
    "TIER_SCHEME",
    "join_uri",
    "log_directory",
    "open_plain",
    "open_storage",
    "parent_uri",
    "shown",
    "shown_file",
    "unpinned",
]
