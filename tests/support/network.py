"""Raw frames over real sockets, for tests of the network."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from replication.network import Listener, NetworkConfig, NetworkServer, RequestHandler
from replication.network.framing import FrameError
from replication.protocol import RequestHeader
from tests.support.until import patience


def parse_header(frame: memoryview) -> RequestHeader:
    """Of version 1, whatever the API."""
    if len(frame) < 10:
        raise FrameError("no header")
    key, version, correlation_id, size = struct.unpack_from(">hhih", frame)
    size = max(size, 0)
    client_id = bytes(frame[10 : 10 + size]).decode()
    return RequestHeader(key, version, correlation_id, client_id, 10 + size)


def frame_of(body: bytes, key: int = 3, version: int = 1, correlation_id: int = 7) -> bytes:
    header = struct.pack(">hhih", key, version, correlation_id, 2) + b"me"
    return struct.pack(">i", len(header) + len(body)) + header + body


@contextmanager
def serving(
    handler: RequestHandler, config: NetworkConfig | None = None, **options: Any
) -> Iterator[NetworkServer]:
    """A server, of one plain listener by default; APIs below 100 are served, 0 to 9 on the network
    thread."""
    options.setdefault("is_quick", lambda request: request.api_key < 10)
    fast_paths = options.pop("fast_paths", None)
    server = NetworkServer(
        options.pop("listeners", [Listener()]),
        handler,
        config,
        parse_header=parse_header,
        serves=lambda key, version, listener: 0 <= key < 100,
        **options,
    )
    server.start(fast_paths)
    try:
        yield server
    finally:
        server.close()


class RawClient:
    """A socket that speaks frames."""

    def __init__(self, server: NetworkServer, name: str = "PLAINTEXT", **options: Any) -> None:
        self.socket = socket.create_connection(server.bound_addresses[name], patience(), **options)

    def send(self, body: bytes, **header: int) -> None:
        self.socket.sendall(frame_of(body, **header))

    def receive(self) -> bytes:
        """The next answer, without its length.

        Raises:
            EOFError: the other side closed the connection.
        """
        return self.read(struct.unpack(">i", self.read(4))[0])

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionError:
                piece = b""
            if not piece:
                raise EOFError(f"after {len(data)} of {size} bytes")
            data += piece
        return bytes(data)

    def is_closed(self) -> bool:
        """Wait until the other side closes; False if it sends something instead."""
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def connection_count(server: NetworkServer) -> int:
    return server._quotas.total


def wake(server: NetworkServer) -> None:
    """Let all threads look at the clock again, which was moved by hand."""
    server._acceptor.wake()
    for processor in server._processors:
        processor._post(lambda: None)
