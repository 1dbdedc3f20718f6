"""The operating system's file system (Linux)."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import struct
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from weakref import WeakValueDictionary

from checkpoints.files import OsFiles, open_regular
from checkpoints.printable import printable
from logstore.common.errors import LogDirLockedError
from logstore.common.forks import free_in_child, in_child
from logstore.common.types import Buffer
from logstore.kernels import MappedWindow, ReadWindow, read_small, scan_directory
from logstore.storage.base import DirLock, File, FileInfo, FileKind, Mapping

_VIEW_KEPT_MIN = 256 << 10
"""Smaller windows are plain ``bytes``."""

_VIEW_READ_MAX = 16 << 20
"""Up to this size a window is read into a reused buffer.

That is faster than to map, fault and unmap its pages, and does not make other threads wait. Larger
ones are mapped, so that they take no memory.
"""

_RESERVE_FIRST, _RESERVE_STEP = 4 << 10, 64 << 10
_IOV_MAX = 1024  # of Linux; more buffers in one call are EINVAL
_NANOSECONDS_PER_MS = 1_000_000
_LOCK_ATTEMPTS_MAX = 10
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = frozenset(
    {errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK}
)
_KINDS = (FileKind.FILE, FileKind.DIRECTORY, FileKind.OTHER)
_POSIX_LOCK = struct.Struct("@hhqqi")  # struct flock: type, whence, start, length, pid

# Python 3.13 can map without keeping a duplicate of the descriptor: half as many per open index.
_MMAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}

_populate_works = True  # until a kernel of the system says EINVAL


# Errors of ``stat`` for a broken link. Anything else is a disk error.
_DANGLING = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG})


def _entry_info(name: str, path: str) -> FileInfo | None:
    """The info of a directory entry; ``None`` if it has vanished."""
    try:
        status = os.stat(path)  # of the target of a link: linked directories work (S-47)
    except OSError as error:
        if error.errno not in _DANGLING:
            raise
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISLNK(status.st_mode) and error.errno != errno.ENOENT:
            raise
    return _info(name, status)


class LocalMapping:
    """A window onto the page cache; see ``Mapping``. Writes are visible to reads of the file."""

    __slots__ = ("_buffer", "_file", "_map", "_reserved_end")

    def __init__(self, file: LocalFile, size: int) -> None:
        self._file = file
        self._reserved_end = 0
        self._map: mmap.mmap | None = None
        if size:
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE, **_MMAP_OPTIONS)
            # Otherwise the first store reads ahead, which fills megabytes with the file's zeros.
            self._map.madvise(mmap.MADV_RANDOM)
            self._buffer: memoryview | None = memoryview(self._map)
        else:
            self._buffer = memoryview(bytearray())  # the kernel maps no empty range

    @property
    def buffer(self) -> memoryview:
        if self._buffer is None:
            raise OSError(errno.EBADF, "the mapping is closed", self._file.path)
        return self._buffer

    def reserve(self, end: int) -> None:
        if end <= self._reserved_end:
            return
        size = len(self.buffer)
        if end > size:
            raise ValueError(f"{end} bytes reserved in a mapping of {size}")
        # In steps, so that an index that grows by 12 bytes asks the file system once in 5,000
        # entries. The first are small: a roll cuts the file, and waits for the disk to take blocks
        # back. Never past the mapping: posix_fallocate would lengthen the file.
        step = min(max(self._reserved_end, _RESERVE_FIRST), _RESERVE_STEP)
        target = min(-(-end // step) * step, size)
        os.posix_fallocate(self._file.fileno(), self._reserved_end, target - self._reserved_end)
        self._reserved_end = target

    def close(self) -> None:
        mapped, buffer, self._map, self._buffer = self._map, self._buffer, None, None
        _release(buffer, mapped)


class LocalFile:
    """A file with one descriptor.

    Positions are explicit (``pread``), so threads share it without a lock.

    The owner must not close it during a call of another thread, because the descriptor could
    already name another file.
    """

    __slots__ = ("__weakref__", "_descriptor", "_owned", "path")

    def __init__(self, path: str, descriptor: int, owned: bool = True) -> None:
        """``owned``: only the owner truncates the file, so windows of it may be mapped."""
        self.path = path
        self._descriptor = descriptor
        self._owned = owned

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]  # the end of the file, or an early stop of the kernel
        missing = size - len(data)
        while missing:
            data = os.pread(self._descriptor, missing, position + size - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def view(self, position: int, size: int) -> AbstractContextManager[memoryview]:
        """See ``File.view``. Very large windows of the owner's files are mapped, and their pages
        read in on entry.

        The owner must not cut the file below a mapped window in use: touching pages past the end
        is a signal that no Python code can catch. A file that was opened to be read may be cut by
        its owner at any time: it is never mapped.
        """
        if size > _VIEW_READ_MAX:
            if self._owned:
                return self._mapped(position, size)
            size = min(size, max(self.size() - position, 0))
        if size < _VIEW_KEPT_MIN:
            return _shown(self.read_at(position, size))
        return _shown(ReadWindow(self._descriptor, position, size))

    @contextmanager
    def _mapped(self, position: int, size: int) -> Iterator[memoryview]:
        size = min(size, self.size() - position)
        mapped = self._map_populated(position, size) if size >= _VIEW_KEPT_MIN else None
        if mapped is None:
            with _shown(self.read_at(position, max(size, 0))) as copy:
                yield copy
            return
        window = memoryview(mapped)
        try:
            yield window
        finally:
            with suppress(BufferError):  # still being read, so it is unmapped later
                window.release()
                mapped.close()

    def _map_populated(self, position: int, size: int) -> MappedWindow | None:
        """The window with every page read in, or ``None`` if only a read can show what is wrong.

        Without populating, a bad sector or a truncated file would be a SIGBUS at the first access.
        With it the kernel answers EFAULT or EHWPOISON here, and the ordinary read that follows
        gives EIO or a short result, as ``read_at`` would.
        """
        global _populate_works
        if not _populate_works:
            return None
        try:
            mapped = MappedWindow(self._descriptor, position, size)
        except OSError:
            return None
        try:
            mapped.populate()
        except OSError as error:
            mapped.close()
            if error.errno == errno.EINVAL:
                _populate_works = False
            return None
        return mapped

    def write_at(self, position: int, *buffers: Buffer) -> int:
        if len(buffers) == 1:
            return self._write(position, buffers[0])
        views = [_as_bytes(buffer) for buffer in buffers]
        total = 0
        for first in range(0, len(views), _IOV_MAX):
            batch = views[first : first + _IOV_MAX]
            expected = sum(len(view) for view in batch)
            written = os.pwritev(self._descriptor, batch, position + total)
            if written < expected:  # a full disk, a file size limit, 2 GiB in one call
                written += self._write(position + total + written, b"".join(batch)[written:])
            total += written
        return total

    def _write(self, position: int, buffer: Buffer) -> int:
        view = _as_bytes(buffer)
        total = os.pwrite(self._descriptor, view, position)
        while total < len(view):
            written = os.pwrite(self._descriptor, view[total:], position + total)
            if not written:
                raise OSError(errno.EIO, "the device takes no more bytes", self.path)
            total += written
        return total

    def map(self, size: int) -> Mapping:
        if self.size() < size:
            os.ftruncate(self._descriptor, size)
        return LocalMapping(self, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        # fdatasync covers the size; only times are left out. Stores through a shared mapping dirty
        # the same page cache, so no msync is needed before it on Linux.
        if self._descriptor < 0:  # the only call below that is a ValueError for −1
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        os.fdatasync(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            warnings.warn(
                f"unclosed {printable(self.path)}", ResourceWarning, stacklevel=2, source=self
            )
            self.close()


class LocalStorage(OsFiles):
    """``Storage`` on the operating system's file system. Has no state; one instance may be shared.

    A full descriptor table (EMFILE) is an ``OSError`` of ``open`` like any other (S-45).
    """

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return LocalFile(path, open_regular(path, flags)[0], owned=writable)

    def read_file(self, path: str, limit: int = -1) -> bytes:
        data = read_small(path)
        if data is None or 0 <= limit < len(data):
            return super().read_file(path, limit)  # which says what is wrong
        return data

    def scan_dir(self, path: str) -> list[FileInfo]:
        entries = scan_directory(path, os.fsencode(path), FileInfo, _KINDS)
        entries.sort()  # names are unique: nothing else is compared
        return entries

    def info(self, path: str) -> FileInfo | None:
        return _entry_info(os.path.basename(os.path.normpath(path)), path)

    def make_dir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def remove_tree(self, path: str) -> None:
        if os.path.islink(path):
            os.unlink(path)  # its target may belong to a user (S-47)
        else:
            shutil.rmtree(path)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        mtime_ns = mtime_ms * _NANOSECONDS_PER_MS
        os.utime(path, ns=(mtime_ns, mtime_ns))

    def lock(self, path: str) -> DirLock:
        """See ``Storage.lock``; held until released or until this process ends, however it ends.

        Excludes other threads of this process, other users of this class and a Kafka broker. No
        other code of the process may open the file: closing *any* descriptor of it drops the lock
        that a broker sees.
        """
        return _acquire(path)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)


class NamingStorage(LocalStorage):
    """``LocalStorage`` with hard links and an atomic exchange of two names."""

    def link(self, source: str, target: str) -> bool:
        """Give a file a second name. False if the file system has no hard links.

        Raises:
            OSError: the medium refused.
        """
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return False
        return True

    def exchange(self, first: str, second: str) -> bool:
        """Exchange two names in one step (Linux ``renameat2``).

        Returns False, and changes nothing, if the system cannot do that.

        Raises:
            OSError: the medium refused.
        """
        import ctypes  # needed by few

        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is None:
            return False
        paths = (os.fsencode(first), os.fsencode(second))
        if rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
            return True
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            return False
        raise OSError(number, os.strerror(number), first, None, second)


# --- locks -------------------------------------------------------------------------------------
#
# Three locks, because each sees what another does not:
#   a table of this process     POSIX record locks do not exclude the process that holds them
#   flock                       excludes processes whose fork shares nothing with ours; portalocker
#   POSIX record lock           the only one that Java's FileChannel.tryLock sees


class LocalLock:
    """A held lock file. Release it once; a second release does nothing. One that nobody refers to
    any more is released."""

    __slots__ = ("__weakref__", "_descriptor", "identity", "path", "real_path")

    def __init__(self, path: str, real_path: str, identity: tuple[int, int], fd: int) -> None:
        self.path, self.real_path, self.identity = path, real_path, identity
        self._descriptor = fd

    @property
    def held(self) -> bool:
        return _registry.get(self.real_path) is self

    def release(self) -> None:
        """Release the lock. The empty file stays.

        Kafka deletes it (F-9), but deleting a lock file has a race: a second owner that has it
        open already would lock a file without a name, and a third would create and lock a new
        one. A broker takes a lock file that it finds as readily as one that it creates.
        """
        with _registry_guard:
            if _registry.get(self.real_path) is self:
                del _registry[self.real_path]
                self.abandon()

    def abandon(self) -> None:
        """Close the descriptor. In a forked child this leaves the parent's locks in force: an
        flock goes with its last descriptor, and a record lock never belonged to the child."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.abandon()


