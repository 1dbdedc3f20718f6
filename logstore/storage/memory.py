"""A file system in memory, for tests, simulations and short-lived logs. Never durable."""

from __future__ import annotations

import enum
import errno
import os
import posixpath
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TypeAlias

from checkpoints.files import check_size, irregular
from logstore.common.errors import LogDirLockedError
from logstore.common.forks import free_in_child
from logstore.common.types import Buffer
from logstore.storage.base import DirLock, File, FileInfo, FileKind, Mapping


class DiskOperation(enum.StrEnum):
    """The operations that hooks get; a storage that injects faults uses the same names."""

    READ = enum.auto()
    WRITE = enum.auto()
    SYNC = enum.auto()
    SYNC_DIR = enum.auto()
    OPEN = enum.auto()
    RENAME = enum.auto()
    REMOVE = enum.auto()
    TRUNCATE = enum.auto()
    MAP = enum.auto()
    RESERVE = enum.auto()
    LIST = enum.auto()
    MAKE_DIR = enum.auto()


class FileNode:
    """The bytes of one file, whatever names and handles it has.

    ``data`` is longer than ``size`` only while the file is mapped: exported memory cannot shrink.
    What lies past ``size`` is then zero. What is not ``regular`` stands for a FIFO and its likes:
    it is listed, renamed and removed, and never opened.
    """

    __slots__ = ("data", "mappings", "mtime_ms", "regular", "size")

    def __init__(self, mtime_ms: int) -> None:
        self.data = bytearray()
        self.size = 0
        self.mtime_ms = mtime_ms
        self.mappings = 0
        self.regular = True

    def read(self, position: int, size: int) -> bytes:
        if position < 0 or size < 0:
            raise OSError(errno.EINVAL, "negative position or size")
        with memoryview(self.data) as view:
            return view[position : min(position + size, self.size)].tobytes()

    def write(self, position: int, data: memoryview) -> None:
        end = position + len(data)
        if position > self.size:
            self.resize(position)
        if end > self.size:
            self._ensure(end)
        self.data[position:end] = data
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        if size > self.size:
            self._ensure(size)
        elif self.mappings:
            self.data[size : self.size] = bytes(self.size - size)
        else:
            try:
                del self.data[size:]
            except BufferError:  # a slice of a closed mapping keeps the old bytes
                self.data = self.data[:size]
        self.size = size

    def mapped(self) -> memoryview:
        self.mappings += 1
        return memoryview(self.data)

    def unmapped(self) -> None:
        self.mappings -= 1
        with suppress(BufferError):  # a slice is still held: the excess goes at the next change
            del self.data[self.size :]

    def _ensure(self, capacity: int) -> None:
        missing = capacity - len(self.data)
        if missing <= 0:
            return
        try:
            self.data.extend(bytes(missing))
        except BufferError:
            if self.mappings:
                raise OSError(errno.EBUSY, "cannot grow past a live mapping in memory") from None
            self.data = self.data + bytes(missing)  # as in resize: leave the old bytes to it


class DirNode:
    """One directory: name -> file or directory, in order of creation."""

    __slots__ = ("entries", "mtime_ms")

    def __init__(self, mtime_ms: int) -> None:
        self.entries: dict[str, FileOrDir] = {}
        self.mtime_ms = mtime_ms


FileOrDir: TypeAlias = FileNode | DirNode


class MemoryMapping:
    """See ``Mapping``; the buffer is the file's own memory."""

    __slots__ = ("_buffer", "_file", "_size")

    def __init__(self, file: MemoryFile, size: int) -> None:
        self._file = file
        self._size = size
        self._buffer: memoryview | None = file.node.mapped()[:size]

    @property
    def buffer(self) -> memoryview:
        self._file.check(self._buffer is not None)
        assert self._buffer is not None
        return self._buffer

    def reserve(self, end: int) -> None:
        self._file.check(self._buffer is not None)
        if end > self._size:
            raise ValueError(f"{end} bytes reserved in a mapping of {self._size}")
        self._file.storage.on_reserve(self._file, end)

    def close(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return
        with self._file.storage.guard:
            with suppress(BufferError):
                buffer.release()
            if self._file.generation == self._file.storage.generation:
                self._file.storage.on_unmap(self._file)
                self._file.node.unmapped()


class MemoryFile:
    """One handle. It outlives the file's name, as an open descriptor does."""

    __slots__ = ("_open", "generation", "node", "path", "storage", "writable")

    def __init__(self, storage: MemoryStorage, path: str, node: FileNode, writable: bool) -> None:
        self.path = path
        self.storage = storage
        self.node = node
        self.writable = writable
        self.generation = storage.generation
        self._open = True

    def check(self, usable: bool = True) -> None:
        """Refuse a closed handle, and one from before a crash."""
        if self.generation != self.storage.generation:
            raise OSError(errno.ESTALE, "the machine went down", self.path)
        if not (usable and self._open):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)

    def size(self) -> int:
        self.check()
        return self.node.size

    def read_at(self, position: int, size: int) -> bytes:
        with self.storage.guard:
            self.check()
            return self.storage.on_read(self, position, size)

    @contextmanager
    def view(self, position: int, size: int) -> Iterator[memoryview]:
        """A copy: a window onto growing memory would stop it from growing."""
        view = memoryview(self.read_at(position, size))
        try:
            yield view
        finally:
            with suppress(BufferError):
                view.release()

    def write_at(self, position: int, *buffers: Buffer) -> int:
        joined = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        data = joined if joined.format == "B" and joined.ndim == 1 else joined.cast("B")
        if position < 0:
            raise OSError(errno.EINVAL, "negative position", self.path)
        with self.storage.guard:
            self.check(self.writable)
            self.storage.on_write(self, position, data)
        return len(data)

    def map(self, size: int) -> Mapping:
        with self.storage.guard:
            self.check(self.writable)
            self.storage.on_map(self, size)
            return MemoryMapping(self, size)

    def truncate(self, size: int) -> None:
        with self.storage.guard:
            self.check(self.writable)
            self.storage.on_truncate(self, size)

    def sync(self) -> None:
        with self.storage.guard:
            self.check()
            self.storage.on_sync(self)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._open = False


