"""Any file system that Arrow reaches, read only: S3 and its likes, GCS, Azure, HDFS.

Paths keep the scheme (``s3://bucket/logs/orders-0``), so that a message names the object, and
``os.path.join`` and ``dirname`` work on them. Nothing can be written: Kafka's format asks for
appends, renames and fsync, which object stores do not have.

An object store answers a request in tens of milliseconds, and one connection brings less than a
kernel checks. So large windows (``File.view``) are read in blocks, and a reader that goes forward
finds the next ones under way; each byte comes once. Small reads are one ranged request each.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any, NoReturn

from pyarrow import fs
from pyarrow.lib import ArrowException

from checkpoints.files import UnusableFileError, check_size, irregular
from logstore.common.forks import in_child
from logstore.storage.base import File, FileInfo, FileKind

_BLOCK_SIZE = 4 << 20
_BLOCKS_AHEAD = 4  # per open file: 16 MiB under way, and two blocks in use
_KINDS = {fs.FileType.File: FileKind.FILE, fs.FileType.Directory: FileKind.DIRECTORY}
_WITH_SPECIAL_FILES = frozenset({"local", "subtree"})  # names of Arrow's file systems
_BLOCKED_MIN = 256 << 10  # smaller windows are read as they are
_READERS = 16  # requests of this process at a time, for all files


@lru_cache(maxsize=1)
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_READERS, thread_name_prefix="logstore-read-ahead")


in_child(_readers.cache_clear)  # threads are not copied


def _refuse(path: str) -> NoReturn:
    """Refuse with EROFS, as a file system mounted read-only does."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors of Arrow as ``OSError`` with an ``errno`` and the path; it often gives neither."""
    try:
        yield
    except (OSError, ArrowException) as error:
        number = getattr(error, "errno", None) or _errno_of(str(error))
        if isinstance(error, UnusableFileError):
            raise
        if number == errno.EISDIR:
            raise irregular(path, "is a directory, not a file") from error
        # A kernel's own phrase says all; a store's says which request failed, and why.
        reason = os.strerror(number) if number in _PLAIN else " ".join(str(error).split())
        raise OSError(number, reason, path) from error


_PLAIN = frozenset({errno.ENOENT, errno.ENOTDIR})
_REASONS = (
    ("NO_SUCH_BUCKET", errno.ENOENT),
    ("NO_SUCH_KEY", errno.ENOENT),
    ("ACCESS_DENIED", errno.EACCES),
    ("HTTP status 403", errno.EACCES),
    ("INVALID_ACCESS_KEY_ID", errno.EACCES),
    ("SIGNATURE_DOES_NOT_MATCH", errno.EACCES),
    ("Not a regular file", errno.EISDIR),
)


def _errno_of(message: str) -> int:
    return next((number for text, number in _REASONS if text in message), errno.EIO)


