"""One connection: frames in, answers and events out, each bounded."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

from checkpoints.loggers import get_logger
from replication.common.limited_log import LimitedLogger
from replication.coordination.served import jute
from replication.coordination.served.operations import KeeperEvent

limited = LimitedLogger(get_logger(__name__))

MAX_FRAME_BYTES = 0xFFFFF  # ZooKeeper's jute.maxbuffer
FIRST_FRAME_BYTES = 1024  # the request for a session; of whom nothing is known yet
LENGTH_BYTES = 4
WAITING_BYTES = 1 << 20  # with more of answers under way, requests stay in the socket
UNREAD_BYTES = 8 << 20  # of events for one who does not read: it is closed
WAITING_COST = 100  # of an answer under way, beside its bytes
TURN = 100  # requests of one connection before the others have their turn

_EVENT_HEADER = jute.write(("i", "l", "i"), (-1, -1, 0))
_CONNECTED = 3  # the state in an event


class FrameHandler(Protocol):
    """The server, as a connection sees it."""

    def opened(self, connection: TreeConnection) -> None: ...
    def closed(self, connection: TreeConnection) -> None: ...
    def received(self, connection: TreeConnection, frame: bytes) -> None: ...
    def send(self, connection: TreeConnection, payload: bytes | None) -> None: ...
    def answer_word(self, word: str) -> bytes: ...


class TreeConnection(asyncio.Protocol):
    """See the module. Only the loop's thread uses it.

    Attributes:
        session_id: 0 until the first frame has asked for a session.
        begun_ms: when it was accepted, on the monotonic clock.
        is_closing: no more requests are taken from it.
    """

    def __init__(self, server: FrameHandler, now_ms: int) -> None:
        self.session_id = 0
        self.begun_ms = now_ms
        self.is_closing = False
        self.peer = "?"
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting_bytes = 0  # of answers that the disk or the socket has not let go
        self._is_turn_due = False

    # --- of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WAITING_BYTES)
        # An event and the answer behind it are two writes. The loop itself sets it only if the
        # listener names its protocol.
        plain = self._transport.get_extra_info("socket")
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = self._transport.get_extra_info("peername")
        self.peer = str(name[0]) if name else "?"
        self._server.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closing = True
        self._received.clear()
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        if not self.is_closing:
            self._received += data
            self.work()

    def resume_writing(self) -> None:
        self.work()

    # --- bytes in

    def work(self) -> None:
        """Take requests while there is room for their answers."""
        for _ in range(TURN):
            frame = self._next_frame() if self._has_room() else None
            if frame is None:
                break
            self._server.received(self, frame)
        else:
            if not self._is_turn_due:
                self._is_turn_due = True
                asyncio.get_running_loop().call_soon(self._next_turn)
        if self.is_closing or self._transport is None:
            return
        if self._is_turn_due or not self._has_room():
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _next_turn(self) -> None:
        self._is_turn_due = False
        self.work()

    def _has_room(self) -> bool:
        return not self.is_closing and self._unread() <= WAITING_BYTES

    def _unread(self) -> int:
        assert self._transport is not None
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    def _next_frame(self) -> bytes | None:
        received = self._received
        if len(received) < LENGTH_BYTES:
            return None
        if not self.session_id and received[:LENGTH_BYTES].isalpha():
            word = bytes(received[:LENGTH_BYTES]).decode("ascii", "replace")
            self.write(self._server.answer_word(word))
            self.finish()
            return None
        size = int.from_bytes(received[:LENGTH_BYTES], signed=True)
        if not 0 <= size <= (FIRST_FRAME_BYTES if not self.session_id else MAX_FRAME_BYTES):
            self.refuse(f"a frame of {size} bytes")
            return None
        end = LENGTH_BYTES + size
        if len(received) < end:
            return None
        frame = bytes(received[LENGTH_BYTES:end])
        del received[:end]
        return frame

    # --- bytes out

    def send_event(self, event: KeeperEvent, path: str) -> None:
        body = jute.write(("i", "i", "s"), (event, _CONNECTED, path))
        self._server.send(self, _EVENT_HEADER + body)
        if self._unread() > UNREAD_BYTES:
            self.refuse("it does not read its events")

    def wait(self, payload: bytes) -> None:
        """An answer waits for the disk."""
        self._waiting_bytes += len(payload) + WAITING_COST

    def waited(self, payload: bytes) -> None:
        self._waiting_bytes -= len(payload) + WAITING_COST

    def write_frame(self, payload: bytes) -> None:
        self.write(len(payload).to_bytes(LENGTH_BYTES) + payload)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # --- the end

    def refuse(self, reason: str) -> None:
        """Close it at once. The session goes on elsewhere, or ends by its timeout."""
        limited.warning("a connection from %s was closed: %s", self.peer, reason, about=self.peer)
        self.abort()

    def abort(self) -> None:
        self.is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Close it after what was written to it."""
        self.is_closing = True
        if self._transport is not None:
            self._transport.close()