_registry: WeakValueDictionary[str, LocalLock] = WeakValueDictionary()
_registry_guard = free_in_child(threading.Lock())


@in_child
def _forget_locks() -> None:
    """A child owns none of its parent's locks, and must not keep them alive when the parent dies:
    an flock lives as long as any descriptor that a fork copied."""
    for lock in _registry.values():
        lock.abandon()
    _registry.clear()


def _acquire(path: str) -> LocalLock:
    real_path = os.path.realpath(path)
    with _registry_guard:
        for _ in range(_LOCK_ATTEMPTS_MAX):
            _refuse_own(path, real_path)
            descriptor, _ = open_regular(path, os.O_RDWR | os.O_CREAT)
            try:
                _lock_descriptor(path, descriptor)
                locked = os.fstat(descriptor)
                if _identity(real_path) == (locked.st_dev, locked.st_ino):
                    identity = (locked.st_dev, locked.st_ino)
                    lock = _registry[real_path] = LocalLock(path, real_path, identity, descriptor)
                    descriptor = -1
                    return lock
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
            # A broker that stopped deleted the file between our open and our lock: try the new one.
    raise LogDirLockedError(path, "another process that keeps replacing the file")


def _refuse_own(path: str, real_path: str) -> None:
    """Refuse a file that this process has locked, before it is opened again.

    By name, and by device and inode as well: a bind mount or a hard link gives the file a second
    name, and closing a descriptor opened by it would drop the record lock.
    """
    identity = _identity(real_path)
    held = real_path in _registry or any(lock.identity == identity for lock in _registry.values())
    if held:
        raise LogDirLockedError(path, f"this process (pid {os.getpid()})")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _lock_descriptor(path: str, descriptor: int) -> None:
    # Imported here: it takes 80 ms, and readers of a directory never lock.
    import portalocker
    from portalocker.portalocker import FlockLocker, LockfLocker

    flags = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
    try:
        FlockLocker().lock(descriptor, flags)
        LockfLocker().lock(descriptor, flags)
    except portalocker.AlreadyLocked:
        raise LogDirLockedError(path, _holder(descriptor)) from None
    except portalocker.LockException as error:  # such as ENOLCK: a file system without locks
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise OSError(errno.EIO, str(error), path) from error


