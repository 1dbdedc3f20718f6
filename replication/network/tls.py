"""A socket of a server that speaks TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from logstore.common.types import Buffer
from logstore.storage.file_slice import FileSlice
from replication.network.framing import FrameError, TlsHandshakeError
from replication.network.requests import PeerCertificate
from replication.network.transport_layer import leading_buffers

_CHUNK_BYTES = 128 << 10  # of one call; TLS cuts it into records of 16 KiB
# Names of an X.500 principal as Java writes them; others by their OpenSSL name.
_SHORT_NAMES = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
}


class TlsTransportLayer:
    """One side of a TLS connection (Kafka's ``SslTransportLayer``).

    Files cannot leave by ``sendfile`` here: they are read and encrypted in chunks.
    """

    __slots__ = ("_on_handshake", "_shaken", "socket", "wants_write")

    def __init__(
        self,
        connected: socket.socket,
        context: ssl.SSLContext,
        on_handshake: Callable[[PeerCertificate], None],
        server_hostname: str | None = None,
    ) -> None:
        """
        Args:
            on_handshake: called once the handshake is over, with what the other side's certificate
                says, if it gave one.
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
        self._on_handshake(_names_in(self.socket.getpeercert()))

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


def _names_in(certificate: Mapping[str, Any] | None) -> PeerCertificate:
    found = certificate or {}
    uris = tuple(name for kind, name in found.get("subjectAltName", ()) if kind == "URI")
    subject = found.get("subject")
    if not subject:
        return PeerCertificate(None, uris)
    parts = [f"{_SHORT_NAMES.get(name, name)}={value}" for rdn in subject for name, value in rdn]
    return PeerCertificate(",".join(reversed(parts)), uris)
