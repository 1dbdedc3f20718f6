"""Bodies of requests and responses: bytes to messages and back.

Each message and version is compiled when it is first met; that takes less than a millisecond.
"""

from __future__ import annotations

import functools
from typing import Any

from replication.protocol import messages, schema
from replication.protocol.api_keys import ApiKey
from replication.protocol.buffers import Gathered
from replication.protocol.compiler import (
    Decoder,
    Encoder,
    compile_decoder,
    compile_encoder,
    joined,
)
from replication.protocol.errors import UnsupportedVersionError

_NAMES = {api.key: api.name for api in schema.APIS.values()}


def _schema(name: str, version: int) -> schema.Message:
    message = schema.message(name)
    if version not in message.versions:
        raise UnsupportedVersionError(name, version)
    return message


@functools.cache
def decoder(name: str, version: int) -> Decoder:
    """The function that decodes message ``name``; UnsupportedVersionError if there is none."""
    message = _schema(name, version)
    return compile_decoder(message, version, messages.structures(name))


@functools.cache
def encoder(name: str, version: int) -> Encoder:
    """The function that encodes message ``name``; UnsupportedVersionError if there is none."""
    message = _schema(name, version)
    return compile_encoder(message, version, messages.structures(name))


def request_decoder(api_key: ApiKey, version: int) -> Decoder:
    """As `decode_request`, for a caller that decodes many requests of one kind."""
    return decoder(_NAMES[api_key] + "Request", version)


def response_encoder(api_key: ApiKey, version: int) -> Encoder:
    """As `encode_response`, for a caller that encodes many responses of one kind."""
    return encoder(_NAMES[api_key] + "Response", version)


def decode_request(api_key: ApiKey, version: int, body: memoryview) -> Any:
    """The request in ``body``, whose ``records`` stay views of it.

    Raises:
        MalformedMessageError: ``body`` does not begin with such a request.
        UnsupportedVersionError: the schema has no such version.
    """
    return request_decoder(api_key, version)(body, 0)


def decode_response(api_key: ApiKey, version: int, body: memoryview) -> Any:
    """The response in ``body``; as `decode_request`."""
    return decoder(_NAMES[api_key] + "Response", version)(body, 0)


def encode_request(message: Any, version: int) -> bytes:
    """The body of a request.

    Raises:
        UnencodableMessageError: a value does not fit, or the version lacks a field that is set.
        UnsupportedVersionError: the schema has no such version.
    """
    return joined(encoder(type(message).__name__, version)(message))


def encode_response(message: Any, version: int) -> Gathered:
    """The body of a response as buffers to send one after the other; as `encode_request`.

    Large ``records`` are a buffer of their own, the one that was given.
    """
    return encoder(type(message).__name__, version)(message)
