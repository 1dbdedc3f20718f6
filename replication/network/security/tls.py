"""TLS: a server's context from Kafka's keys, and a socket that speaks it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from logstore.common.errors import ConfigError
from logstore.common.types import Buffer
from logstore.storage.file_slice import FileSlice
from replication.network.config import NetworkConfig
from replication.network.errors import FrameError, TlsHandshakeError
from replication.network.transport_layer import leading_buffers

_T = TypeVar("_T")

_CHUNK_BYTES = 128 << 10  # of one call; TLS cuts it into records of 16 KiB
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
# Names of an X.500 principal as Java writes them; others by their OpenSSL name.
_SHORT_NAMES = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
}


def server_context(config: NetworkConfig) -> ssl.SSLContext:
    """What listeners with TLS use.

    Raises:
        ConfigError: no key or certificate, a file that cannot be read, an unknown value.
    """
    if config.ssl_keystore_type != "PEM" or config.ssl_truststore_type != "PEM":
        raise ConfigError("ssl.keystore.type and ssl.truststore.type must be PEM")
    if not config.ssl_keystore_location:
        raise ConfigError("a listener with TLS takes ssl.keystore.location")
    versions = [
        _known(_VERSIONS, name, "ssl.enabled.protocols") for name in config.ssl_enabled_protocols
    ]
    if not versions:
        raise ConfigError("ssl.enabled.protocols is empty")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        context.verify_mode = _known(_CLIENT_AUTH, config.ssl_client_auth, "ssl.client.auth")
        context.load_cert_chain(
            config.ssl_keystore_location, password=config.ssl_key_password or None
        )
        if config.ssl_truststore_location:
            context.load_verify_locations(config.ssl_truststore_location)
        elif context.verify_mode != ssl.CERT_NONE:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        if config.ssl_cipher_suites:
            context.set_ciphers(":".join(config.ssl_cipher_suites))
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigError(f"TLS cannot be set up: {error}") from error
    return context


def _known(table: Mapping[str, _T], name: str, key: str) -> _T:
    if name not in table:
        raise ConfigError(f"{key} = {name!r} is not one of {', '.join(table)}")
    return table[name]


class TlsTransportLayer:
    """One side of a TLS connection (Kafka's ``SslTransportLayer``).

    Files cannot leave by ``sendfile`` here: they are read and encrypted in chunks.
    """

    __slots__ = ("_on_handshake", "_shaken", "socket", "wants_write")

    def __init__(
        self,
        connected: socket.socket,
        context: ssl.SSLContext,
        on_handshake: Callable[[str | None], None],
        server_hostname: str | None = None,
    ) -> None:
        """
        Args:
            on_handshake: called once the handshake is over, with the name in the other side's
                certificate if it gave one.
            server_hostname: of the server, on the client's side; the first ``receive_into`` begins
                the handshake.
        """
        self.socket: ssl.SSLSocket = context.wrap_socket(
            connected,
            server_side=server_hostname is None,
            do_handshake_on_connect=False,
            server_hostname=server_hostname,
        )
        self.wants_write = False
        self._shaken = False
        self._on_handshake = on_handshake

    @property
    def has_buffered(self) -> bool:
        return self._shaken and self.socket.pending() > 0

    def receive_into(self, window: memoryview) -> int | None:
        self.wants_write = False
        try:
            if not self._shaken:
                self._shake()
            return self.socket.recv_into(window)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return None

    def _shake(self) -> None:
        try:
            self.socket.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as error:
            raise TlsHandshakeError(f"TLS handshake: {error}") from error
        self._shaken = True
        self._on_handshake(_name_in(self.socket.getpeercert()))

    def send(self, parts: Sequence[Buffer | FileSlice], head_offset: int) -> int | None:
        first = parts[0]
        if isinstance(first, FileSlice):
            chunk: Buffer = first.read(head_offset, _CHUNK_BYTES)
            if not chunk:
                raise FrameError("a file of an answer has become shorter")
        else:
            # OpenSSL wants the same bytes when a write is tried again; they depend on the
            # arguments alone.
            buffers, _, _ = leading_buffers(parts, head_offset, _CHUNK_BYTES)
            chunk = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        try:
            return self.socket.send(memoryview(chunk)[:_CHUNK_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    def close(self) -> None:
        with suppress(OSError, ValueError):
            if self._shaken:
                self.socket.unwrap()  # sends close_notify, and does not wait for the other side's
        self.socket.close()


def _name_in(certificate: Mapping[str, Any] | None) -> str | None:
    """The subject as Java writes it (RFC 2253): the last part first."""
    subject = (certificate or {}).get("subject")
    if not subject:
        return None
    parts = [f"{_SHORT_NAMES.get(name, name)}={value}" for rdn in subject for name, value in rdn]
    return ",".join(reversed(parts))
