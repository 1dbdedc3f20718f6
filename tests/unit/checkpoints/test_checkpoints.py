"""The checkpoint files: what is accepted, what is refused and how precisely, what is written."""

from __future__ import annotations

import errno
import random
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkpoints
from checkpoints import (
    CheckpointFailedError,
    FileState,
    LeaderEpochCheckpoint,
    MalformedCheckpointError,
    MetaProperties,
    MetaPropertiesFile,
    OffsetCheckpoint,
    PartitionMetadata,
    PartitionMetadataFile,
    TopicPartition,
    clean_shutdown,
    is_reserved_id,
    random_topic_id,
    topic_id_from_text,
    topic_id_to_text,
)
from checkpoints import checkpoint_file as frame_module
from checkpoints.files import OsFiles, UnusableFileError
from checkpoints.meta_properties import java_date, parse_properties
from logstore.testing import FaultyStorage, MemoryStorage
from tests.support.cases import for_each

PATH = "/checkpoint"


def disk_with(data: bytes | None) -> MemoryStorage:
    disk = MemoryStorage(clock=lambda: 0.0)
    if data is not None:
        disk.write_file(PATH, data)
    return disk


def read_offsets(data: bytes | None) -> dict[TopicPartition, int]:
    return OffsetCheckpoint(PATH, disk_with(data)).read()


def read_epochs(data: bytes | None) -> list[tuple[int, int]]:
    return LeaderEpochCheckpoint(PATH, disk_with(data)).read()


def test_every_public_name_exists() -> None:
    assert all(hasattr(checkpoints, name) for name in checkpoints.__all__)


# --- the frame, through offset checkpoints (F-29 … F-31, S-55)


@for_each(
    "data, offsets",
    [
        (b"0\n0\n", {}),
        (b"0\n2\norders 0 42\norders 1 7\n", {("orders", 0): 42, ("orders", 1): 7}),
        (b"0\n1\na 0 9223372036854775807\n", {("a", 0): 2**63 - 1}),
        (b"0\n1\na 2147483647 0\n", {("a", 2**31 - 1): 0}),
        pytest.param(b"0\n2\na 0 1\na 0 2\n", {("a", 0): 2}, id="the last duplicate wins"),
        pytest.param(b"0\n1\na  0\t 1 \n", {("a", 0): 1}, id="runs of white space, as in Kafka"),
        pytest.param(b"0\r\n1\r\na 0 1\r\n", {("a", 0): 1}, id="CRLF, from a broker on Windows"),
        pytest.param(b"0\n1\na 007 010\n", {("a", 7): 10}, id="leading zeros"),
        pytest.param("0\n1\né 0 1\n".encode(), {("é", 0): 1}, id="UTF-8"),
    ],
)
def test_accepted(data: bytes, offsets: dict[tuple[str, int], int]) -> None:
    assert read_offsets(data) == offsets


