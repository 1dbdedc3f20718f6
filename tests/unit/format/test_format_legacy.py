"""Message sets of magic 0 and 1 (F-98…F-104)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Record
from logstore.format.codecs import compression as codecs
from logstore.format.codecs.compression import Compression
from logstore.format.legacy import LegacyBatch, legacy_records, parse_legacy
from logstore.format.reader import batch_records, iter_batches, parse_batch, read_records
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.verify import verify
from tests.support.cases import for_each

MESSAGES = [
    bytes.fromhex("000000000000000a000000101fecd70a0000000000016b0000000176"),
    bytes.fromhex("000000000000000a000000174b38d7a9010000000000000003e8000000016bffffffff"),
    bytes.fromhex(
        "000000000000000b0000004e41106446010100000000000003e9ffffffff000000381f8b08000000"
        "000000ff6360800349e795be198c500ef30b20c1980d2498ca0ca16220394947d680bd70452f118a"
        "8c00b47ea4234a000000"
    ),
]


def field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message(
    offset: int,
    value: bytes | None,
    key: bytes | None = None,
    magic: int = 1,
    timestamp: int = 1000,
    attributes: int = 0,
) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    body += struct.pack(">q", timestamp) if magic else b""
    body += field(key) + field(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(
    offset: int,
    inner: bytes,
    magic: int = 1,
    codec: Compression = Compression.GZIP,
    timestamp: int = 1000,
    attributes: int = 0,
) -> bytes:
    value = bytes(codecs.compress(codec, inner)) if codec <= Compression.ZSTD else inner
    return message(offset, value, None, magic, timestamp, attributes | codec)


def test_worked_examples() -> None:
    assert read_records(b"".join(MESSAGES)) == [
        Record(10, -1, b"k", b"v"),
        Record(10, 1000, b"k", None),
        *legacy_records(MESSAGES[2], parse_legacy(MESSAGES[2])),
    ]
    inner = legacy_records(MESSAGES[2], parse_legacy(MESSAGES[2]))
    assert [(record.offset, record.timestamp) for record in inner] == [(10, 1000), (11, 1001)]


def test_the_fields_of_a_batch_that_legacy_entries_lack() -> None:
    (batch,) = iter_batches(MESSAGES[2])
    assert isinstance(batch, LegacyBatch)
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (11, 11, 12)
    assert batch.leader_epoch == -1
    assert not batch.is_control
    assert not batch.is_transactional


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers(codec: Compression, magic: int) -> None:
    inner = b"".join(message(i + (90 if magic == 0 else 0), b"v", magic=magic) for i in range(10))
    data = wrapper(99, inner, magic, codec)
    records = read_records(data)
    assert [record.offset for record in records] == list(range(90, 100))
    assert {record.timestamp for record in records} == {1000 if magic else -1}
    assert [record.offset for record in read_records(data, from_offset=93, end_offset=96)] == [
        93,
        94,
        95,
    ]


def test_magic_0_lz4_has_a_wrong_header_checksum() -> None:
    frame = bytearray(codecs.compress(Compression.LZ4, message(5, b"v", magic=0)))
    frame[6] = 0x1A
    data = message(5, bytes(frame), magic=0, attributes=3)
    assert read_records(data) == [Record(5, -1, None, b"v")]
    with pytest.raises(CorruptBatchError, match="header checksum"):
        read_records(message(5, bytes(frame), magic=1, attributes=3))


def test_relative_offsets_keep_their_gaps() -> None:
    inner = message(0, b"a") + message(4, b"b") + message(7, b"c")
    assert [record.offset for record in read_records(wrapper(107, inner))] == [100, 104, 107]
    # A wrapper at offset 0 comes from a producer: its offsets are not assigned yet (F-101).
    assert [record.offset for record in read_records(wrapper(0, inner))] == [0, 4, 7]


def test_append_time_of_a_wrapper_is_that_of_its_messages() -> None:
    inner = message(0, b"a", timestamp=5) + message(1, b"b", timestamp=6)
    data = wrapper(1, inner, timestamp=777, attributes=8)
    assert [record.timestamp for record in read_records(data)] == [777, 777]
    assert str(parse_legacy(data).timestamp_type) == "LogAppendTime"


@for_each(
    "data",
    [
        pytest.param(message(5, None, attributes=1), id="null value"),
        pytest.param(wrapper(5, b""), id="empty set"),
        pytest.param(wrapper(5, wrapper(5, message(5, b"v"))), id="compressed inside"),
        pytest.param(wrapper(5, message(5, b"v", magic=0)), id="other magic"),
        pytest.param(wrapper(5, message(5, b"v"), codec=Compression.ZSTD), id="zstd"),
        pytest.param(message(5, b"v", attributes=6), id="unknown codec"),
        pytest.param(wrapper(3, message(0, b"a") + message(7, b"b")), id="offset below inner"),
        pytest.param(wrapper(9, message(7, b"a") + message(7, b"b")), id="offset twice"),
        pytest.param(
            wrapper(2**40, message(0, b"a", magic=0) + message(2**40, b"b", magic=0), magic=0),
            id="offsets too far apart",
        ),
        pytest.param(wrapper(5, message(5, b"v")[:-1]), id="torn inside"),
        pytest.param(wrapper(5, message(5, b"v") + b"\0"), id="a byte after the last"),
        pytest.param(wrapper(5, message(4, b"v") + bytes(40)), id="zeros after the last"),
        pytest.param(message(5, b"not gzip", attributes=1), id="garbage"),
    ],
)
@for_each("columns", [False, True])
def test_faults_are_told_at_the_wrapper(data: bytes, columns: bool) -> None:
    before = message(1, b"fine")
    if columns:
        pytest.importorskip("pyarrow")
        from logstore.format.arrow import read_columns as read
    else:
        read = read_records
    with pytest.raises(CorruptBatchError) as caught:
        read(before + data, path="a.log", base_position=1000)
    assert (caught.value.path, caught.value.position) == ("a.log", 1000 + len(before))


@pytest.mark.parametrize("magic", [0, 1])
def test_every_flipped_bit_is_refused_or_outside_the_checksum(magic: int) -> None:
    data = message(77, b"value", b"key", magic)
    survivors = set()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            batch = parse_batch(damaged)
            if batch is not None:
                batch_records(damaged, batch)
                survivors.add(bit // 8)
        except CorruptBatchError:
            pass
    assert survivors == set(range(8))  # the offset


@pytest.mark.parametrize("length", [-2, -(2**31), 6, 2**31 - 1])
def test_field_lengths_are_bounded_by_the_message(length: int) -> None:
    body = struct.pack(">bbq", 1, 0, 0) + struct.pack(">i", length) + b"key" + field(b"v")
    data = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    with pytest.raises(CorruptBatchError):
        read_records(data)


def test_timestamps_at_the_ends_of_their_type_survive_columns() -> None:
    pytest.importorskip("pyarrow")
    from logstore.format.arrow import read_columns

    data = message(0, b"a", timestamp=-(2**63)) + message(1, b"b", timestamp=2**63 - 1)
    expected = [record.timestamp for record in read_records(data)]
    assert read_columns(data)["timestamp"].to_pylist() == expected == [-(2**63), 2**63 - 1]


def test_the_messages_in_a_wrapper_are_checked_by_every_reader(tmp_path: Path) -> None:
    """The checksum of the wrapper is right, that of a message in it is not."""
    inner = bytearray(message(0, b"first") + message(1, b"second"))
    inner[-1] ^= 1
    data = wrapper(1, bytes(inner))
    log = tmp_path / "t-0" / "00000000000000000000.log"
    log.parent.mkdir()
    log.write_bytes(data)
    with pytest.raises(CorruptBatchError, match="in a wrapper: checksum"):
        read_records(data, check_crc=False)
    with pytest.raises(CorruptBatchError, match="in a wrapper: checksum"):
        list(DirectoryReader(log.parent).follow(timeout=0))
    found = verify([log.parent])
    assert [problem.position for problem in found.findings if problem.severity == "error"] == [0]
