"""Whether a replacement was made from the segments that it would replace, by their headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from logstore.kernels import SCAN_COLUMNS
from logstore.segments.segment import Segment


class ComparedHeader(NamedTuple):
    """What identifies a batch. A compaction does not change the first six fields."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    crc: int
    base_timestamp: int
    max_timestamp: int


_COLUMNS = [SCAN_COLUMNS.index(name) for name in ComparedHeader._fields]
_KEPT = ComparedHeader._fields.index("record_count")


def headers_of(segment: Segment) -> Iterator[ComparedHeader]:
    """The headers of all batches, up to the first that is not valid."""
    for rows, columns, capacity in segment.scan(0, check_crc=False):
        fields = (columns[at * capacity : at * capacity + rows] for at in _COLUMNS)
        yield from map(ComparedHeader._make, zip(*fields, strict=True))


def stems_from(copies: Iterable[ComparedHeader], originals: Iterable[ComparedHeader]) -> bool:
    """Whether each batch of the copies is one of the originals, whole or with fewer records.

    The last one must be whole, because it shows how far the copies reach. No checksum covers base
    offsets, and a flipped bit may give the offset of another original.
    """
    source = iter(originals)
    whole = True
    for copy in copies:
        original = next((o for o in source if o.base_offset >= copy.base_offset), None)
        if original is None:
            return False
        whole = copy == original
        if not whole and not _is_compacted(copy, original):
            return False
    return whole


def _is_compacted(copy: ComparedHeader, original: ComparedHeader) -> bool:
    return (
        copy[:_KEPT] == original[:_KEPT]
        and copy.record_count < original.record_count
        and original.base_timestamp <= copy.max_timestamp <= original.max_timestamp
    )
