"""Kafka's wire protocol: messages, their bytes in each version, headers and versions served.

``from replication.protocol import messages as wire`` gives the messages' classes. Everything here
is a function of its arguments: no socket, no clock. docs/protocol.md says how it is built.
"""

from __future__ import annotations

from replication.protocol.api_keys import ApiKey
from replication.protocol.buffers import Gathered, Records, SizedSlice
from replication.protocol.codecs import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_decoder,
    response_encoder,
)
from replication.protocol.error_counts import error_codes
from replication.protocol.errors import (
    MalformedMessageError,
    ProtocolError,
    UnencodableMessageError,
    UnsupportedVersionError,
)
from replication.protocol.headers import (
    RequestHeader,
    UnknownApiError,
    is_flexible,
    parse_request_header,
    parse_response_header,
    request_header,
    response_header,
)
from replication.protocol.schema import VersionRange
from replication.protocol.structures import ZERO_UUID
from replication.protocol.versions import (
    ADVERTISED,
    ADVERTISED_TO_BROKERS,
    FEATURES,
    FOR_BROKERS,
    SERVED,
    SERVED_TO_BROKERS,
)

__all__ = [
    "ADVERTISED",
    "ADVERTISED_TO_BROKERS",
    "FEATURES",
    "FOR_BROKERS",
    "SERVED",
    "SERVED_TO_BROKERS",
    "ZERO_UUID",
    "ApiKey",
    "Gathered",
    "MalformedMessageError",
    "ProtocolError",
    "Records",
    "RequestHeader",
    "SizedSlice",
    "UnencodableMessageError",
    "UnknownApiError",
    "UnsupportedVersionError",
    "VersionRange",
    "buffers",
    "coordinator_records",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "error_codes",
    "errors",
    "is_flexible",
    "messages",
    "metadata_records",
    "parse_request_header",
    "parse_response_header",
    "partitions",
    "principals",
    "request_decoder",
    "request_header",
    "response_encoder",
    "response_header",
    "schema",
]
