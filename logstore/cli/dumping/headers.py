"""Batch headers of a ``.log`` file that may be written to, for ``logstore read``."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from logstore.format.header import PREFIX_SIZE
from logstore.format.large_batch import worth_reading
from logstore.kernels import SCAN_COLUMNS, SCAN_FULL, scan_batches
from logstore.storage import File

WINDOW_BYTES = 4 << 20
_ROWS = 4096


class BatchRow(NamedTuple):
    """The header of a batch. ``position`` is in the file.

    ``record_count`` is −1 for a compressed batch of an older format, which has no count.
    """

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    attributes: int
    record_count: int


_COLUMNS = [SCAN_COLUMNS.index(name) for name in BatchRow._fields]


def batch_rows(file: File) -> Iterator[BatchRow]:
    """The headers of the whole batches of a file. Checksums are not checked.

    Ends silently at bytes that cannot be a batch. Reads in windows, because a mapping would not
    survive a truncation of the file.
    """
    table = array("q", bytes(8 * len(SCAN_COLUMNS) * _ROWS))
    position, window = 0, WINDOW_BYTES
    while data := file.read_at(position, window):
        start, status = 0, SCAN_FULL
        while status == SCAN_FULL:
            count, start, status = scan_batches(data, start, table, False)
            columns = [table[c * _ROWS : c * _ROWS + count] for c in _COLUMNS]
            for row in map(BatchRow._make, zip(*columns, strict=True)):
                yield row._replace(position=position + row.position)
        needed = framed_size(data[start:])
        if (start == 0 and needed <= len(data)) or needed > file.size() - position - start:
            return
        if not worth_reading(file, position + start, needed):
            return
        position, window = position + start, max(WINDOW_BYTES, needed)


def framed_size(data: bytes) -> int:
    """The size of the batch at the start of ``data`` according to its length field, which may be
    wrong.
    """
    if len(data) < PREFIX_SIZE:
        return PREFIX_SIZE
    return PREFIX_SIZE + int.from_bytes(data[8:PREFIX_SIZE], "big", signed=True)