@for_each(
    "data, line_number",
    [
        pytest.param(b"1\n0\n", 1, id="unknown version"),
        pytest.param(b"-1\n0\n", 1, id="negative version"),
        pytest.param(b"00\n0\n", 1, id="version in another spelling"),
        pytest.param(b"\n0\n", 1, id="no version"),
        pytest.param(b"garbage", 1, id="no checkpoint file"),
        pytest.param(b"0", 1, id="cut in the version"),
        pytest.param(b"0\n", 0, id="version line only: Kafka reads it as empty"),
        pytest.param(b"0\n\n", 2, id="blank count"),
        pytest.param(b"0\n-1\n", 2, id="negative count"),
        pytest.param(b"0\n+0\n", 2, id="signed count"),
        pytest.param(b"0\n1 \na 0 1\n", 2, id="count with a blank"),
        pytest.param(b"0\n2147483648\n", 2, id="count overflows"),
        pytest.param(b"0\n" + b"9" * 5000 + b"\n", 2, id="count of 5,000 digits"),
        pytest.param(b"0\n2\na 0 1\n", 0, id="too few lines"),
        pytest.param(b"0\n0\na 0 1\n", 0, id="too many lines"),
        pytest.param(b"0\n1\na 0 1\n\n", 0, id="blank line at the end"),
        pytest.param(b"0\n2\na 0 1\n\n", 4, id="blank line counted"),
        pytest.param(b"0\n1\na 0 12", 3, id="cut in the last line: Kafka reads 12"),
        pytest.param(b"0\n1\na 0 1\ngarbage", 4, id="garbage after the end"),
        pytest.param(b"0\n1\na 0\n", 3, id="two fields"),
        pytest.param(b"0\n1\na 0 1 2\n", 3, id="four fields"),
        pytest.param(b"0\n1\n a 0 1\n", 3, id="blank at the start of a line"),
        pytest.param(b"0\n1\na 0 -1\n", 3, id="negative offset"),
        pytest.param(b"0\n1\na -1 0\n", 3, id="negative partition"),
        pytest.param(b"0\n1\na 0 +1\n", 3, id="signed offset"),
        pytest.param(b"0\n1\na 0 1_0\n", 3, id="underscore"),
        pytest.param(b"0\n1\na 0 0x1\n", 3, id="hexadecimal"),
        pytest.param(b"0\n1\na 0 9223372036854775808\n", 3, id="offset overflows"),
        pytest.param(b"0\n1\na 2147483648 0\n", 3, id="partition overflows"),
        pytest.param("0\n1\na 0 ١\n".encode(), 3, id="digits of another script"),
        pytest.param(b"0\n1\n\xff 0 1\n", 3, id="not UTF-8"),
        pytest.param(b"0\r1\ra 0 1\r", 1, id="carriage returns alone"),
        pytest.param(bytes(64), 1, id="zeros after a power cut"),
        pytest.param(b"0\n2\na 0 1\nb x 1\n", 4, id="the line is named"),
    ],
)
def test_refused(data: bytes, line_number: int) -> None:
    with pytest.raises(MalformedCheckpointError) as error:
        read_offsets(data)
    assert error.value.path == PATH
    assert error.value.line_number == line_number
    assert error.value.reason
    assert PATH in str(error.value)
    if line_number:
        assert f"line {line_number}" in str(error.value)


def test_the_error_shows_the_line() -> None:
    with pytest.raises(MalformedCheckpointError) as error:
        read_offsets(b"0\n1\norders zero 1\n")
    assert error.value.line == "orders zero 1"


def test_missing_empty_and_present_are_told_apart() -> None:
    """F-30: a 0-byte file is what Kafka leaves before the first write."""
    expected = [(None, FileState.MISSING), (b"", FileState.EMPTY), (b"0\n0\n", FileState.PRESENT)]
    for data, state in expected:
        disk = disk_with(data)
        assert OffsetCheckpoint(PATH, disk).inspect() == (state, {})
        assert LeaderEpochCheckpoint(PATH, disk).inspect() == (state, [])
        assert read_offsets(data) == {}
        assert read_epochs(data) == []


def test_a_directory_in_its_place_is_malformed() -> None:
    """S-55: unusable is taken as absent; the medium did not fail."""
    disk = MemoryStorage()
    disk.make_dir(PATH)
    with pytest.raises(MalformedCheckpointError, match="directory"):
        OffsetCheckpoint(PATH, disk).read()


