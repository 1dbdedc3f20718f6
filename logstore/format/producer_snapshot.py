"""Producer snapshots, version 1 (F-126…F-130)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from logstore.common.errors import CorruptSnapshotError
from logstore.common.types import Buffer
from logstore.kernels import crc32c

VERSION = 1
_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_FROM = 6

SIZE_MAX = 256 << 20
"""Bytes of the largest snapshot that is read: 5.8 million producers."""

assert (_HEADER.size, _ENTRY.size) == (10, 46)


class ProducerSnapshotEntry(NamedTuple):
    """One producer and the last of its batches; −1 stands for "none" in every field.

    ``last_offset`` and ``offset_delta`` are those of the batch: it began at their difference.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode_snapshot(entries: Iterable[ProducerSnapshotEntry]) -> bytes:
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = b"".join((len(packed).to_bytes(4, "big"), *packed))
    return _HEADER.pack(VERSION, crc32c(body), len(packed)) + body[4:]


def snapshot_size(header: Buffer, path: str = "") -> int:
    """Bytes of the whole file, going by its first ten bytes.

    Raises:
        CorruptSnapshotError: there are fewer, or the file would be larger than any that is read.
    """
    count: int = _header(header, path)[2]
    size = _HEADER.size + count * _ENTRY.size
    if not _HEADER.size <= size <= SIZE_MAX:
        raise CorruptSnapshotError(path, 6, f"{count} producers")
    return size


def _header(data: Buffer, path: str) -> tuple[int, int, int]:
    """Version, checksum and number of producers."""
    if len(data) < _HEADER.size:
        raise CorruptSnapshotError(path, 0, f"{len(data)} bytes, a header has {_HEADER.size}")
    return _HEADER.unpack_from(data)


def decode_snapshot(data: Buffer, path: str = "") -> list[ProducerSnapshotEntry]:
    """
    Raises:
        CorruptSnapshotError: another version, a wrong checksum or a length that does not fit; the
            file is dropped and the next older one tried (F-130).
    """
    version, crc, count = _header(data, path)
    if version != VERSION:
        raise CorruptSnapshotError(path, 0, f"version {version}, only {VERSION} is known")
    view = memoryview(data)
    actual = crc32c(view[_CRC_FROM:])
    if actual != crc:
        raise CorruptSnapshotError(path, 2, f"checksum {crc:#010x}, the bytes give {actual:#010x}")
    body = view[_HEADER.size :]
    if len(body) != count * _ENTRY.size:
        raise CorruptSnapshotError(path, 6, f"{count} producers in {len(body)} bytes")
    return [ProducerSnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(body)]
