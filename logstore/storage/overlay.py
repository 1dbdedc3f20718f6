"""A storage that reads from another one and keeps every change to itself, in memory.

For a dry run: recovery works on the real files and changes nothing. Also an example of the seam:
of the storage below it needs the reading calls alone.

A file below is read through until it is written here; then its content is copied. So a dry run
costs the memory of the files that it changes: indexes, checkpoints, snapshots. Cutting a file
copies nothing, and a ``.log`` is only ever cut.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from logstore.common.errors import LogDirLockedError
from logstore.storage.base import DirLock, FileInfo, Storage
from logstore.storage.memory import DirNode, FileNode, MemoryFile, MemoryStorage, Node

_BULKY = (".log", ".index", ".timeindex", ".txnindex", ".cut", ".swap")
_KEPT_ASIDE = ".cut.tmp"


class _BelowFile(FileNode):
    """A file of the storage below. ``size`` may be smaller than the file's: it was cut here."""

    __slots__ = ("_below", "_path")

    def __init__(self, below: Storage, path: str, info: FileInfo) -> None:
        super().__init__(info.mtime_ms)
        self._below: Storage | None = below
        self._path = path
        self.size = info.size
        self.regular = info.is_file

    def is_of(self, path: str) -> bool:
        """Whether it was found under this path, and so under this name of perhaps several."""
        return self._path == path

    def read(self, position: int, size: int) -> bytes:
        if self._below is None:
            return super().read(position, size)
        if position < 0 or size < 0:
            raise OSError(errno.EINVAL, "negative position or size")
        wanted = min(size, self.size - position)
        return self._read_below(self._below, position, wanted) if wanted > 0 else b""

    def write(self, position: int, data: memoryview) -> None:
        self._copy()
        super().write(position, data)

    def resize(self, size: int) -> None:
        if self._below is not None and size <= self.size:
            self.size = size
            return
        self._copy()
        super().resize(size)

    def mapped(self) -> memoryview:
        self._copy()
        return super().mapped()

    def _copy(self) -> None:
        below, self._below = self._below, None
        if below is not None and self.size:
            data = self._read_below(below, 0, self.size)
            self.data.extend(data)
            self.data.extend(bytes(self.size - len(data)))  # the file below was cut meanwhile

    def _read_below(self, below: Storage, position: int, size: int) -> bytes:
        file = below.open(self._path, writable=False)
        try:
            return file.read_at(position, size)
        finally:
            file.close()


class _BelowEntries(dict[str, Node]):
    """The names of a directory below, looked up when asked for, and listed only when they must be.

    What is created or removed here hides what lies below.
    """

    def __init__(self, below: Storage, path: str) -> None:
        super().__init__()
        self._below, self._path = below, path
        self._hidden: set[str] = set()
        self._listed = False

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self._hidden and not super().__contains__(name) and not self._listed:
            self._add(name, self._below.info(posixpath.join(self._path, name)))
        return super().get(name, default)

    def __getitem__(self, name: str) -> Node:
        node: Node | None = self.get(name)
        if node is None:
            raise KeyError(name)
        return node

    def __setitem__(self, name: str, node: Node) -> None:
        self._hidden.add(name)
        super().__setitem__(name, node)

    def __delitem__(self, name: str) -> None:
        self._hidden.add(name)
        super().pop(name, None)

    def __iter__(self) -> Iterator[str]:
        self._list()
        return super().__iter__()

    def __len__(self) -> int:
        self._list()
        return super().__len__()

    def _list(self) -> None:
        if not self._listed:
            for info in self._below.scan_dir(self._path):
                if info.name not in self._hidden and not super().__contains__(info.name):
                    self._add(info.name, info)
            self._listed = True

    def _add(self, name: str, info: FileInfo | None) -> None:
        if info is None:
            return
        path = posixpath.join(self._path, name)
        if info.is_dir:
            super().__setitem__(name, _below_dir(self._below, path, info.mtime_ms))
        else:
            super().__setitem__(name, _BelowFile(self._below, path, info))


def _below_dir(below: Storage, path: str, mtime_ms: int) -> DirNode:
    node = DirNode(mtime_ms)
    node.entries = _BelowEntries(below, path)
    return node


class OverlayStorage(MemoryStorage):
    """``Storage`` over ``below``, which is never changed. Thread-safe; durable never.

    What the storage below does after its files were first seen here may show or not. Like
    ``MemoryStorage`` a file cannot grow past a live mapping of it (EBUSY).

    Args:
        below: where reads fall through to; its paths are the paths here.
    """

    def __init__(self, below: Storage) -> None:
        self._below = below
        super().__init__()
        self.root = _below_dir(below, "/", self._now_ms())
        self._follows = True

    def lock(self, path: str) -> DirLock:
        """Take the lock of the storage below where its file exists, so that a directory in use is
        refused (F-9); taking a lock on an existing file changes nothing of it."""
        if self._below.info(path) is not None:
            return self._below.lock(path)
        try:
            return super().lock(self._absolute(path))
        except LogDirLockedError as refusal:
            raise LogDirLockedError(path, refusal.holder) from None

    def rename(self, source: str, target: str) -> None:
        with self._of_names():
            super().rename(source, target)

    def remove(self, path: str) -> None:
        with self._of_names():
            super().remove(path)

    @contextmanager
    def _of_names(self) -> Iterator[None]:
        """What is done here is done to a link, not to what it leads to."""
        with self.guard:
            before, self._follows = self._follows, False
            try:
                yield
            finally:
                self._follows = before

    def real_path(self, path: str) -> str:
        return self._below.real_path(path)

    def make_dir(self, path: str) -> None:
        super().make_dir(self._absolute(path))

    def _node(self, path: str) -> Node:
        return super()._node(self._absolute(path))

    def _parent(self, path: str) -> tuple[DirNode, str]:
        return super()._parent(self._absolute(path))

    def on_write(self, file: MemoryFile, position: int, data: memoryview) -> None:
        if not file.path.endswith(_KEPT_ASIDE):
            super().on_write(file, position, data)
            return
        # A copy of what is cut off: up to a whole segment, and nobody reads it again.
        file.node.size = max(file.node.size, position + len(data))

    def forget(self, directory: str) -> None:
        """Keep of what was written here to segments, indexes and what was cut off only the sizes.

        For a dry run over many logs, which loads one after the other and reads none again: its
        memory stays that of one.
        """
        with self.guard:
            for name, node in self._dir(directory).entries.items():
                if name.endswith(_BULKY) and isinstance(node, FileNode) and not node.mappings:
                    node.data = bytearray()

    def _absolute(self, path: str) -> str:
        """Relative paths mean what they mean below, and links there are followed, unless they lead
        nowhere, to a special file, or were removed or replaced here."""
        above, name = posixpath.split(path)
        if name in ("", ".", ".."):
            return self._below.real_path(path)
        own = posixpath.join(self._below.real_path(above), name)
        if not self._follows:
            return own
        try:
            node = super()._parent(own)[0].entries.get(name)
        except (FileNotFoundError, NotADirectoryError):
            return own
        if isinstance(node, _BelowFile):
            is_link = node.regular and node.is_of(own)
        else:
            is_link = isinstance(node, DirNode)
        return self._below.real_path(path) if is_link else own


__all__ = ["OverlayStorage"]
