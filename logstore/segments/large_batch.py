"""Batches that claim to be large, looked at in pieces before memory is taken for them.

A length is outside the checksum, and a file may be sparse: one wrong byte would ask for 2 GiB.
"""

from __future__ import annotations

from logstore.format.header import CRC_POSITION
from logstore.kernels import crc32c
from logstore.storage.base import File

LARGE = 64 << 20
"""Bytes up to which a batch is read on the word of its header."""

_CONTENT = CRC_POSITION + 4
_PIECE = 4 << 20


def content_crc(file: File, position: int, size: int) -> int:
    """The checksum of a batch of magic 2 as its bytes give it, in memory of 4 MiB."""
    crc = 0
    for start in range(position + _CONTENT, position + size, _PIECE):
        crc = crc32c(file.read_at(start, min(_PIECE, position + size - start)), crc)
    return crc


def worth_reading(file: File, position: int, size: int) -> bool:
    """Whether a batch of ``size`` bytes may be read whole: it is not large, or it is intact."""
    if size <= LARGE:
        return True
    head = file.read_at(position, _CONTENT)
    whole = size <= file.size() - position and len(head) == _CONTENT and head[16] == 2
    stored = int.from_bytes(head[CRC_POSITION:], "big")
    return whole and content_crc(file, position, size) == stored


__all__ = ["LARGE", "content_crc", "worth_reading"]
