"""The headers of a window's batches as columns, from one scan without an object for each batch."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from logstore.common.types import Buffer
from logstore.kernels import SCAN_COLUMNS, batches_entirely_after, scan_batches

_ROWS = 16_384
_SIZE_MIN = 26  # the size of a legacy message without key and value
_FIELD = {name: number for number, name in enumerate(SCAN_COLUMNS)}


class BatchTable:
    """The whole batches at the beginning of ``data``, at most 16,384.

    ``end`` is the position in ``data`` of the first batch not taken, and ``status`` says why, a
    ``SCAN_`` number. Positions count from ``data[0]``.
    """

    __slots__ = ("_cells", "_memory", "_room", "end", "rows", "status")

    def __init__(self, data: Buffer, *, check_crc: bool = False, stop_on_bad: bool = True) -> None:
        self._room = min(_ROWS, len(data) // _SIZE_MIN + 1)
        self._cells = array("q", [0]) * (self._room * len(SCAN_COLUMNS))
        self._memory = pa.py_buffer(self._cells)
        self.rows, self.end, self.status = scan_batches(
            data, 0, self._cells, check_crc, stop_on_bad
        )

    def cells(self, name: str) -> memoryview:
        """A column as int64 numbers for Python."""
        first = _FIELD[name] * self._room
        return memoryview(self._cells)[first : first + self.rows]

    def column(self, name: str) -> pa.Array:
        """A column as an Arrow array of int64, without a copy."""
        first = _FIELD[name] * self._room
        memory = self._memory.slice(8 * first, 8 * self.rows)
        return pa.Array.from_buffers(pa.int64(), self.rows, [None, memory])

    def has_bit(self, bit: int) -> pa.Array:
        """Whether an attribute bit is set in each batch."""
        return pc.not_equal(pc.bit_wise_and(self.column("attributes"), bit), 0)

    def has_any(self, bit: int) -> bool:
        return bool(pc.any(self.has_bit(bit)).as_py())

    def is_late(self, data: Buffer, timestamp: int) -> pa.Array:
        """Whether each batch is known to have no record before ``timestamp``, in ms."""
        late = pa.py_buffer(batches_entirely_after(data, self._cells, self.rows, timestamp))
        return pc.equal(pa.Array.from_buffers(pa.uint8(), self.rows, [None, late]), 1)

    def span(self, first: int, end: int) -> slice:
        """The bytes of ``data`` with the batches ``[first, end)``."""
        positions = self.cells("position")
        return slice(positions[first], positions[end] if end < self.rows else self.end)

    def runs(self, wanted: pa.Array) -> Iterator[tuple[int, int]]:
        """``[first, end)`` row numbers of neighbours for which ``wanted`` is true."""
        encoded = pc.run_end_encode(wanted)
        first = 0
        for end, value in zip(
            encoded.run_ends.to_pylist(), encoded.values.to_pylist(), strict=True
        ):
            if value:
                yield first, end
            first = end
