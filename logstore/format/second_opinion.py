"""A checksum computed once more, by a library that shares no code with the kernels.

A fault of one kernel must never condemn good bytes. So recovery checks here before it cuts a batch,
and ``verify`` before it calls a batch damaged.
"""

from __future__ import annotations

import struct
import zlib

import crcmod

from logstore.common.errors import InvariantError
from logstore.kernels import crc32, crc32c
from logstore.storage.base import File

_PREFIX = 12  # base offset and length
_HEAD = struct.Struct(">qiibI")  # v2: base offset, length, leader epoch, magic, checksum
_SUMMED_FROM = {0: 16, 1: 16, 2: 21}  # magic → first byte that the checksum covers
_WINDOW = 1 << 20
_crc32c = crcmod.mkCrcFun(0x1_1EDC_6F41, initCrc=0, rev=True, xorOut=0xFFFF_FFFF)


def confirm_bad_checksum(file: File, path: str, position: int, size: int) -> None:
    """Check that kernel and library agree that the batch at ``position`` has a bad checksum.

    Both read the same bytes once more, as the file may still be written to. A batch that is
    incomplete or has an unknown magic is not judged, because it is refused for that and not for its
    checksum.

    Raises:
        InvariantError: the checksum matches for the library, and not for the kernel.
    """
    head = file.read_at(position, _HEAD.size)
    if len(head) < _HEAD.size:
        return
    _, length, crc_of_old, magic, crc = _HEAD.unpack(head)
    start, end = _SUMMED_FROM.get(magic, -1), position + _PREFIX + length
    if start < 0 or not position + _HEAD.size <= end <= size:
        return
    new = magic == 2
    stored = crc if new else crc_of_old & 0xFFFF_FFFF
    kernel, library = (crc32c, _crc32c) if new else (crc32, zlib.crc32)
    first = second = 0
    for at in range(position + start, end, _WINDOW):
        data = file.read_at(at, min(_WINDOW, end - at))
        first, second = kernel(data, first), library(data, second)
    if second == stored != first:
        raise InvariantError(
            f"{path} at byte {position}: the kernel computes {first:#010x} for the "
            f"checksum {stored:#010x}, a second library finds it right; nothing was changed"
        )


__all__ = ["confirm_bad_checksum"]
