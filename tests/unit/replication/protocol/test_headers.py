"""Headers of requests and responses."""

from __future__ import annotations

import pytest

from replication.protocol import (
    ApiKey,
    MalformedMessageError,
    UnknownApiError,
    parse_request_header,
    parse_response_header,
    request_header,
    response_header,
)
from tests.support.cases import for_each


@for_each("version", [0, 3, 9, 12])
@for_each("client_id", ["", "kcat", "é"])
def test_what_was_written_is_read(version: int, client_id: str):
    frame = request_header(ApiKey.METADATA, version, -7, client_id)
    header = parse_request_header(memoryview(frame + b"body"))
    assert header == (ApiKey.METADATA, version, -7, client_id, len(frame))
    assert (frame[-1:] == b"\0") == (version >= 9 or client_id == "")


def test_a_null_client_id_counts_as_empty():
    frame = memoryview(request_header(ApiKey.METADATA, 1, 5))
    assert parse_request_header(frame).client_id == ""


def test_unknown_tags_of_a_header_are_skipped():
    frame = bytes.fromhex("0003 0009 00000001 0001 61 02 00 01 ff 05 00")
    assert parse_request_header(memoryview(frame)).body_offset == len(frame)


@for_each(
    "frame",
    [
        "",
        "0003 0009 0000",
        "0003 0001 00000001 0005 61",  # the client id is longer than the frame
        "0003 0001 00000001 fffe",  # a length below −1
        "0003 0001 00000001 0001 ff",  # not UTF-8
        "0003 0009 00000001 0000",  # no count of tags
        "0003 0009 00000001 0000 ffffffff0f",  # more tags than bytes
        "0003 0009 00000001 0000 02 01 00 01 00",  # one tag twice
        "0003 0009 00000001 0000 01 00 05 00",  # a tagged field that ends after the frame
        "0003 0009 00000001 0000 ffffffffff01",  # a number of 6 bytes
    ],
)
def test_a_broken_header_is_refused(frame: str):
    with pytest.raises(MalformedMessageError):
        parse_request_header(memoryview(bytes.fromhex(frame)))


def test_an_unknown_api_is_refused():
    with pytest.raises(UnknownApiError):
        parse_request_header(memoryview(bytes.fromhex("03e7 0000 00000001 ffff")))


@pytest.mark.parametrize("tags", ["", "00"])
def test_api_versions_of_a_version_to_come_needs_no_tags(tags: str):
    frame = bytes.fromhex("0012 0005 00000001 0001 61" + tags)
    header = parse_request_header(memoryview(frame))
    assert header[:4] == (ApiKey.API_VERSIONS, 5, 1, "a")


def test_response_headers():
    assert response_header(ApiKey.FETCH, 11, 1) == bytes.fromhex("00000001")
    assert response_header(ApiKey.FETCH, 12, -1) == bytes.fromhex("ffffffff 00")
    assert response_header(ApiKey.API_VERSIONS, 3, 1) == bytes.fromhex("00000001")
    frame = memoryview(bytes.fromhex("00000001 01 07 01 ff 99"))
    assert parse_response_header(frame, ApiKey.FETCH, 12) == (1, 8)
    with pytest.raises(MalformedMessageError):
        parse_response_header(frame[:3], ApiKey.FETCH, 12)
