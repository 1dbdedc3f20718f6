"""Errors of the network. Each closes the connection."""

from __future__ import annotations

from checkpoints.printable import printable
from logstore.common.errors import LogstoreError


class NetworkError(LogstoreError):
    """Base; ``reason`` says what the other side did."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def _text(self) -> str:
        return printable(self.reason)


class FrameError(NetworkError):
    """The bytes are not a frame of the protocol, or one that is too large."""


class RequestRefusedError(NetworkError):
    """A request that this listener does not serve now."""


class TlsHandshakeError(NetworkError):
    """The other side speaks no TLS, or none that is allowed here."""
