"""Read a ``.log`` file a window at a time: its bytes, and the headers of the batches in them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from checkpoints.loggers import get_logger
from logstore.common.errors import CorruptBatchError, ResourceBusyError
from logstore.common.types import Buffer
from logstore.format.large_batch import worth_reading
from logstore.kernels import (
    SCAN_COLUMNS,
    SCAN_INCOMPLETE,
    SCAN_REASONS,
    SCAN_TAIL,
    scan_batches,
)
from logstore.storage.base import File

_ROWS = 16_384
_SIZE_MIN = 26  # the size of a legacy message without key and value
_FIELD = {name: number for number, name in enumerate(SCAN_COLUMNS)}


class BatchTable:
    """The whole batches at the beginning of ``data``, at most ``rows``.

    ``end`` is the position in ``data`` of the first batch not taken, and ``status`` says why, a
    ``SCAN_`` number. Positions count from ``data[0]``.
    """

    __slots__ = ("_cells", "_room", "end", "rows", "status")

    def __init__(
        self,
        data: Buffer,
        *,
        check_crc: bool = False,
        stop_on_bad: bool = True,
        rows: int = _ROWS,
    ) -> None:
        self._room = min(rows, len(data) // _SIZE_MIN + 1)
        self._cells = array("q", [0]) * (self._room * len(SCAN_COLUMNS))
        self.rows, self.end, self.status = scan_batches(
            data, 0, self._cells, check_crc, stop_on_bad
        )

    def cells(self, name: str) -> memoryview:
        """A column as int64 numbers for Python."""
        first = _FIELD[name] * self._room
        return memoryview(self._cells)[first : first + self.rows]

    def span(self, first: int, end: int) -> slice:
        """The bytes of ``data`` with the batches ``[first, end)``."""
        positions = self.cells("position")
        return slice(positions[first], positions[end] if end < self.rows else self.end)


TableT = TypeVar("TableT", bound=BatchTable)

WINDOW = 16 << 20
"""Large enough for good record batches, small enough for a worker's memory."""

_NO_LIMIT = 1 << 62
_LENGTH_AT, _PREFIX_SIZE = 8, 12  # the length in a header counts neither itself nor the offset

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Windows:
    """Bytes ``[start, end)`` of ``file``, which errors call ``path``.

    ``start`` and ``end`` are starts of batches. With ``open_end`` the last batch may be incomplete,
    and zeros may follow it. ``drop_malformed``: everything after a batch with an impossible size is
    left out with a warning.
    """

    file: File
    path: str
    start: int
    end: int
    open_end: bool = False
    max_batch_bytes: int = _NO_LIMIT
    drop_malformed: bool = False
    zeros_max: int = _NO_LIMIT
    """How many zeros are read until they count as the end."""
    window: int = WINDOW

    def tables(
        self, kind: type[TableT], *, check_crc: bool = False, stop_on_bad: bool = True
    ) -> Iterator[tuple[memoryview, int, TableT]]:
        """Yield each window with its position in the file and the whole batches in it, at least
        one.

        A window is valid until the next one is requested.

        Raises:
            CorruptBatchError: a batch is missing or larger than ``max_batch_bytes``; with
                ``stop_on_bad`` also for a bad header, or a bad checksum if that is checked.
            ResourceBusyError: there is not enough memory for a batch.
            OSError: the medium refused.
        """
        position, size = self.start, self.window
        while position < self.end and size:
            try:
                with self.file.view(position, min(size, self.end - position)) as window:
                    table = kind(window, check_crc=check_crc, stop_on_bad=stop_on_bad)
                    if table.rows:
                        yield window, position, table
                        position, size = position + table.end, self.window
                    else:
                        size = self._size_of_next(window, position, table.status)
            except MemoryError:
                reason = f"not enough memory for {size} bytes, see maxBatchBytes"
                raise ResourceBusyError(self.path, "read", reason) from None

    def _size_of_next(self, window: memoryview, position: int, status: int) -> int:
        """The size of the batch at ``position`` if ``window`` is too small; 0 at the end."""
        size = 0
        if status == SCAN_INCOMPLETE:
            length = window[_LENGTH_AT:_PREFIX_SIZE]
            size = _PREFIX_SIZE + int.from_bytes(length, "big", signed=True)
        if len(window) < size <= self.end - position:
            if size > self.max_batch_bytes:
                reason = f"a batch of {size} bytes is above maxBatchBytes, {self.max_batch_bytes}"
            elif worth_reading(self.file, position, size):
                return size
            else:
                reason = f"a batch of {size} bytes with another checksum"
        elif self.open_end and (
            status in (SCAN_TAIL, SCAN_INCOMPLETE) or self._only_zeros_from(position)
        ):
            return 0  # still being written, or preallocated (F-107)
        elif status == SCAN_INCOMPLETE:
            reason = f"a batch of {size} bytes runs past byte {self.end}, where one should end"
        else:
            reason = SCAN_REASONS[status]
        error = CorruptBatchError(self.path, position, reason)
        if not self.drop_malformed:
            raise error
        logger.warning("dropped %d bytes: %s", self.end - position, error)
        return 0

    def _only_zeros_from(self, position: int) -> bool:
        """Whether only zeros follow, as preallocation leaves them.

        Most other tails differ early.
        """
        step, end = 4096, min(self.end, position + self.zeros_max)
        while position < end:
            if self.file.read_at(position, min(step, end - position)).strip(b"\0"):
                return False
            position, step = position + step, WINDOW
        return True
