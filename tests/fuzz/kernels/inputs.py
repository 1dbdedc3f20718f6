"""Hostile inputs: real batches with fields changed, records that lie, buffers of every kind."""

from __future__ import annotations

import functools
import random
import struct
import zlib
from array import array
from pathlib import Path

from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.kernels import _constants as v
from tests.reference import records as reference
from tests.support.builders import marker, produced

GOLDEN = Path(__file__).parents[2] / "golden" / "data"
HEADER = struct.Struct(">qiibIhiqqqhii")
FIELDS = len(HEADER.unpack(bytes(HEADER.size)))
BASE, LENGTH, EPOCH, MAGIC, CRC, ATTRIBUTES, LAST_DELTA = range(7)
COUNT = FIELDS - 1
LONG = 2**63 - 1
EDGES = (
    0,
    1,
    -1,
    2,
    7,
    13,
    60,
    61,
    127,
    128,
    255,
    2**15 - 1,
    -(2**15),
    2**16,
    2**31 - 2,
    2**31 - 1,
    2**31,
    2**32 - 1,
    -(2**31),
    2**62,
    LONG - 1,
    LONG,
    -LONG,
    -(2**63),
)


def number(rng: random.Random, bits: int = 64) -> int:
    """A two's complement number, mostly at an edge."""
    n = rng.choice(EDGES) if rng.random() < 0.8 else rng.getrandbits(bits)
    return (n + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def index(rng: random.Random, size: int) -> int:
    """A position in ``size`` bytes or rows: mostly inside, sometimes far outside."""
    return rng.randint(0, size) if rng.random() < 0.8 else number(rng)


# ---- batches ----


@functools.cache
def originals() -> tuple[bytes, ...]:
    """Whole batches of every kind, magic 0 to 2: built here, and written by Kafka."""
    rows = [
        (b"key", b"value", 1_000),
        (None, b"v" * 40, 900, [("name", b"header"), ("é", None), ("", b"")]),
        (b"", None, 1_001),
        (b"k" * 300, b"", 5),
    ]
    made = [bytes(encode_batch(rows, compression=codec)) for codec in Compression]
    made += [bytes(encode_batch(rows[:n], base_offset=n, leader_epoch=n)) for n in range(1, 4)]
    made.append(bytes(encode_batch(rows, log_append_time=7)))
    made += [produced(5, 3, 2), produced(5, 5, 2, transactional=True)]
    made += [marker(commit=True), marker(commit=False)]
    for path in sorted(GOLDEN.glob("v?-*/*.log")):
        made += split(path.read_bytes()[:20_000])[:4]
    return tuple(batch for batch in made if len(batch) <= 3_000)


def split(data: bytes) -> list[bytes]:
    cells = table(64)
    rows, _, _ = reference.scan_batches(data, 0, cells)
    return [data[cells[i] : cells[i] + cells[64 + i]] for i in range(rows)]


def sealed(batch: bytes) -> bytes:
    """The batch with its checksum made right, whatever else is wrong with it."""
    out = bytearray(batch)
    if len(out) >= v.HEADER_SIZE and out[16] == 2:
        struct.pack_into(">I", out, 17, reference.crc32c(out[21:]))
    elif len(out) > 16:
        struct.pack_into(">I", out, 12, zlib.crc32(out[16:]))
    return bytes(out)


def with_field(batch: bytes, field: int, value: int) -> bytes:
    values = list(HEADER.unpack_from(batch))
    values[field] = value
    return HEADER.pack(*values) + batch[HEADER.size :]


def damaged(rng: random.Random, batch: bytes) -> bytes:
    """The batch with a few fields or bytes changed, mostly with a right checksum."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.randrange(5)
        if kind < 2 and len(batch) >= HEADER.size:
            width = {"q": 64, "i": 32, "I": 32, "h": 16, "b": 8}
            field = rng.randrange(FIELDS)
            value = number(rng, width[HEADER.format[field + 1]])
            batch = with_field(batch, field, value & 0xFFFF_FFFF if field == CRC else value)
        elif kind == 2 and batch:
            out = bytearray(batch)
            out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.getrandbits(8)))
            batch = bytes(out)
        elif kind == 3:
            batch = batch[: rng.randint(0, len(batch))]
        else:
            at = rng.randint(0, len(batch))
            batch = batch[:at] + rng.randbytes(rng.randrange(9)) + batch[at:]
    if len(batch) >= 12 and rng.random() < 0.6:
        batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    return sealed(batch) if rng.random() < 0.8 else batch


def varint(rng: random.Random, n: int) -> bytes:
    """A number as it is written, too long for its value, or never ending."""
    good = reference.encode_varlong(n)
    kind = rng.random()
    if kind < 0.9:
        return good
    if kind < 0.97:
        return good[:-1] + bytes([good[-1] | 0x80]) + b"\x80" * rng.randrange(9) + b"\0"
    return b"\xff" * rng.randrange(12)


def record(rng: random.Random, delta: int, lies: float) -> bytes:
    """One record; each number in it lies with the probability ``lies``."""

    def said(n: int, bits: int = 32) -> bytes:
        return (
            varint(rng, number(rng, bits)) if rng.random() < lies else reference.encode_varlong(n)
        )

    def field(data: bytes | None) -> bytes:
        return said(-1) if data is None else said(len(data)) + data

    headers = [rng.randbytes(rng.randrange(4)) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
    body = bytes(1) + said(rng.choice((0, 1, -5, 2**40)), 64) + said(delta)
    body += field(rng.choice((None, b"", b"key", rng.randbytes(rng.choice((20, 127, 130, 300))))))
    body += field(rng.choice((None, b"", b"value", rng.randbytes(rng.choice((31, 128, 200))))))
    body += said(len(headers)) + b"".join(field(name) + field(name) for name in headers)
    body += rng.randbytes(rng.choice((0, 0, 0, 0, 3))) if lies else b""
    return said(len(body)) + body


def section(rng: random.Random) -> tuple[bytes, int]:
    """A records section, and how many records it is said to have."""
    lies, delta, made = rng.choice((0, 0, 0.02, 0.2)), -1, []
    for _ in range(rng.choice((0, 1, 3, 20, 70))):
        delta += rng.choice((1, 1, 1, 2, 500))
        made.append(record(rng, delta, lies))
    count = len(made) if rng.random() < 0.8 else number(rng, 32)
    data = b"".join(made)
    return (data if rng.random() < 0.9 else data[: rng.randint(0, len(data))]), count


def batch_of(data: bytes, count: int, base_offset: int, attributes: int, timestamp: int) -> bytes:
    buffer = bytearray(v.HEADER_SIZE) + data
    reference.seal_batch(
        buffer,
        base_offset=base_offset,
        leader_epoch=0,
        attributes=attributes,
        last_offset_delta=max(count - 1, 0),
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        record_count=count,
    )
    return bytes(buffer)


def log(rng: random.Random) -> bytes:
    """Consecutive batches, most of them sound, with ascending offsets; the end may be cut."""
    small, made, offset = rng.random() < 0.4, [], rng.choice((0, 0, 5, 2**31, LONG - 40))
    for _ in range(rng.choice((0, 1, 2, 5, 17))):
        batch = originals()[5 + rng.randrange(3)] if small else rng.choice(originals())
        if rng.random() < 0.25:
            data, count = section(rng)
            batch = batch_of(data, count, 0, rng.choice((0, 0, 8, 0x10)), rng.choice((0, 9, LONG)))
        batch = struct.pack(">q", offset) + batch[8:]
        if batch[16] == 2:
            batch = with_field(batch, EPOCH, 0) if small else batch
            offset += max(HEADER.unpack_from(batch)[LAST_DELTA], 0)
        offset = min(offset + 1, LONG)
        made.append(damaged(rng, batch) if rng.random() < 0.15 else batch)
    data = b"".join(made)
    return data if rng.random() < 0.8 else data[: rng.randint(0, len(data))]


# ---- buffers ----


def exact(data: bytes) -> memoryview:
    """A copy with nothing behind it: other types of Python end with a byte of their own."""
    return memoryview(array("B", data) * 1)


def buffer_of(rng: random.Random, data: bytes) -> bytes | bytearray | memoryview:
    """``data`` as an object, a writable or read-only view, aligned or not, at the end of memory."""
    kind = rng.randrange(6)
    if kind == 0:
        return data
    if kind == 1:
        return bytearray(data)
    if kind == 2:
        return exact(data).toreadonly()
    if kind == 3:
        before = rng.randrange(1, 9)
        return exact(bytes(before) + data)[before:]
    if kind == 4:
        return memoryview(rng.randbytes(3) + data + rng.randbytes(5))[3 : 3 + len(data)]
    return exact(data)


def table(capacity: int) -> array[int]:
    """Columns for ``capacity`` batches, with nothing behind them."""
    return array("q", [0]) * (capacity * len(v.SCAN_COLUMNS))
