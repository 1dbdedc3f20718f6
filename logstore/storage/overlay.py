"""A storage that reads from another one and keeps every change to itself.

For a dry run: recovery works on the real files and writes nothing but memory. Also an example of
the seam: all it needs of the storage below are the reading calls of ``Storage``.

How it works: the tree on top is a ``MemoryStorage`` of its own. A directory below shows through
until one of its names changes here; then its names are copied. A file below is read through until
it is written here; then its whole content is copied, so a dry run costs the memory of the files
that it changes, in recovery the active segment's indexes, and of a ``.log`` only when it is cut.
"""

from __future__ import annotations

import errno
import os
import posixpath
from contextlib import AbstractContextManager

from logstore.storage.base import DirLock, File, FileInfo, Mapping, Storage
from logstore.storage.memory import MemoryStorage
from logstore.types import Buffer


class _Below:
    """A file of the storage below. ``size`` may be smaller than the file's: a cut needs no copy."""

    __slots__ = ("mtime_ms", "path", "size")

    def __init__(self, path: str, size: int, mtime_ms: int) -> None:
        self.path, self.size, self.mtime_ms = path, size, mtime_ms
