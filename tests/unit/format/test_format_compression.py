"""Codecs: frames as Kafka shapes them, bombs and garbage (F-82…F-91, S-50)."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh32_intdigest

from logstore.common.bounds import UNPACKED_MAX
from logstore.common.errors import CorruptBatchError, InvalidRecordError
from logstore.format.batch import encode_batch
from logstore.format.codecs import zstd as codec_zstd
from logstore.format.codecs.compression import (
    DEFAULT_LEVEL,
    LEVELS,
    Compression,
    compress,
    decompress,
)
from logstore.format.codecs.limits import borrow
from logstore.format.reader import read_records
from tests.fuzz.codec_streams import random_stream
from tests.fuzz.codecs import by_the_twin, damaged, outcome
from tests.reference.codecs import TWINS
from tests.support.cases import for_each

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
TEXT = b"".join(b'{"id":%d,"city":"Z\xc3\xbcrich"}' % i for i in range(9000))
NOISE = random.Random(7).randbytes(200_000)
SAMPLES = [b"a", b"abc" * 5, TEXT[:32768], TEXT[:32769], TEXT[:65537], TEXT, NOISE, NOISE + TEXT]

codec_cases = pytest.mark.parametrize("codec", CODECS, ids=str)


def stream_of(codec: Compression, data: bytes) -> bytes:
    return bytes(compress(codec, data))


def lz4_frame(
    blocks: list[tuple[bytes, bool]],
    flags: int = 0x60,
    descriptor: int = 0x40,
    extra: bytes = b"",
    checksums: bool = False,
    end: bytes = bytes(4),
) -> bytes:
    header = bytes([flags, descriptor]) + extra
    frame = b"\x04\x22\x4d\x18" + header + bytes([xxh32_intdigest(header) >> 8 & 0xFF])
    for content, raw in blocks:
        block = content if raw else bytes(cramjam.lz4.compress_block(content, store_size=False))
        frame += struct.pack("<I", len(block) | (raw << 31)) + block
        if checksums:
            frame += struct.pack("<I", xxh32_intdigest(block))
    return frame + end


@codec_cases
def test_content_comes_back(codec: Compression) -> None:
    for sample in SAMPLES:
        stream = stream_of(codec, sample)
        assert bytes(decompress(codec, stream)) == sample
        assert bytes(decompress(codec, memoryview(stream), len(sample))) == sample


@codec_cases
def test_concatenated_streams_are_one(codec: Compression) -> None:
    streams = stream_of(codec, TEXT) + stream_of(codec, NOISE) + stream_of(codec, b"end")
    assert bytes(decompress(codec, streams)) == TEXT + NOISE + b"end"


@codec_cases
def test_content_is_the_callers_own(codec: Compression) -> None:
    """Room to unpack into is used again, after an error and by several threads too."""
    contents = [TEXT[at : at + 20_000] for at in range(0, 120_000, 2_500)]
    streams = [stream_of(codec, content) for content in contents]
    cut = streams[0][: len(streams[0]) // 2]

    def unpack(_: int) -> list[bytes]:
        kept = []
        for stream in streams:
            with suppress(CorruptBatchError):
                decompress(codec, cut)
            kept.append(decompress(codec, stream))
        return [bytes(content) for content in kept]

    with ThreadPoolExecutor(4) as pool:
        assert all(found == contents for found in pool.map(unpack, range(8)))


def test_none_is_the_identity() -> None:
    assert compress(Compression.NONE, TEXT) is TEXT
    assert decompress(Compression.NONE, TEXT, 1) is TEXT


def test_names() -> None:
    for codec in Compression:
        assert Compression.of(str(codec)) is codec
    assert [str(codec) for codec in Compression] == ["none", "gzip", "snappy", "lz4", "zstd"]
    with pytest.raises(ValueError, match="brotli"):
        Compression.of("brotli")


# --- shapes --------------------------------------------------------------------------------------


def test_gzip_header() -> None:
    stream = stream_of(Compression.GZIP, TEXT)
    assert stream[:10] == bytes.fromhex("1f8b08000000000000ff")
    assert gzip.decompress(stream) == TEXT


def test_snappy_frame() -> None:
    stream = stream_of(Compression.SNAPPY, TEXT[:70_000])
    assert stream[:16] == bytes.fromhex("82534e415050590000000001 00000001")
    position, content = 16, []
    while position < len(stream):
        (length,) = struct.unpack_from(">i", stream, position)
        block = stream[position + 4 : position + 4 + length]
        content.append(bytes(cramjam.snappy.decompress_raw(block)))
        position += 4 + length
    assert [len(block) for block in content] == [32768, 32768, 70_000 - 65536]
    assert b"".join(content) == TEXT[:70_000]


def test_bare_snappy_is_read() -> None:
    assert bytes(decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)))) == TEXT


def test_lz4_frame() -> None:
    stream = stream_of(Compression.LZ4, NOISE[:65536] + TEXT[:65536] + b"end")
    assert stream[:7] == bytes.fromhex("04224d18604082")
    assert stream.endswith(bytes(4))
    assert struct.unpack_from("<I", stream, 7) == (65536 | 1 << 31,)  # noise is stored raw
    assert stream[11 : 11 + 65536] == NOISE[:65536]
    assert bytes(cramjam.lz4.decompress(stream)) == NOISE[:65536] + TEXT[:65536] + b"end"


def test_lz4_frames_of_other_writers() -> None:
    codec = Compression.LZ4
    big = (TEXT * 20)[: 3 << 20]
    assert bytes(decompress(codec, lz4_frame([(big, False)], descriptor=0x70))) == big
    assert bytes(decompress(codec, lz4_frame([(b"raw", True), (TEXT[:99], False)]))) == (
        b"raw" + TEXT[:99]
    )
    sized = lz4_frame([(b"raw", True)], flags=0x68, extra=struct.pack("<Q", 3))
    assert bytes(decompress(codec, sized)) == b"raw"
    unverified = lz4_frame([(b"raw", True)], flags=0x64, end=bytes(4) + b"????")
    assert bytes(decompress(codec, unverified)) == b"raw"
    checked = lz4_frame([(TEXT[:5000], False)], flags=0x70, checksums=True)
    assert bytes(decompress(codec, checked)) == TEXT[:5000]
    damaged = bytearray(checked)
    damaged[-5] ^= 1
    with pytest.raises(CorruptBatchError, match="block checksum"):
        decompress(codec, damaged)


@for_each(
    "flags, descriptor",
    [
        (0x40, 0x40),
        (0x20, 0x40),
        (0xA0, 0x40),
        (0x61, 0x40),
        (0x62, 0x40),
        (0x60, 0x30),
        (0x60, 0xC0),
        (0x60, 0x41),
    ],
)
def test_lz4_frames_that_kafka_refuses(flags: int, descriptor: int) -> None:
    with pytest.raises(CorruptBatchError):
        decompress(Compression.LZ4, lz4_frame([(b"raw", True)], flags, descriptor))


def test_lz4_blocks_above_the_size_of_the_frame() -> None:
    for raw in (False, True):
        with pytest.raises(CorruptBatchError):
            decompress(Compression.LZ4, lz4_frame([(bytes(70_000), raw)]))


def test_lz4_blocks_that_begin_like_a_stored_size() -> None:
    """The library takes four such bytes for the size of the content unless it is told not to."""
    for content in (bytes(4), bytes(3) + b"\1", bytes.fromhex("0200001e00"), b"\3\0\0" + bytes(9)):
        block = bytes([len(content) << 4]) + content
        stream = lz4_frame([])[:-4] + struct.pack("<I", len(block)) + block + bytes(4)
        assert bytes(decompress(Compression.LZ4, stream)) == content


def test_an_lz4_block_of_no_bytes_is_the_end_mark_even_if_stored_raw() -> None:
    stream = lz4_frame([(b"raw", True)], end=struct.pack("<I", 1 << 31))
    assert bytes(decompress(Compression.LZ4, stream)) == b"raw"
    with pytest.raises(CorruptBatchError, match="no frame header"):
        decompress(Compression.LZ4, stream + struct.pack("<I", 1 << 31 | 1) + b"x" + bytes(4))


def test_zstd_frame() -> None:
    stream = stream_of(Compression.ZSTD, TEXT)
    assert stream[:4] == bytes.fromhex("28b52ffd")
    assert stream[4] == 0  # no content size, no checksum, no dictionary
    assert stream.endswith(bytes.fromhex("010000"))
    assert bytes(cramjam.zstd.decompress(stream)) == TEXT


def test_zstd_frames_of_other_writers() -> None:
    sized = bytes(cramjam.zstd.compress(TEXT))
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"hello"
    data = skippable + sized + stream_of(Compression.ZSTD, NOISE) + skippable
    assert bytes(decompress(Compression.ZSTD, data)) == TEXT + NOISE
    for size in (1, 255, 256, 300, 65_791, 65_792, 70_000):
        stream = bytes(cramjam.zstd.compress(NOISE[:size]))
        assert bytes(decompress(Compression.ZSTD, stream)) == NOISE[:size]


def test_large_content_in_small_zstd_blocks_is_read() -> None:
    """A frame whose blocks could hold far more than the limit, but do not."""
    packer, packed = cramjam.zstd.Compressor(level=1), []
    for at in range(1000):
        packer.compress(TEXT[at : at + 17_000])
        packed.append(bytes(packer.flush()))
    stream = b"".join(packed) + bytes(packer.finish())
    assert len(decompress(Compression.ZSTD, stream, 17_000_000)) == 17_000_000


def test_streams_are_read_by_pyarrow() -> None:
    pa = pytest.importorskip("pyarrow")
    for codec, name in (
        (Compression.GZIP, "gzip"),
        (Compression.LZ4, "lz4"),
        (Compression.ZSTD, "zstd"),
    ):
        for sample in SAMPLES:
            source = pa.CompressedInputStream(pa.BufferReader(stream_of(codec, sample)), name)
            assert source.read() == sample


@codec_cases
def test_levels(codec: Compression) -> None:
    if codec not in LEVELS:
        assert bytes(decompress(codec, compress(codec, TEXT, 5))) == TEXT
        return
    low, high = LEVELS[codec]
    assert low <= DEFAULT_LEVEL[codec] <= high
    for level in (low, 1, high if codec is not Compression.ZSTD else 12):
        assert bytes(decompress(codec, compress(codec, TEXT[:9999], level))) == TEXT[:9999]
    for level in (low - 1, high + 1):
        with pytest.raises(ValueError, match="level"):
            compress(codec, TEXT, level)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD], ids=str)
def test_a_higher_level_takes_less_room(codec: Compression) -> None:
    """LZ4's default level 9 is its fast compressor, for Kafka too."""
    text = b"".join(b"flight %d of %d " % (i * 7919 % 1009, i % 13) for i in range(9000))
    low, high = {Compression.LZ4: (9, 12), Compression.ZSTD: (-50, 19)}.get(codec, (1, 9))
    sizes = [len(bytes(compress(codec, text, level))) for level in (low, high)]
    assert sizes[1] < 0.95 * sizes[0]
    batches = [
        encode_batch([(None, text, 1)], compression=codec, level=level) for level in (low, high)
    ]
    assert len(batches[1]) < 0.95 * len(batches[0])
    assert [read_records(b)[0].value for b in batches] == [text, text]


