"""Check batches that claim to be large in pieces, before memory is taken for them.

No checksum covers the length, and a file may be sparse, so one wrong byte could demand 2 GiB.
"""

from __future__ import annotations

from logstore.common.bounds import TRUSTED_BATCH_MAX
from logstore.format.header import CRC_POSITION
from logstore.kernels import crc32c
from logstore.storage.base import File

_CONTENT = CRC_POSITION + 4
_PIECE = 4 << 20


def content_crc(file: File, position: int, size: int) -> int:
    """Compute the checksum of a batch of magic 2. Takes 4 MiB of memory."""
    crc = 0
    for start in range(position + _CONTENT, position + size, _PIECE):
        crc = crc32c(file.read_at(start, min(_PIECE, position + size - start)), crc)
    return crc


def worth_reading(file: File, position: int, size: int) -> bool:
    """Whether to read a batch of ``size`` bytes whole, because it is not large or is intact."""
    if size <= TRUSTED_BATCH_MAX:
        return True
    head = file.read_at(position, _CONTENT)
    whole = size <= file.size() - position and len(head) == _CONTENT and head[16] == 2
    stored = int.from_bytes(head[CRC_POSITION:], "big")
    return whole and content_crc(file, position, size) == stored


__all__ = ["content_crc", "worth_reading"]
