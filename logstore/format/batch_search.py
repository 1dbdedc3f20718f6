"""Find where a ``.log`` can be read again after bytes that are no batch.

No mark in the format says where a batch starts, so the search looks for bytes that can be a header,
and accepts a place only if the checksum there matches. It ignores offsets, because no checksum
covers them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from logstore.format.header import HEADER_SIZE
from logstore.format.large_batch import content_crc
from logstore.storage.base import File

PREFIX = 12
"""How many bytes lie before those that the length field of a batch counts."""

FIRST_WINDOW = 16 << 10
"""How many bytes a search reads first wherever it goes on.

It may have to start again right after.
"""

_PIECE = 4 << 20
_ZEROS = bytes(_PIECE + HEADER_SIZE)
_SEARCH_COST = 100  # how many candidates one call may count
# The work that one search may do in addition to what each searched byte allows.
_CANDIDATES, _BYTES_PER_CANDIDATE = 200_000, 512
_HASHED, _HASHED_PER_BYTE = 64 << 20, 8
_MAGIC = 16  # its position in the header

# From the magic on, and back to the length: 14 or more and positive. Then, of magic 2, attributes
# below 128 and a last offset delta of 0 or more; before, attributes that are defined.
_HEADER = re.compile(
    rb"[\0-\x02](?<=[\0-\x7f].{8})(?<!\0\0\0[\0-\x0d].{5})"
    rb"(?:(?<=\x02)(?=.{4}\0[\0-\x7f][\0-\x7f])|(?<!\x02)(?=[\0-\x0f]))",
    re.DOTALL,
)


class FoundBatch(NamedTuple):
    """A whole batch whose checksum matches. The base offset is not checked."""

    position: int
    size: int
    base_offset: int

    @property
    def end(self) -> int:
        return self.position + self.size


class BatchSearch:
    """Finds the whole batches in a file, in one pass from front to end.

    The work is bounded by the number of bytes, whatever they are. A search gives up if too many
    bytes look like headers, or if it would have to hash too much.

    Attributes:
        gave_up: there may be batches that were not found.
        blank: all searched bytes are zero.
    """

    def __init__(self, file: File, position: int, size: int) -> None:
        """Search from ``position`` or later up to ``size``, where the bytes end."""
        self._file = file
        self._size = size
        searched = max(size - position, 0)
        self._candidates_left = _CANDIDATES + searched // _BYTES_PER_CANDIDATE
        self._hashes_left = _HASHED + _HASHED_PER_BYTE * searched
        self.gave_up = False
        self.blank = True

    def next(self, position: int) -> FoundBatch | None:
        """The first batch that begins at ``position`` or later."""
        self._candidates_left -= _SEARCH_COST
        for found in self._candidates(position):
            if not self._afford(found.size):
                break
            if is_valid_batch(self._file, found.position, found.size):
                return found
        return None

    def at(self, position: int) -> FoundBatch | None:
        """The batch that begins at ``position``."""
        head = self._file.read_at(position, PREFIX)
        base, length = struct.unpack(">qi", head) if len(head) == PREFIX else (0, -1)
        size = PREFIX + length
        if length < 0 or position + size > self._size or not self._afford(size):
            return None
        valid = is_valid_batch(self._file, position, size)
        return FoundBatch(position, size, base) if valid else None

    def is_whole_except_header(self, position: int, end: int) -> bool:
        """Whether only a field that no checksum covers is wrong in the batch at ``position``.

        The batch ends at ``end``, or where its length says.
        """
        return self.fitting_header(position, end) is not None

    def fitting_header(self, position: int, end: int) -> tuple[int, int] | None:
        """The size and magic with which the checksum of the batch at ``position`` matches, if the
        batch ends at ``end`` or where its length says.
        """
        head = self._file.read_at(position, min(HEADER_SIZE, end - position))
        if len(head) < HEADER_SIZE:
            return None
        claimed = position + PREFIX + int.from_bytes(head[8:12], "big", signed=True)
        ends = {end, claimed} if position + HEADER_SIZE <= claimed < end else {end}
        for stop in ends:
            for magic in (2, 1):
                size = stop - position
                if self._afford(size) and _matches(self._file, position, stop, magic, head):
                    return size, magic
        return None

    def _afford(self, size: int) -> bool:
        self._hashes_left -= size
        self.gave_up = self.gave_up or self._hashes_left < 0 or self._candidates_left < 0
        return not self.gave_up

    def _candidates(self, position: int) -> Iterator[FoundBatch]:
        """Everything that looks like a header with a possible length."""
        window = FIRST_WINDOW
        while position < self._size:
            data = self._file.read_at(position, min(window + HEADER_SIZE, self._size - position))
            if data != _ZEROS[: len(data)]:  # a preallocated tail is long
                self.blank = False
                for match in _HEADER.finditer(data, _MAGIC):
                    at = match.start() - _MAGIC
                    if at >= window:
                        break
                    self._candidates_left -= 1
                    if self._candidates_left < 0:
                        self.gave_up = True
                        return
                    found = self._plausible(data, at, position)
                    if found is not None:
                        yield found
            position += window
            window = min(2 * window, _PIECE)

    def _plausible(self, data: bytes, at: int, start: int) -> FoundBatch | None:
        base, length = struct.unpack_from(">qi", data, at)
        position = start + at
        if position + PREFIX + length > self._size:
            return None
        magic = data[at + _MAGIC]
        if magic == 2:
            if length < HEADER_SIZE - PREFIX or len(data) - at < HEADER_SIZE:
                return None
            codec = data[at + 22] & 7
            (count,) = struct.unpack_from(">i", data, at + 57)
            room = (length + PREFIX - HEADER_SIZE) // 7  # bytes of the smallest record
            if codec > 4 or count < 0 or (codec == 0 and count > room):
                return None
        elif not self._adds_up(position, length, 18 + 8 * magic):
            return None
        return FoundBatch(position, PREFIX + length, base)

    def _adds_up(self, position: int, length: int, key: int) -> bool:
        """Whether key and value of an old message, the key at byte ``key``, fill it exactly."""
        value = key + self._field_size(position, length, key)
        end = value + self._field_size(position, length, value)
        return key < value < end == PREFIX + length

    def _field_size(self, position: int, length: int, field: int) -> int:
        """The size of a key or value with its length field; below 0 if it has none."""
        if not 0 <= field <= PREFIX + length - 4:
            return -1
        size = int.from_bytes(self._file.read_at(position + field, 4), "big", signed=True)
        return 4 + max(size, 0) if size >= -1 else -1


def find_batch(file: File, position: int, size: int, expected: int) -> tuple[int, int] | None:
    """Position and base offset of the next batch from ``position`` on with a matching checksum and
    an offset of at least ``expected`` and less than 2³² above it.

    ``size`` is where the bytes end. None if there is no such batch, or if the search gave up.
    """
    search = BatchSearch(file, position, size)
    while (found := search.next(position)) is not None:
        if expected <= found.base_offset < expected + (1 << 32):
            return found.position, found.base_offset
        position = found.position + 1
    return None


def is_valid_batch(file: File, position: int, length: int) -> bool:
    """Whether a batch with a matching checksum takes up ``length`` bytes from ``position`` on.

    Takes the memory of one piece, whatever the length.
    """
    head = file.read_at(position, min(HEADER_SIZE, length))
    if len(head) <= _MAGIC or PREFIX + int.from_bytes(head[8:12], "big", signed=True) != length:
        return False
    magic = head[_MAGIC]
    if magic > 2 or length < (HEADER_SIZE if magic == 2 else 26):
        return False
    return _matches(file, position, position + length, magic, head)


def _matches(file: File, position: int, end: int, magic: int, head: bytes) -> bool:
    """Whether the checksum matches if the batch has ``magic`` and ends at ``end``."""
    stored = head[17:21] if magic == 2 else head[12:16]
    return content_crc(file, position, end - position, magic) == int.from_bytes(stored, "big")
