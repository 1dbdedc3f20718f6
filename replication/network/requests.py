"""Values that pass between the network and the handler of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from logstore.common.types import Buffer
from logstore.storage.file_slice import FileSlice
from replication.network.listeners import Listener
from replication.protocol import ApiKey, Gathered, encode_response, error_codes, response_header
from replication.security.sasl import SaslServer

ANONYMOUS = "User:ANONYMOUS"


class PeerCertificate(NamedTuple):
    """What a certificate says of who has it.

    Attributes:
        subject: as Java writes it (RFC 2253): the last part first; None without a certificate.
        uris: alternative names of that kind.
    """

    subject: str | None = None
    uris: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class ConnectionInfo:
    """The other side, as far as it is known. A connection has one request handled at a time, whose
    handler may write here without a lock.

    Attributes:
        id: unique in the process, never used again.
        principal: ``User:name`` once it is authenticated.
        is_logged_in: also where the listener has no login.
        sasl: a login that has begun.
        certificate_uris: in the certificate that the other side gave.
    """

    id: int
    peer_host: str
    peer_port: int
    listener: Listener
    principal: str = ANONYMOUS
    is_logged_in: bool = True
    sasl: SaslServer | None = None
    certificate_uris: tuple[str, ...] = ()


class Send(NamedTuple):
    """An answer of bytes: the response header and the body. The network puts the length in front.

    Attributes:
        buffers: sent in this order; none may change any more. What is not bytes is a ``FileSlice``.
            The network releases it. An empty list sends nothing at all.
        throttle_ms: the answer leaves at once, and then the connection is not read for so long.
        close_after: the connection is closed when the answer has left.
        delay_ms: the answer leaves after so long.
        errors: the codes in it that are not 0, to be counted.
    """

    buffers: Gathered
    throttle_ms: int = 0
    close_after: bool = False
    delay_ms: int = 0
    errors: Sequence[int] = ()


class ReceivedRequest(NamedTuple):
    """A whole request, its header parsed.

    Attributes:
        body: what follows the header. It never changes. A handler that answers later should keep
            no part of it: the bytes of a large request count against
            ``queued.max.request.bytes`` only until the handler returns.
        received_ns: monotonic ns when the last byte was there.
    """

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str
    body: memoryview
    connection: ConnectionInfo
    received_ns: int

    def answered(self, message: Any, *, close_after: bool = False, delay_ms: int = 0) -> Send:
        """The answer that a message of the protocol makes."""
        header = response_header(self.api_key, self.api_version, self.correlation_id)
        body = encode_response(message, self.api_version)
        return Send([header, *body], 0, close_after, delay_ms, error_codes(message))


class Quiet(Enum):
    """Answers without bytes."""

    NO_RESPONSE = "no response"  # to Produce with acks=0
    CLOSE = "close"  # nothing is sent, and the connection is closed


NO_RESPONSE = Quiet.NO_RESPONSE
CLOSE = Quiet.CLOSE

Answer = Send | Quiet
Respond = Callable[[Answer], None]
RequestHandler = Callable[[ReceivedRequest, Respond], None]
FastPath = Callable[
    [memoryview, int, int, ConnectionInfo], bytes | Callable[[Respond], None] | None
]
"""A shorter way for one API, on the network thread. Takes a whole frame with its length, the
version, the correlation id and the connection; keeps no view of the frame. Returns the frame of an
answer without errors; or what answers otherwise, now or later; or None if it has done nothing, as
the request is for the handler."""


def size_of(part: Buffer | FileSlice) -> int:
    """Bytes of one part of an answer."""
    return part.nbytes if isinstance(part, memoryview) else len(part)


def release_files(parts: Iterable[Buffer | FileSlice]) -> None:
    """Release the files of an answer that will not be sent any more."""
    for part in parts:
        if isinstance(part, FileSlice):
            part.release()