@pytest.mark.parametrize("level", [1, 4, 12, 17])
def test_lz4_frames_of_every_level_are_as_kafka_writes_them(level: int) -> None:
    """Independent blocks, no checksums: Kafka's reader refuses linked blocks."""
    for sample in [*SAMPLES, NOISE, TEXT * 3]:
        stream = bytes(compress(Compression.LZ4, sample, level))
        assert stream[:7] == bytes.fromhex("04224d18604082")
        assert bytes(decompress(Compression.LZ4, stream)) == sample


def test_a_level_out_of_range_is_refused_with_the_batch() -> None:
    with pytest.raises(InvalidRecordError, match="level 18"):
        encode_batch([(b"k", b"v")], compression=Compression.LZ4, level=18)


# --- libraries -----------------------------------------------------------------------------------

SKIPPED = "skipped 20000000 00 810100" + 28 * "00"
"""32 bytes that look like a header and the head of a block, which holds the next 20 bytes too."""

twins = pytest.mark.parametrize("codec", TWINS, ids=str)


@twins
def test_either_library_reads_what_the_other_wrote(codec: Compression) -> None:
    for sample in SAMPLES:
        for level in (DEFAULT_LEVEL[codec], 1, 9):
            stream = bytes(compress(codec, sample, level))
            plain = bytes(TWINS[codec].compress(sample, level))
            assert bytes(TWINS[codec].decompress(stream, len(sample))) == sample
            assert bytes(decompress(codec, plain, len(sample))) == sample
            assert stream == plain


