"""Compiled codecs: what is written is read, and nothing else is."""

from __future__ import annotations

import random

import pytest

from replication.protocol import (
    ApiKey,
    MalformedMessageError,
    UnencodableMessageError,
    UnsupportedVersionError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    schema,
)
from replication.protocol import messages as wire
from replication.protocol.codecs import decoder, encoder
from replication.protocol.compiler import COPIED_MAX, MAX_ELEMENTS
from tests.support.cases import for_each
from tests.support.protocol_values import draw

ROUNDS = 5


@for_each("name", schema.MESSAGE_NAMES)
def test_encoding_and_decoding_are_inverse(name: str):
    for version in schema.message(name).versions.each():
        rng = random.Random(f"{name} {version}")
        for _ in range(ROUNDS):
            message = draw(name, version, rng)
            body = b"".join(encoder(name, version)(message))
            assert decoder(name, version)(memoryview(body), 0) == message


@for_each("name", schema.MESSAGE_NAMES)
def test_a_message_cut_short_or_too_long_is_refused(name: str):
    """Every cut, in the first and the last version; a cut message is never one of another kind."""
    for version in {schema.message(name).versions.first, schema.message(name).versions.last}:
        message = draw(name, version, random.Random(f"cut {name} {version}"))
        body = b"".join(encoder(name, version)(message))
        decode = decoder(name, version)
        for size in range(max(0, len(body) - 400), len(body)):
            with pytest.raises(MalformedMessageError) as caught:
                decode(memoryview(body[:size]), 0)
            assert (caught.value.message, caught.value.version) == (name, version)
            assert 0 <= caught.value.offset <= size + 400
        if schema.message(name).may_be_longer:
            assert decode(memoryview(body + b"\0"), 0) == message
            continue
        with pytest.raises(MalformedMessageError, match="1 bytes after its end"):
            decode(memoryview(body + b"\0"), 0)


def refused(api_key: ApiKey, version: int, text: str) -> str:
    with pytest.raises(MalformedMessageError) as caught:
        decode_request(api_key, version, memoryview(bytes.fromhex(text)))
    return caught.value.reason


