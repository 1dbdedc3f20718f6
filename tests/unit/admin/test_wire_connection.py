"""A broker that lies, goes away or says nothing must end in an error, soon and in little memory."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from replication.admin import WireConnection, WireError
from replication.protocol import (
    ApiKey,
    VersionRange,
    encode_response,
    parse_request_header,
    response_header,
)
from replication.protocol import messages as wire
from tests.support.cases import for_each
from tests.support.until import patience

Script = Callable[[socket.socket], object]


@contextmanager
def peer(script: Script) -> Iterator[tuple[str, int]]:
    """Serves one connection by ``script``, then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            script(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[:2]
    finally:
        listener.close()
        thread.join(patience())
    assert not thread.is_alive()


def frame(connection: socket.socket) -> memoryview:
    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += connection.recv(size - len(data))
        return data

    (size,) = struct.unpack(">i", exactly(4))
    return memoryview(exactly(size))


def answer(
    connection: socket.socket, message: object, version: int, *, shift: int = 0, api: int = 18
) -> None:
    header = parse_request_header(frame(connection))
    assert header.api_key == api
    body = b"".join(bytes(part) for part in encode_response(message, version))  # type: ignore[arg-type]
    head = response_header(header.api_key, version, header.correlation_id + shift)
    connection.sendall(struct.pack(">i", len(head + body)) + head + body)


VERSIONS = wire.ApiVersionsResponse(
    api_keys=(
        wire.ApiVersionsResponse.ApiVersion(ApiKey.METADATA, 1, 4),
        wire.ApiVersionsResponse.ApiVersion(ApiKey.API_VERSIONS, 0, 3),
    )
)


def test_the_latest_version_of_both_is_spoken() -> None:
    def script(connection: socket.socket) -> None:
        answer(connection, VERSIONS, 3)
        reply = wire.MetadataResponse(controller_id=7)
        answer(connection, reply, 4, api=ApiKey.METADATA)

    with peer(script) as address, WireConnection(*address) as connection:
        assert connection.version(ApiKey.METADATA) == 4
        assert connection.versions[ApiKey.METADATA] == VersionRange(1, 4)
        answered = connection.call(ApiKey.METADATA, wire.MetadataRequest(topics=None))
        assert answered.controller_id == 7
        with pytest.raises(WireError, match="does not serve FETCH"):
            connection.version(ApiKey.FETCH)


def test_an_old_broker_answers_in_version_0() -> None:
    refused = VERSIONS._replace(error_code=35)
    with (
        peer(lambda connection: answer(connection, refused, 0)) as address,
        WireConnection(*address) as connection,
    ):
        assert connection.version(ApiKey.METADATA) == 4


def test_a_broker_before_kafka_2_4_only_refuses_a_version() -> None:
    def script(connection: socket.socket) -> None:
        answer(connection, wire.ApiVersionsResponse(error_code=35), 0)
        answer(connection, VERSIONS, 0)

    with peer(script) as address, WireConnection(*address) as connection:
        assert connection.version(ApiKey.METADATA) == 4


@for_each(
    "script, reason",
    [
        pytest.param(lambda c: frame(c) and None, "closed the connection", id="goes away"),
        pytest.param(lambda c: c.sendall(struct.pack(">i", -1)), "of -1 bytes", id="negative"),
        pytest.param(
            lambda c: c.sendall(struct.pack(">i", 2**31 - 1)), "2147483647 bytes", id="too large"
        ),
        pytest.param(
            lambda c: (frame(c), c.sendall(struct.pack(">i", 1 << 20) + b"x" * 10)),
            "closed the connection",
            id="cut short",
        ),
        pytest.param(
            lambda c: answer(c, VERSIONS, 3, shift=1), "answers request 1, not 0", id="another's"
        ),
        pytest.param(
            lambda c: (frame(c), c.sendall(struct.pack(">ii", 9, 0) + b"\0\0\xff\xff\xff")),
            "ApiVersionsResponse",
            id="a count without elements",
        ),
        pytest.param(lambda c: c.sendall(b"HTTP/1.1 400 Bad"), "bytes", id="HTTP"),
        pytest.param(
            lambda c: c.sendall(b"\x15\x03\x03\0\x02\x02\x46"), "answers in TLS", id="TLS"
        ),
        pytest.param(
            lambda c: answer(c, wire.ApiVersionsResponse(error_code=42), 3), "error 42", id="error"
        ),
    ],
)
def test_what_is_no_answer_is_an_error(script: Script, reason: str) -> None:
    with peer(script) as address, pytest.raises(WireError, match=reason) as caught:
        WireConnection(*address)
    assert f"{address[0]}:{address[1]}" in str(caught.value)


def test_a_silent_broker_is_given_up() -> None:
    done = threading.Event()
    with peer(lambda connection: done.wait(patience()) and None) as address:
        with pytest.raises(WireError, match="timed out"):
            WireConnection(*address, timeout_s=0.05)
        done.set()


def test_a_broker_that_drips_is_given_up() -> None:
    """Each byte comes in time, and the whole never does."""
    done = threading.Event()

    def drip(connection: socket.socket) -> None:
        frame(connection)
        connection.sendall(struct.pack(">i", 1 << 20))
        with suppress(OSError):
            while not done.wait(0.01):
                connection.sendall(b"x")

    with peer(drip) as address:
        with pytest.raises(WireError, match="timed out"):
            WireConnection(*address, timeout_s=0.05)
        done.set()


def test_nobody_there() -> None:
    with socket.socket() as deaf:  # it has the port, and does not listen
        deaf.bind(("127.0.0.1", 0))
        with pytest.raises(WireError, match="refused"):
            WireConnection(*deaf.getsockname())


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_name_that_no_host_can_have(host: str) -> None:
    with pytest.raises(WireError, match=f"{host}:9092: .*label"):
        WireConnection(host, 9092)
