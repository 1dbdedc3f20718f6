"""Check batches in pieces, whatever their size, before memory is taken for those that claim much.

No checksum covers the length, and a file may be sparse, so one wrong byte could demand 2 GiB.
"""

from __future__ import annotations

from logstore.common.bounds import TRUSTED_BATCH_MAX
from logstore.format.header import CRC_FROM, CRC_POSITION, MAGIC
from logstore.kernels import crc32, crc32c
from logstore.storage.base import File

_LEGACY_CONTENT = 16
_PIECE = 4 << 20


def content_crc(file: File, position: int, size: int, magic: int = MAGIC) -> int:
    """Compute the checksum of a batch. Takes 4 MiB of memory."""
    covered, update = (CRC_FROM, crc32c) if magic == MAGIC else (_LEGACY_CONTENT, crc32)
    crc, end = 0, position + size
    for start in range(position + covered, end, _PIECE):
        with file.view(start, min(_PIECE, end - start)) as view:
            crc = update(view, crc)
    return crc


def worth_reading(file: File, position: int, size: int) -> bool:
    """Whether to read a batch of ``size`` bytes whole, because it is not large or is intact."""
    if size <= TRUSTED_BATCH_MAX:
        return True
    head = file.read_at(position, CRC_FROM)
    whole = size <= file.size() - position and len(head) == CRC_FROM and head[16] == 2
    stored = int.from_bytes(head[CRC_POSITION:], "big")
    return whole and content_crc(file, position, size) == stored


__all__ = ["content_crc", "worth_reading"]
