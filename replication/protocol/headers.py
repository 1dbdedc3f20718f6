"""The headers of requests and responses, in front of their bodies."""

from __future__ import annotations

import struct
from typing import NamedTuple

from replication.protocol import schema
from replication.protocol.api_keys import ApiKey
from replication.protocol.compiler import read_uvarint
from replication.protocol.errors import MalformedMessageError

_KEYS = {int(key): key for key in schema.APIS}
_FIRST_FLEXIBLE = {
    key: 1 << 16 if api.flexible == schema.NO_VERSIONS else api.flexible.first
    for key, api in schema.APIS.items()
}
_API_VERSIONS = ApiKey.API_VERSIONS  # bound once: looking it up takes 0.2 µs on Python 3.11
_FIXED = struct.Struct(">hhih")  # api_key, api_version, correlation_id, length of client_id
_CORRELATION_ID = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """``body_offset`` is where the body begins in the frame. ``client_id`` is "" for null."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str
    body_offset: int


class UnknownApiError(MalformedMessageError):
    """The header names an API that is not in the table."""


def is_flexible(api_key: ApiKey, api_version: int) -> bool:
    """Whether header and body of this version have tagged fields."""
    return api_version >= _FIRST_FLEXIBLE[api_key]


def parse_request_header(frame: memoryview) -> RequestHeader:
    """The header at the start of ``frame``, which is a request without its length (W-2).

    The version may be one that is not served. An ApiVersions request of a version that the table
    does not have is answered without its body being read, so its tags need not be there (W-11).

    Raises:
        UnknownApiError: no such API.
        MalformedMessageError: the frame ends too early, or a field breaks a rule.
    """
    try:
        key, version, correlation_id, size = _FIXED.unpack_from(frame)
    except struct.error as error:
        raise MalformedMessageError("RequestHeader", -1, len(frame), "cut short") from error
    api = _KEYS.get(key)
    if api is None:
        raise UnknownApiError("RequestHeader", version, 0, f"unknown API key {key}")
    position = _FIXED.size
    try:
        client_id = ""
        if size != -1:
            stop = position + size
            if size < 0 or stop > len(frame):
                raise ValueError("the client id does not end in the frame")
            client_id, position = str(frame[position:stop], "utf-8"), stop
        if version >= _FIRST_FLEXIBLE[api] and (
            api is not _API_VERSIONS or version in schema.APIS[api].versions
        ):
            position = _skip_tags(frame, position) if frame[position] else position + 1
    except (IndexError, ValueError) as error:
        reason = "the client id is not UTF-8" if isinstance(error, UnicodeError) else str(error)
        raise MalformedMessageError("RequestHeader", version, position, reason) from error
    return RequestHeader(api, version, correlation_id, client_id, position)


def _skip_tags(frame: memoryview, position: int) -> int:
    count, position = read_uvarint(frame, position)
    if count > (len(frame) - position) // 2:
        raise ValueError("more tagged fields than may be")
    last = -1
    for _ in range(count):
        tag, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        position += size
        if tag <= last or position > len(frame):
            raise ValueError("a tagged field is out of order or ends after the frame")
        last = tag
    return position


def request_header(
    api_key: ApiKey, api_version: int, correlation_id: int, client_id: str | None = None
) -> bytes:
    """The header of a request, version 1 or 2 as the API's version asks for."""
    text = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(text)
    tags = b"\0" if is_flexible(api_key, api_version) else b""
    return _FIXED.pack(api_key, api_version, correlation_id, size) + text + tags


def response_header(api_key: ApiKey, api_version: int, correlation_id: int) -> bytes:
    """The header of a response; that of ApiVersions never has tagged fields (W-3)."""
    tagged = api_version >= _FIRST_FLEXIBLE[api_key] and api_key is not _API_VERSIONS
    return _CORRELATION_ID.pack(correlation_id) + (b"\0" if tagged else b"")


def parse_response_header(frame: memoryview, api_key: ApiKey, api_version: int) -> tuple[int, int]:
    """Correlation id, and where the body begins, of a response without its length."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        position = _CORRELATION_ID.size
        if api_key is not ApiKey.API_VERSIONS and is_flexible(api_key, api_version):
            position = _skip_tags(frame, position)
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedMessageError("ResponseHeader", api_version, 0, str(error)) from error
    return correlation_id, position
