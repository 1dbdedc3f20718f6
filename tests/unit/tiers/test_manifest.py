"""What lies beside the bytes of segments in a store: written, read back, and refused."""

from __future__ import annotations

import contextlib
import json
import random
import uuid
from dataclasses import replace
from typing import Any

import pytest

from logstore.tiers.chunks import ChunkIndex, decode_sizes, encode_sizes
from logstore.tiers.errors import MalformedManifestError
from logstore.tiers.keys import (
    LOG,
    MANIFEST,
    SegmentKey,
    commit_key,
    is_key,
    parse_commit_key,
    parse_key,
)
from logstore.tiers.manifest import (
    BackupCommit,
    PartitionBackup,
    SegmentEncryption,
    SegmentFacts,
    SegmentIndexes,
    SegmentManifest,
    SegmentMetadata,
    StoredSegment,
    TopicBackup,
)
from tests.support.cases import for_each

TOPIC_ID = uuid.UUID(int=0x30627A1474DF458CBAEE3CD9760EA549)
SEGMENT_ID = uuid.UUID(int=0xB6A8A629E7B0584B843B0453CD2F93A1)
BASE = 2**40

KEY = SegmentKey("orders.v1-x", TOPIC_ID, 7, BASE, SEGMENT_ID)
METADATA = SegmentMetadata(KEY, BASE + 2**33, 2**41, 3, -1, ((0, 5), (4, BASE + 9)))
MANIFEST_OF = SegmentManifest(
    ChunkIndex.plain(1000), SegmentIndexes.of_sizes(16, 24, 0, 30, 0), metadata=METADATA
)
SEGMENT = StoredSegment(
    BASE, BASE + 2**33, SEGMENT_ID, 1000, 2**32 - 1, (8, 12, 4, 20, 34), 0, -1, ((0, 5),), 17
)
FACTS = SegmentFacts(KEY, "cluster é", SEGMENT, 3, 1)
COMMIT = BackupCommit(
    12,
    "cluster",
    1,
    (
        TopicBackup(
            "orders.v1-x",
            TOPIC_ID,
            3,
            {"retention.ms": "-1"},
            2,
            (PartitionBackup(7, 3, -1, BASE + 2**33, (SEGMENT,), ((0, 5), (9, BASE))),),
        ),
    ),
)


def test_keys_are_as_the_plugin_writes_them() -> None:
    key = KEY.key(LOG)
    assert key == (
        "orders.v1-x-MGJ6FHTfRYy67jzZdg6lSQ/7/00000001099511627776-tqimKeewWEuEOwRTzS-ToQ.log"
    )
    assert parse_key(key) == (KEY, LOG)
    assert parse_key(KEY.key(MANIFEST)) == (KEY, MANIFEST)
    assert parse_commit_key(commit_key(12)) == 12


@for_each(
    "key",
    [
        pytest.param(KEY.key(".txt"), id="another suffix"),
        pytest.param(KEY.key(LOG)[11:], id="nothing before the id"),
        pytest.param("../" + KEY.key(LOG), id="a way out"),
        pytest.param(KEY.key(LOG).replace("orders", "..//", 1), id="a name that is no topic"),
        pytest.param(KEY.key(LOG).replace("/7/", "/+7/"), id="a partition with a sign"),
        pytest.param(KEY.key(LOG).replace("/7/", "/07/"), id="a partition with zeros"),
        pytest.param(KEY.key(LOG).replace("/7/", "/2147483648/"), id="a partition above 31 bits"),
        pytest.param(
            KEY.key(LOG).replace("/00000001099511627776", "/" + "9" * 20),
            id="an offset above 63 bits",
        ),
        pytest.param(KEY.key(LOG).replace("/0", "/٠", 1), id="digits of another script"),
        pytest.param(KEY.key(LOG).replace("ToQ.", "ToR."), id="an id with spare bits"),
        pytest.param(KEY._replace(topic_id=uuid.UUID(int=0)).key(LOG), id="the zero topic id"),
    ],
)
def test_other_names_are_no_segments(key: str) -> None:
    assert parse_key(key) is None


