"""The narrow seam under the checkpoint files, and its real implementation."""

from __future__ import annotations

import os
import sys
from typing import Protocol


class Files(Protocol):
    """What a checkpoint asks of a disk. All calls raise ``OSError``."""

    def read_file(self, path: str, limit: int = -1) -> bytes:
        """The whole file, or its first ``limit`` bytes; ``FileNotFoundError`` when missing."""
        ...

    def write_file(self, path: str, data: bytes) -> None:
        """Create or empty the file, write ``data`` and fsync it."""
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


_SMALL = 4096


class OsFiles:
    """``Files`` on the operating system's file system."""

    def read_file(self, path: str, limit: int = -1) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            limit = sys.maxsize if limit < 0 else limit
            data, room = b"", _SMALL  # most files are a few bytes; no room is made for the limit
            while missing := limit - len(data):
                part = os.read(descriptor, min(missing, room))
                if not part:
                    break
                data = data + part if data else part
                more = os.fstat(descriptor).st_size - len(data) if len(part) == room else 0
                room = max(more + 1, _SMALL)
            return data
        except IsADirectoryError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)

    def write_file(self, path: str, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
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

    The directory is synced even when the rename fails, as Kafka does: an earlier rename in it may
    still be on its way to the disk.
    """
    temporary = path + ".tmp"
    files.write_file(temporary, data)
    try:
        files.rename(temporary, path)
    finally:
        files.sync_dir(os.path.dirname(path) or ".")
