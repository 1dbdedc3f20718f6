"""Streams that no encoder of ours writes: any cut into members, frames and blocks, and bombs."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

import cramjam
from xxhash import xxh32_intdigest

from logstore.format.codecs.compression import Compression

SNAPPY_HEADER = bytes.fromhex("82534e41505059000000000100000001")
ZSTD_HEADER = bytes.fromhex("28b52ffd0058")  # window of 2 MiB, no content size
ZSTD_END = bytes.fromhex("010000")
GIB = 1 << 30


# --- pieces --------------------------------------------------------------------------------------


def gzip_member(
    content: bytes, extra: bytes = b"", name: bytes = b"", comment: bytes = b""
) -> bytes:
    flags = (4 if extra else 0) | (8 if name else 0) | (16 if comment else 0)
    packed = zlib.compress(content, 1, -15)
    return b"".join(
        [
            b"\x1f\x8b\x08" + bytes([flags]) + bytes(6),
            struct.pack("<H", len(extra)) + extra if extra else b"",
            name + b"\0" if name else b"",
            comment + b"\0" if comment else b"",
            packed + struct.pack("<II", zlib.crc32(content), len(content)),
        ]
    )


def lz4_block(content: bytes, raw: bool, checksum: bool = False) -> bytes:
    block = content if raw else bytes(cramjam.lz4.compress_block(content, store_size=False))
    packed = struct.pack("<I", len(block) | raw << 31) + block
    return packed + struct.pack("<I", xxh32_intdigest(block)) if checksum else packed


def lz4_header(
    checksums: bool = False, size_code: int = 4, content_size: int | None = None
) -> bytes:
    flags = 0x60 | (0x10 if checksums else 0) | (8 if content_size is not None else 0)
    header = bytes([flags, size_code << 4])
    header += b"" if content_size is None else struct.pack("<Q", content_size)
    return b"\x04\x22\x4d\x18" + header + bytes([xxh32_intdigest(header) >> 8 & 0xFF])


def snappy_block(content: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(content))
    return struct.pack(">i", len(block)) + block


def zstd_block(kind: int, size: int, data: bytes, last: bool = False) -> bytes:
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + data


def zstd_run(size: int = 128 << 10) -> bytes:
    return zstd_block(1, size, b"\0")


# --- random structures ---------------------------------------------------------------------------


def random_stream(rng: random.Random, codec: Compression, content: bytes) -> bytes:
    """``content``, cut anywhere, in any members, frames and blocks that the codec allows."""
    return {
        Compression.GZIP: _random_gzip,
        Compression.SNAPPY: _random_snappy,
        Compression.LZ4: _random_lz4,
        Compression.ZSTD: _random_zstd,
    }[codec](rng, content)


def random_cuts(rng: random.Random, content: bytes, largest: int) -> list[bytes]:
    pieces = []
    while content:
        size = min(rng.choice([1, 2, 9, 70, 600, 5000, 70_000]), largest)
        size = rng.randint(1, size)
        pieces.append(content[:size])
        content = content[size:]
    return pieces


def _random_gzip(rng: random.Random, content: bytes) -> bytes:
    members = random_cuts(rng, content, 1 << 20) or [b""]
    members += [b""] * rng.choice([0, 0, 3])
    fields = [b"", b"", b"n", b"field" * 300]
    return b"".join(
        gzip_member(piece, rng.choice(fields), rng.choice(fields), rng.choice(fields))
        for piece in members
    )


def _random_snappy(rng: random.Random, content: bytes) -> bytes:
    if rng.random() < 0.1:
        return bytes(cramjam.snappy.compress_raw(content))
    stream = SNAPPY_HEADER
    for piece in random_cuts(rng, content, 1 << 20):
        stream += SNAPPY_HEADER * (rng.random() < 0.1) + snappy_block(piece)
        stream += snappy_block(b"") * (rng.random() < 0.1)
    return stream


def _random_lz4(rng: random.Random, content: bytes) -> bytes:
    stream = b""
    pieces = random_cuts(rng, content, 1 << 16)
    while pieces or not stream:
        checksums, count = rng.random() < 0.5, rng.choice([0, 1, 5, 1000])
        claimed = rng.choice([None, None, 0, 2**31, 2**64 - 1])
        stream += lz4_header(checksums, rng.randint(4, 7), claimed)
        for piece in pieces[:count]:
            stream += lz4_block(piece, rng.random() < 0.5, checksums)
        stream += bytes(4)
        pieces = pieces[count:]
    return stream


def _random_zstd(rng: random.Random, content: bytes) -> bytes:
    stream = b""
    pieces = random_cuts(rng, content, 1 << 17)
    while pieces or not stream:
        count = rng.choice([1, 1, 5, 1000])
        part, pieces = b"".join(pieces[:count]), pieces[count:]
        stream += rng.choice([b"", b"", struct.pack("<II", 0x184D2A55, 3) + b"abc"])
        kind = rng.random()
        if kind < 0.4:
            stream += bytes(cramjam.zstd.compress(part, rng.choice([1, 3, 19])))
        elif kind < 0.7:
            packer = cramjam.zstd.Compressor(level=3)
            for piece in random_cuts(rng, part, 1 << 17):
                packer.compress(piece)
                if rng.random() < 0.5:
                    stream += bytes(packer.flush())
            stream += bytes(packer.finish())
        else:
            stream += ZSTD_HEADER
            for piece in random_cuts(rng, part, 1 << 17):
                run = len(set(piece)) == 1
                stream += zstd_block(run, len(piece), piece[:1] if run else piece)
            stream += ZSTD_END
    return stream


# --- bombs ---------------------------------------------------------------------------------------


class Bomb(NamedTuple):
    codec: Compression
    make: Callable[[int], bytes]
    """The stream, of about so many bytes, or more of what it stands for."""
    refused: str | None  # what the error says; None if the content is read
    content: Callable[[int], int] = lambda size: 0
    """The size of what is read."""
    magic: int = 2


def _times(unit: bytes, head: bytes = b"", tail: bytes = b"") -> Callable[[int], bytes]:
    return lambda size: head + unit * (size // len(unit)) + tail


def _zeros_gzip(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(16 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return bytes.fromhex("1f8b08000000000000ff") + block * 640


def _zeros_lz4(size: int) -> bytes:
    return lz4_header(size_code=7) + lz4_block(bytes(4 << 20), raw=False) * 2560 + bytes(4)


def _zeros_snappy(size: int) -> bytes:
    return SNAPPY_HEADER + snappy_block(bytes(4 << 20)) * 2560


def _periodic_zstd(size: int) -> bytes:
    """Compressed blocks, which tell less of their content than runs do."""
    packer = cramjam.zstd.Compressor(level=3)
    for _ in range(320):
        packer.compress(b"01234567" * (1 << 17))
    return bytes(packer.finish()) * 32


def _runs(head: bytes) -> Callable[[int], bytes]:
    return _times(zstd_run(), head, ZSTD_END)


_SIZED = bytes.fromhex("28b52ffdc058")
_WIDE = bytes.fromhex("28b52ffd0088")  # window of 128 MiB
_EIGHT_GZIP = gzip_member(b"8 bytes!")
_EIGHT_LZ4 = lz4_block(b"8 bytes!", raw=True)
_EIGHT_LZ4_CHECKED = lz4_block(b"8 bytes!", raw=False, checksum=True)
_EIGHT_SNAPPY = snappy_block(b"8 bytes!")
_EIGHT_ZSTD = ZSTD_HEADER + zstd_block(0, 8, b"8 bytes!", last=True)
_NOISE = random.Random(1).randbytes(1024)
_KIB_GZIP = gzip_member(_NOISE)
_KIB_ZSTD = ZSTD_HEADER + zstd_block(0, 1024, _NOISE, last=True)
_ONE_BYTE = zstd_block(0, 1, b"x")


def _eights(unit: bytes) -> Callable[[int], int]:
    return lambda size: 8 * (size // len(unit))


G, S, L, Z = Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD
_BLOCKS = "blocks for"
_MEMBERS = "members for"
BOMBS = {
    "gzip: empty members": Bomb(G, lambda size: gzip_member(b"") * (size // 8), _MEMBERS),
    "gzip: members of a record": Bomb(G, lambda size: _EIGHT_GZIP * (1 << 18), _MEMBERS),
    "gzip: members of 1 KiB": Bomb(
        G, _times(_KIB_GZIP), None, lambda size: size // len(_KIB_GZIP) << 10
    ),
    "gzip: long extra fields": Bomb(
        G,
        _times(gzip_member(b"8 bytes!", extra=bytes(65_535))),
        None,
        lambda size: 8 * (size // len(gzip_member(b"8 bytes!", extra=bytes(65_535)))),
    ),
    "gzip: an endless name": Bomb(
        G, lambda size: gzip_member(b"x", name=b"n" * size), None, lambda size: 1
    ),
    "gzip: a comment without end": Bomb(
        G, lambda size: b"\x1f\x8b\x08\x10" + bytes(6) + b"c" * size, "ends early"
    ),
    "gzip: 10 GB of zeros": Bomb(G, _zeros_gzip, "limit"),
    "lz4: raw bytes": Bomb(L, _times(lz4_block(b"x", raw=True), lz4_header(), bytes(4)), _BLOCKS),
    "lz4: packed bytes": Bomb(
        L, _times(lz4_block(b"x", raw=False), lz4_header(), bytes(4)), _BLOCKS
    ),
    "lz4: packed bytes in large blocks": Bomb(
        L, _times(lz4_block(b"x", raw=False), lz4_header(size_code=7), bytes(4)), _BLOCKS
    ),
    "lz4: packed nothing": Bomb(
        L, _times(struct.pack("<I", 1) + b"\0", lz4_header(), bytes(4)), _BLOCKS
    ),
    "lz4: raw bytes with checksums": Bomb(
        L, _times(lz4_block(b"x", True, checksum=True), lz4_header(True), bytes(4)), _BLOCKS
    ),
    "lz4: packed bytes with checksums": Bomb(
        L, _times(lz4_block(b"x", False, checksum=True), lz4_header(True), bytes(4)), _BLOCKS
    ),
    "lz4: blocks of a record": Bomb(
        L, _times(_EIGHT_LZ4, lz4_header(), bytes(4)), None, _eights(_EIGHT_LZ4)
    ),
    "lz4: checked blocks of a record": Bomb(
        L,
        _times(_EIGHT_LZ4_CHECKED, lz4_header(True), bytes(4)),
        None,
        _eights(_EIGHT_LZ4_CHECKED),
    ),
    "lz4: large blocks with checksums": Bomb(
        L,
        _times(lz4_block(bytes(range(256)) * 256, True, True), lz4_header(True), bytes(4)),
        None,
        lambda size: (size // 65_544) << 16,
    ),
    "lz4: empty frames": Bomb(L, _times(lz4_header() + bytes(4)), _BLOCKS),
    "lz4: empty frames of magic 0": Bomb(L, _times(lz4_header() + bytes(4)), _BLOCKS, magic=0),
    "lz4: empty frames that claim sizes": Bomb(
        L, lambda size: (lz4_header(content_size=2**63) + bytes(4)) * (1 << 18), _BLOCKS
    ),
    "lz4: 10 GB of zeros": Bomb(L, _zeros_lz4, "limit"),
    "snappy: blocks of a byte": Bomb(S, _times(snappy_block(b"x"), SNAPPY_HEADER), _BLOCKS),
    "snappy: blocks of nothing": Bomb(S, _times(snappy_block(b""), SNAPPY_HEADER), _BLOCKS),
    "snappy: headers": Bomb(S, lambda size: SNAPPY_HEADER * (1 << 18), _BLOCKS),
    "snappy: blocks of a record": Bomb(
        S, _times(_EIGHT_SNAPPY, SNAPPY_HEADER), None, _eights(_EIGHT_SNAPPY)
    ),
    "snappy: a block length of 2^31-1": Bomb(
        S, lambda size: SNAPPY_HEADER + b"\x7f\xff\xff\xff" + bytes(size), "block length"
    ),
    "snappy: a claim of 4 GiB": Bomb(
        S,
        lambda size: (
            SNAPPY_HEADER + struct.pack(">i", size) + b"\xff\xff\xff\xff\x0f" + bytes(size - 5)
        ),
        "claim",
    ),
    "snappy: a claim just below what is possible": Bomb(
        S,
        lambda size: b"\x80\x80\x80" + bytes([min(size * 20, 255 << 20) >> 21]) + bytes(size),
        "snappy",
    ),
    "snappy: 10 GB of zeros": Bomb(S, _zeros_snappy, "limit"),
    "zstd: empty frames": Bomb(Z, _times(ZSTD_HEADER + ZSTD_END), _MEMBERS),
    "zstd: empty frames with a window of 128 MiB": Bomb(Z, _times(_WIDE + ZSTD_END), _MEMBERS),
    "zstd: frames of a record": Bomb(Z, lambda size: _EIGHT_ZSTD * (1 << 18), _MEMBERS),
    "zstd: frames of 1 KiB": Bomb(
        Z, _times(_KIB_ZSTD), None, lambda size: size // len(_KIB_ZSTD) << 10
    ),
    "zstd: skippable frames": Bomb(Z, _times(struct.pack("<II", 0x184D2A50, 0)), _MEMBERS),
    "zstd: a skippable frame": Bomb(
        Z, lambda size: struct.pack("<II", 0x184D2A50, size) + bytes(size), None
    ),
    "zstd: a skippable frame of 4 GiB": Bomb(
        Z, lambda size: struct.pack("<II", 0x184D2A50, 2**32 - 1) + bytes(size), "ends early"
    ),
    "zstd: a window of 2^41": Bomb(Z, _runs(bytes.fromhex("28b52ffd00f8")), "memory"),
    "zstd: a frame of one segment of 4 GiB": Bomb(
        Z, _runs(bytes.fromhex("28b52ffda0ffffffff")), "memory"
    ),
    "zstd: empty blocks": Bomb(Z, _times(zstd_block(0, 0, b""), ZSTD_HEADER, ZSTD_END), None),
    "zstd: blocks of a byte": Bomb(
        Z, _times(_ONE_BYTE, ZSTD_HEADER, ZSTD_END), None, lambda size: size // 4
    ),
    "zstd: runs": Bomb(Z, _runs(ZSTD_HEADER), "limit"),
    "zstd: runs behind a claim of 2^62": Bomb(Z, _runs(_SIZED + struct.pack("<Q", 2**62)), "limit"),
    "zstd: runs behind a claim of 1 KiB, beside another frame": Bomb(
        Z,
        _runs(ZSTD_HEADER + zstd_run() * 8 + ZSTD_END + _SIZED + struct.pack("<Q", 1024)),
        "zstd",
    ),
    "zstd: 10 GB in compressed blocks": Bomb(Z, _periodic_zstd, "limit"),
}
