"""Brokers that behave as a script says: what clients meet on the other end of a connection."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from replication.protocol import (
    ApiKey,
    RequestHeader,
    decode_request,
    encode_response,
    parse_request_header,
    response_header,
)
from replication.protocol import messages as wire
from tests.support.until import patience

VERSIONS = wire.ApiVersionsResponse(
    api_keys=tuple(
        wire.ApiVersionsResponse.ApiVersion(key, first, last)
        for key, first, last in (
            (ApiKey.PRODUCE, 3, 9),
            (ApiKey.FETCH, 4, 11),
            (ApiKey.LIST_OFFSETS, 1, 5),
            (ApiKey.METADATA, 1, 9),
            (ApiKey.API_VERSIONS, 0, 3),
        )
    )
)


class Peer:
    """One connection of a client, from the broker's side."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def receive(self) -> tuple[RequestHeader, Any]:
        """
        Raises:
            ConnectionError: the client closed the connection.
        """
        frame = memoryview(self._exactly(*struct.unpack(">i", self._exactly(4))))
        header = parse_request_header(frame)
        body = decode_request(header.api_key, header.api_version, frame[header.body_offset :])
        return header, body

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("closed")
            data += chunk
        return data

    def answer(
        self, header: RequestHeader, message: Any, *, version: int | None = None, shift: int = 0
    ) -> None:
        version = header.api_version if version is None else version
        body = b"".join(bytes(part) for part in encode_response(message, version))  # type: ignore[arg-type]
        head = response_header(header.api_key, version, header.correlation_id + shift)
        self.send(head + body)

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def greet(self) -> None:
        """Answer which versions there are."""
        header, _ = self.receive()
        assert header.api_key is ApiKey.API_VERSIONS
        self.answer(header, VERSIONS)


Script = Callable[[Peer, int], object]
"""Takes a connection and its number, from 0."""


@contextmanager
def scripted(script: Script) -> Iterator[tuple[str, int]]:
    """A listener whose connections go by ``script``, each on a thread, and are closed behind it."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_now: list[socket.socket] = []
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket, number: int) -> None:
        with connection:
            try:
                script(Peer(connection), number)
            except (ConnectionError, OSError):
                pass  # the client went away
            except BaseException as error:
                failures.append(error)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_now.append(connection)
                thread = threading.Thread(
                    target=serve, args=(connection, len(threads)), daemon=True
                )
                threads.append(thread)
                thread.start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[:2]
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in open_now:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in (accepting, *threads):
            thread.join(patience())
    assert not failures, failures
