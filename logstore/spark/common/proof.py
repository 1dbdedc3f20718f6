"""The identity of a segment's file when a split was planned, to check it again when it is read.

A rolled segment never changes, so file, size and time of change must be the same. The last segment
grows, so the file and some batch headers, the last one among them, must be the same. An inode
number may be reused, so it alone does not identify a file.
"""

from __future__ import annotations

from dataclasses import dataclass

from logstore.storage.base import File, Storage
from logstore.storage.identity import FileIdentity, identity_of

HEADER = 61
"""The size of a batch header: offsets, leader epoch, checksum of the rest, producer."""


@dataclass(frozen=True, slots=True)
class FileProof:
    """``headers`` lists positions in the file with the bytes there.

    ``may_grow``: the last segment.
    """

    file: FileIdentity
    may_grow: bool
    headers: tuple[tuple[int, bytes], ...] = ()

    def is_of(self, file: File, storage: Storage) -> bool:
        """Whether ``file`` is the same file, even if its content has changed."""
        return identity_of(file, storage).same_file(self.file)

    def broken(self, file: File, storage: Storage) -> str:
        """Why ``file`` is no longer what it was; "" if it still is.

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
