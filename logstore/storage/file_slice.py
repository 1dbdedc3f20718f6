"""Bytes that stay in their file until they are sent."""

from __future__ import annotations

import os

_live: set[int] = set()  # ids: adding and discarding are atomic, also in a finaliser


class FileSlice:
    """``size`` bytes at ``position`` of an open file, for ``os.sendfile``.

    It has a descriptor of its own. So a log may close, rename, replace or delete the file and the
    bytes stay as they are; what cuts the file goes by ``LogFile.slice``. Call ``release`` once the
    bytes are sent; a slice that is dropped releases itself. One thread at a time.

    If the file became shorter, ``sendfile`` returns 0 before the end. The size has been
    announced by then, so there is nothing left but to close the connection.
    """

    __slots__ = ("_descriptor", "path", "position", "size")

    def __init__(self, path: str, descriptor: int, position: int, size: int) -> None:
        """``descriptor`` is duplicated.

        Raises:
            OSError: the process has no descriptor left.
        """
        self._descriptor = -1  # for the finaliser, if the next line fails
        self._descriptor = os.dup(descriptor)
        self.path = path
        self.position = position
        self.size = size
        _live.add(id(self))

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileSlice({self.path}, {self.position} + {self.size})"

    def fileno(self) -> int:
        """The descriptor, or −1 after ``release``."""
        return self._descriptor

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Up to ``size`` bytes from ``offset`` of the slice on, to its end by default.

        For connections that cannot send a file. Short only where the file got shorter.

        Raises:
            OSError: the medium refused, or the slice was released.
        """
        rest = max(self.size - offset, 0)
        missing = rest if size is None else min(size, rest)
        parts = []
        while missing:
            data = os.pread(self._descriptor, missing, self.position + offset)
            if not data:
                break
            parts.append(data)
            offset += len(data)
            missing -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Close the descriptor. Idempotent; never waits for a lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _live.discard(id(self))
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()


def live_slices() -> int:
    """Count the slices of this process that are not released yet."""
    return len(_live)
