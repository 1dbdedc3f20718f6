"""Where a ``.log`` can be read again behind bytes that are no batch.

No mark in the format says where a batch starts, so the search goes by what a header must look like
and believes a place only when the checksum there matches.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator

from logstore.kernels import SCAN_COLUMNS, scan_batches
from logstore.storage.base import File

PREFIX = 12
"""Bytes in front of what the length field of a batch counts."""
WHOLE_BATCH_MAX = 16 << 20
"""Bytes of a batch that is looked at in one piece; larger ones are hashed in pieces only."""

_WINDOW = 4 << 20
_CANDIDATES_MAX = 1_000_000
_CANDIDATE_BYTES_MAX = 64 << 20


def find_batch(file: File, position: int, size: int, expected: int) -> tuple[int, int] | None:
    """Position and base offset of the next batch whose checksum matches, from ``position`` on.

    Its offset lies at ``expected`` or above, less than 2³² away, which makes the upper half of its
    first eight bytes known: candidates are found by a pattern, and few need a closer look. ``size``
    is where the bytes end. None when there is no such batch, or too many candidates.
    """
    budget = _CANDIDATE_BYTES_MAX
    for count, (at, base, length) in enumerate(_candidates(file, position, size, expected)):
        if count > _CANDIDATES_MAX:
            return None
        if base < expected or at + PREFIX + length > size or length > WHOLE_BATCH_MAX:
            continue
        budget -= length
        if budget < 0:
            return None
        if is_valid_batch(file, at, PREFIX + length):
            return at, base
    return None


def is_valid_batch(file: File, position: int, length: int) -> bool:
    """Whether a whole batch with a matching checksum starts at ``position``."""
    columns = array("q", bytes(8 * len(SCAN_COLUMNS)))
    with file.view(position, length) as view:
        return scan_batches(view, 0, columns)[0] == 1


def _candidates(
    file: File, position: int, size: int, expected: int
) -> Iterator[tuple[int, int, int]]:
    """Position, base offset and length of whatever looks like a header."""
    high = max(expected, 0) >> 32
    highs = [re.escape(value.to_bytes(4, "big")) for value in (high, high + 1)]
    pattern = re.compile(
        b"(?=(?:"
        + b"|".join(highs)
        + rb").{4}(?!\0\0\0[\x00-\x0d])[\x00-\x7f].{7}[\x00-\x02])",  # a length of 14 or more
        re.DOTALL,
    )
    zeros = bytes(_WINDOW + 16)
    for start in range(position, size, _WINDOW):
        data = file.read_at(start, min(_WINDOW + 16, size - start))
        if data == zeros[: len(data)]:
            continue  # a preallocated tail is long
        for match in pattern.finditer(data):
            base, length = struct.unpack_from(">qi", data, match.start())
            yield start + match.start(), base, length