@pytest.mark.parametrize("key", ["", "/a", "a//b", "a/../b", "a/", "a\nb", "é" * 600, "a\udc80"])
def test_keys_that_no_store_is_asked_for(key: str) -> None:
    assert not is_key(key)


def test_a_manifest_has_the_fields_of_the_plugin_and_no_others() -> None:
    text = MANIFEST_OF.to_json()
    fields = json.loads(text)
    assert list(fields) == [
        "version",
        "chunkIndex",
        "segmentIndexes",
        "compression",
        "remoteLogSegmentMetadata",
    ]
    assert fields["chunkIndex"] == {
        "type": "fixed",
        "originalChunkSize": 1000,
        "originalFileSize": 1000,
        "transformedChunkSize": 1000,
        "finalTransformedChunkSize": 1000,
    }
    assert fields["segmentIndexes"] == {
        "offset": {"position": 0, "size": 16},
        "timestamp": {"position": 16, "size": 24},
        "producerSnapshot": {"position": 40, "size": 0},
        "leaderEpoch": {"position": 40, "size": 30},
        "transaction": None,
    }
    assert fields["remoteLogSegmentMetadata"]["segmentLeaderEpochs"] == {"0": 5, "4": BASE + 9}
    assert SegmentManifest.from_json("m", text) == MANIFEST_OF


def test_a_manifest_of_the_plugin() -> None:
    """Compressed and encrypted, without its metadata, and with fields of a later version."""
    sizes = (700, 1, 65_000, 70_000)
    fields = {
        "version": "1",
        "chunkIndex": {
            "type": "variable",
            "originalChunkSize": 100,
            "originalFileSize": 310,
            "transformedChunks": encode_sizes(sizes),
        },
        "segmentIndexes": MANIFEST_OF.indexes.to_fields(),
        "compression": True,
        "encryption": {"dataKey": "key1:AAAA", "aad": "AAAA"},
        "later": {"x": 1},
    }
    found = SegmentManifest.from_json("m", json.dumps(fields).encode())
    assert found.compression
    assert found.encryption == SegmentEncryption("key1:AAAA", "AAAA")
    assert found.encryption.key_id == "key1"
    assert found.chunk_index.chunk(3) == (3, 300, 10, 65_701, 70_000)
    assert found.chunk_index.stored_size == sum(sizes)


@pytest.mark.parametrize(
    "sizes", [(), (5,), (5, 0), (300, 299, 2**31 - 1), (2**31 - 1, 0, 7), (7,) * 1000]
)
def test_sizes_of_chunks(sizes: tuple[int, ...]) -> None:
    assert decode_sizes(encode_sizes(sizes)) == sizes


def test_what_is_ours_comes_back() -> None:
    assert SegmentFacts.from_json("f", FACTS.to_json()) == FACTS
    assert BackupCommit.from_json("c", COMMIT.to_json()) == COMMIT


@pytest.mark.parametrize("written", [FACTS.to_json(), COMMIT.to_json()], ids=["facts", "commit"])
def test_each_flipped_or_missing_byte_is_found(written: bytes) -> None:
    read = SegmentFacts if b'"facts"' in written else BackupCommit
    for position in range(len(written)):
        damaged = bytearray(written)
        damaged[position] ^= 1
        for each in (bytes(damaged), written[:position]):
            with pytest.raises(MalformedManifestError):
                read.from_json("x", each)


@pytest.mark.parametrize("of", [TOPIC_ID, SEGMENT_ID], ids=["topic", "segment"])
def test_the_zero_id_names_nothing(of: uuid.UUID) -> None:
    """A commit whose checksum fits may name it all the same; no topic of Kafka has it."""
    topic = COMMIT.topics[0]
    if of == TOPIC_ID:
        zero = replace(topic, topic_id=uuid.UUID(int=0))
    else:
        segment = replace(SEGMENT, segment_id=uuid.UUID(int=0))
        zero = replace(topic, partitions=(replace(topic.partitions[0], segments=(segment,)),))
    with pytest.raises(MalformedManifestError, match="zero id"):
        BackupCommit.from_json("c", replace(COMMIT, topics=(zero,)).to_json())


