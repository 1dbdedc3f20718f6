"""A broker that lies, goes away or says nothing must end in an error, soon and in little memory.

What is no answer is in tests/unit/wire: the connections are the same.
"""

from __future__ import annotations

import struct
import threading
from contextlib import suppress

import pytest

from replication.admin import AdminClient, WireConnection, WireError
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey, VersionRange
from replication.protocol import messages as wire
from replication.security.config import ClientConfig
from tests.support.leftovers import nothing_left
from tests.support.peers import VERSIONS, Peer, scripted


def admin_of(address: tuple[str, int], timeout_ms: int = 30_000) -> AdminClient:
    servers = (f"{address[0]}:{address[1]}",)
    return AdminClient(ClientConfig(bootstrap_servers=servers, request_timeout_ms=timeout_ms))


def greet(peer: Peer) -> None:
    """Of the connection, and of who asks over it."""
    peer.greet()
    peer.answer(peer.receive()[0], VERSIONS)


def test_the_latest_version_of_both_is_spoken() -> None:
    def script(peer: Peer, number: int) -> None:
        greet(peer)
        header, _ = peer.receive()
        assert header.api_version == 9
        peer.answer(header, wire.MetadataResponse(controller_id=7))

    def ask(connection: WireConnection) -> None:
        assert connection.version(ApiKey.METADATA) == 9
        assert connection.version(ApiKey.METADATA, 4) == 4
        assert connection.versions[ApiKey.METADATA] == VersionRange(1, 9)
        with pytest.raises(WireError, match="CREATE_TOPICS is spoken") as caught:
            connection.version(ApiKey.CREATE_TOPICS)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION

    with scripted(script) as address, nothing_left(), admin_of(address) as client:
        client.ask_anyone(ask)
        assert client.metadata().controller_id == 7


def test_whether_it_was_asked(caplog: pytest.LogCaptureFixture) -> None:
    """It goes away after a request, and then before one."""
    codes = []

    def script(peer: Peer, number: int) -> None:
        if number == 0:
            greet(peer)
            peer.answer(peer.receive()[0], wire.MetadataResponse())
            peer.receive()

    def ask(connection: WireConnection) -> None:
        connection.call(ApiKey.METADATA, wire.MetadataRequest(topics=None))
        for _ in range(2):
            with pytest.raises(WireError, match="closed the connection") as caught:
                connection.call(ApiKey.METADATA, wire.MetadataRequest(topics=None))
            codes.append(caught.value.code)

    with scripted(script) as address, admin_of(address) as client:
        client.ask_anyone(ask)
    assert codes == [ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE]
    assert not caplog.records


def test_a_broker_that_drips_is_given_up() -> None:
    """Each byte comes in time, and the whole never does."""
    done = threading.Event()

    def drip(peer: Peer, number: int) -> None:
        peer.receive()
        peer.socket.sendall(struct.pack(">i", 1 << 20))
        with suppress(OSError):
            while not done.wait(0.01):
                peer.socket.sendall(b"x")

    with scripted(drip) as address, admin_of(address, 50) as client:
        with pytest.raises(WireError, match="in time"):
            client.metadata()
        done.set()