class MemoryLock:
    __slots__ = ("_path", "_storage")

    def __init__(self, storage: MemoryStorage, path: str) -> None:
        self._storage, self._path = storage, path

    @property
    def held(self) -> bool:
        return self._storage.locks.get(self._path) is self

    def release(self) -> None:
        """Idempotent; the empty file stays, as with ``LocalStorage``."""
        with self._storage.guard:
            if self._storage.locks.get(self._path) is self:
                del self._storage.locks[self._path]


class MemoryStorage:
    """``Storage`` in memory. Thread-safe. Relative paths start at the root.

    One difference to a disk: a file cannot grow past a live mapping of it (EBUSY).

    Args:
        clock: seconds since the epoch, for modification times.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.guard = free_in_child(threading.RLock())
        self.generation = 0  # counts crashes: handles and locks of an older one are void
        self.locks: dict[str, MemoryLock] = {}
        self.root = self.new_dir()

    # --- files

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        with self.guard:
            return self._open(path, create, writable)

    def _open(self, path: str, create: bool, writable: bool) -> MemoryFile:
        self.before(DiskOperation.OPEN, path)
        parent, name = self._parent(path)
        node = parent.entries.get(name) if name else parent
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            self.change(DiskOperation.OPEN, path)
            node = self.new_file()
            self.link(parent, name, node)
        if isinstance(node, DirNode):
            raise irregular(path, "is a directory, not a file")
        if not node.regular:
            raise irregular(path, "is not a regular file")
        return MemoryFile(self, path, node, writable)

    def read_file(self, path: str, limit: int = -1) -> bytes:
        with self.guard:
            file = self._open(path, False, False)
            check_size(path, file.node.size, limit)
            return self.on_read(file, 0, file.node.size)

    def write_file(self, path: str, data: bytes) -> None:
        with self.guard:
            file = self._open(path, True, True)
            if file.node.size:
                self.on_truncate(file, 0)
            if data:
                self.on_write(file, 0, memoryview(data))
            self.on_sync(file)

    def rename(self, source: str, target: str) -> None:
        with self.guard:
            self.before(DiskOperation.RENAME, source)
            source_dir, source_name = self._parent(source)
            target_dir, target_name = self._parent(target)
            node = source_dir.entries.get(source_name)
            if node is None:
                raise _error(errno.ENOENT, source)
            if not target_name or (_normal(target) + "/").startswith(_normal(source) + "/"):
                if _normal(target) == _normal(source):
                    return
                raise _error(errno.EINVAL, target)  # a directory into itself
            replaced = target_dir.entries.get(target_name)
            if isinstance(replaced, DirNode):
                if not isinstance(node, DirNode):
                    raise _error(errno.EISDIR, target)
                if replaced.entries:
                    raise _error(errno.ENOTEMPTY, target)
            elif replaced is not None and isinstance(node, DirNode):
                raise _error(errno.ENOTDIR, target)
            self.change(DiskOperation.RENAME, source)
            self.move(source_dir, source_name, target_dir, target_name, node)

    def remove(self, path: str) -> None:
        with self.guard:
            self.before(DiskOperation.REMOVE, path)
            parent, name = self._parent(path)
            node = parent.entries.get(name) if name else parent
            if node is None:
                raise _error(errno.ENOENT, path)
            if isinstance(node, DirNode):
                raise _error(errno.EISDIR, path)
            self.change(DiskOperation.REMOVE, path)
            self.unlink(parent, name)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        with self.guard:
            self._node(path).mtime_ms = mtime_ms

    # --- directories

    def sync_dir(self, path: str) -> None:
        with self.guard:
            self.before(DiskOperation.SYNC_DIR, path)
            self.on_sync_dir(path, self._dir(path))

    def scan_dir(self, path: str) -> list[FileInfo]:
        with self.guard:
            self.before(DiskOperation.LIST, path)
            entries = self._dir(path).entries
            return [_info(name, entries[name]) for name in sorted(entries)]

    def info(self, path: str) -> FileInfo | None:
        with self.guard:
            try:
                node = self._node(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return _info(posixpath.basename(_normal(path)), node)

    def free_bytes(self, path: str) -> int:
        return sys.maxsize

    def make_dir(self, path: str) -> None:
        with self.guard:
            node: DirNode = self.root
            for name in _parts(path):
                child = node.entries.get(name)
                if child is None:
                    self.before(DiskOperation.MAKE_DIR, path)
                    self.change(DiskOperation.MAKE_DIR, path)
                    child = self.new_dir()
                    self.link(node, name, child)
                elif isinstance(child, FileNode):
                    raise _error(errno.EEXIST, path)
                node = child

    def remove_tree(self, path: str) -> None:
        with self.guard:
            self._remove_tree(path, self._dir(path))

    def _remove_tree(self, path: str, node: DirNode) -> None:
        # Name by name, as a disk must: a crash may leave any part of the tree.
        for name in sorted(node.entries):
            child = node.entries[name]
            child_path = posixpath.join(path, name)
            if isinstance(child, DirNode):
                self._remove_tree(child_path, child)
            else:
                self.remove(child_path)
        self.before(DiskOperation.REMOVE, path)
        parent, name = self._parent(path)
        if not name:
            raise _error(errno.EBUSY, path)
        self.change(DiskOperation.REMOVE, path)
        self.unlink(parent, name)

    def lock(self, path: str) -> DirLock:
        with self.guard:
            key = _normal(path)
            if key in self.locks:
                raise LogDirLockedError(path, "another user of this storage")
            self._open(path, True, True)
            lock = self.locks[key] = MemoryLock(self, key)
            return lock

    def real_path(self, path: str) -> str:
        return _normal(path)

    # --- what a storage that injects faults overrides; all called under ``guard``

    def new_file(self) -> FileNode:
        return FileNode(self._now_ms())

    def new_dir(self) -> DirNode:
        return DirNode(self._now_ms())

    def before(self, operation: str, path: str) -> None:
        """The operation is asked for; may raise ``OSError``."""

    def change(self, operation: str, path: str) -> None:
        """The operation is legal and about to change something."""

    def link(self, parent: DirNode, name: str, node: FileOrDir) -> None:
        parent.entries[name] = node
        parent.mtime_ms = self._now_ms()

    def unlink(self, parent: DirNode, name: str) -> None:
        del parent.entries[name]
        parent.mtime_ms = self._now_ms()

    def move(self, parent: DirNode, name: str, target: DirNode, to: str, node: FileOrDir) -> None:
        del parent.entries[name]
        target.entries[to] = node
        parent.mtime_ms = target.mtime_ms = self._now_ms()

    def on_read(self, file: MemoryFile, position: int, size: int) -> bytes:
        return file.node.read(position, size)

    def on_write(self, file: MemoryFile, position: int, data: memoryview) -> None:
        file.node.write(position, data)
        file.node.mtime_ms = self._now_ms()

    def on_truncate(self, file: MemoryFile, size: int) -> None:
        file.node.resize(size)
        file.node.mtime_ms = self._now_ms()

    def on_map(self, file: MemoryFile, size: int) -> None:
        if size > file.node.size:
            file.node.resize(size)
            file.node.mtime_ms = self._now_ms()

    def on_reserve(self, file: MemoryFile, end: int) -> None: ...

    def on_unmap(self, file: MemoryFile) -> None: ...

    def on_sync(self, file: MemoryFile) -> None: ...

    def on_sync_dir(self, path: str, node: DirNode) -> None: ...

    # --- paths

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    def _node(self, path: str) -> FileOrDir:
        node: FileOrDir = self.root
        for name in _parts(path):
            if isinstance(node, FileNode):
                raise _error(errno.ENOTDIR, path)
            child = node.entries.get(name)
            if child is None:
                raise _error(errno.ENOENT, path)
            node = child
        return node

    def _dir(self, path: str) -> DirNode:
        node = self._node(path)
        if isinstance(node, FileNode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[DirNode, str]:
        """The directory of ``path`` and the last name in it; the name of the root is empty."""
        above, last = _split(path)
        node = self.root
        for name in above:
            child = node.entries.get(name)
            if child is None:
                raise _error(errno.ENOENT, path)
            if isinstance(child, FileNode):
                raise _error(errno.ENOTDIR, path)
            node = child
        return node, last


@lru_cache(maxsize=4096)
def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(_normal(path).split("/")[1:]) if _normal(path) != "/" else ()


@lru_cache(maxsize=4096)
def _split(path: str) -> tuple[tuple[str, ...], str]:
    """The names of the directories above, and the last name."""
    parts = _parts(path)
    return parts[:-1], parts[-1] if parts else ""


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _info(name: str, node: FileOrDir) -> FileInfo:
    if isinstance(node, DirNode):
        return FileInfo(name, 0, node.mtime_ms, FileKind.DIRECTORY)
    kind = FileKind.FILE if node.regular else FileKind.OTHER
    return FileInfo(name, node.size, node.mtime_ms, kind)
