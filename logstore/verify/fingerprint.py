"""A fingerprint of a log's content that does not depend on leader epochs or segment boundaries.

Each batch is hashed with murmur3 (128 bits) from byte 21 on, the part under its checksum, so that
what differs between replicas (leader epoch, F-62) stays out. The hashes are folded in order as a
polynomial, ``h = h · R + hash + offset · K`` modulo 2¹²⁸. Unlike one long stream this joins: two
neighbouring pieces of a log can be hashed on different machines and put together in any order of
work, which is what a parallel check needs. It finds accidents, not forgery.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import mmh3

from logstore.types import Buffer

_MASK = (1 << 128) - 1
# Odd, so that multiplication loses nothing: the fractional digits of the golden ratio and of √2.
_R = 0x9E3779B97F4A7C15F39CC0605CEDC835
_K = 0x6A09E667F3BCC908B2FB1366EA957D3F


@dataclass(slots=True)
class Fingerprint:
    """The fold so far; ``scale`` is R to the number of batches. Not thread-safe."""

    value: int = 0
    scale: int = 1

    def add(self, base_offset: int, content: Iterable[Buffer]) -> None:
        """Append one batch, its bytes in pieces, for batches too large for one buffer."""
        hasher = mmh3.mmh3_x64_128()
        for piece in content:
            hasher.update(piece)
        self._fold(base_offset, hasher.uintdigest())

    def add_all(
        self, data: memoryview, offsets: Sequence[int], starts: Iterable[int], ends: Iterable[int]
    ) -> None:
        """Append batches that lie in ``data``: base offset, first byte and end of each."""
        digest = mmh3.mmh3_x64_128_uintdigest
        value = self.value
        for base_offset, start, end in zip(offsets, starts, ends, strict=True):
            value = (value * _R + digest(data[start:end]) + base_offset * _K) & _MASK
        self.value = value
        self.scale = self.scale * pow(_R, len(offsets), _MASK + 1) & _MASK

    def _fold(self, base_offset: int, digest: int) -> None:
        self.value = (self.value * _R + digest + base_offset * _K) & _MASK
        self.scale = self.scale * _R & _MASK

    def join(self, later: Self) -> None:
        """Append what another fold saw right behind this one."""
        self.value = (self.value * later.scale + later.value) & _MASK
        self.scale = self.scale * later.scale & _MASK

    def hex(self) -> str:
        return f"{self.value:032x}"