HOSTILE: dict[str, Any] = {
    "negative": -1,
    "above 31 bits": 2**31,
    "above 63 bits": 2**63,
    "a long number": 10**4000,
    "a fraction": 1.0,
    "true": True,
    "null": None,
    "text": "7",
    "a list": [[]],
    "an object": {"0": {}},
}


def _fields_of(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    ways: list[tuple[Any, ...]] = []
    for name, child in value.items():
        ways.append((*way, name))
        if isinstance(child, dict):
            ways += _fields_of(child, (*way, name))
    return ways


def _changed(value: Any, way: tuple[Any, ...], to: Any) -> Any:
    copy = json.loads(json.dumps(value))
    at = copy
    for name in way[:-1]:
        at = at[name]
    at[way[-1]] = to
    return copy


@pytest.mark.parametrize("to", HOSTILE.values(), ids=HOSTILE)
def test_every_field_of_a_manifest_is_checked(to: Any) -> None:
    """Whatever a field holds, the manifest is refused with its name, or is as good as it says."""
    fields = json.loads(MANIFEST_OF.to_json())
    refused = 0
    for way in _fields_of(fields):
        data = json.dumps(_changed(fields, way, to)).encode()
        try:
            found = SegmentManifest.from_json("m", data)
        except MalformedManifestError:
            refused += 1
            continue
        assert SegmentManifest.from_json("m", found.to_json()) == found
    assert refused > 5


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'{"version":"2"}',
        b'{"version":1}',
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"version":"1","version":"1"}',
        b'{"version":NaN}',
        b"\xff\xfe",
        b" " * (17 << 20),
        b'{"version":"1","compression":' + b"9" * 5000 + b"}",
    ],
    ids=range(12),
)
def test_no_manifest(data: bytes) -> None:
    with pytest.raises(MalformedManifestError):
        SegmentManifest.from_json("m", data)


@for_each(
    "data",
    [
        pytest.param(b"\x7f\xff\xff\xff", id="a count that lies"),
        pytest.param(b"\0", id="too short"),
        pytest.param(b"\0\0\0\2\0\0\0\0\0\0\0\0\0", id="values of no bytes"),
        pytest.param(b"\0\0\0\2\0\0\0\0\x09" + bytes(13), id="values of nine bytes"),
        pytest.param(b"\0\0\0\1\0\0\0\1\0", id="bytes behind it"),
        pytest.param(b"\0\0\0\1\x80\0\0\0", id="a size of 2 GiB"),
        pytest.param(b"\0\0\0\3\0\0\0\0\2\0", id="bytes that are missing"),
    ],
)
def test_sizes_that_are_none(data: bytes) -> None:
    import base64

    from logstore.format.codecs.compression import Compression, compress

    packed = bytes(compress(Compression.ZSTD, data))
    with pytest.raises(ValueError, match=r"."):
        decode_sizes(base64.b64encode(packed).decode())
    with pytest.raises(ValueError, match="unpacked"):
        decode_sizes(base64.b64encode(packed[:-3]).decode())


def test_a_list_of_sizes_that_unpacks_to_a_gigabyte_takes_no_memory() -> None:
    import base64

    import zstandard

    packer = zstandard.ZstdCompressor().compressobj()
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    with pytest.raises(ValueError, match="unpacked"):
        decode_sizes(base64.b64encode(packed).decode())


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_of_a_manifest_is_a_typed_error(seed: int) -> None:
    draw = random.Random(seed)
    written = MANIFEST_OF.to_json()
    for _ in range(200):
        damaged = bytearray(written)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.choice(b'0"{}[]:,-e.\x00\xff9')
        with contextlib.suppress(MalformedManifestError):
            SegmentManifest.from_json("m", bytes(damaged))
