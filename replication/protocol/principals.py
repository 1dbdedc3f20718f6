"""Who asked, as brokers tell each other: Kafka's ``DefaultPrincipalData``, its version in front."""

from __future__ import annotations

import struct

from replication.protocol.codecs import decoder
from replication.protocol.errors import MalformedMessageError

_NAME, _VERSION = "DefaultPrincipalData", struct.Struct(">h")


def decode_principal(data: bytes) -> str:
    """
    Raises:
        MalformedMessageError: it is none.
        UnsupportedVersionError: of a later Kafka.
    """
    if len(data) < _VERSION.size:
        raise MalformedMessageError(_NAME, -1, 0, "cut short")
    (version,) = _VERSION.unpack_from(data)
    found = decoder(_NAME, version)(memoryview(data), _VERSION.size)
    return f"{found.type}:{found.name}"