@twins
def test_damaged_streams_have_one_outcome_in_either_library(codec: Compression) -> None:
    rng = random.Random(5)
    for _ in range(150):
        stream = random_stream(rng, codec, TEXT[: rng.choice([0, 9, 500, 5000])])
        for data in (stream, stream + b"\0", stream * 2, damaged(rng, stream)):
            for limit in (0, 1, 500, 10_000):
                found = outcome(decompress, codec, data, limit)
                assert found == outcome(by_the_twin, codec, data, limit)


def incomplete_gzip() -> bytes:
    """An A, five times, in a Huffman code that leaves codewords over: no encoder makes such."""
    lengths = {18: 2, 0: 2, 3: 2, 2: 2}
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)
    bits = "10100000000000111"  # the last block, dynamic; 257 and 1 codes; 18 lengths
    bits += "".join(f"{lengths.get(symbol, 0):03b}"[::-1] for symbol in order)
    codes = {0: "00", 2: "01", 3: "10"}

    def zeros(count: int) -> str:
        return "11" + f"{count - 11:07b}"[::-1]

    bits += zeros(65) + codes[3] + zeros(138) + zeros(52) + codes[2] + codes[0]
    bits += "010" * 5 + "00"
    bits += "0" * (-len(bits) % 8)
    content = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    trailer = struct.pack("<II", zlib.crc32(b"A" * 5), 5)
    return bytes.fromhex("1f8b08000000000000ff") + content + trailer


