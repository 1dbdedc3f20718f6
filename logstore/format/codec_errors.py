"""What a codec says about bytes it refuses; ``compression`` turns it into ``CorruptBatchError``."""

from __future__ import annotations


class CodecError(ValueError):
    """The compressed bytes are malformed."""


class TooLargeError(CodecError):
    """The content is larger than the caller allows; nothing near that size was allocated."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"decompressed size above limit of {limit} bytes")


EAGER_BYTES = 16 << 20
"""Content up to this size is unpacked at once; above it the size is measured first.

A hostile batch of 1 MiB may stand for gigabytes. Measuring runs in constant memory, so a batch
that is refused never costs more than this, while normal batches (a few MiB) are unpacked once.
"""
