"""What a read of a log gives: a slice of one segment, as bytes, records or columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logstore.errors import CorruptBatchError
from logstore.format.reader import batch_records, iter_batches, read_records
from logstore.index import AbortedTxn
from logstore.segment import Slice
from logstore.types import Record

if TYPE_CHECKING:
    import pyarrow


@dataclass(slots=True, frozen=True)
class FetchData:
    """The result of ``PartitionLog.read``; the offsets are those at the time of the read.

    ``data`` begins at the boundary of the batch that holds ``start_offset`` (so its first records
    may lie below it) and may end inside a batch, as a Kafka fetch response does (F-158).
    ``aborted`` lists the aborted transactions a read_committed reader must skip (F-160).
    """

    start_offset: int
    end_offset: int  # records at or after it are not for this reader
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    slice: Slice | None = None
    data: bytes = b""
    aborted: tuple[AbortedTxn, ...] = ()

    def __len__(self) -> int:
        return len(self.data)

    def records(self) -> list[Record]:
        """The records in ``[start_offset, end_offset)`` of the whole batches; CRCs are checked.

        Control batches and records of aborted transactions in ``aborted`` are left out.

        Raises:
            CorruptBatchError: a batch is damaged; names the file and the byte.
        """
        path, base = (self.slice.segment.log_path, self.slice.position) if self.slice else ("", 0)
        try:
            if self.aborted:
                return self._committed_records()
            return read_records(
                self.data, from_offset=self.start_offset, end_offset=self.end_offset
            )
        except CorruptBatchError as error:
            raise error.located(path, base) from None

    def _committed_records(self) -> list[Record]:
        records: list[Record] = []
        for batch in iter_batches(self.data):
            if batch.is_control or batch.last_offset < self.start_offset:
                continue
            if batch.is_transactional and any(
                txn.producer_id == batch.producer_id
                and txn.first_offset <= batch.base_offset <= txn.last_offset
                for txn in self.aborted
            ):
                continue
            records += [
                record
                for record in batch_records(self.data, batch, from_offset=self.start_offset)
                if record.offset < self.end_offset
            ]
        return records

    def to_arrow(self, *, headers: bool = False) -> pyarrow.RecordBatch:
        """The same records as Arrow columns (see ``logstore.arrow``)."""
        from logstore.arrow import read_columns

        return read_columns(
            self.data, from_offset=self.start_offset, end_offset=self.end_offset, headers=headers
        )

    @contextmanager
    def view(self) -> Iterator[memoryview]:
        """The bytes on disk without a copy, valid inside the ``with`` block only.

        A truncation meanwhile works on a copy of the file, so the window never changes or faults.
        """
        if self.slice is None:
            yield memoryview(b"")
            return
        with self.slice.segment.view(self.slice.position, self.slice.size) as window:
            yield window