def test_an_incomplete_huffman_code_is_refused_as_by_kafka() -> None:
    """Some libraries decode it, and the checksum of the content is right."""
    with pytest.raises(CorruptBatchError, match="invalid literal/lengths set"):
        decompress(Compression.GZIP, incomplete_gzip())


@for_each(
    "frame",
    [
        "2000 010000",  # claims no content and has none
        "2000 010000 78",
        "2000 09000078",  # claims no content and has one byte
        "2002 09000078",  # claims two
        "e0ffffffffffffff7f 09000078",
        "a0ffffff00 09000078",  # claims 16 MiB
        "2001 09000078",
        "2000" + "02001078" * 3 + "010000",  # claims nothing, and has three runs of 128 KiB
        "0058" + "02001078" * 3 + "010000",
        "0058" + "02001078" * 3 + "010000 78",
        "0058" + "000000" * 200 + "09000078",
        "0458" + "03001078" + "00000000",  # 128 KiB, and the checksum is wrong
        "skipped 02000000 010000",
        SKIPPED + 2 * "28b52ffd2001 09000078",
    ],
)
def test_what_a_frame_of_zstd_claims_is_checked(frame: str) -> None:
    data = bytes.fromhex(("28b52ffd" + frame).replace("28b52ffdskipped", "502a4d18"))
    found = outcome(decompress, Compression.ZSTD, data, 1 << 26)
    assert found == outcome(by_the_twin, Compression.ZSTD, data, 1 << 26)
    sound = {
        "2000 010000": b"",
        "2001 09000078": b"x",
        SKIPPED + 2 * "28b52ffd2001 09000078": b"xx",
        "0058" + "02001078" * 3 + "010000": b"x" * (3 << 17),
        "0058" + "000000" * 200 + "09000078": b"x",
    }
    assert (found == sound[frame]) if frame in sound else isinstance(found, str)


