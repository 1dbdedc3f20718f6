"""A storage that reads from another one and keeps every change to itself, in memory.

It is for dry runs: recovery works on the real files and changes nothing. It is also an example of
the seam: it uses only the reading calls of the lower storage.

A file of the lower storage is read through until it is written here, and then copied. So a dry run
takes memory for the files that it changes: indexes, checkpoints, snapshots. A truncation copies
nothing, nor does an append, and nothing else happens to a ``.log``.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from logstore.common.errors import LogDirLockedError
from logstore.storage.base import DirLock, FileInfo, Storage
from logstore.storage.memory import DirNode, FileNode, FileOrDir, MemoryFile, MemoryStorage

_BULKY = (".log", ".index", ".timeindex", ".txnindex", ".cut", ".swap")
_KEPT_ASIDE = ".cut.tmp"


class _LowerFile(FileNode):
    """A file of the lower storage: its first ``kept`` bytes lie there, and ``data`` has the rest.

    It may be smaller here than there, because it was cut.
    """

    __slots__ = ("_kept", "_lower", "_path")

    def __init__(self, lower: Storage, path: str, info: FileInfo) -> None:
        super().__init__(info.mtime_ms)
        self._lower: Storage | None = lower
        self._path = path
        self.size = self._kept = info.size
        self.regular = info.is_file

    def is_of(self, path: str) -> bool:
        """Whether it was found under this path, and so under this name of perhaps several."""
        return self._path == path

    def read(self, position: int, size: int) -> bytes:
        if self._lower is None:
            return super().read(position, size)
        if position < 0 or size < 0:
            raise OSError(errno.EINVAL, "negative position or size")
        end = min(position + size, self.size)
        below = min(end, self._kept) - position
        found = self._read_lower(self._lower, position, below) if below > 0 else b""
        if end <= self._kept:
            return found
        first = max(position, self._kept) - self._kept
        return _padded(found, below) + bytes(self.data[first : end - self._kept])

    def write(self, position: int, data: memoryview) -> None:
        if self._lower is not None and position >= self._kept:
            end = position + len(data)
            self._grow(end)
            self.data[position - self._kept : end - self._kept] = data
            self.size = max(self.size, end)
            return
        self._copy()
        super().write(position, data)

    def resize(self, size: int) -> None:
        if self._lower is None:
            super().resize(size)
            return
        self._kept = min(self._kept, size)
        del self.data[size - self._kept :]
        self._grow(size)
        self.size = size

    def mapped(self) -> memoryview:
        self._copy()
        return super().mapped()

    def _grow(self, size: int) -> None:
        self.data.extend(bytes(max(0, size - self._kept - len(self.data))))

    def _copy(self) -> None:
        lower, self._lower = self._lower, None
        if lower is not None and self._kept:
            self.data[:0] = _padded(self._read_lower(lower, 0, self._kept), self._kept)

    def _read_lower(self, lower: Storage, position: int, size: int) -> bytes:
        with closing(lower.open(self._path, writable=False)) as file:
            return file.read_at(position, size)


def _padded(data: bytes, size: int) -> bytes:
    """With zeros for what somebody has cut from the lower file since it was found."""
    return data + bytes(max(0, size - len(data)))


class _LowerEntries(dict[str, FileOrDir]):
    """The names of a lower directory, looked up on demand, and listed only if needed.

    A name that is created or removed here hides the lower one.
    """

    def __init__(self, lower: Storage, path: str) -> None:
        super().__init__()
        self._lower, self._path = lower, path
        self._hidden: set[str] = set()
        self._listed = False

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self._hidden and not super().__contains__(name) and not self._listed:
            self._add(name, self._lower.info(posixpath.join(self._path, name)))
        return super().get(name, default)

    def __getitem__(self, name: str) -> FileOrDir:
        node: FileOrDir | None = self.get(name)
        if node is None:
            raise KeyError(name)
        return node

    def __setitem__(self, name: str, node: FileOrDir) -> None:
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
            for info in self._lower.scan_dir(self._path):
                if info.name not in self._hidden and not super().__contains__(info.name):
                    self._add(info.name, info)
            self._listed = True

    def _add(self, name: str, info: FileInfo | None) -> None:
        if info is None:
            return
        path = posixpath.join(self._path, name)
        if info.is_dir:
            super().__setitem__(name, _lower_dir(self._lower, path, info.mtime_ms))
        else:
            super().__setitem__(name, _LowerFile(self._lower, path, info))


def _lower_dir(lower: Storage, path: str, mtime_ms: int) -> DirNode:
    node = DirNode(mtime_ms)
    node.entries = _LowerEntries(lower, path)
    return node


class OverlayStorage(MemoryStorage):
    """``Storage`` over ``lower``, which is never changed. Thread-safe; durable never.

    Later changes of the lower storage may be visible or not. As in ``MemoryStorage`` a file cannot
    grow past a live mapping of it (EBUSY).

    Args:
        lower: where reads fall through to. Its paths are the paths here.
    """

    def __init__(self, lower: Storage) -> None:
        self.lower = lower
        super().__init__()
        self.root = _lower_dir(lower, "/", self._now_ms())
        self._follows = True

    def lock(self, path: str) -> DirLock:
        """Take the lock of the lower storage if its lock file exists, so that a directory in use is
        refused (F-9). That does not change the file. Where it cannot be opened for writing, as on a
        file system that is mounted read-only, nobody can tell whether it is in use.
        """
        if self.lower.info(path) is not None:
            try:
                return self.lower.lock(path)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES):
                    raise
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
        """Inside the block operations apply to a link itself, not to its target."""
        with self.guard:
            before, self._follows = self._follows, False
            try:
                yield
            finally:
                self._follows = before

    def real_path(self, path: str) -> str:
        return self.lower.real_path(path)

    def make_dir(self, path: str) -> None:
        super().make_dir(self._absolute(path))

    def _node(self, path: str) -> FileOrDir:
        return super()._node(self._absolute(path))

    def _parent(self, path: str) -> tuple[DirNode, str]:
        return super()._parent(self._absolute(path))

    def on_write(self, file: MemoryFile, position: int, data: memoryview) -> None:
        if not file.path.endswith(_KEPT_ASIDE):
            super().on_write(file, position, data)
            return
        # A kept cut may be as large as a segment, and is not read again.
        file.node.size = max(file.node.size, position + len(data))

    def forget(self, directory: str) -> None:
        """Forget the content of segments, indexes and kept cuts, except their sizes.

        A dry run over many logs loads one after the other and reads none again, so its memory stays
        that of one log.
        """
        with self.guard:
            for name, node in self._dir(directory).entries.items():
                if name.endswith(_BULKY) and isinstance(node, FileNode) and not node.mappings:
                    node.data = bytearray()

    def _absolute(self, path: str) -> str:
        """The absolute path in the lower storage.

        Links there are followed, unless they are broken, lead to a special file, or were removed or
        replaced here.
        """
        above, name = posixpath.split(path)
        if name in ("", ".", ".."):
            return self.lower.real_path(path)
        own = posixpath.join(self.lower.real_path(above), name)
        if not self._follows:
            return own
        try:
            node = super()._parent(own)[0].entries.get(name)
        except (FileNotFoundError, NotADirectoryError):
            return own
        if isinstance(node, _LowerFile):
            is_link = node.regular and node.is_of(own)
        else:
            is_link = isinstance(node, DirNode)
        return self.lower.real_path(path) if is_link else own


__all__ = ["OverlayStorage"]
