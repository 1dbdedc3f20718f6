"""What a segment's file was when a split of it was planned, and whether a file is still that.

A rolled segment never changes: the same file, size and time of change. The last one grows: the
same file, and the same headers of batches at some of its bytes, the last batch among them. An inode
may have a second life, so a file is never known by its number alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from logstore.storage.base import File, Storage
from logstore.storage.identity import FileIdentity, identity_of

HEADER = 61
"""Bytes of a batch's header: offsets, leader epoch, checksum of the rest, producer."""


@dataclass(frozen=True, slots=True)
class FileProof:
    """``headers`` lists bytes of the file with what stood there; ``may_grow``: the last segment."""

    file: FileIdentity
    may_grow: bool
    headers: tuple[tuple[int, bytes], ...] = ()

    def is_of(self, file: File, storage: Storage) -> bool:
        """Whether ``file`` is that file, whatever has become of it."""
        return identity_of(file, storage).same_file(self.file)

    def broken(self, file: File, storage: Storage) -> str:
        """Why ``file`` is not what it was; "" where it is.

        Raises:
            OSError: the medium refused.
        """
        now = identity_of(file, storage)
        if not now.same_file(self.file):
            return "the segment was replaced meanwhile"
        if now.size < self.file.size:
            return f"the segment was cut from {self.file.size} to {now.size} bytes meanwhile"
        if not self.may_grow and (now.size, now.mtime_ms) != (self.file.size, self.file.mtime_ms):
            return "the segment was written to meanwhile, though another one follows it"
        for position, header in self.headers:
            if file.read_at(position, len(header)) != header:
                return f"the batch at byte {position} was replaced by another one meanwhile"
        return ""


def prove(file: File, storage: Storage, positions: tuple[int, ...], may_grow: bool) -> FileProof:
    """
    Raises:
        OSError: the medium refused.
    """
    headers = tuple((at, file.read_at(at, HEADER)) for at in positions)
    return FileProof(identity_of(file, storage), may_grow, headers)


__all__ = ["HEADER", "FileProof", "prove"]