def test_a_kept_context_keeps_no_large_window() -> None:
    content = NOISE * 10
    for level in (3, 19, 22):
        stream = bytes(compress(Compression.ZSTD, content, level))
        assert bytes(decompress(Compression.ZSTD, stream)) == content
    assert all(context.memory_size() < 9 << 20 for context in codec_zstd.unpackers)


def test_only_a_few_contexts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads gave theirs back meanwhile."""
    pytest.importorskip("zstandard")
    stream = stream_of(Compression.ZSTD, TEXT[:1000])
    others = [None] * codec_zstd.KEPT_MAX
    monkeypatch.setattr(codec_zstd, "unpackers", unpackers := [])
    monkeypatch.setattr(codec_zstd, "borrow", lambda: unpackers.extend(others) or borrow())
    assert bytes(decompress(Compression.ZSTD, stream)) == TEXT[:1000]
    assert unpackers == others


# --- limits --------------------------------------------------------------------------------------


@codec_cases
@for_each("size", [1, 1000, 100_000])
def test_the_limit_is_exact(codec: Compression, size: int) -> None:
    for sample in (bytes(size), NOISE[:size]):
        stream = stream_of(codec, sample)
        assert bytes(decompress(codec, stream, size)) == sample
        for limit in (0, size // 2, size - 1):
            with pytest.raises(CorruptBatchError, match="limit"):
                decompress(codec, stream, limit)


@pytest.mark.slow
@codec_cases
def test_large_content_is_measured_first(codec: Compression) -> None:
    content = TEXT * 80  # 20 MB: above what is unpacked at once
    stream = stream_of(codec, content)
    assert bytes(decompress(codec, stream)) == content
    assert bytes(decompress(codec, stream, len(content))) == content
    with pytest.raises(CorruptBatchError, match="limit"):
        decompress(codec, stream, len(content) - 1)


def test_the_default_limit_is_above_what_a_default_batch_in_lz4_can_hold() -> None:
    assert UNPACKED_MAX >= 255 * 1_048_588 // 1.05


# --- garbage -------------------------------------------------------------------------------------


@codec_cases
def test_cut_streams(codec: Compression) -> None:
    content = TEXT[:5000]
    stream = stream_of(codec, content)
    for size in range(0, len(stream), 7):
        with suppress(CorruptBatchError):
            assert bytes(decompress(codec, stream[:size])) != content
    with pytest.raises(CorruptBatchError):
        decompress(codec, b"")


@codec_cases
def test_flipped_bits_are_an_error_or_other_content(codec: Compression) -> None:
    """A checksum around the batch finds them; the codec must only not crash over them."""
    stream = stream_of(codec, TEXT[:300])
    for bit in range(8 * len(stream)):
        damaged = bytearray(stream)
        damaged[bit // 8] ^= 1 << bit % 8
        with suppress(CorruptBatchError):
            decompress(codec, damaged, 1 << 20)


@settings(max_examples=150)
@given(st.sampled_from(CODECS), st.binary(max_size=64), st.integers(0, 20), st.integers(0, 2))
def test_random_bytes_are_a_typed_error(
    codec: Compression, garbage: bytes, kept: int, magic: int
) -> None:
    data = stream_of(codec, b"hello hello hello")[:kept] + garbage
    with suppress(CorruptBatchError):
        assert len(decompress(codec, data, 1 << 16, magic)) <= 1 << 16


@codec_cases
def test_garbage_after_a_stream(codec: Compression) -> None:
    for garbage in (b"\0", b"\0\0\0\0", b"garbage garbage garbage"):
        with pytest.raises(CorruptBatchError):
            decompress(codec, stream_of(codec, TEXT[:100]) + garbage)


def test_checksums_of_gzip_are_verified() -> None:
    stream = bytearray(stream_of(Compression.GZIP, TEXT[:100]))
    stream[-8] ^= 1
    with pytest.raises(CorruptBatchError, match="gzip"):
        decompress(Compression.GZIP, stream)
    assert zlib.crc32(TEXT[:100]) == struct.unpack("<I", gzip.compress(TEXT[:100])[-8:-4])[0]
