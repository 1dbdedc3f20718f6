"""The seam to the disk: its contract, and the storages found by name.

`LocalStorage` (``local``) is the operating system's file system, `MemoryStorage` (``memory``) lives
in memory, and other packages add theirs as entry points of the group ``logstore.storage``. Begin
with ``base``. A change of the contract is one for storages of others, too.
"""

from __future__ import annotations

from typing import Any

from logstore.common.errors import ConfigError
from logstore.common.suggestions import unknown
from logstore.storage.base import DirLock, File, FileInfo, FileKind, Mapping, Storage
from logstore.storage.file_slice import FileSlice

ENTRY_POINT_GROUP = "logstore.storage"

# Known without metadata too, so that a source tree which was never installed works.
_BUILT_IN = {
    "local": "logstore.storage.local:LocalStorage",
    "memory": "logstore.storage.memory:MemoryStorage",
}


def open_storage(name: str, **options: Any) -> Storage:
    """The storage called ``name``, made with ``options``.

    Raises:
        ConfigError: no such storage; the message lists the known names.
        TypeError: an option which that storage does not have.
    """
    from importlib.metadata import EntryPoint, entry_points  # 60 ms, needed by few

    points = {key: EntryPoint(key, value, ENTRY_POINT_GROUP) for key, value in _BUILT_IN.items()}
    points.update((point.name, point) for point in entry_points(group=ENTRY_POINT_GROUP))
    if name not in points:
        raise unknown("storage", name, points)
    storage = points[name].load()(**options)
    if not isinstance(storage, Storage):
        raise ConfigError(f"{points[name].value} does not have the methods of a Storage")
    return storage


__all__ = [
    "ENTRY_POINT_GROUP",
    "DirLock",
    "File",
    "FileInfo",
    "FileKind",
    "FileSlice",
    "Mapping",
    "Storage",
    "arrow_fs",
    "aside",
    "base",
    "broker_directories",
    "file_slice",
    "identity",
    "local",
    "memory",
    "open_storage",
    "overlay",
    "paths",
    "uri",
]
