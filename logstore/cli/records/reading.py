"""Records of a partition directory, read without its lock: for ``logstore read``.

Only the ``.log`` files are read, and never mapped, because the owner, a ``LogManager`` or a Kafka
broker, may append, roll, delete and cut at the same time. No index is needed or trusted. Reading
ends before the first batch that is incomplete, as during an append.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from checkpoints.errors import MalformedCheckpointError
from checkpoints.offset_checkpoint import LOG_START, OffsetCheckpoint
from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.cli.dumping.headers import WINDOW_BYTES, BatchRow, batch_rows, framed_size
from logstore.common.errors import CorruptBatchError, ResourceBusyError
from logstore.common.types import Record
from logstore.format import filenames
from logstore.format.control import parse_end_transaction_marker
from logstore.format.large_batch import worth_reading
from logstore.format.reader import MAX_OFFSET, ReadOptions, fill_records, read_records
from logstore.kernels import DECODE_FULL, DECODE_LIMIT
from logstore.storage import File, Storage

CHUNK_RECORDS = 5000
_SECOND_LOOK_SECONDS = 0.05
_ZERO_TAIL_BYTES = 1 << 20
_TRANSACTIONAL, _CONTROL = 0x10, 0x20

T = TypeVar("T")
Note = Callable[[str], None]
Aborted = tuple[int, int, int]  # producer id, first offset, offset of the marker


class Filled(NamedTuple, Generic[T]):
    """The result for a window from some position on.

    ``position`` and ``status``: where to go on, and a ``DECODE_`` number. ``end``: the offset after
    the last record of ``portion``. ``fault``: damage after it.
    """

    position: int
    status: int
    portion: T | None
    end: int
    fault: CorruptBatchError | None = None


FillRows: TypeAlias = Callable[[bytes, int, ReadOptions], Filled[T]]


def _fill_records(data: bytes, at: int, options: ReadOptions) -> Filled[list[Record]]:
    chunk: list[Record] = []
    fault, status = None, DECODE_FULL
    try:
        at, status = fill_records(data, at, chunk, CHUNK_RECORDS, options)
    except CorruptBatchError as error:
        fault = error
    return Filled(at, status, chunk or None, chunk[-1].offset + 1 if chunk else -1, fault)


class PartitionReader:
    """A cursor over one log. ``chunks`` reads to the present end; call it again for new records.

    Set ``offset``, where to begin, and ``end_offset``, where to stop, before the first call.
    ``note`` is called with notes for the reader of the records.
    """

    def __init__(self, storage: Storage, log_dir: str, tp: TopicPartition, note: Note) -> None:
        self.topic_partition = tp
        self.offset, self.end_offset = 0, MAX_OFFSET
        self._storage, self._log_dir, self.note = storage, log_dir, note
        self._directory = os.path.join(log_dir, filenames.partition_dir_name(tp))
        self._aborted: Sequence[Aborted] = ()
        self._base, self._position = -1, 0  # the next batch: its segment, and where in the file

    # -- where to begin and to stop ------------------------------------------------------------

    def earliest(self) -> int:
        """The log start offset: the base of the first segment, or above it after DeleteRecords."""
        return max([self._log_start(), *self._bases()[:1]])

    def latest(self) -> int:
        """The offset of the next record, from the headers of the last segment."""
        end = self._log_start()
        for base in self._bases()[-1:]:
            end = max(end, base, *(row.last_offset + 1 for row in self._rows(base)))
        return end

    def first_at(self, timestamp: int) -> int:
        """The offset of the first record at or after ``timestamp`` ms, or the end.

        Reads the headers of all batches before it.
        """
        for base in self._bases():
            for row in self._rows(base):
                if row.max_timestamp < timestamp:
                    continue
                for record in self._records_of(base, row):
                    if record.timestamp >= timestamp and record.offset >= self._log_start():
                        return record.offset
        return self.latest()

    def last(self, count: int) -> int:
        """The offset of the last ``count`` records that ``chunks`` would yield, or of the first if
        there are fewer.

        Headers are read twice, from the last segment backwards; memory does not grow.
        """
        low, left = self._log_start(), count
        for base in reversed(self._bases()):
            held = sum(self._wanted(base, row, low) for row in self._rows(base))
            if held >= left:
                return self._behind(base, held - left, low)
            left -= held
        return self.earliest()

    def _behind(self, base: int, skip: int, low: int) -> int:
        """The offset of the record after ``skip`` others of the segment."""
        for row in self._rows(base):
            held = self._wanted(base, row, low)
            if held > skip:
                return self._offsets_of(base, row, low)[skip]
            skip -= held
        return self.latest()  # the segment was cut since

    def _wanted(self, base: int, row: BatchRow, low: int) -> int:
        """How many records of a batch would be yielded, by its header if that is enough."""
        high = self.end_offset
        if row.record_count < 0:
            return len(self._offsets_of(base, row, low))
        if row.last_offset < low or row.base_offset >= high or self._is_left_out(row):
            return 0
        if row.base_offset < low or row.last_offset >= high:
            return len(self._offsets_of(base, row, low))
        return row.record_count

    def _is_left_out(self, row: BatchRow) -> bool:
        if row.attributes & _CONTROL:
            return True
        return bool(row.attributes & _TRANSACTIONAL) and any(
            producer == row.producer_id and first <= row.base_offset < marker
            for producer, first, marker in self._aborted
        )

    def _offsets_of(self, base: int, row: BatchRow, low: int) -> list[int]:
        records = self._records_of(base, row)
        return [r.offset for r in records if low <= r.offset < self.end_offset]

    def keep_to_committed(self) -> None:
        """Leave out aborted transactions, and end before the first one that is still open.

        Reads the headers of the whole log. Later appends are not read.
        """
        self.end_offset = min(self.end_offset, self.latest())
        aborted: list[Aborted] = []
        open_since: dict[int, int] = {}
        for base in self._bases():
            for row in self._rows(base):
                if not row.attributes & _TRANSACTIONAL:
                    continue
                if not row.attributes & _CONTROL:
                    open_since.setdefault(row.producer_id, row.base_offset)
                    continue
                marker = parse_end_transaction_marker(self._bytes_of(base, row))
                first = None if marker is None else open_since.pop(row.producer_id, None)
                if marker is not None and not marker[0] and first is not None:
                    aborted.append((row.producer_id, first, row.base_offset))
        self._aborted = aborted
        self.end_offset = min([self.end_offset, *open_since.values()])

    # -- records -------------------------------------------------------------------------------

    def chunks(self) -> Iterator[list[Record]]:
        """Lists of some thousands of records, checksums checked. Memory: 4 MiB or one batch.

        Raises:
            CorruptBatchError: a batch is damaged. All records before it were yielded.
        """
        return self.portions(_fill_records)

    def portions(self, fill: FillRows[T]) -> Iterator[T]:
        """As ``chunks``, with what ``fill`` makes of windows of the log."""
        bases = self._bases()
        for at, base in enumerate(bases):
            end = bases[at + 1] if at + 1 < len(bases) else None
            if base < self._base or (end is not None and end <= self.offset):
                continue
            if base >= self.end_offset:
                return
            if base > self._base:
                self._base, self._position = base, 0
            try:
                file = self._open(base)
            except FileNotFoundError:
                self._on_deleted(base)
                continue
            try:
                yield from self._segment(file, end, fill)
            except MemoryError:
                raise _too_large(file, f"the batch at byte {self._position}") from None
            finally:
                file.close()

    def _on_deleted(self, base: int) -> None:
        self.note(f"{self._place(base)}: deleted during the read; its records are left out")

    def _segment(self, file: File, end: int | None, fill: FillRows[T]) -> Iterator[T]:
        """The rest of one segment. ``end``: the base offset of the next, None for the last one."""
        aborted = [
            txn for txn in self._aborted if txn[2] >= self._base and (end is None or txn[1] < end)
        ]
        window, looked_twice = WINDOW_BYTES, False
        while data := file.read_at(self._position, window):
            start = self._position
            try:
                if (yield from self._window(data, aborted, fill)) == DECODE_LIMIT:
                    return
            except CorruptBatchError as error:
                if end is None and not any(file.read_at(error.position, _ZERO_TAIL_BYTES)):
                    return  # preallocated, or left by a power cut
                if end is not None or looked_twice:
                    raise error.located(file.path) from None
                looked_twice = True  # it may be being written
                time.sleep(_SECOND_LOOK_SECONDS)
                continue
            window = WINDOW_BYTES
            if self._position == start:  # no whole batch in the window
                window = framed_size(data)
                if window <= len(data) or window > file.size() - start:
                    if end is None:
                        return
                    raise CorruptBatchError(file.path, start, "a torn batch before a newer segment")
                if not worth_reading(file, start, window):
                    reason = f"a batch of {window} bytes with another checksum"
                    raise CorruptBatchError(file.path, start, reason)

    def _window(
        self, data: bytes, aborted: Sequence[Aborted], fill: FillRows[T]
    ) -> Generator[T, None, int]:
        """Process the whole batches of ``data``, which lies at ``_position``.

        Returns why it ended.
        """
        start, at, status = self._position, 0, DECODE_FULL
        while status == DECODE_FULL:
            options = ReadOptions(self.offset, self.end_offset, aborted=aborted)
            at, status, portion, end, fault = fill(data, at, options)
            if portion is not None:
                self.offset = end
                yield portion
            if fault is not None:
                raise fault.located("", start)
            self._position = start + at
        return status

    # -- files ---------------------------------------------------------------------------------

    def _path(self, base: int, transition: str = "") -> str:
        name = filenames.segment_file_name(base, filenames.LOG_SUFFIX, transition)
        return os.path.join(self._directory, name)

    def _place(self, base: int, transition: str = "") -> str:
        return printable(self._path(base, transition))

    def _open(self, base: int) -> File:
        """Open the ``.log``, also of a rolled segment that waits for its final name."""
        for transition in ("", filenames.SWAP_SUFFIX):
            try:
                return self._storage.open(self._path(base, transition), writable=False)
            except FileNotFoundError:
                continue
        return self._storage.open(self._path(base), writable=False)  # renamed between the two

    def _bases(self) -> list[int]:
        names = [entry.name for entry in self._storage.scan_dir(self._directory)]
        parsed = [filenames.parse_segment_file(name) for name in names]
        bases = sorted(
            p.offset for p in parsed if p and p.suffix == filenames.LOG_SUFFIX and not p.transition
        )
        for base in filenames.roll_marks(names, 0):
            ends = [row.last_offset + 1 for row in self._rows(bases[-1])] if bases else []
            if base not in ends[-1:]:
                self.note(
                    f"{self._place(base, filenames.SWAP_SUFFIX)}: does not follow what is "
                    "before it; left out, as by the next start"
                )
                break
            bases.append(base)
        return bases

    def _log_start(self) -> int:
        path = os.path.join(self._log_dir, LOG_START)
        try:
            offsets = OffsetCheckpoint(path, self._storage).read()
        except MalformedCheckpointError as error:
            self.note(f"{error}; taken as absent")
            return 0
        return offsets.get(self.topic_partition, 0)

    def _rows(self, base: int) -> Iterator[BatchRow]:
        try:
            file = self._open(base)
        except FileNotFoundError:
            return
        try:
            yield from batch_rows(file)
        except MemoryError:
            raise _too_large(file, "a batch") from None
        finally:
            file.close()

    def _bytes_of(self, base: int, row: BatchRow) -> bytes:
        file = self._open(base)
        try:
            return file.read_at(row.position, row.size)
        finally:
            file.close()

    def _records_of(self, base: int, row: BatchRow) -> list[Record]:
        return read_records(
            self._bytes_of(base, row), path=self._path(base), base_position=row.position
        )


def _too_large(file: File, what: str) -> ResourceBusyError:
    return ResourceBusyError(file.path, "read", f"not enough memory for {what}")
