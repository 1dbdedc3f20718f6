"""Batches of magic 2: worked examples of the format document, rules of a writer, flipped bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.common.errors import CorruptBatchError, InvalidRecordError
from logstore.common.types import Record
from logstore.format.attributes import TimestampType
from logstore.format.batch import (
    BatchFields,
    empty_batch,
    encode_batch,
    encode_batch_lists,
    end_transaction_marker,
    rebuild_batch,
)
from logstore.format.codecs.compression import Compression
from logstore.format.control import (
    ControlType,
    encode_control_key,
    parse_control_key,
    parse_end_transaction_marker,
    parse_marker,
)
from logstore.format.header import BatchHeader, add_sequence, parse_header, set_log_append_time
from logstore.format.reader import batch_records, parse_batch, read_records

T0 = 1_700_000_000_000
PRODUCER: BatchFields = {
    "base_offset": 100,
    "leader_epoch": 5,
    "producer_id": 4000,
    "producer_epoch": 3,
    "base_sequence": 7,
}

IDEMPOTENT = bytes.fromhex(
    "00000000000000640000004f0000000502ba9b343d0000000000010000018bcfe568000000018bcf"
    "e568050000000000000fa00003000000070000000222000000046b310476310402680278026e0116"
    "000a02010a68656c6c6f00"
)
TOMBSTONE = bytes.fromhex(
    "000000000000000000000042ffffffff02bf1f331b00000000000100000000000003e80000000000"
    "0003e8ffffffffffffffffffffffffffff000000020e000000026101001000c7010202620000"
)
MARKERS = [
    bytes.fromhex(
        "00000000000000070000004200000005027c2a40af0030000000000000018bcfe568640000018bcf"
        "e568640000000000000fa00003ffffffff000000012000000008000000000c00000000000900"
    ),
    bytes.fromhex(
        "0000000000000007000000420000000502881496e70030000000000000018bcfe568640000018bcf"
        "e568640000000000000fa00003ffffffff000000012000000008000000010c00000000000900"
    ),
]
LZ4 = bytes.fromhex(
    "000000000000000000000054ffffffff0216ff7f6d00030000000000000000000003e80000000000"
    "0003e8ffffffffffffffffffffffffffff0000000104224d1860408214000000afa6010000000261"
    "96016101003350616161610000000000"
)
EMPTY = bytes.fromhex(
    "0000000000000064000000310000000502124a72ff000000000001ffffffffffffffff0000018bcf"
    "e568050000000000000fa000030000000700000000"
)
LOG_APPEND = bytes.fromhex(
    "00000000000001f4000000440000000402c2bfd94a00080000000100000000000003e80000000000"
    "00270fffffffffffffffffffffffffffff000000021000000002610262001200e807020261026200"
)
HORIZON = [
    bytes.fromhex(
        "000000000000000a0000004d0000000502197714da00000000000200000000000003e80000000000"
        "0004b00000000000000fa0000300000007000000030e000000026101001200c70102026202780012"
        "009003040263027900"
    ),
    bytes.fromhex(
        "000000000000000a0000004800000005022db1fb6b0040000000020000000005266f880000000000"
        "0003e80000000000000fa0000300000007000000021400bfaeb3520002610100160087b0b3520202"
        "62027800"
    ),
    bytes.fromhex(
        "000000000000000a000000310000000502edc567f1000000000002ffffffffffffffff0000000000"
        "0003840000000000000fa000030000000700000000"
    ),
]

fields = st.none() | st.binary(max_size=40)
record_lists = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(-1, 2**62),
        fields,
        fields,
        st.lists(st.tuples(st.text(max_size=8), fields), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=12,
)


def placed(records: list[Record], base: int) -> list[Record]:
    return [record._replace(offset=base + i) for i, record in enumerate(records)]


# --- worked examples -----------------------------------------------------------------------------


def test_idempotent_batch() -> None:
    headers = (("h", b"x"), ("n", None))
    records = [Record(100, T0, b"k1", b"v1", headers), Record(101, T0 + 5, None, b"hello")]
    assert encode_batch(records, **PRODUCER) == IDEMPOTENT
    assert read_records(IDEMPOTENT) == records
    header = parse_header(IDEMPOTENT)
    assert (header.last_offset, header.next_offset, header.last_sequence) == (101, 102, 8)
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.is_log_append_time
    assert header.has_producer_id


def test_tombstone_and_a_timestamp_that_goes_back() -> None:
    assert encode_batch([(b"a", None, 1000), (b"b", b"", 900)]) == TOMBSTONE


def test_transaction_markers() -> None:
    for control_type, expected in zip(
        (ControlType.ABORT, ControlType.COMMIT), MARKERS, strict=True
    ):
        marker = end_transaction_marker(
            control_type,
            producer_id=4000,
            producer_epoch=3,
            coordinator_epoch=9,
            timestamp=T0 + 100,
            base_offset=7,
            leader_epoch=5,
        )
        assert marker == expected
        is_commit = control_type is ControlType.COMMIT
        assert parse_end_transaction_marker(expected) == (is_commit, 9)
    with pytest.raises(InvalidRecordError):
        end_transaction_marker(
            ControlType.LEADER_CHANGE,
            producer_id=1,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
        )


def test_lz4_batch() -> None:
    record = (b"a", b"a" * 75, 1000)
    assert batch_records(LZ4, parse_header(LZ4)) == [Record(0, 1000, *record[:2])]
    ours = encode_batch([record], compression=Compression.LZ4)
    assert read_records(ours) == read_records(LZ4)
    assert ours[61:72] == LZ4[61:72]  # frame header and first block length


def test_emptied_batch() -> None:
    assert empty_batch(parse_header(IDEMPOTENT)) == EMPTY
    assert rebuild_batch(parse_header(IDEMPOTENT), []) == EMPTY
    assert read_records(EMPTY) == []
    assert parse_header(EMPTY).next_offset == 102


def test_log_append_time_in_place() -> None:
    records = [(b"a", b"b", 1000), (b"a", b"b", 1500)]
    batch = encode_batch(records, base_offset=500, leader_epoch=4)
    set_log_append_time(batch, 9999)
    assert batch == LOG_APPEND
    assert batch == encode_batch(records, base_offset=500, leader_epoch=4, log_append_time=9999)
    assert [record.timestamp for record in read_records(batch)] == [9999, 9999]
    behind = bytearray(b"\xff" * 7 + encode_batch(records, base_offset=500, leader_epoch=4))
    set_log_append_time(behind, 9999, 7)
    assert behind[7:] == LOG_APPEND


def test_delete_horizon() -> None:
    before, with_horizon, emptied = HORIZON
    first = parse_header(before)
    records = batch_records(before, first)
    assert [record.timestamp for record in records] == [1000, 900, 1200]
    assert rebuild_batch(first, records[:2], delete_horizon=86_405_000) == with_horizon
    second = parse_header(with_horizon)
    assert second.delete_horizon == 86_405_000
    assert batch_records(with_horizon, second) == records[:2]
    third = parse_header(rebuild_batch(second, records[1:2], delete_horizon=1))
    assert third.delete_horizon == 86_405_000  # never moved (F-96)
    assert empty_batch(third) == emptied


# --- rules of a writer ---------------------------------------------------------------------------


def test_no_records_give_no_bytes() -> None:
    assert encode_batch([]) == b""


@pytest.mark.parametrize(
    "wrong",
    [
        {"producer_id": 1},
        {"producer_id": 1, "producer_epoch": 0},
        {"producer_id": 1, "base_sequence": 0},
        {"transactional": True},
        {"control": True, "producer_id": 1, "producer_epoch": 0, "base_sequence": 5},
    ],
    ids=str,
)
def test_producer_fields_that_do_not_fit_together(wrong: BatchFields) -> None:
    with pytest.raises(InvalidRecordError):
        encode_batch([(b"k", b"v")], **wrong)


def test_a_control_batch_needs_no_sequence() -> None:
    assert encode_batch([(b"k", b"v")], producer_id=1, producer_epoch=0, control=True)


def test_negative_timestamps() -> None:
    assert read_records(encode_batch([(None, b"v", -1)]))[0].timestamp == -1
    with pytest.raises(InvalidRecordError):
        encode_batch([(None, b"v", -2)])
    with pytest.raises(InvalidRecordError):
        encode_batch_lists(None, [b"v"], [-2])
    header = parse_header(IDEMPOTENT)
    with pytest.raises(InvalidRecordError):
        rebuild_batch(header, [Record(100, -2, None, b"v")])


@pytest.mark.parametrize("offsets", [[99], [102], [101, 100], [100, 100]])
def test_rebuilt_batches_keep_offsets_in_order_and_range(offsets: list[int]) -> None:
    with pytest.raises(InvalidRecordError):
        rebuild_batch(parse_header(IDEMPOTENT), [Record(o, 0, None, b"") for o in offsets])


def test_a_default_timestamp_fills_in() -> None:
    batch = encode_batch([(b"k", b"v"), (b"k", b"v", None), (b"k", b"v", 3)], default_timestamp=7)
    assert [record.timestamp for record in read_records(batch)] == [7, 7, 3]


def test_sequences_wrap() -> None:
    assert add_sequence(2**31 - 1, 1) == 0
    assert add_sequence(2**31 - 2, 1) == 2**31 - 1
    header = replace(parse_header(IDEMPOTENT), base_sequence=2**31 - 1)
    assert header.last_sequence == 0
    assert replace(header, base_sequence=-1).last_sequence == -1


# --- round trips ---------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    record_lists,
    st.sampled_from(Compression),
    st.integers(0, 2**62),
    st.integers(-1, 2**31 - 1),
    st.none() | st.integers(0, 2**62),
)
def test_any_records_come_back(
    records: list[Record],
    compression: Compression,
    base: int,
    epoch: int,
    log_append_time: int | None,
) -> None:
    batch = encode_batch(
        records,
        base_offset=base,
        leader_epoch=epoch,
        compression=compression,
        log_append_time=log_append_time,
    )
    expected = placed(records, base)
    if log_append_time is not None:
        expected = [record._replace(timestamp=log_append_time) for record in expected]
    assert read_records(batch) == expected
    header = parse_batch(batch)
    assert isinstance(header, BatchHeader)
    assert header.compression is compression
    assert header.leader_epoch == epoch
    assert header.size == len(batch)
    assert header.max_timestamp == max(record.timestamp for record in expected)
    if log_append_time is None:
        assert rebuild_batch(header, expected) == batch


@settings(max_examples=40)
@given(record_lists)
def test_lists_give_the_same_bytes(records: list[Record]) -> None:
    keys = [record.key for record in records]
    values = [record.value for record in records]
    times = [record.timestamp for record in records]
    headers = [record.headers for record in records]
    assert encode_batch_lists(keys, values, times, headers) == encode_batch(records)


@pytest.mark.parametrize("level", [-1, 1, 9])
def test_levels(level: int) -> None:
    records = [(b"k", b"v" * 100, 1)] * 10
    batch = encode_batch(records, compression=Compression.GZIP, level=level)
    assert len(read_records(batch)) == 10


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_every_flipped_bit_is_refused_or_outside_the_checksum(codec: Compression) -> None:
    """S-49 at the level of bytes: what survives must be caught by continuity of offsets and
    epochs, and the survivors are exactly the bits of base offset and leader epoch."""
    records = [Record(100 + i, T0 + i, b"key%d" % i, b"value" * 4) for i in range(6)]
    batch = encode_batch(records, compression=codec, **PRODUCER)
    following = encode_batch([(None, b"next")], base_offset=106, leader_epoch=5)
    survivors = set()
    for bit in range(8 * len(batch)):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        damaged += following
        try:
            header = parse_batch(damaged)
            if header is not None:
                batch_records(damaged, header)
                survivors.add(bit // 8)
        except CorruptBatchError:
            pass
    assert survivors == {*range(8), *range(12, 16)}


def test_a_header_needs_its_bytes() -> None:
    for size in range(61):
        with pytest.raises(CorruptBatchError):
            parse_header(IDEMPOTENT[:size])


def test_unknown_codecs_are_named() -> None:
    for codec in (5, 6, 7):
        header = replace(parse_header(IDEMPOTENT), attributes=codec)
        with pytest.raises(CorruptBatchError, match=f"codec {codec}"):
            _ = header.compression


# --- control records -----------------------------------------------------------------------------


def test_control_keys() -> None:
    for control_type in ControlType:
        if control_type is not ControlType.UNKNOWN:
            assert parse_control_key(encode_control_key(control_type)) is control_type
    assert parse_control_key(b"\0\0\0\x63") is ControlType.UNKNOWN
    assert parse_control_key(b"\0\1\0\1\7\7") is ControlType.COMMIT  # a newer version
    for key in (None, b"", b"\0\0\0", b"\xff\xff\0\0"):
        with pytest.raises(CorruptBatchError):
            parse_control_key(key)


def test_marker_values() -> None:
    commit = encode_control_key(ControlType.COMMIT)
    marker = parse_marker(commit, b"\0\1\0\0\0\7later")
    assert marker is not None
    assert marker == (ControlType.COMMIT, 7)
    assert marker.is_commit
    assert parse_marker(encode_control_key(ControlType.KRAFT_VERSION), None) is None
    for value in (None, b"", b"\0", b"\0\0\0\0\0", b"\xff\xff\0\0\0\0"):
        with pytest.raises(CorruptBatchError):
            parse_marker(commit, value)
