"""The identity of an open file, which stays the same when the file is renamed."""

from __future__ import annotations

import os
from typing import NamedTuple

from logstore.storage.base import File, Storage


class FileIdentity(NamedTuple):
    """Inode, size in bytes, and modification time in ms since the epoch.

    ``inode`` is −1 on a storage without it, such as an object store. The number of the device is no
    part of it: each machine numbers a shared mount for itself, and again at each mount.
    """

    inode: int
    size: int
    mtime_ms: int

    def same_file(self, other: FileIdentity) -> bool:
        return self.inode == other.inode


def identity_of(file: File, storage: Storage) -> FileIdentity:
    """The identity of an open file.

    Raises:
        OSError: the storage failed; ``FileNotFoundError`` from a storage that looks up the name.
    """
    descriptor = file.fileno()
    if descriptor >= 0:
        status = os.fstat(descriptor)
        return FileIdentity(status.st_ino, status.st_size, status.st_mtime_ns // 1_000_000)
    info = storage.info(file.path)
    if info is None:
        raise FileNotFoundError(2, os.strerror(2), file.path)
    return FileIdentity(-1, info.size, info.mtime_ms)


__all__ = ["FileIdentity", "identity_of"]
