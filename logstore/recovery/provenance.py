"""Whether a replacement was made from the segments that it would replace, by all their headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from logstore.kernels import SCAN_COLUMNS
from logstore.segments.segment import Segment


class Header(NamedTuple):
    """What tells one batch from another; a compaction leaves the first six fields as they are."""

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


_COLUMNS = [SCAN_COLUMNS.index(name) for name in Header._fields]
_KEPT = Header._fields.index("record_count")


def headers_of(segment: Segment) -> Iterator[Header]:
    """Of all batches, up to the first that is none by its header."""
    for rows, columns, capacity in segment.scan(0, check_crc=False):
        fields = (columns[at * capacity : at * capacity + rows] for at in _COLUMNS)
        yield from map(Header._make, zip(*fields, strict=True))


def stems_from(copies: Iterable[Header], originals: Iterable[Header]) -> bool:
    """Whether each batch of the copies is one of the originals, whole or with fewer records.

    The last one must be whole, because how far the copies reach is what it says. Base offsets are
    in no checksum: a flipped bit may lead to an offset that another original has.
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


def _is_compacted(copy: Header, original: Header) -> bool:
    return (
        copy[:_KEPT] == original[:_KEPT]
        and copy.record_count < original.record_count
        and original.base_timestamp <= copy.max_timestamp <= original.max_timestamp
    )
