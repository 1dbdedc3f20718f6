"""The headers of many batches at once, as the kernels read them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from logstore.kernels import SCAN_COLUMNS, scan_batches
from logstore.verify.common.batch_rules import Row

ROWS = 4096
_COLUMNS = len(SCAN_COLUMNS)
_ROW_CELLS = len(Row._fields) * ROWS
(
    POSITION,
    SIZE,
    BASE,
    LAST,
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    EPOCH,
    PRODUCER,
    PRODUCER_EPOCH,
    SEQUENCE,
    ATTRIBUTES,
    COUNT,
    MAGIC,
) = range(len(Row._fields))
assert SCAN_COLUMNS[: len(Row._fields)] == Row._fields


class HeaderTable:
    """Up to ``ROWS`` consecutive batches, each valid by itself.

    ``columns`` is what the kernels take: its positions count from byte ``start`` of the log, those
    of ``row`` from the beginning of the log. Filling the table again overwrites what ``column``
    returned. ``bases`` and ``lasts`` are the first and last offsets of the batches: those of the
    headers while the table is ``in_order``, later those that the neighbours prove.
    """

    __slots__ = ("bases", "columns", "count", "in_order", "lasts", "start")

    def __init__(self) -> None:
        self.columns = memoryview(array("q", bytes(8 * _COLUMNS * ROWS)))
        self._filled(0, 0)

    def _filled(self, count: int, start: int) -> None:
        self.count, self.start, self.in_order = count, start, True
        self.bases, self.lasts = self.column(BASE), self.column(LAST)

    def place(self, bases: Iterable[int], lasts: Iterable[int]) -> None:
        """Take other offsets than those of the headers."""
        self.bases, self.lasts = (memoryview(array("q", offsets)) for offsets in (bases, lasts))
        self.in_order = False

    def fill(self, view: memoryview, at: int, start: int) -> tuple[int, int]:
        """Scan ``view`` from ``at``. ``view`` begins at byte ``start`` of the log.

        Returns:
            Where the first batch that was not taken lies in ``view``, and a ``SCAN_`` number.
        """
        count, done, status = scan_batches(view, at, self.columns)
        self._filled(count, start)
        return done, status

    def fill_large(self, header: bytes, size: int, start: int) -> bool:
        """Take one batch of ``size`` bytes, known only by its header.

        False if the header is bad.
        """
        short = bytearray(header)  # as if it had no records: a scan wants whole batches
        short[8:12] = (len(header) - 12).to_bytes(4, "big")
        count, _, _ = scan_batches(short, 0, self.columns, False)
        self.columns[SIZE * ROWS] = size
        self._filled(count, start)
        return self.count == 1

    def column(self, number: int) -> memoryview:
        return self.columns[number * ROWS : number * ROWS + self.count]

    @property
    def end(self) -> int:
        """The byte of the log after the last batch."""
        last = self.count - 1
        return self.start + self.columns[last] + self.columns[SIZE * ROWS + last]

    def row(self, number: int) -> Row:
        position, *others = self.columns[number:_ROW_CELLS:ROWS]
        return Row(self.start + position, *others)

    def rows(self) -> list[Row]:
        return [self.row(number) for number in range(self.count)]
