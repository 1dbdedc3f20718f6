"""The storage seam: all disk operations of logstore.

Every call raises ``OSError`` with its ``errno`` when the medium refuses; the layers above decide
what that means (``StorageFailedError``, a directory that goes offline). Paths are plain strings,
absolute or relative to the working directory. A crash may undo, in any combination, whatever was
not made durable by ``File.sync`` (content, size) or ``Storage.sync_dir`` (names).
"""

from __future__ import annotations

import enum
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from checkpoints.files import Files
from logstore.common.types import Buffer


class FileKind(enum.Enum):
    """The kind of a directory entry, after following links."""

    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"
    """A FIFO, a socket, a device, or a broken link, which cannot be opened here."""


class FileInfo(NamedTuple):
    """One directory entry; ``size`` in bytes, ``mtime_ms`` in ms since the epoch.

    For a broken link these are the link's own.
    """

    name: str
    size: int
    mtime_ms: int
    kind: FileKind

    @property
    def is_dir(self) -> bool:
        return self.kind is FileKind.DIRECTORY

    @property
    def is_file(self) -> bool:
        return self.kind is FileKind.FILE


class Mapping(Protocol):
    """A file mapped for writing, as Kafka maps its indexes (F-140).

    ``buffer`` is writable and as long as the mapping. ``reserve(end)`` must be called before bytes
    below ``end`` are first written: it makes the disk promise the blocks, so that a full disk is
    an ``OSError`` here and not a signal that ends the process.
    """

    @property
    def buffer(self) -> memoryview: ...

    def reserve(self, end: int) -> None: ...

    def close(self) -> None:
        """Release the mapping. The bytes stay in the file, not synced. Idempotent."""
        ...


@runtime_checkable
class File(Protocol):
    """One open file. Safe for many readers beside one writer."""

    path: str

    def size(self) -> int: ...

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""
        ...

    def view(self, position: int, size: int) -> AbstractContextManager[memoryview]:
        """A read-only window, without a copy if possible; shorter only at the end of the file.

        The caller bounds ``size`` (16 MiB windows keep the memory of a scan small). A medium error
        is an ``OSError`` on entry.
        """
        ...

    def write_at(self, position: int, *buffers: Buffer) -> int:
        """Write all buffers one after the other from ``position``; returns the bytes written.

        All bytes or an ``OSError``. The file content after a failed call is unknown.
        """
        ...

    def map(self, size: int) -> Mapping:
        """Extend the file with zeros to ``size`` if it is shorter and map it for writing."""
        ...

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros, to ``size`` bytes."""
        ...

    def sync(self) -> None:
        """Make earlier writes, also mapped ones, and the size durable."""
        ...

    def fileno(self) -> int:
        """The descriptor for ``sendfile`` and native writes; −1 if there is none."""
        ...

    def close(self) -> None:
        """Close the file without a sync. Idempotent."""
        ...


class DirLock(Protocol):
    """A lock file that this process holds."""

    @property
    def held(self) -> bool:
        """Whether the lock is held.

        False once it was released, or lost in a forked child or a simulated power cut.
        """
        ...

    def release(self) -> None: ...


@runtime_checkable
class Storage(Files, Protocol):
    """A file system. Widens ``checkpoints.files.Files``."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file; ``create`` makes it when missing (never truncates one that exists).

        Raises:
            UnusableFileError: what is there is not a regular file, or a link to one. The error
                comes at once: nothing waits for the other end of a FIFO.
        """
        ...

    def scan_dir(self, path: str) -> list[FileInfo]:
        """Entries sorted by name. Entries that vanish during the call are left out."""
        ...

    def info(self, path: str) -> FileInfo | None:
        """The entry of a path; ``None`` if there is none."""
        ...

    def make_dir(self, path: str) -> None:
        """Create a directory with parents. It may exist already."""
        ...

    def free_bytes(self, path: str) -> int:
        """How many bytes the disk of a directory takes yet."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory with its content. A symbolic link is removed as a link."""
        ...

    def set_mtime(self, path: str, mtime_ms: int) -> None: ...

    def lock(self, path: str) -> DirLock:
        """Take the exclusive lock file ``path`` (F-9) or raise ``LogDirLockedError`` at once."""
        ...

    def real_path(self, path: str) -> str:
        """The path without symbolic links and ``..``: equal for equal directories.

        Of ``.`` it is the working directory if relative paths begin there. Then they are made
        absolute when a log is opened.
        """
        ...


@runtime_checkable
class ShowsFiles(Protocol):
    """A ``Storage`` that shows files which lie elsewhere, and do not change."""

    def real_file(self, path: str) -> str:
        """The file on the local disk that has exactly the bytes of a shown one; "" without one."""
        ...

    def max_timestamp(self, path: str) -> int:
        """In ms: no record of a shown segment is later. −1 where that is not known."""
        ...