def _holder(descriptor: int) -> str:
    """Say who has the record lock. The kernel knows; the file stays empty, as Kafka's is (F-9)."""
    import fcntl

    request = _POSIX_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = _POSIX_LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, request))
    except (OSError, struct.error):
        return "another process"
    kind, pid = answer[0], answer[4]
    return f"process {pid}" if kind != fcntl.F_UNLCK and pid > 0 else "another process"


# --- small parts -------------------------------------------------------------------------------


@contextmanager
def _shown(content: bytes | ReadWindow) -> Iterator[memoryview]:
    view = memoryview(content)
    try:
        yield view
    finally:
        with suppress(BufferError):
            view.release()


def _release(view: memoryview | None, mapped: mmap.mmap | None) -> None:
    """Unmap now, or when the last slice is collected."""
    with suppress(BufferError):
        if view is not None:
            view.release()
        if mapped is not None:
            mapped.close()


def _as_bytes(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _info(name: str, status: os.stat_result) -> FileInfo:
    kind = FileKind.FILE if stat.S_ISREG(status.st_mode) else FileKind.OTHER
    if stat.S_ISDIR(status.st_mode):
        kind = FileKind.DIRECTORY
    return FileInfo(name, status.st_size, status.st_mtime_ns // _NANOSECONDS_PER_MS, kind)