class TestHostileBytes:
    """Each row breaks one rule (W-4 to W-6, W-231)."""

    @for_each(
        "key, version, text, reason",
        [
            (ApiKey.METADATA, 0, "7fffffff", "topics: more elements than may be"),
            (ApiKey.METADATA, 0, "00000002 0001", "topics: more elements than may be"),
            (ApiKey.METADATA, 0, "ffffffff", "topics: null or negative length"),
            (ApiKey.METADATA, 0, "80000000", "topics: null or negative length"),
            (ApiKey.METADATA, 1, "fffffffe", "topics: length below -1"),
            (ApiKey.METADATA, 0, "00000001 ffff", "name: null or negative length"),
            (ApiKey.METADATA, 0, "00000001 0005 61", "name: longer than the message"),
            (ApiKey.METADATA, 0, "00000001 0002 c3 28", "a text is not UTF-8"),
            (ApiKey.METADATA, 0, "00000001 0003 ed a0 80", "a text is not UTF-8"),  # a surrogate
            (ApiKey.METADATA, 0, "00000001 0002 c0 80", "a text is not UTF-8"),  # Java's zero
            (ApiKey.METADATA, 12, "ffffffff0f", "topics: more elements than may be"),
            (
                ApiKey.METADATA,
                12,
                "ffffffff1f",
                "a variable-length number is longer than 32 bits",
            ),
            (
                ApiKey.METADATA,
                12,
                "808080808001",
                "a variable-length number is longer than 32 bits",
            ),
            (ApiKey.METADATA, 12, "01 00 00 ffffffff0f", "more tagged fields than may be"),
            (ApiKey.METADATA, 12, "01 00 00 01 05 04 00", "a tagged field ends after the message"),
            (ApiKey.METADATA, 12, "01 00 00 02 05 00 05 00", "tags do not ascend"),
            (ApiKey.METADATA, 12, "01 00 00 02 05 00 04 00", "tags do not ascend"),
            (ApiKey.METADATA, 12, "01 00 00", "the message is cut short"),
            (ApiKey.HEARTBEAT, 4, "00", "group_id: null or negative length"),
            (
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                0,
                "01 00000001 02 00",
                "cursor: neither null nor present",
            ),
        ],
    )
    def test_is_refused(self, key: ApiKey, version: int, text: str, reason: str):
        assert reason in refused(key, version, text)

    def test_a_tagged_field_must_fill_the_size_it_states(self):
        request = wire.FetchRequest(cluster_id="abc")
        body = encode_request(request, 12)
        at = body.index(b"\1\0\4\4abc")  # one tag: 0, of 4 bytes, a text of 3
        for size in (3, 5):
            broken = body[:at] + b"\1\0" + bytes([size]) + b"\4abc" + b"\0" * (size - 4)
            with pytest.raises(MalformedMessageError, match="cluster_id: not of the size"):
                decode_request(ApiKey.FETCH, 12, memoryview(broken))

    def test_unknown_tagged_fields_are_skipped(self):
        body = bytes.fromhex("01 00 00 02 05 00 89 01 03 010203")
        assert decode_request(ApiKey.METADATA, 12, memoryview(body)) == wire.MetadataRequest(
            allow_auto_topic_creation=False
        )

    def test_elements_are_bounded_in_all(self):
        """An element of a byte or two must not become megabytes of tuples."""
        entry = wire.OffsetFetchRequest.OffsetFetchRequestTopic("", (0,) * 1000)
        topics = (entry,) * (MAX_ELEMENTS // 1001)
        within = encode_request(wire.OffsetFetchRequest("g", topics), 7)
        assert decode_request(ApiKey.OFFSET_FETCH, 7, memoryview(within)).topics == topics
        above = encode_request(wire.OffsetFetchRequest("g", (*topics, entry)), 7)
        with pytest.raises(MalformedMessageError, match="more elements than may be"):
            decode_request(ApiKey.OFFSET_FETCH, 7, memoryview(above))

    def test_a_count_allocates_nothing(self):
        body = memoryview(b"\xff\xff\xff\xff\x0f" + bytes(20))
        assert "more elements" in str(_failure(ApiKey.PRODUCE, 9, b"\0\0\0\0\0\0\0" + body))


def _failure(key: ApiKey, version: int, body: bytes) -> MalformedMessageError:
    with pytest.raises(MalformedMessageError) as caught:
        decode_request(key, version, memoryview(body))
    return caught.value


class TestWhatCannotBeWritten:
    @for_each(
        "message, version",
        [
            (wire.HeartbeatRequest(group_id=None), 4),  # may not be null
            (wire.HeartbeatRequest(generation_id=2**31), 4),
            (wire.HeartbeatRequest(generation_id="1"), 4),
            (wire.HeartbeatRequest(group_id="x" * 40_000), 3),  # its length has 16 bits there
            (wire.HeartbeatRequest(group_id="\ud800"), 4),  # not text
            (wire.MetadataRequest(topics=None), 0),  # may be null from version 1 on
            (wire.CreateTopicsRequest(topics=(1,)), 4),
            (wire.FetchResponse.FetchableTopicResponse, 12),
        ],
    )
    def test_is_refused(self, message: object, version: int):
        with pytest.raises((UnencodableMessageError, KeyError)):
            encode_response(message, version)

    def test_a_field_that_may_not_be_lost(self):
        groups = (wire.OffsetFetchResponse.OffsetFetchResponseGroup("g"),)
        with pytest.raises(UnencodableMessageError, match="groups is set"):
            encode_response(wire.OffsetFetchResponse(groups=groups), 7)

    def test_a_field_that_may_be_lost_is_left_out(self):
        response = wire.ListOffsetsResponse(throttle_time_ms=5)
        assert b"".join(encode_response(response, 1)) == bytes(4)

    def test_a_version_that_there_is_not(self):
        with pytest.raises(UnsupportedVersionError):
            encode_request(wire.ProduceRequest(), 2)
        with pytest.raises(UnsupportedVersionError):
            decode_response(ApiKey.METADATA, 14, memoryview(b""))


class TestRecords:
    def _response(self, records: object) -> wire.FetchResponse:
        part = wire.FetchResponse.PartitionData(records=records)
        topic = wire.FetchResponse.FetchableTopicResponse("t", partitions=(part, part))
        return wire.FetchResponse(responses=(topic,))

    def test_large_ones_are_not_copied(self):
        records = memoryview(bytes(COPIED_MAX + 1))
        buffers = encode_response(self._response(records), 12)
        assert [buffer is records for buffer in buffers] == [False, True, False, True, False]
        found = decode_response(ApiKey.FETCH, 12, memoryview(b"".join(buffers)))
        assert found == self._response(records)

    def test_small_ones_are(self):
        (buffer,) = encode_response(self._response(bytes(COPIED_MAX)), 12)
        assert len(buffer) > 2 * COPIED_MAX

    def test_decoded_ones_are_views_of_the_body(self):
        body = b"".join(encode_response(self._response(b"abcdef"), 12))
        found = decode_response(ApiKey.FETCH, 12, memoryview(body))
        records = found.responses[0].partitions[0].records
        assert isinstance(records, memoryview)
        assert records.obj is body

    def test_what_lies_in_a_file_stays_there(self):
        class Slice:
            size = 3

        slice_ = Slice()
        buffers = encode_response(self._response(slice_), 12)
        assert [buffer is slice_ for buffer in buffers] == [False, True, False, True, False]
        assert buffers[0][-1] == 4  # the length, and 1
