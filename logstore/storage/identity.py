"""The identity of an open file, which stays the same when the file is renamed."""

from __future__ import annotations

import os
from typing import NamedTuple

from logstore.storage.base import File, Storage


class FileIdentity(NamedTuple):
    """Device, inode, size in bytes, and modification time in ms since the epoch.

    ``device`` and ``inode`` are −1 on a storage without them, such as an object store.
    """

    device: int
    inode: int
    size: int
    mtime_ms: int

    def same_file(self, other: FileIdentity) -> bool:
        return self[:2] == other[:2]


def identity_of(file: File, storage: Storage) -> FileIdentity:
    """The identity of an open file.

    Raises:
        OSError: the storage failed; ``FileNotFoundError`` from a storage that looks up the name.
    """
    descriptor = file.fileno()
    if descriptor >= 0:
        status = os.fstat(descriptor)
        return FileIdentity(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns // 1_000_000
        )
    info = storage.info(file.path)
    if info is None:
        raise FileNotFoundError(2, os.strerror(2), file.path)
    return FileIdentity(-1, -1, info.size, info.mtime_ms)


__all__ = ["FileIdentity", "identity_of"]
