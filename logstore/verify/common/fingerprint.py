"""A fingerprint of a log's content that does not depend on leader epochs or segment boundaries.

Each batch is hashed with murmur3 (128 bits) from byte 21 on, the part under its checksum, so that
what differs between replicas (leader epoch, F-62) stays out. The hashes are folded in order as a
polynomial, ``h = h · R + hash + offset · K`` modulo 2¹²⁸. Two neighbouring parts of a log can be
hashed on different machines and joined afterwards, so a check can work in parallel. The fingerprint
finds accidents, not forgery.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import mmh3

from logstore.common.types import Buffer
from logstore.kernels import fold_batches
from logstore.verify.common.header_table import HeaderTable

_MASK = (1 << 128) - 1
# Odd, so that multiplication loses nothing: the fractional digits of the golden ratio and of √2.
_R = 0x9E3779B97F4A7C15F39CC0605CEDC835
_K = 0x6A09E667F3BCC908B2FB1366EA957D3F


@dataclass(slots=True)
class Fingerprint:
    """The fold so far; ``scale`` is R to the number of batches. Not thread-safe."""

    value: int = 0
    scale: int = 1

    @classmethod
    def of_batches(
        cls,
        view: memoryview,
        table: HeaderTable,
        bases: memoryview,
        first: int,
        end: int,
        heads: bool = False,
    ) -> Self:
        """Fold rows ``[first, end)`` of a table whose bytes lie in ``view``, with their base
        offsets.

        The hash is called once for each batch, and the fold is native. With ``heads`` only the
        header is hashed, from its checksum on: a checksum that was verified stands for the content.
        """
        digest = mmh3.mmh3_x64_128_digest
        return cls(*fold_batches(digest, view, table.columns, bases, first, end, _R, _K, heads))

    @classmethod
    def of_pieces(cls, base_offset: int, content: Iterable[Buffer]) -> Self:
        """Fold one batch whose bytes come in pieces, because it is too large for one buffer."""
        hasher = mmh3.mmh3_x64_128()
        for piece in content:
            hasher.update(piece)
        return cls((hasher.uintdigest() + base_offset * _K) & _MASK, _R)

    def join(self, later: Self) -> None:
        """Append the fold of the batches that follow."""
        self.value = (self.value * later.scale + later.value) & _MASK
        self.scale = self.scale * later.scale & _MASK

    def joined(self, later: Self) -> Self:
        """A new fold: this one, then ``later``."""
        whole = type(self)(self.value, self.scale)
        whole.join(later)
        return whole

    def hex(self) -> str:
        return f"{self.value:032x}"
