"""Bytes to and from one socket that does not block (Kafka's ``TransportLayer``).

Each operation returns how many bytes it moved, or None where the socket is not ready. An
``OSError`` means that the connection is gone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from logstore.common.types import Buffer
from logstore.storage.file_slice import FileSlice
from replication.network.framing import FrameError
from replication.network.requests import size_of

MAX_TURN_BYTES = 1 << 20  # one reader must not keep its network thread from the others
_COPY_BELOW = 16 << 10  # joining small parts costs less than a list of them
_MAX_PARTS = 512  # of one call; the kernel's bound is 1,024


class TransportLayer(Protocol):
    @property
    def socket(self) -> socket.socket: ...
    @property
    def has_buffered(self) -> bool:
        """Whether bytes have come that epoll does not know of."""
        ...

    @property
    def wants_write(self) -> bool:
        """Whether something must be sent before anything can be received."""
        ...

    def receive_into(self, window: memoryview) -> int | None:
        """Receive bytes. 0: the other side has ended."""
        ...

    def send(self, parts: Sequence[Buffer | FileSlice], head_offset: int) -> int | None:
        """Send from the front of ``parts``, at most about ``MAX_TURN_BYTES``. The first
        ``head_offset`` bytes of the first part are sent already.

        Raises:
            FrameError: a file ends too early; the length is on the wire already.
        """
        ...

    def close(self) -> None: ...


class PlaintextTransportLayer:
    __slots__ = ("socket",)
    has_buffered = False
    wants_write = False

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    def receive_into(self, window: memoryview) -> int | None:
        try:
            return self.socket.recv_into(window)
        except BlockingIOError:
            return None

    def send(self, parts: Sequence[Buffer | FileSlice], head_offset: int) -> int | None:
        try:
            first = parts[0]
            if isinstance(first, FileSlice):
                return self._send_file(first, head_offset)
            if len(parts) == 1 and not head_offset:
                return self.socket.send(first)
            return self._send_buffers(parts, head_offset)
        except BlockingIOError:
            return None

    def _send_file(self, part: FileSlice, offset: int) -> int:
        sent = os.sendfile(
            self.socket.fileno(),
            part.fileno(),
            part.position + offset,
            min(part.size - offset, MAX_TURN_BYTES),
        )
        if not sent:
            raise FrameError("a file of an answer has become shorter")
        return sent

    def _send_buffers(self, parts: Sequence[Buffer | FileSlice], head_offset: int) -> int:
        buffers, size, more = leading_buffers(parts, head_offset)
        flags = socket.MSG_MORE if more else 0  # a file follows: one packet for both
        if len(buffers) == 1:
            return self.socket.send(buffers[0], flags)
        if size <= _COPY_BELOW:
            return self.socket.send(b"".join(buffers), flags)
        return self.socket.sendmsg(buffers, (), flags)

    def close(self) -> None:
        self.socket.close()


def leading_buffers(
    parts: Sequence[Buffer | FileSlice], head_offset: int, enough: int = MAX_TURN_BYTES
) -> tuple[list[Buffer], int, bool]:
    """The buffers before the first file, their size in bytes, and whether more parts follow."""
    buffers: list[Buffer] = []
    size = 0
    for part in islice(parts, _MAX_PARTS):
        if isinstance(part, FileSlice):
            break
        buffers.append(part)
        size += size_of(part)
        if size >= enough + head_offset:
            break
    if head_offset:
        buffers[0] = memoryview(buffers[0]).cast("B")[head_offset:]
        size -= head_offset
    return buffers, size, len(buffers) < len(parts)