def test_a_file_above_the_limit_is_not_read_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-55: 100 MB of lines, here against a small limit."""
    limits = []

    class Counting(MemoryStorage):
        def read_file(self, path: str, limit: int = -1) -> bytes:
            limits.append(limit)
            return super().read_file(path, limit)

    data = b"0\n1000\n" + b"a 0 1\n" * 1000
    disk = Counting()
    disk.write_file(PATH, data)
    monkeypatch.setattr(OffsetCheckpoint, "size_max", len(data))
    assert len(OffsetCheckpoint(PATH, disk).read()) == 1
    monkeypatch.setattr(OffsetCheckpoint, "size_max", len(data) - 1)
    with pytest.raises(MalformedCheckpointError, match="bytes, more than"):
        OffsetCheckpoint(PATH, disk).read()
    assert limits == [len(data), len(data) - 1]


def test_a_false_count_costs_no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_module, "parse_number", lambda text, limit: 7)
    with pytest.raises(MalformedCheckpointError, match="7 entries announced, 100000 lines found"):
        list(frame_module.parse_entries(PATH, b"0\n7\n" + b"a 0 1\n" * 100_000, 3))


@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_medium_that_fails_while_reading_is_no_malformed_file(operation: str) -> None:
    """S-43."""
    for read in (
        lambda disk: OffsetCheckpoint(PATH, disk).read(),
        lambda disk: LeaderEpochCheckpoint(PATH, disk).read(),
        lambda disk: PartitionMetadataFile(PATH, disk).read(),
        lambda disk: MetaPropertiesFile(PATH, disk).read(),
        lambda disk: clean_shutdown.read(PATH, disk),
        lambda disk: clean_shutdown.exists(PATH, disk),
    ):
        disk = FaultyStorage()
        disk.write_file(PATH, b"")
        disk.fail(operation)
        with pytest.raises(CheckpointFailedError) as error:
            read(disk)
        assert (error.value.path, error.value.operation) == (PATH, "read")
        assert isinstance(error.value.__cause__, OSError)


# --- writing


def test_writes_the_canonical_text() -> None:
    """F-29: the sample of the format."""
    disk = disk_with(b"0\r\n1\r\nother  0 1\r\n")
    checkpoint = OffsetCheckpoint(PATH, disk)
    checkpoint.write({TopicPartition("orders", 0): 42, TopicPartition("orders", 1): 7})
    assert disk.read_file(PATH) == b"0\n2\norders 0 42\norders 1 7\n"
    checkpoint.write({})
    assert disk.read_file(PATH) == b"0\n0\n"
    assert [entry.name for entry in disk.scan_dir("/")] == ["checkpoint"]


def test_repeated_writes_follow_changes_of_partitions_and_of_their_order() -> None:
    disk = disk_with(None)
    checkpoint = OffsetCheckpoint(PATH, disk)
    a, b, c = (TopicPartition(topic, 0) for topic in ("a", "b%s", "c"))
    for offsets in ({a: 1, b: 2}, {a: 3, b: 4}, {b: 5, a: 6}, {a: 7}, {a: 8, b: 9, c: 10}):
        checkpoint.write(offsets)
        lines = "".join(f"{k.topic} {k.partition} {v}\n" for k, v in offsets.items())
        assert disk.read_file(PATH).decode() == f"0\n{len(offsets)}\n{lines}"
        assert checkpoint.read() == offsets


@pytest.mark.parametrize(
    "entry",
    [
        (TopicPartition("", 0), 0),
        (TopicPartition("a b", 0), 0),
        (TopicPartition("a\n", 0), 0),
        (TopicPartition("a", -1), 0),
        (TopicPartition("a", 2**31), 0),
        (TopicPartition("a", 0), -1),
        (TopicPartition("a", 0), 2**63),
    ],
)
def test_refuses_to_write_what_it_could_not_read(entry: tuple[TopicPartition, int]) -> None:
    disk = disk_with(b"0\n0\n")
    with pytest.raises(ValueError):
        OffsetCheckpoint(PATH, disk).write(dict([entry]))
    assert disk.read_file(PATH) == b"0\n0\n"


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename"])
def test_a_failed_write_leaves_the_old_text(operation: str) -> None:
    """S-42, S-43."""
    disk = FaultyStorage()
    checkpoint = OffsetCheckpoint(PATH, disk)
    checkpoint.write({TopicPartition("a", 0): 1})
    disk.fail(operation, error=errno.ENOSPC, partial=3)
    with pytest.raises(CheckpointFailedError, match="write failed"):
        checkpoint.write({TopicPartition("a", 0): 2})
    assert checkpoint.read() == {TopicPartition("a", 0): 1}
    disk.crash(random.Random(1))
    assert checkpoint.read() == {TopicPartition("a", 0): 1}


def test_a_directory_that_cannot_be_synced_is_a_failure() -> None:
    disk = FaultyStorage()
    disk.fail("sync_dir")
    with pytest.raises(CheckpointFailedError):
        OffsetCheckpoint(PATH, disk).write({})


def test_a_stale_temporary_file_is_ignored_and_overwritten() -> None:
    """S-39."""
    disk = disk_with(b"0\n0\n")
    disk.write_file(PATH + ".tmp", b"stale and longer than what comes after it")
    checkpoint = OffsetCheckpoint(PATH, disk)
    assert checkpoint.read() == {}
    checkpoint.write({TopicPartition("a", 0): 1})
    assert disk.read_file(PATH) == b"0\n1\na 0 1\n"


# --- leader epochs (F-33, S-54)


def test_leader_epochs_in_the_order_of_the_file() -> None:
    """Descending and duplicate entries pass: the cache repairs them (F-34)."""
    assert read_epochs(b"0\n3\n3 120\n0 0\n3 7\n") == [(3, 120), (0, 0), (3, 7)]


@for_each(
    "data",
    [
        b"0\n",
        b"1\n0\n",
        b"0\n1\n",
        b"0\n1\n1\n",
        b"0\n1\n1 2 3\n",
        b"0\n1\n-1 0\n",
        b"0\n1\n0 -1\n",
        b"0\n1\n2147483648 0\n",
        b"0\n1\n0 9223372036854775808\n",
        b"0\n2\n0 0\n3 12",
        b"\x00\x01\xfe\xff",
    ],
)
def test_leader_epochs_refused(data: bytes) -> None:
    with pytest.raises(MalformedCheckpointError):
        read_epochs(data)


def test_leader_epochs_written() -> None:
    disk = disk_with(None)
    checkpoint = LeaderEpochCheckpoint(PATH, disk)
    checkpoint.write([(0, 0), (3, 120)])
    assert disk.read_file(PATH) == b"0\n2\n0 0\n3 120\n"
    for entry in ((-1, 0), (0, -1), (2**31, 0), (0, 2**63)):
        with pytest.raises(ValueError):
            checkpoint.write([entry])


# --- properties: any bytes give a typed result or a typed error; what is written is read back

TOPICS = st.one_of(
    st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Zs", "Cc"]), min_size=1, max_size=20),
)
NEARLY = st.lists(
    st.sampled_from([b"0", b"1", b"2", b"\n", b"\n", b" ", b"a", b"-", b"\r", b"0\n1\na 0 1\n"]),
    max_size=12,
).map(b"".join)
READERS: list[Callable[[MemoryStorage], object]] = [
    lambda disk: OffsetCheckpoint(PATH, disk).read(),
    lambda disk: LeaderEpochCheckpoint(PATH, disk).read(),
    lambda disk: PartitionMetadataFile(PATH, disk).read(),
    lambda disk: MetaPropertiesFile(PATH, disk).read(),
]


@settings(max_examples=60)
@given(
    st.one_of(
        st.binary(max_size=200),
        NEARLY,
        st.text(max_size=60).map(lambda text: ("version=1\n" + text).encode()),
        st.text(max_size=30).map(lambda text: ("version: 0\ntopic_id: " + text).encode()),
    )
)
def test_any_bytes_give_a_value_or_a_malformed_error(data: bytes) -> None:
    disk = disk_with(data)
    for read in READERS:
        value: object
        try:
            value = read(disk)
        except MalformedCheckpointError as error:
            value = error
        if isinstance(value, MalformedCheckpointError):
            assert str(value)
            assert 0 <= value.line_number <= data.count(b"\n") + data.count(b"\r") + 1
        else:
            assert isinstance(value, dict | list | PartitionMetadata | MetaProperties)
    epoch = clean_shutdown.read(PATH, disk)
    assert epoch is not None
    assert epoch >= -1


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1)
    )
)
def test_offsets_round_trip(offsets: dict[TopicPartition, int]) -> None:
    disk = disk_with(None)
    checkpoint = OffsetCheckpoint(PATH, disk)
    checkpoint.write(offsets)
    assert list(checkpoint.read().items()) == list(offsets.items())


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))))
def test_epochs_round_trip(entries: list[tuple[int, int]]) -> None:
    disk = disk_with(None)
    LeaderEpochCheckpoint(PATH, disk).write(entries)
    assert LeaderEpochCheckpoint(PATH, disk).read() == entries


@settings(max_examples=25)
@given(st.data())
def test_a_cut_file_is_never_taken_for_a_whole_one(data: st.DataObject) -> None:
    """Stricter than Kafka, which takes the digits before the cut at face value."""
    disk = disk_with(None)
    checkpoint = OffsetCheckpoint(PATH, disk)
    entries = st.dictionaries(
        st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 3)),
        st.integers(0, 10**6),
    )
    checkpoint.write(data.draw(entries))
    whole = disk.read_file(PATH)
    disk.write_file(PATH, whole[: data.draw(st.integers(1, len(whole) - 1))])
    with pytest.raises(MalformedCheckpointError):
        checkpoint.read()


# --- topic ids and partition.metadata (F-35, F-36, F-45)

SAMPLE_ID = uuid.UUID(bytes=bytes(range(1, 17)))
SAMPLE = b"version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA"


def test_topic_id_text() -> None:
    assert topic_id_to_text(SAMPLE_ID) == "AQIDBAUGBwgJCgsMDQ4PEA"
    assert topic_id_from_text("AQIDBAUGBwgJCgsMDQ4PEA") == SAMPLE_ID
    assert topic_id_from_text("_" * 21 + "w").int == 2**128 - 1


@given(st.uuids())
@settings(max_examples=50)
def test_topic_ids_round_trip(topic_id: uuid.UUID) -> None:
    assert topic_id_from_text(topic_id_to_text(topic_id)) == topic_id


@for_each(
    "text",
    [
        "",
        "AQIDBAUGBwgJCgsMDQ4PE",
        "AQIDBAUGBwgJCgsMDQ4PEAA",
        "AQIDBAUGBwgJCgsMDQ4PEA==",
        "AQIDBAUGBwgJCgsMDQ4PEB",  # the spare bits are not zero
        "AQIDBAUGBwgJCgsMDQ4P+/",
        "AQIDBAUGBwgJCgsMDQ4PE ",
        "AQIDBAUGBwgJCgsMDQ4PEé",
    ],
)
def test_texts_of_no_topic_id(text: str) -> None:
    with pytest.raises(ValueError):
        topic_id_from_text(text)


def test_random_topic_ids_are_drawn_again_when_they_look_like_an_option() -> None:
    draws = [b"\xf8" + bytes(15), b"\xfb" + bytes(15), bytes(range(16))]
    rest = iter(draws)
    topic_id = random_topic_id(lambda size: next(rest))
    assert topic_id.bytes[0] == 0
    assert topic_id.version == 4
    rng = random.Random(5)
    assert random_topic_id(rng.randbytes) != random_topic_id(rng.randbytes)
    assert not is_reserved_id(random_topic_id())


def test_reserved_ids() -> None:
    assert is_reserved_id(uuid.UUID(int=0))
    assert is_reserved_id(uuid.UUID(int=99))
    assert not is_reserved_id(uuid.UUID(int=100))
    assert not is_reserved_id(uuid.UUID(int=1 << 64))


@pytest.mark.parametrize(
    "data",
    [
        SAMPLE,
        SAMPLE + b"\n",
        SAMPLE + b"\nanything: else\n",
        b"v:  0\r\nid:\tAQIDBAUGBwgJCgsMDQ4PEA\r\n",  # key names are not looked at
    ],
)
def test_partition_metadata_accepted(data: bytes) -> None:
    assert PartitionMetadataFile(PATH, disk_with(data)).read() == PartitionMetadata(SAMPLE_ID)


def test_partition_metadata_of_a_later_version_keeps_it() -> None:
    disk = disk_with(SAMPLE.replace(b"0", b"7", 1))
    metadata = PartitionMetadataFile(PATH, disk).read()
    assert metadata == PartitionMetadata(SAMPLE_ID, 7)
    PartitionMetadataFile(PATH, disk).write(metadata)
    assert PartitionMetadataFile(PATH, disk).read() == metadata


@for_each(
    "data, line_number",
    [
        (b"", 0),
        (b"version: 0", 0),
        (b"version: 0\n", 2),
        (b"version:0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA", 1),
        (b"version: 0: 1\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA", 1),
        (b"version: -1\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA", 1),
        (b"version: x\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA", 1),
        (b"version: 0\ntopic_id AQIDBAUGBwgJCgsMDQ4PEA", 2),
        (b"version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PE", 2),
        (b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", 2),
    ],
)
def test_partition_metadata_refused(data: bytes, line_number: int) -> None:
    with pytest.raises(MalformedCheckpointError) as error:
        PartitionMetadataFile(PATH, disk_with(data)).read()
    assert error.value.line_number == line_number


def test_partition_metadata_written() -> None:
    disk = disk_with(None)
    file = PartitionMetadataFile(PATH, disk)
    assert file.read() is None
    file.write(PartitionMetadata(SAMPLE_ID))
    assert disk.read_file(PATH) == SAMPLE
    with pytest.raises(ValueError):
        file.write(PartitionMetadata(uuid.UUID(int=0)))


# --- meta.properties (F-39 … F-45)

META = b"""#
#Tue Nov 14 22:13:20 UTC 2023
node.id=1
directory.id=EQIDBAUGBwgJCgsMDQ4PEA
version=1
cluster.id=AQIDBAUGBwgJCgsMDQ4PEA
"""
META_VALUE = MetaProperties(
    1, "AQIDBAUGBwgJCgsMDQ4PEA", 1, topic_id_from_text("EQIDBAUGBwgJCgsMDQ4PEA")
)


def read_meta(data: bytes) -> MetaProperties | None:
    return MetaPropertiesFile(PATH, disk_with(data)).read()


def test_meta_properties_of_kafka_byte_for_byte() -> None:
    assert read_meta(META) == META_VALUE
    disk = disk_with(None)
    MetaPropertiesFile(PATH, disk).write(META_VALUE, 1_700_000_000_999)
    assert disk.read_file(PATH) == META


def test_meta_properties_of_version_0() -> None:
    assert read_meta(b"broker.id=3\n") == MetaProperties(0, None, 3)
    assert read_meta(b"#\nversion=0\ncluster.id=c\n") == MetaProperties(0, "c")
    disk = disk_with(None)
    MetaPropertiesFile(PATH, disk).write(MetaProperties(0, "c", 3), 0)
    expected = b"#\n#Thu Jan 01 00:00:00 UTC 1970\nbroker.id=3\nversion=0\ncluster.id=c\n"
    assert disk.read_file(PATH) == expected
    assert MetaPropertiesFile(PATH, disk).read() == MetaProperties(0, "c", 3)
    assert MetaPropertiesFile("/none", disk).read() is None


@for_each(
    "data",
    [
        b"",
        b"# a comment\n\x00\xff garbage\n",
        b"version=2\n",
        b"version=x\n",
        b"version=1\nnode.id=1\n",
        b"version=1\ncluster.id=c\n",
        b"version=1\ncluster.id=c\nnode.id=2147483648\n",
        b"version=1\ncluster.id=c\nnode.id=1 \n",
        b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=x\n",
        b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n",
        b"version=1\ncluster.id=\\u12\n",
    ],
)
def test_meta_properties_refused(data: bytes) -> None:
    with pytest.raises(MalformedCheckpointError):
        read_meta(data)


@for_each(
    "text, entries",
    [
        (b"a=b", {"a": "b"}),
        (b"a:b\nc d\ne", {"a": "b", "c": "d", "e": ""}),
        (b"  a \t=  b  \n", {"a": "b  "}),
        (b"a = = b", {"a": "= b"}),
        (b"! no\n # no\n\n \na=1", {"a": "1"}),
        (b"a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        (b"a=1\\\n   2\\\r\n3", {"a": "123"}),
        (b"a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        (b"# not continued \\\na=1", {"a": "1"}),
        (b"a=1\\\n#2", {"a": "1#2"}),
        (b"a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        (rb"a\ b\=c=\t\u0041\q\:", {"a b=c": "\tAq:"}),
        (b"a=\xe9", {"a": "é"}),
        (b"a=1\na=2", {"a": "2"}),
        (b"=x", {"": "x"}),
    ],
)
def test_java_properties(text: bytes, entries: dict[str, str]) -> None:
    assert {k: v[0] for k, v in parse_properties(PATH, text).items()} == entries


@settings(max_examples=60)
@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(-(2**31), 2**31 - 1),
    st.one_of(st.none(), st.uuids().filter(lambda value: not is_reserved_id(value))),
)
def test_meta_properties_round_trip(
    cluster_id: str, node_id: int, directory_id: uuid.UUID | None
) -> None:
    disk = disk_with(None)
    file = MetaPropertiesFile(PATH, disk)
    for version in (0, 1):
        written = MetaProperties(version, cluster_id, node_id, directory_id)
        file.write(written, 0)
        assert file.read() == written


def test_java_date_follows_no_locale() -> None:
    assert java_date(1_700_000_000_000) == "Tue Nov 14 22:13:20 UTC 2023"
    assert java_date(951_782_400_000) == "Tue Feb 29 00:00:00 UTC 2000"


# --- .kafka_cleanshutdown (F-46 … F-48, S-40)


@for_each(
    "data, epoch",
    [
        (b'{"version":0,"brokerEpoch":25}', 25),
        (b'{"brokerEpoch": 7, "version": 3, "more": []}\n', 7),
        (b'{"version":0,"brokerEpoch":-1}', -1),
        (b'{"version":0,"brokerEpoch":"25"}', -1),
        (b'{"version":0,"brokerEpoch":true}', -1),
        (b'{"version":0,"brokerEpoch":9223372036854775808}', -1),
        (b'{"version":0}', -1),
        (b"", -1),
        (b"[]", -1),
        (b"7", -1),
        (b"\xff\xfe\x00", -1),
        (b"[" * 100_000, -1),
        (b'{"brokerEpoch":' + b"9" * 70_000 + b"}", -1),
    ],
)
def test_the_marker_counts_whatever_is_in_it(data: bytes, epoch: int) -> None:
    disk = disk_with(data)
    assert clean_shutdown.exists(PATH, disk)
    assert clean_shutdown.read(PATH, disk) == epoch


def test_marker_names_earlier_epochs() -> None:
    disk = disk_with(None)
    clean_shutdown.write(PATH, 25, disk, [4, 17])
    assert clean_shutdown.read_epochs(PATH, disk) == (4, 17, 25)
    assert clean_shutdown.read(PATH, disk) == 25
    assert disk.read_file(PATH) == b'{"version":0,"brokerEpoch":25,"earlierEpochs":[4,17]}'


@for_each(
    "earlier",
    ["[17,4]", "[25]", "[26]", "[-1]", "[true]", '["4"]', "[null]", "4", "null", '{"4":5}', "[[]]"],
)
def test_earlier_epochs_that_cannot_be(earlier: str) -> None:
    disk = disk_with(f'{{"version":0,"brokerEpoch":25,"earlierEpochs":{earlier}}}'.encode())
    assert clean_shutdown.exists(PATH, disk)
    assert clean_shutdown.read_epochs(PATH, disk) == ()


def test_marker_written_and_removed() -> None:
    disk = disk_with(None)
    assert not clean_shutdown.exists(PATH, disk)
    assert clean_shutdown.read(PATH, disk) is None
    clean_shutdown.write(PATH, 25, disk)
    assert disk.read_file(PATH) == b'{"version":0,"brokerEpoch":25}'
    assert clean_shutdown.remove(PATH, disk)
    assert not clean_shutdown.exists(PATH, disk)
    assert not clean_shutdown.remove(PATH, disk)


def test_the_marker_is_durable_with_its_content() -> None:
    """S-40a: a power cut right after the stop."""
    disk = FaultyStorage()
    clean_shutdown.write(PATH, 25, disk)
    disk.crash(mode="all_lost")
    assert clean_shutdown.read(PATH, disk) == 25


def test_the_removal_is_durable_before_loading() -> None:
    """S-40b: also when an earlier start removed the marker and died before its sync."""
    disk = FaultyStorage()
    clean_shutdown.write(PATH, 25, disk)
    disk.remove(PATH)
    disk.crash(mode="all_kept")
    assert not clean_shutdown.remove(PATH, disk)
    disk.crash(mode="all_lost")
    assert not clean_shutdown.exists(PATH, disk)


@pytest.mark.parametrize("operation", ["remove", "sync_dir"])
def test_a_marker_that_cannot_be_removed_is_an_error(operation: str) -> None:
    """S-40d."""
    disk = FaultyStorage()
    clean_shutdown.write(PATH, 25, disk)
    disk.fail(operation, error=errno.EROFS)
    with pytest.raises(CheckpointFailedError, match="remove failed"):
        clean_shutdown.remove(PATH, disk)


# ---- the real disk ----


def test_a_small_file_takes_little_memory_whatever_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"0\n0\nabcd")
    files = OsFiles()
    tracemalloc.start()
    try:
        assert files.read_file(str(path), frame_module.MAX_FILE_SIZE + 1) == b"0\n0\nabcd"
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    for limit in range(8):
        with pytest.raises(UnusableFileError):
            files.read_file(str(path), limit)
    assert files.read_file(str(path)) == b"0\n0\nabcd"
    with pytest.raises(UnusableFileError, match=str(tmp_path)):
        files.read_file(str(tmp_path), 100)
    with pytest.raises(FileNotFoundError):
        files.read_file(str(tmp_path / "none"), 100)
