"""Errors between bytes and messages."""

from __future__ import annotations

from logstore.common.errors import LogstoreError


class ProtocolError(LogstoreError):
    """Base of the errors of this room."""


class MalformedMessageError(ProtocolError):
    """Bytes of a peer that are not ``message`` in ``version``; ``offset`` counts from the body's
    start. A server closes the connection (W-7)."""

    def __init__(self, message: str, version: int, offset: int, reason: str) -> None:
        super().__init__(message, version, offset, reason)
        self.message, self.version, self.offset, self.reason = message, version, offset, reason

    def _text(self) -> str:
        return f"{self.message} v{self.version} at byte {self.offset}: {self.reason}"


class UnsupportedVersionError(ProtocolError):
    """The schema has no such version of the message."""

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message, version)
        self.message, self.version = message, version

    def _text(self) -> str:
        return f"{self.message} has no version {self.version}"


class UnencodableMessageError(ProtocolError):
    """A message of ours that ``version`` cannot carry: a null, a number or a text out of bounds,
    or a field that may not be lost and that the version does not have."""

    def __init__(self, message: str, version: int, reason: str) -> None:
        super().__init__(message, version, reason)
        self.message, self.version, self.reason = message, version, reason

    def _text(self) -> str:
        return f"{self.message} v{self.version} cannot be written: {self.reason}"
