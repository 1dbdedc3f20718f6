"""A broker that lies, goes away or says nothing must end in an error, soon and in little memory.

What is no answer is in tests/unit/wire: the state machine is the same.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

import pytest

from replication.admin import WireConnection, WireError
from replication.protocol import ApiKey, VersionRange
from replication.protocol import messages as wire
from tests.support.cases import for_each
from tests.support.peers import Peer, Script, scripted
from tests.support.until import patience


def test_the_latest_version_of_both_is_spoken() -> None:
    def script(peer: Peer, number: int) -> None:
        peer.greet()
        header, _ = peer.receive()
        assert header.api_version == 9
        peer.answer(header, wire.MetadataResponse(controller_id=7))

    with scripted(script) as address, WireConnection(*address) as connection:
        assert connection.version(ApiKey.METADATA) == 9
        assert connection.version(ApiKey.METADATA, 4) == 4
        assert connection.versions[ApiKey.METADATA] == VersionRange(1, 9)
        answered = connection.call(ApiKey.METADATA, wire.MetadataRequest(topics=None))
        assert answered.controller_id == 7
        with pytest.raises(WireError, match="CREATE_TOPICS is spoken"):
            connection.version(ApiKey.CREATE_TOPICS)


@for_each(
    "script, reason",
    [
        pytest.param(lambda p, _: p.receive() and None, "closed the connection", id="goes away"),
        pytest.param(
            lambda p, _: p.socket.sendall(struct.pack(">i", 2**31 - 1)),
            "2147483647 bytes",
            id="too large",
        ),
        pytest.param(
            lambda p, _: (p.receive(), p.socket.sendall(struct.pack(">i", 1 << 20) + b"x" * 10)),
            "closed the connection",
            id="cut short",
        ),
        pytest.param(lambda p, _: p.socket.sendall(b"\x15\x03\x03\0\x02"), "in TLS", id="TLS"),
    ],
)
def test_what_is_no_answer_is_an_error(script: Script, reason: str) -> None:
    with scripted(script) as address, pytest.raises(WireError, match=reason) as caught:
        WireConnection(*address)
    assert f"{address[0]}:{address[1]}" in str(caught.value)


def test_a_silent_broker_is_given_up() -> None:
    done = threading.Event()
    with scripted(lambda peer, _: done.wait(patience())) as address:
        with pytest.raises(WireError, match="timed out"):
            WireConnection(*address, timeout_s=0.05)
        done.set()


def test_a_broker_that_drips_is_given_up() -> None:
    """Each byte comes in time, and the whole never does."""
    done = threading.Event()

    def drip(peer: Peer, number: int) -> None:
        peer.receive()
        peer.socket.sendall(struct.pack(">i", 1 << 20))
        with suppress(OSError):
            while not done.wait(0.01):
                peer.socket.sendall(b"x")

    with scripted(drip) as address:
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
