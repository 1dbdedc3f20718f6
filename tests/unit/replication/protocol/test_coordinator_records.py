"""Records of the coordinators' topics, byte by byte as a real Kafka wrote them (W-171)."""

from __future__ import annotations

import pytest

from replication.protocol import MalformedMessageError, UnsupportedVersionError, coordinator_records
from replication.protocol import messages as wire
from replication.protocol.coordinator_records import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

OFFSET_KEY = wire.OffsetCommitKey("g-ck", "t1", 0)
TRANSACTION_KEY = wire.TransactionLogKey("tx")

VECTORS = {
    "a committed offset": (
        OFFSET_KEY,
        wire.OffsetCommitValue(offset=1, metadata="", commit_timestamp=0x1A2023ACE6B),
        "0004 0000000000000001 ffffffff 01 000001a2023ace6b 00",
    ),
    "a group without members": (
        wire.GroupMetadataKey("g2-classic"),
        wire.GroupMetadataValue(
            generation=0, protocol=None, leader=None, current_state_timestamp=0x1A2023ACF00
        ),
        "0003 0000 00000000 ffff ffff 000001a2023acf00 00000000",
    ),
    "an empty transaction": (
        TRANSACTION_KEY,
        wire.TransactionLogValue(
            producer_id=8,
            previous_producer_id=8,
            transaction_timeout_ms=40_000,
            transaction_partitions=None,
            transaction_last_update_timestamp_ms=0x1A2023AFBA2,
            transaction_start_timestamp_ms=-1,
        ),
        "0001 0000000000000008 0000 00009c40 00 00 000001a2023afba2 ffffffffffffffff"
        " 01 00 08 0000000000000008",
    ),
    "a transaction with a partition": (
        TRANSACTION_KEY,
        wire.TransactionLogValue(
            producer_id=8,
            previous_producer_id=8,
            transaction_timeout_ms=40_000,
            transaction_status=1,
            transaction_partitions=(wire.TransactionLogValue.PartitionsSchema("t1", (0,)),),
            transaction_last_update_timestamp_ms=0x1A2023AFBC6,
            transaction_start_timestamp_ms=0x1A2023AFBC6,
            client_transaction_version=2,
        ),
        "0001 0000000000000008 0000 00009c40 01 02 03 7431 02 00000000 00 000001a2023afbc6"
        " 000001a2023afbc6 02 00 08 0000000000000008 02 02 0002",
    ),
}


@pytest.mark.parametrize("what", VECTORS)
def test_values_are_those_of_kafka(what: str):
    key, value, text = VECTORS[what]
    assert encode_value(value).hex() == text.replace(" ", "")
    assert decode_value(key, bytes.fromhex(text)) == value


def test_keys_are_those_of_kafka():
    data = bytes.fromhex("0001 0004 672d636b 0002 7431 00000000")
    assert encode_key(OFFSET_KEY) == data
    assert decode_key(CONSUMER_OFFSETS, data) == OFFSET_KEY
    assert encode_key(wire.GroupMetadataKey("g")) == b"\0\2\0\1g"
    assert encode_key(TRANSACTION_KEY) == b"\0\0\0\2tx"


def test_offsets_of_the_first_key_type_are_offsets_too():
    data = bytes.fromhex("0000 0004 672d636b 0002 7431 00000000")
    assert decode_key(CONSUMER_OFFSETS, data) == OFFSET_KEY


@pytest.mark.parametrize(
    ("text", "expire", "epoch"),
    [
        ("0000 0000000000000001 0001 6d 0000000000000002", -1, -1),
        ("0001 0000000000000001 0001 6d 0000000000000002 0000000000000003", 3, -1),
        ("0002 0000000000000001 0001 6d 0000000000000002", -1, -1),
        ("0003 0000000000000001 00000007 0001 6d 0000000000000002", -1, 7),
    ],
)
def test_offsets_of_older_brokers_are_read(text: str, expire: int, epoch: int):
    assert decode_value(OFFSET_KEY, bytes.fromhex(text)) == wire.OffsetCommitValue(
        1, epoch, "m", 2, expire
    )


_HEAD = " 0001 63 00000005 0001 72 0001 6d"  # type c, generation 5, protocol r, leader m
_SINCE_2 = _HEAD + " 0000000000000004 00000001"  # time of the last change, one member
_MEMBER = " 0001 6d {} 0001 63 0001 2f {} 00002710 00000001 aa 00000001 bb"


@pytest.mark.parametrize(
    ("text", "timestamp", "rebalance", "instance"),
    [
        ("0000" + _HEAD + " 00000001" + _MEMBER.format("", ""), -1, -1, None),
        ("0001" + _HEAD + " 00000001" + _MEMBER.format("", "00000009"), -1, 9, None),
        ("0002" + _SINCE_2 + _MEMBER.format("", "00000009"), 4, 9, None),
        ("0003" + _SINCE_2 + _MEMBER.format("0001 69", "00000009"), 4, 9, "i"),
    ],
)
def test_groups_of_older_brokers_are_read(
    text: str, timestamp: int, rebalance: int, instance: str | None
):
    member = wire.GroupMetadataValue.MemberMetadata(
        "m", instance, "c", "/", rebalance, 10_000, b"\xaa", b"\xbb"
    )
    assert decode_value(wire.GroupMetadataKey("g"), bytes.fromhex(text)) == (
        wire.GroupMetadataValue("c", 5, "r", "m", timestamp, (member,))
    )


def test_transactions_of_older_brokers_are_read():
    text = "0000 0000000000000008 0001 00009c40 00 ffffffff 0000000000000001 ffffffffffffffff"
    assert decode_value(TRANSACTION_KEY, bytes.fromhex(text)) == wire.TransactionLogValue(
        producer_id=8,
        producer_epoch=1,
        transaction_timeout_ms=40_000,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=1,
        transaction_start_timestamp_ms=-1,
    )


@pytest.mark.parametrize("number", [-1, 3, 5, 8, 10, 24, 32_767])
def test_other_types_are_to_be_skipped(number: int):
    data = number.to_bytes(2, "big", signed=True) + b"whatever"
    assert decode_key(CONSUMER_OFFSETS, data) is None
    assert decode_key(TRANSACTION_STATE, data) is None


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\1", b"\0\1\0\1g", b"\0\2\0\1gx", b"\0\2\0\1\xff"]
)
def test_broken_keys_are_refused(data: bytes):
    with pytest.raises(MalformedMessageError):
        decode_key(CONSUMER_OFFSETS, data)


def test_values_of_versions_to_come_are_refused():
    with pytest.raises(UnsupportedVersionError):
        decode_value(OFFSET_KEY, b"\0\5" + bytes(30))
    with pytest.raises(MalformedMessageError):
        decode_value(OFFSET_KEY, b"\0")


def test_every_listed_type_is_written_as_it_is_read():
    for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        for kind in topic.values():
            key = getattr(wire, kind.key_name)()
            assert decode_key(topic, coordinator_records.encode_key(key)) == key
