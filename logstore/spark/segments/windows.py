"""Read a ``.log`` file a window at a time: its bytes, and the headers of the batches in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from checkpoints.loggers import get_logger
from logstore.common.errors import CorruptBatchError, ResourceBusyError
from logstore.format.large_batch import worth_reading
from logstore.kernels import SCAN_INCOMPLETE, SCAN_REASONS, SCAN_TAIL
from logstore.spark.segments.batch_table import BatchTable
from logstore.storage.base import File

WINDOW = 16 << 20
"""Large enough for good record batches, small enough for a worker's memory."""

_NO_LIMIT = 1 << 32
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

    def tables(
        self, *, check_crc: bool = False, stop_on_bad: bool = True
    ) -> Iterator[tuple[memoryview, int, BatchTable]]:
        """Yield each window with its position in the file and the whole batches in it, at least
        one.

        A window is valid until the next one is requested.

        Raises:
            CorruptBatchError: a batch is missing or larger than ``max_batch_bytes``; with
                ``stop_on_bad`` also for a bad header, or a bad checksum if that is checked.
            ResourceBusyError: there is not enough memory for a batch.
            OSError: the medium refused.
        """
        position, size = self.start, WINDOW
        while position < self.end and size:
            try:
                with self.file.view(position, min(size, self.end - position)) as window:
                    table = BatchTable(window, check_crc=check_crc, stop_on_bad=stop_on_bad)
                    if table.rows:
                        yield window, position, table
                        position, size = position + table.end, WINDOW
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
        step = 4096
        while position < self.end:
            if self.file.read_at(position, min(step, self.end - position)).strip(b"\0"):
                return False
            position, step = position + step, WINDOW
        return True
