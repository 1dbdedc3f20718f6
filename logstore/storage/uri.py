"""From a path or a URI to the storage that holds it.

A plain path and ``file:///…`` are local. Everything else is what ``pyarrow.fs`` reaches, read only:
``s3://bucket/logs?region=eu-central-1``, ``gs://…``, ``abfs://…``, ``hdfs://…``, with that file
system's options in the query. Credentials are best left to the environment; those in a URI travel
with every task, but belong in no message (``shown``): paths inside a storage have neither user nor
query.
"""

from __future__ import annotations

import os
from functools import lru_cache
from urllib.parse import SplitResult, quote, unquote, urlsplit

from logstore.common.errors import ConfigError
from logstore.common.extras import Extra, load
from logstore.storage.base import ShowsFiles, Storage
from logstore.storage.local import LocalStorage

_SEPARATOR = "://"
_LOCAL = LocalStorage()


def open_storage(uri: str) -> tuple[Storage, str]:
    """The storage behind ``uri``, and the path in it.

    Cheap: one storage per process and file system, with its connections and their options.

    Raises:
        ConfigError: an unknown scheme or option, or what it needs is not installed.
    """
    if _SEPARATOR not in uri:
        return _LOCAL, uri
    parts = urlsplit(uri)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"{uri}: a file URI names no host: file:///path")
        return _LOCAL, unquote(parts.path)
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
    return uri.partition("+")[2] if uri.startswith("tier") and "+" in uri else uri


def shown_file(uri: str) -> str:
    """The local file that a storage shows as ``uri``; "" where it shows none, or is no such one."""
    storage, path = open_storage(uri)
    return storage.real_file(path) if isinstance(storage, ShowsFiles) else ""


def join_uri(uri: str, name: str) -> str:
    """``uri`` one component further down; its query stays where it is."""
    if _SEPARATOR not in uri:
        return os.path.join(uri, name)
    parts = urlsplit(uri)
    return _with_path(parts, f"{parts.path.rstrip('/')}/{quote(name)}")


def shown(uri: str) -> str:
    """``uri`` for messages and logs: without user, password and query."""
    if _SEPARATOR not in uri:
        return uri
    parts = urlsplit(uri)
    return f"{parts.scheme}{_SEPARATOR}{parts.netloc.rpartition('@')[2]}{parts.path}"


def _with_path(parts: SplitResult, path: str) -> str:
    # urlunsplit drops the slashes of an empty host (hdfs:///logs) for schemes it does not know.
    query = "?" + parts.query if parts.query else ""
    return f"{parts.scheme}{_SEPARATOR}{parts.netloc}{path}{query}"


__all__ = ["join_uri", "open_storage", "shown", "shown_file", "unpinned"]
