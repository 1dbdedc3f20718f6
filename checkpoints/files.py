"""The narrow seam under the checkpoint files, and its real implementation."""

from __future__ import annotations

import errno
import os
import stat
from typing import Protocol


class UnusableFileError(OSError):
    """The entry with this name cannot be the expected file.

    It is not a regular file but a directory, a FIFO, a socket, a device or a broken link (EISDIR or
    EINVAL), or it is larger than its format allows (EFBIG). Only this file is damaged; the disk
    works. ``filename`` says which file, ``reason`` why.
    """

    @property
    def reason(self) -> str:
        return self.strerror or ""


class Files(Protocol):
    """The disk operations that checkpoints need. All calls may raise ``OSError``."""

    def read_file(self, path: str, limit: int = -1) -> bytes:
        """The whole file; ``FileNotFoundError`` when missing.

        Raises:
            UnusableFileError: it is not a regular file, or has more than ``limit`` bytes; nothing
                was read.
        """
        ...

    def write_file(self, path: str, data: bytes) -> None:
        """Create or empty the file, write ``data`` and fsync it.

        Raises:
            UnusableFileError: the existing entry is not a regular file.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Replace ``target`` atomically. Durable only after ``sync_dir``."""
        ...

    def remove(self, path: str) -> None:
        """``FileNotFoundError`` when it is missing. Durable only after ``sync_dir``."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in the directory durable."""
        ...


# An open must never block the caller: without O_NONBLOCK a FIFO waits for its other end, and
# without O_NOCTTY a terminal becomes that of the process.
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_ATTEMPTS = 3  # at a name that is created and removed concurrently

_DANGLING = "is a link that leads nowhere"

# The errors of ``open`` for writing a directory, for a socket or a FIFO without a reader, for a
# device without a driver, and for a link to itself.
_IRREGULAR = {
    errno.EISDIR: "is a directory, not a file",
    errno.ENXIO: "is a socket, a FIFO or a device, not a file",
    errno.ENODEV: "is a device, not a file",
    errno.ELOOP: _DANGLING,
}
_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def open_regular(path: str, flags: int) -> tuple[int, int]:
    """Open a regular file or a link to one. Returns descriptor and size in bytes.

    ``O_CREAT`` creates a file if the name is free. A broken link is not followed.

    Raises:
        UnusableFileError: the entry is not a regular file.
        OSError: the medium refused.
    """
    try:
        opened = _open_or_create if flags & os.O_CREAT else os.open
        descriptor = opened(path, flags | _OPEN_FLAGS)
    except OSError as error:
        reason = _IRREGULAR.get(error.errno or 0)
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and os.path.islink(path):
            reason = _DANGLING
        if reason is None:
            raise
        raise irregular(path, reason) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "special file")
            raise irregular(path, f"is a {kind}, not a file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def _open_or_create(path: str, flags: int) -> int:
    for _ in range(_ATTEMPTS):
        try:
            return os.open(path, flags & ~os.O_CREAT)
        except FileNotFoundError:
            pass
        try:
            return os.open(path, flags | os.O_EXCL, 0o644)
        except FileExistsError:
            pass
    raise irregular(path, _DANGLING)


def irregular(path: str, reason: str) -> UnusableFileError:
    number = errno.EISDIR if "directory" in reason else errno.EINVAL
    return UnusableFileError(number, reason, path)


def check_size(path: str, size: int, limit: int) -> None:
    """
    Raises:
        UnusableFileError: ``size`` is above ``limit``, unless that is negative.
    """
    if 0 <= limit < size:
        raise UnusableFileError(errno.EFBIG, f"has {size} bytes, more than {limit}", path)


class OsFiles:
    """``Files`` on the operating system's file system."""

    def read_file(self, path: str, limit: int = -1) -> bytes:
        descriptor, size = open_regular(path, os.O_RDONLY)
        try:
            check_size(path, size, limit)
            data = b""
            while missing := size - len(data):  # the kernel stops at 2 GiB
                part = os.read(descriptor, missing)
                if not part:
                    break
                data = data + part if data else part
            return data
        finally:
            os.close(descriptor)

    def write_file(self, path: str, data: bytes) -> None:
        descriptor, _ = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_dir(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Replace ``path`` so that a crash leaves the old content or the new, never a mix (F-26).

    As in Kafka, the directory is synced even if the rename fails, because an earlier rename in it
    may not be durable yet. A FIFO or the like under either name does not matter: the rename
    replaces the one, and the other is renamed.
    """
    temporary = path + ".tmp"
    try:
        files.write_file(temporary, data)
    except UnusableFileError as error:
        if error.errno == errno.EISDIR:
            raise
        files.rename(temporary, temporary + ".aside")
        files.write_file(temporary, data)
    try:
        files.rename(temporary, path)
    finally:
        files.sync_dir(os.path.dirname(path) or ".")
