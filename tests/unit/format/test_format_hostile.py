"""Lengths, counts and variable-length integers that lie (S-48, S-51)."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.common.errors import CorruptBatchError
from logstore.format.batch import encode_batch
from logstore.format.codecs import compression as codecs
from logstore.format.codecs.compression import Compression
from logstore.format.header import parse_header
from logstore.format.reader import batch_records, iter_batches, parse_batch, read_records
from logstore.kernels import encode_varint, encode_varlong, seal_batch
from tests.support.cases import for_each

GOOD = bytes(encode_batch([(b"key", b"value", 1), (b"key", None, 2)], base_offset=10))
AFTER = bytes(encode_batch([(b"after", b"", 3)], base_offset=12))
CODECS = list(Compression)


def with_length(length: int) -> bytes:
    return GOOD[:8] + struct.pack(">i", length) + GOOD[12:]


def batch_of(
    payload: bytes, count: int, codec: Compression = Compression.NONE, last_delta: int = 0
) -> bytes:
    """A batch with a right checksum around whatever ``payload`` is."""
    buffer = bytearray(61) + codecs.compress(codec, payload)
    seal_batch(
        buffer,
        base_offset=0,
        leader_epoch=0,
        attributes=int(codec),
        last_offset_delta=last_delta,
        base_timestamp=0,
        max_timestamp=0,
        record_count=count,
    )
    return bytes(buffer)


def record(
    body: bytes | None = None,
    *,
    length: int | None = None,
    offset_delta: int = 0,
    key: bytes = b"\x02k",
    value: bytes = b"\x02v",
    headers: bytes = b"\0",
) -> bytes:
    if body is None:
        body = b"\0\0" + encode_varint(offset_delta) + key + value + headers
    return encode_varint(len(body) if length is None else length) + body


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
def test_lengths_below_any_message_end_the_scan(length: int) -> None:
    data = with_length(length) + AFTER
    for read in (read_records, lambda data: list(iter_batches(data))):
        with pytest.raises(CorruptBatchError) as caught:
            read(data)
        assert caught.value.position == 0


@pytest.mark.parametrize("length", [14, 48, 49, len(GOOD) - 13, len(GOOD) - 11])
def test_wrong_lengths_within_the_data_are_refused(length: int) -> None:
    data = with_length(length) + AFTER
    with pytest.raises(CorruptBatchError) as caught:
        read_records(data)
    assert caught.value.position == 0
    with pytest.raises(CorruptBatchError):
        [batch_records(data, batch) for batch in iter_batches(data)]


@pytest.mark.parametrize("length", [len(GOOD + AFTER), 1 << 20, 2**31 - 1])
def test_lengths_past_the_data_are_a_torn_tail(length: int) -> None:
    tracemalloc.start()
    data = GOOD + with_length(length) + AFTER
    assert len(read_records(data)) == 2
    assert [batch.position for batch in iter_batches(data)] == [0]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 18  # nothing in proportion to the claim


def test_a_file_may_end_anywhere() -> None:
    for size in range(len(AFTER)):
        data = GOOD + AFTER[:size]
        assert [batch.position for batch in iter_batches(data)] == [0]
        assert len(read_records(data)) == 2


def test_a_zero_tail_is_corrupt() -> None:
    with pytest.raises(CorruptBatchError) as caught:
        list(iter_batches(GOOD + bytes(100)))
    assert caught.value.position == len(GOOD)


@pytest.mark.parametrize("magic", [-1, 3, 127])
def test_unknown_magic(magic: int) -> None:
    data = GOOD[:16] + struct.pack(">b", magic) + GOOD[17:]
    with pytest.raises(CorruptBatchError, match="magic"):
        parse_batch(data)
    with pytest.raises(CorruptBatchError, match="magic"):
        read_records(data)


MALFORMED = {
    "record length of 6 bytes": (b"\x80\x80\x80\x80\x80\x01" + b"\0" * 40, 1),
    "timestamp of 11 bytes": (record(b"\0" + b"\x80" * 10 + b"\1" + b"\0\0\0\0\0"), 1),
    "record length -1": (record(length=-1), 1),
    "record length 0": (record(length=0), 1),
    "record length beyond the batch": (record(length=1000), 1),
    "record length 2^31-1": (record(length=2**31 - 1), 1),
    "record length one short": (record(length=7), 1),
    "record length one long": (record(length=9) + b"\0", 1),
    "key length beyond": (record(key=encode_varint(100)), 1),
    "key length 2^31-1": (record(key=encode_varint(2**31 - 1)), 1),
    "value length beyond": (record(value=encode_varint(90)), 1),
    "header count -1": (record(headers=encode_varint(-1)), 1),
    "header count 2^31-1": (record(headers=encode_varint(2**31 - 1)), 1),
    "header key length -1": (record(headers=b"\2" + encode_varint(-1) + b"\0"), 1),
    "header value beyond": (record(headers=b"\2\2h" + encode_varint(9)), 1),
    "bytes left in the record": (record(headers=b"\0\0"), 1),
    "record count 0 with a record": (record(), 0),
    "record count -1": (record(), -1),
    "record count one high": (record(), 2),
    "record count one low": (record() + record(offset_delta=1), 1),
    "record count 2^31-1": (record(), 2**31 - 1),
    "offset delta twice": (record() + record(), 2),
    "offset delta descends": (record(offset_delta=1) + record(), 2),
    "offset delta negative": (record(offset_delta=-1), 1),
    "bytes after the last record": (record() + b"\0", 1),
    "cut inside a record": (record()[:-1], 1),
    "nothing at all": (b"", 1),
}


@for_each(
    "what, codec",
    [
        (what, codec)
        for what, (payload, _) in MALFORMED.items()
        for codec in CODECS
        if payload or codec is Compression.NONE  # an empty batch is never compressed (F-82)
    ],
)
def test_malformed_records_fail_their_whole_batch(what: str, codec: Compression) -> None:
    payload, count = MALFORMED[what]
    first = bytes(encode_batch([(b"k", b"v")]))
    data = first + batch_of(payload, count, codec, 1)
    with pytest.raises(CorruptBatchError) as caught:
        read_records(data)
    assert len(first) <= caught.value.position <= len(data)
    with pytest.raises(CorruptBatchError):
        batch_records(data, parse_header(data, len(first)))


def test_any_negative_length_is_null() -> None:
    """As Kafka reads it, though only −1 is ever written."""
    minus_two = encode_varint(-2)
    payload = record(key=minus_two, value=minus_two, headers=b"\2\2h" + minus_two)
    (one,) = read_records(batch_of(payload, 1))
    assert (one.key, one.value, one.headers) == (None, None, (("h", None),))


def test_longest_varints_are_read() -> None:
    body = b"\0" + encode_varlong(-(2**63)) + b"\0" + b"\x82\x80\x80\x80\x00k" + b"\1" + b"\0"
    (one,) = read_records(batch_of(record(body), 1))
    assert (one.timestamp, one.key, one.value) == (-(2**63), b"k", None)


@settings(max_examples=150)
@given(st.binary(max_size=120), st.integers(-2, 5), st.sampled_from(CODECS))
def test_random_payloads_are_records_or_a_typed_error(
    payload: bytes, count: int, codec: Compression
) -> None:
    with suppress(CorruptBatchError):
        assert len(read_records(batch_of(payload, count, codec, 5))) == count


@settings(max_examples=150)
@given(st.binary(max_size=200))
def test_random_bytes_are_batches_or_a_typed_error(data: bytes) -> None:
    with suppress(CorruptBatchError):
        assert read_records(data) == []
