"""The diagnosis of the place where the scan of a ``.log`` stopped, and where it can go on (S-49).

Four fields lie outside the checksum (F-62). To distinguish a wrong field from wrong content, the
right value is put in its place: if the checksum then matches, that field was wrong.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from logstore.common.bounds import WHOLE_BATCH_MAX
from logstore.format.batch_search import PREFIX, find_batch, is_valid_batch
from logstore.format.large_batch import content_crc
from logstore.kernels import (
    HEADER_SIZE,
    SCAN_BAD_CRC,
    SCAN_BAD_HEADER,
    SCAN_BAD_MAGIC,
    SCAN_BAD_OFFSET,
    SCAN_REASONS,
)
from logstore.storage.base import File
from logstore.verify.common.report import UNKNOWN, Problem, error

_WINDOW = 4 << 20
_HEAD = struct.Struct(">qiibI")
_FRAMED = (SCAN_BAD_CRC, SCAN_BAD_HEADER, SCAN_BAD_MAGIC, SCAN_BAD_OFFSET)

TORN, ZEROS, GARBAGE = "torn tail", "zero tail", "garbage tail"


class Diagnosis(NamedTuple):
    """``resume`` is where the next batch starts, −1 if none was found.

    In that case ``tail`` names what the file ends with, and there is no problem yet: the place of
    the segment in the log decides.
    """

    problem: Problem | None
    resume: int
    last_offset: int = UNKNOWN
    tail: str = ""


def diagnose(file: File, size: int, position: int, status: int, expected: int) -> Diagnosis:
    """Look at the bytes at ``position``, where a scan of ``size`` bytes ended with ``status``.

    ``expected`` is the offset that should follow, −1 if unknown.
    """
    if zero_from(file, position, size):
        return Diagnosis(None, UNKNOWN, tail=ZEROS)
    head = file.read_at(position, HEADER_SIZE)
    if len(head) < _HEAD.size:
        return Diagnosis(None, UNKNOWN, tail=TORN)
    base, length, _, magic, stored = _HEAD.unpack_from(head)
    end = position + PREFIX + length
    offset = base if expected < 0 else expected
    last = _claimed_last(head, expected)
    if status in _FRAMED and end <= size:
        if magic != 2 and length + PREFIX >= HEADER_SIZE and _crc_fits(file, position, end, stored):
            message = f"magic {magic}: with magic 2 the checksum matches"
            return Diagnosis(error("log-magic", message, position, offset), end, last)
        if status == SCAN_BAD_OFFSET:
            message = f"base offset {base} is outside the range of offsets"
            return Diagnosis(error("log-base-offset", message, position, offset), end, last)
        if end == size or _starts_here(file, end, size, last):
            rule = {
                SCAN_BAD_CRC: "log-checksum" if magic == 2 else "log-legacy-checksum",
                SCAN_BAD_MAGIC: "log-magic",
            }
            message = f"{SCAN_REASONS[status]} in a batch of {PREFIX + length} bytes"
            if magic == 2 and status == SCAN_BAD_CRC:
                actual = content_crc(file, position, PREFIX + length)
                message = f"checksum {stored:#010x}, the bytes give {actual:#010x}"
            found = error(rule.get(status, "log-record-count"), message, position, offset)
            if end < size:
                last = int.from_bytes(file.read_at(end, 8), "big", signed=True) - 1
            tail = GARBAGE if end == size else ""
            return Diagnosis(found, end, last, tail)
    return _search(file, size, position, status, offset, stored, length, last)


def _search(
    file: File,
    size: int,
    position: int,
    status: int,
    offset: int,
    stored: int,
    length: int,
    last: int,
) -> Diagnosis:
    """Find the next whole batch, since the length cannot be trusted."""
    after = find_batch(file, position + 1, size, offset)
    if after is not None:
        found, found_base = after
        if _crc_fits(file, position, found, stored):
            right = found - position - PREFIX
            message = f"batch length {length}: with {right} the checksum matches"
            return Diagnosis(error("log-length", message, position, offset), found, found_base - 1)
        message = f"{SCAN_REASONS[status]}; the next whole batch is {found - position} bytes on"
        rule = "log-checksum" if status == SCAN_BAD_CRC else "log-length"
        return Diagnosis(error(rule, message, position, offset), found, found_base - 1)
    if _crc_fits(file, position, size, stored):
        message = f"batch length {length}: with {size - position - PREFIX} the checksum matches"
        return Diagnosis(error("log-length", message, position, offset), size, last)
    if status in _FRAMED or length < 14:
        message = f"{SCAN_REASONS[status]}; no whole batch follows"
        rule = "log-checksum" if status == SCAN_BAD_CRC else "log-torn-end"
        return Diagnosis(error(rule, message, position, offset), UNKNOWN, tail=GARBAGE)
    return Diagnosis(None, UNKNOWN, last, TORN)


def zero_from(file: File, position: int, size: int) -> bool:
    """Whether all bytes from ``position`` on are zero, as preallocation leaves them (F-107)."""
    step = 4096  # most tails that are not zero end here
    zeros = bytes(step)
    while position < size:
        data = file.read_at(position, min(step, size - position))
        if data != zeros[: len(data)]:
            return False
        position += step
        if step < _WINDOW:
            step = _WINDOW
            zeros = bytes(min(step, max(size - position, 0)))
    return True


def _starts_here(file: File, position: int, size: int, last: int) -> bool:
    """Whether a batch begins at ``position``: it continues the offsets, or its checksum matches."""
    head = file.read_at(position, 17)
    if len(head) < 17:
        return False
    base, length = struct.unpack_from(">qi", head)
    if length < 14 or position + PREFIX + length > size:
        return False
    if last >= 0 and base == last + 1 and head[16] in (0, 1, 2):
        return True
    return length <= WHOLE_BATCH_MAX and is_valid_batch(file, position, PREFIX + length)


def _claimed_last(head: bytes, expected: int) -> int:
    """The last offset that a damaged batch may have had according to its own header."""
    if len(head) < HEADER_SIZE:
        return UNKNOWN
    base = int.from_bytes(head[:8], "big", signed=True)
    delta = int.from_bytes(head[23:27], "big", signed=True)
    count = int.from_bytes(head[57:61], "big", signed=True)
    if delta < 0 or (expected < 0 and base < 0):
        return UNKNOWN
    return (base if expected < 0 else expected) + (delta if count == delta + 1 else 0)


def _crc_fits(file: File, position: int, end: int, stored: int) -> bool:
    size = end - position
    return size >= HEADER_SIZE and content_crc(file, position, size) == stored
