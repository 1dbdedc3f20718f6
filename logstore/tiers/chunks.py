"""Chunks of a ``.log`` in a store: the plugin transforms a segment piece by piece, so that a range
can be read without the rest.

All chunks have one original size, except the last. Stored sizes are one number too (``fixed``), or
listed (``variable``): a count, the smallest, the bytes each value has above it, the values but the
last one, and the last one in full, all big-endian, as one Zstandard frame in Base64 (L-11).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, NamedTuple

from logstore.common.errors import CorruptDataError
from logstore.format.codecs.compression import Compression, compress, decompress
from logstore.tiers.json_reader import I32_MAX, JsonObject

_LIST_SIZE_MAX: Final = 10 << 20
"""Of the unpacked list, as the plugin has it."""

_CHUNKS_MAX: Final = 8 << 20


class Chunk(NamedTuple):
    """One chunk: where it lies in the segment, and where in the stored object, in bytes."""

    number: int
    position: int
    size: int
    stored_position: int
    stored_size: int


@dataclass(frozen=True)
class ChunkIndex:
    """Sizes of the chunks of a segment of ``original_size`` bytes.

    ``stored_sizes`` are listed for ``variable``; else each chunk has ``stored_chunk_size`` bytes
    and the last one ``last_stored_size``.
    """

    chunk_size: int
    original_size: int
    stored_chunk_size: int = 0
    last_stored_size: int = 0
    stored_sizes: tuple[int, ...] | None = field(default=None, repr=False)

    @staticmethod
    def plain(size: int) -> ChunkIndex:
        """Of an object that is the segment itself. The plugin takes no chunk of 0 bytes."""
        return ChunkIndex(max(size, 1), size, max(size, 1), size)

    @property
    def is_plain(self) -> bool:
        """Whether stored and original positions are the same."""
        if self.stored_sizes is not None:
            return False
        last = self.original_size - (self.count - 1) * self.chunk_size if self.count else 0
        return last == self.last_stored_size and (
            self.count < 2 or self.chunk_size == self.stored_chunk_size
        )

    @property
    def count(self) -> int:
        return -(-self.original_size // self.chunk_size)

    @cached_property
    def _positions(self) -> Sequence[int]:
        """The stored position of each chunk of a ``variable`` index, and of the end."""
        return [0, *accumulate(self.stored_sizes or ())]

    @property
    def stored_size(self) -> int:
        """The size of the object."""
        if not self.count:
            return 0
        if self.stored_sizes is not None:
            return self._positions[-1]
        return (self.count - 1) * self.stored_chunk_size + self.last_stored_size

    def chunk(self, number: int) -> Chunk:
        """The chunk with this number, from 0 on."""
        last = number == self.count - 1
        position = number * self.chunk_size
        size = self.original_size - position if last else self.chunk_size
        if self.stored_sizes is not None:
            stored = self._positions[number], self.stored_sizes[number]
        else:
            each = self.stored_chunk_size
            stored = number * each, self.last_stored_size if last else each
        return Chunk(number, position, size, *stored)

    def numbers(self, position: int, size: int) -> range:
        """The chunks that hold ``size`` bytes from ``position`` on; ``size`` is above 0."""
        return range(position // self.chunk_size, (position + size - 1) // self.chunk_size + 1)

    def to_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "type": "fixed" if self.stored_sizes is None else "variable",
            "originalChunkSize": self.chunk_size,
            "originalFileSize": self.original_size,
        }
        if self.stored_sizes is not None:
            return {**fields, "transformedChunks": encode_sizes(self.stored_sizes)}
        return {
            **fields,
            "transformedChunkSize": self.stored_chunk_size,
            "finalTransformedChunkSize": self.last_stored_size,
        }

    @staticmethod
    def from_fields(fields: JsonObject) -> ChunkIndex:
        """
        Raises:
            MalformedManifestError: a size is out of bounds, or they do not fit each other.
        """
        kind = fields.text("type")
        size = fields.number("originalFileSize", 0, I32_MAX)
        chunk_size = fields.number("originalChunkSize", 1, I32_MAX)
        if kind == "fixed":
            return ChunkIndex(
                chunk_size,
                size,
                fields.number("transformedChunkSize", 0, I32_MAX),
                fields.number("finalTransformedChunkSize", 0, I32_MAX),
            )
        if kind != "variable":
            fields.refuse("type", "is neither fixed nor variable")
        text = fields.text("transformedChunks", 2 * _LIST_SIZE_MAX)
        try:
            sizes = decode_sizes(text)
        except ValueError as error:
            fields.refuse("transformedChunks", str(error))
        found = ChunkIndex(chunk_size, size, stored_sizes=sizes)
        # The plugin lists one chunk of no bytes for an empty segment.
        if len(sizes) != max(found.count, 1) and not (size == 0 and not sizes):
            fields.refuse("transformedChunks", f"has {len(sizes)} sizes for {found.count} chunks")
        return found


def encode_sizes(sizes: Sequence[int]) -> str:
    """Stored sizes as a ``variable`` index has them."""
    if not sizes:
        data = bytes(4)
    elif len(sizes) == 1:
        data = b"".join(value.to_bytes(4, "big") for value in (1, sizes[0]))
    else:
        base = min(sizes[:-1])
        width = max(1, (max(sizes[:-1]) - base).bit_length() + 7 >> 3)
        data = b"".join(
            (
                len(sizes).to_bytes(4, "big"),
                base.to_bytes(4, "big"),
                bytes((width,)),
                *((value - base).to_bytes(width, "big") for value in sizes[:-1]),
                sizes[-1].to_bytes(4, "big"),
            )
        )
    return base64.b64encode(compress(Compression.ZSTD, data)).decode("ascii")


def decode_sizes(text: str) -> tuple[int, ...]:
    """The inverse of ``encode_sizes``.

    Raises:
        ValueError: the reason.
    """
    try:
        packed = base64.b64decode(text.encode("ascii"), validate=True)
        data = bytes(decompress(Compression.ZSTD, packed, limit=_LIST_SIZE_MAX))
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("is not Base64") from None
    except CorruptDataError as error:
        raise ValueError(f"cannot be unpacked: {error.reason}") from None
    if len(data) < 4:
        raise ValueError(f"has {len(data)} bytes, too few for a count")
    count = int.from_bytes(data[:4], "big")
    if count > _CHUNKS_MAX:
        raise ValueError(f"counts {count} chunks, more than {_CHUNKS_MAX}")
    if count == 0:
        sizes: tuple[int, ...] = ()
        expected = 4
    elif count == 1:
        sizes, expected = (int.from_bytes(data[4:8], "big"),), 8
    else:
        width = data[8] if len(data) > 8 else 0
        if not 1 <= width <= 4:
            raise ValueError(f"has values of {width} bytes")
        expected = 9 + (count - 1) * width + 4
        base = int.from_bytes(data[4:8], "big")
        values = range(9, expected - 4, width)
        sizes = (
            *(base + int.from_bytes(data[at : at + width], "big") for at in values),
            int.from_bytes(data[expected - 4 : expected], "big"),
        )
    if len(data) != expected:
        raise ValueError(f"has {len(data)} bytes where {expected} belong")
    if max(sizes, default=0) > I32_MAX:
        raise ValueError("has a size of 2 GiB or more")
    return sizes


__all__ = ["Chunk", "ChunkIndex", "decode_sizes", "encode_sizes"]