class ArrowFile:
    """One object, open for reading, as long as it was when it was opened.

    What happens when the object is replaced while it is read is up to the store: the reads that
    follow may fail or show the new bytes, and Arrow does not report a short read. A
    checksum then fails, as it does for a local segment that is overwritten.
    """

    __slots__ = ("_blocks", "_file", "_guard", "_size", "_storage", "path")

    def __init__(self, path: str, file: Any, storage: ArrowStorage) -> None:
        self.path = path
        self._file = file
        self._storage = storage
        self._size: int = file.size()
        self._blocks: dict[int, Future[bytes]] = {}
        self._guard = Lock()

    def size(self) -> int:
        if self._file.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        return self._size

    def read_at(self, position: int, size: int) -> bytes:
        size = min(size, self.size() - position)
        if size <= 0:
            return b""
        try:
            with naming(self.path):
                data: bytes = self._file.read_at(size, position)
        except OSError as error:
            # A store's answer to a read of a few bytes has no room for its own error.
            if error.errno == errno.EIO and self._storage.info(self.path) is None:
                reason = "deleted while it was read"
                raise FileNotFoundError(errno.ENOENT, reason, self.path) from error
            raise
        return data

    @contextmanager
    def view(self, position: int, size: int) -> Iterator[memoryview]:
        size = max(min(size, self.size() - position), 0)
        if size < _BLOCKED_MIN:
            yield memoryview(self.read_at(position, size))
            return
        first, last = position // _BLOCK_SIZE, (position + size - 1) // _BLOCK_SIZE
        parts = [memoryview(block.result()) for block in self._request_blocks(first, last)]
        start = position - first * _BLOCK_SIZE
        if len(parts) > 1:
            parts[-1] = parts[-1][: position + size - last * _BLOCK_SIZE]
            parts[0] = parts[0][start:]
            yield memoryview(b"".join(parts))
        else:
            yield parts[0][start : start + size]

    def _request_blocks(self, first: int, last: int) -> list[Future[bytes]]:
        """The blocks from ``first`` to ``last``, and more behind them where the reader moves on.

        A reader goes forward when its window begins in a block, or next to one, that is held from
        the window before. A single look somewhere costs no more than its own blocks.
        """
        with self._guard:
            forward = first in self._blocks or first - 1 in self._blocks
            end = last + 1 + (_BLOCKS_AHEAD if forward else 0)
            end = min(end, -(-self._size // _BLOCK_SIZE))
            for number in [held for held in self._blocks if not first <= held < end]:
                self._blocks.pop(number).cancel()
            for number in range(first, end):
                if number not in self._blocks:
                    self._blocks[number] = _readers().submit(
                        self.read_at, number * _BLOCK_SIZE, _BLOCK_SIZE
                    )
            return [self._blocks[number] for number in range(first, last + 1)]

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        _refuse(self.path)

    write_at = map = truncate = sync = _refuse

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        with self._guard:
            blocks, self._blocks = self._blocks, {}
        for block in blocks.values():
            block.cancel()
        self._file.close()


class ArrowStorage:
    """The reading half of ``Storage`` over a ``pyarrow.fs.FileSystem``.

    Args:
        filesystem: where the bytes are.
        scheme: what paths here begin with (``s3://``); Arrow's own paths do not have it.
    """

    def __init__(self, filesystem: fs.FileSystem, scheme: str = "") -> None:
        self.filesystem = filesystem
        self._scheme = scheme

    def inner(self, path: str) -> str:
        """The path as Arrow's file system has it."""
        return path.removeprefix(self._scheme).rstrip("/")

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        if create or writable:
            _refuse(path)
        with naming(path):
            return ArrowFile(path, self._input(path), self)

    def read_file(self, path: str, limit: int = -1) -> bytes:
        with naming(path), self._input(path) as file:
            size = file.size()
            check_size(path, size, limit)
            data: bytes = file.read_at(size, 0)
        return data

    def _input(self, path: str) -> Any:
        # An object store has objects and nothing else; a look ahead would be one request more.
        if self.filesystem.type_name in _WITH_SPECIAL_FILES:
            (found,) = self.filesystem.get_file_info([self.inner(path)])
            if found.type == fs.FileType.Unknown:
                raise irregular(path, "is not a regular file")
        return self.filesystem.open_input_file(self.inner(path))

    def scan_dir(self, path: str) -> list[FileInfo]:
        with naming(path):
            found = self.filesystem.get_file_info(fs.FileSelector(self.inner(path)))
        return sorted(map(_entry, found))

    def info(self, path: str) -> FileInfo | None:
        with naming(path):
            (found,) = self.filesystem.get_file_info([self.inner(path)])
        return None if found.type == fs.FileType.NotFound else _entry(found)

    def real_path(self, path: str) -> str:
        return self._scheme + posixpath.normpath(self.inner(path))

    def free_bytes(self, path: str) -> int:
        return 0  # nothing is written here

    def _refuse(self, path: str, *_: Any, **__: Any) -> NoReturn:
        _refuse(path)

    # pyarrow could write, but not so that a crash leaves what Kafka's format promises.
    write_file = rename = remove = sync_dir = make_dir = remove_tree = set_mtime = lock = _refuse


def _entry(found: fs.FileInfo) -> FileInfo:
    """Object stores give directories, which are only prefixes of names there, no time and size."""
    nanoseconds = found.mtime_ns or 0
    kind = _KINDS.get(found.type, FileKind.OTHER)
    return FileInfo(found.base_name, found.size or 0, nanoseconds // 1_000_000, kind)


__all__ = ["ArrowFile", "ArrowStorage", "naming"]
