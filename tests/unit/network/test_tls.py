"""TLS over a socket, with certificates made here."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from logstore.common.errors import ConfigError
from logstore.storage.file_slice import FileSlice, live_slices
from replication.network import (
    Listener,
    NetworkConfig,
    NetworkServer,
    ReceivedRequest,
    RequestHandler,
    Respond,
    SecurityProtocol,
    Send,
)
from tests.support.certificates import make_certificates, needs_openssl
from tests.support.network import RawClient, connection_count, frame_of, parse_header
from tests.support.until import until

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def echo(request: ReceivedRequest, respond: Respond) -> None:
    respond(Send([struct.pack(">i", request.correlation_id), request.body]))


def whoami(request: ReceivedRequest, respond: Respond) -> None:
    respond(Send([request.connection.principal.encode()]))


@contextmanager
def serving(
    certificates: Path, handler: RequestHandler = echo, **keys: object
) -> Iterator[NetworkServer]:
    config = NetworkConfig(
        ssl_keystore_location=str(certificates / "server.pem"),
        ssl_truststore_location=str(certificates / "ca.pem"),
        **keys,  # type: ignore[arg-type]
    )
    with NetworkServer(
        [Listener("SSL", "127.0.0.1", 0, SecurityProtocol.SSL)],
        handler,
        config,
        parse_header=parse_header,
        serves=lambda key, version, listener: True,
        is_quick=lambda request: request.api_key < 10,
    ) as server:
        yield server


class TlsClient(RawClient):
    def __init__(self, server: NetworkServer, certificates: Path, own: bool = False) -> None:
        super().__init__(server, "SSL")
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        if own:
            context.load_cert_chain(certificates / "client.pem")
        plain = self.socket
        try:
            self.socket = context.wrap_socket(plain, server_hostname="localhost")
        except BaseException:
            plain.close()
            raise

    def ask(self, body: bytes) -> bytes:
        self.send(body)
        return self.socket.recv(1)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_requests_and_answers(certificates: Path, version: str) -> None:
    body = os.urandom(1 << 20) * 3
    with (
        serving(certificates, ssl_enabled_protocols=(version,)) as server,
        TlsClient(server, certificates) as client,
    ):
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.version() == version
        for key in (0, 20):
            client.send(body, key=key)
            assert client.receive()[4:] == body
        client.socket.sendall(b"".join(frame_of(b"x" * n, n % 2 * 20, 0, n) for n in range(200)))
        for n in range(200):
            assert client.receive() == struct.pack(">i", n) + b"x" * n


def test_what_follows_a_large_request_in_one_record(certificates: Path) -> None:
    """OpenSSL has it then, and epoll does not tell of it."""
    body = os.urandom(100_000)
    with serving(certificates) as server, TlsClient(server, certificates) as client:
        client.socket.sendall(frame_of(body) + frame_of(b"after") + frame_of(b"that"))
        assert [client.receive()[4:] for _ in range(3)] == [body, b"after", b"that"]


def test_files_are_read_and_encrypted(certificates: Path, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 3
    (tmp_path / "segment").write_bytes(data)

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        with (tmp_path / "segment").open("rb") as file:
            part = FileSlice("segment", file.fileno(), 5, len(data) - 6)
        respond(Send([b"head", part, b"tail"]))

    before = live_slices()
    with serving(certificates, handler) as server, TlsClient(server, certificates) as client:
        client.send(b"")
        assert client.receive() == b"head" + data[5:-1] + b"tail"
        until(lambda: live_slices() == before)


def test_a_file_that_became_shorter_closes_the_connection(
    certificates: Path, tmp_path: Path
) -> None:
    (tmp_path / "segment").write_bytes(bytes(1000))

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        with (tmp_path / "segment").open("rb") as file:
            respond(Send([FileSlice("segment", file.fileno(), 0, 1001)]))

    before = live_slices()
    with serving(certificates, handler) as server, TlsClient(server, certificates) as client:
        client.send(b"")
        with pytest.raises(EOFError):
            client.receive()
        until(lambda: live_slices() == before)


def test_the_name_in_a_client_certificate(certificates: Path) -> None:
    with serving(certificates, whoami, ssl_client_auth="requested") as server:
        with TlsClient(server, certificates, own=True) as client:
            client.send(b"")
            assert client.receive() == b"User:CN=me,OU=tests,O=logstore"
        with TlsClient(server, certificates) as client:
            client.send(b"")
            assert client.receive() == b"User:ANONYMOUS"


def test_the_uris_in_a_client_certificate(certificates: Path) -> None:
    def uris(request: ReceivedRequest, respond: Respond) -> None:
        respond(Send([" ".join(request.connection.certificate_uris).encode()]))

    with serving(certificates, uris, ssl_client_auth="requested") as server:
        with TlsClient(server, certificates, own=True) as client:
            client.send(b"")
            assert client.receive() == b"kafka:broker:1 a:b"
        with TlsClient(server, certificates) as client:
            client.send(b"")
            assert client.receive() == b""


def test_a_client_without_the_required_certificate(certificates: Path) -> None:
    with serving(certificates, ssl_client_auth="required") as server:
        # TLS 1.3 tells it after the handshake.
        with TlsClient(server, certificates) as client, pytest.raises(OSError):
            client.ask(b"")
        with TlsClient(server, certificates, own=True) as client:
            client.send(b"x")
            assert client.receive()[4:] == b"x"


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", frame_of(b"plain"), bytes(1000)])
def test_what_is_no_tls_is_closed(certificates: Path, data: bytes) -> None:
    with serving(certificates) as server:
        with RawClient(server, "SSL") as client:
            client.socket.sendall(data)
            with suppress(ConnectionError):
                while client.socket.recv(100):  # an alert may come first
                    pass
        with TlsClient(server, certificates) as client:
            client.send(b"x")
            assert client.receive()[4:] == b"x"
        until(lambda: connection_count(server) == 0)


def test_a_peer_that_is_gone_before_it_is_accepted(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no news, whatever it sent: anybody could fill the log with it."""
    keys = NetworkConfig(ssl_keystore_location=str(certificates / "server.pem"))
    listener = Listener("SSL", "127.0.0.1", 0, SecurityProtocol.SSL)
    server = NetworkServer(
        [listener],
        echo,
        keys,
        parse_header=parse_header,
        serves=lambda key, version, listener: True,
    )
    peer = RawClient(server, "SSL")
    peer.socket.sendall(b"\x16\x03\x01")
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()  # a reset
    with server:  # accepts from here on
        with TlsClient(server, certificates) as client:
            client.send(b"x")
            assert client.receive()[4:] == b"x"
        until(lambda: connection_count(server) == 0)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ssl_keystore_location": "/nowhere.pem"}, "TLS cannot be set up"),
        ({"ssl_keystore_type": "JKS"}, "PEM"),
        ({"ssl_client_auth": "maybe"}, "ssl.client.auth"),
        ({"ssl_enabled_protocols": ("TLSv1.1",)}, "ssl.enabled.protocols"),
        ({"ssl_enabled_protocols": ()}, "ssl.enabled.protocols"),
        ({"ssl_cipher_suites": ("NONE-SUCH",)}, "TLS cannot be set up"),
    ],
)
def test_a_wrong_setting(certificates: Path, change: dict[str, object], words: str) -> None:
    keys = {"ssl_keystore_location": str(certificates / "server.pem"), **change}
    listener = Listener("SSL", "127.0.0.1", 0, SecurityProtocol.SSL)
    with pytest.raises(ConfigError, match=words):
        NetworkServer([listener], echo, NetworkConfig(**keys))  # type: ignore[arg-type]
