"""A client that speaks single messages of Kafka's protocol over a socket, in any version."""

from __future__ import annotations

import itertools
import socket
import struct
from typing import Any, Self

from replication.protocol import (
    ApiKey,
    decode_response,
    encode_request,
    parse_response_header,
    request_header,
)
from tests.support.until import patience

LENGTH = struct.Struct(">i")


class WireClient:
    """One connection. Requests are answered in order, so each is asked and answered at once."""

    def __init__(self, host: str, port: int, client_id: str | None = "test") -> None:
        self._socket = socket.create_connection((host, port), patience())
        self._numbers = itertools.count(1)
        self._client_id = client_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        """The response message.

        Raises:
            ConnectionError: the server closed the connection.
        """
        self.send(key, version, request)
        return self.receive(key, version)

    def send(self, key: ApiKey, version: int, request: Any) -> int:
        """The correlation id."""
        number = next(self._numbers)
        header = request_header(key, version, number, self._client_id)
        self.send_frame(header + bytes(encode_request(request, version)))
        return number

    def receive(self, key: ApiKey, version: int) -> Any:
        frame = memoryview(self.receive_frame())
        _, position = parse_response_header(frame, key, version)
        return decode_response(key, version, frame[position:])

    def send_frame(self, frame: bytes) -> None:
        self._socket.sendall(LENGTH.pack(len(frame)) + frame)

    def receive_frame(self) -> bytes:
        """
        Raises:
            ConnectionError: the server closed the connection.
        """
        (size,) = LENGTH.unpack(self._receive(LENGTH.size))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                raise ConnectionError("closed by the server")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def is_closed(self) -> bool:
        """Whether the server closes the connection without another byte."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True
