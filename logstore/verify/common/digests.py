"""Digests of a log's content, which do not depend on leader epochs or segment boundaries.

A *fingerprint* hashes each batch with murmur3 (128 bits) from byte 21 on, the part under its
checksum, so that what differs between replicas (leader epoch, F-62) stays out. The hashes are
folded in order as a polynomial, ``h = h · R + hash + offset · K`` modulo 2¹²⁸. Two neighbouring
parts of a log can be hashed on different machines and joined afterwards, so a check can work in
parallel. The fingerprint finds accidents, not forgery.

*Ranges* of offsets have digests of their own, so that replicas can be compared piece by piece. They
begin at fixed offsets, so replicas with different segments give the same digests for the same
content. A range that crosses a segment boundary has a part in each segment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, Self

import mmh3

from logstore.common.types import Buffer
from logstore.format.header import CRC_POSITION
from logstore.kernels import fold_batches
from logstore.verify.common.header_table import EPOCH, POSITION, SIZE, HeaderTable

_MASK = (1 << 128) - 1
# Odd, so that multiplication loses nothing: the fractional digits of the golden ratio and of √2.
_R = 0x9E3779B97F4A7C15F39CC0605CEDC835
_K = 0x6A09E667F3BCC908B2FB1366EA957D3F


class Fingerprint(NamedTuple):
    """The fold so far; ``scale`` is R to the number of batches."""

    value: int = 0
    scale: int = 1

    @classmethod
    def of_batches(
        cls,
        view: memoryview,
        table: HeaderTable,
        first: int,
        end: int,
        heads: bool = False,
    ) -> Self:
        """Fold rows ``[first, end)`` of a table whose bytes lie in ``view``.

        With ``heads`` only the header is hashed, from its checksum on: a checksum that was
        verified stands for the content.
        """
        return cls(*fold_batches(view, table.columns, table.bases, first, end, _R, _K, heads))

    @classmethod
    def of_pieces(cls, base_offset: int, content: Iterable[Buffer]) -> Self:
        """Fold one batch whose bytes come in pieces, because it is too large for one buffer."""
        hasher = mmh3.mmh3_x64_128()
        for piece in content:
            hasher.update(piece)
        return cls((hasher.uintdigest() + base_offset * _K) & _MASK, _R)

    def joined(self, later: Fingerprint) -> Fingerprint:
        """The fold of these batches and of those that follow."""
        value = (self.value * later.scale + later.value) & _MASK
        return Fingerprint(value, self.scale * later.scale & _MASK)

    def hex(self) -> str:
        return f"{self.value:032x}"


@dataclass(frozen=True, slots=True)
class CompareSpec:
    """The batches to digest: inside offsets ``[start, end)``, in ranges of ``span`` offsets.

    A batch belongs to the range with the number ``base_offset // span``, and to no other. A batch
    that begins below ``start`` or reaches ``end`` is left out.
    """

    start: int
    end: int
    span: int

    def number(self, base: int, last: int) -> int:
        """The number of the range of a batch with these offsets; −1 if the batch is left out."""
        return base // self.span if self.start <= base and last < self.end else -1

    def __post_init__(self) -> None:
        if self.span < 1:
            raise ValueError(f"a range of {self.span} offsets")


@dataclass(frozen=True, slots=True)
class RangeDigest:
    """The batches of one range that one segment holds: ``[first_offset, end_offset)``.

    ``position`` is the byte of the first one in its segment, ``epoch`` its leader epoch.
    ``bytes`` counts whole batches. ``fingerprint`` is the one of docs/verify.md over these batches
    alone. If the fingerprint of the log was not asked for, it covers only headers with their
    checksums, which costs a sixth.
    """

    number: int
    first_offset: int
    end_offset: int
    batches: int
    bytes: int
    position: int
    epoch: int
    fingerprint: Fingerprint

    def same(self, other: RangeDigest) -> bool:
        """Whether another replica has the same content here, wherever its segments end."""
        mine, theirs = self.fingerprint, other.fingerprint
        return (mine.value, self.batches, self.bytes) == (theirs.value, other.batches, other.bytes)

    def joined(self, later: RangeDigest) -> RangeDigest:
        """This part and the part of the next segment as one."""
        return replace(
            self,
            end_offset=later.end_offset,
            batches=self.batches + later.batches,
            bytes=self.bytes + later.bytes,
            fingerprint=self.fingerprint.joined(later.fingerprint),
        )


class ContentDigests:
    """Fingerprints of a segment's content, as a whole and by ranges, with one hash for each batch.

    Args:
        whole: whether to fingerprint all batches; otherwise batches outside of ranges are not
        hashed.
        compare: the ranges; None for none.
    """

    def __init__(self, whole: bool, compare: CompareSpec | None) -> None:
        self.fingerprint = Fingerprint()
        self.ranges: list[RangeDigest] = []
        self._whole, self._compare = whole, compare

    def add(
        self, view: memoryview, table: HeaderTable, content: Iterable[Buffer] | None = None
    ) -> None:
        """Add the batches of a table whose bytes lie in ``view``.

        A batch too large for one buffer comes alone: its header in ``view``, and the bytes under
        its checksum as ``content``.
        """
        if not self._whole and self._compare is None:
            return
        for number, first, end in self._pieces(table):
            if number < 0 and not self._whole:
                continue
            if content is None:
                heads = not self._whole
                part = Fingerprint.of_batches(view, table, first, end, heads)
            else:
                hashed = content if self._whole else (view[CRC_POSITION:],)
                part = Fingerprint.of_pieces(table.bases[first], hashed)
            if self._whole:
                self.fingerprint = self.fingerprint.joined(part)
            if number >= 0:
                self._add_to_range(number, table, first, end, part)

    def _pieces(self, table: HeaderTable) -> Iterator[tuple[int, int, int]]:
        """``(range number, first row, end)`` of rows in one range; the number is −1 outside all
        ranges.
        """
        compare, count, bases, lasts = self._compare, table.count, table.bases, table.lasts
        if compare is None:
            yield -1, 0, count
        elif table.in_order:
            first, end = bisect_left(bases, compare.start), bisect_left(lasts, compare.end)
            end = max(first, end)
            if first:
                yield -1, 0, first
            while first < end:
                number = bases[first] // compare.span
                stop = bisect_left(bases, (number + 1) * compare.span, first, end)
                yield number, first, stop
                first = stop
            if end < count:
                yield -1, end, count
        else:
            numbers = map(compare.number, bases, lasts)
            for number, rows in groupby(enumerate(numbers), key=lambda item: item[1]):
                first, *others = (row for row, _ in rows)
                yield number, first, (others[-1] if others else first) + 1

    def _add_to_range(
        self, number: int, table: HeaderTable, first: int, end: int, part: Fingerprint
    ) -> None:
        positions, sizes = table.column(POSITION), table.column(SIZE)
        size = positions[end - 1] + sizes[end - 1] - positions[first]
        position, epoch = table.start + positions[first], table.column(EPOCH)[first]
        span = table.bases[first], table.lasts[end - 1] + 1
        digest = RangeDigest(number, *span, end - first, size, position, epoch, part)
        if self.ranges and self.ranges[-1].number == number:
            self.ranges[-1] = self.ranges[-1].joined(digest)
        else:
            self.ranges.append(digest)
