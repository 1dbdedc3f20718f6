"""Records of a partition directory, read without its lock: for ``logstore read`` and ``export``.

The owner, a ``LogManager`` or a Kafka broker, may append, roll, delete and cut at the same time.
Reading ends before the first batch that is incomplete, as during an append.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.cli.common.exits import fail
from logstore.cli.common.topics import partitions_of
from logstore.common.errors import CorruptBatchError, ResourceBusyError
from logstore.common.types import Record
from logstore.directory.layout import LogDirFiles, list_partition
from logstore.directory.listing import ListedSegment
from logstore.directory.positions import offset_for_timestamp, with_rolls
from logstore.directory.segment_index import SegmentIndex, log_end_offset
from logstore.directory.splits import AbortedRange
from logstore.directory.transactions import follow_transactions, overlapping
from logstore.directory.windows import BatchTable
from logstore.format import attributes as bits
from logstore.format import filenames
from logstore.format.reader import MAX_OFFSET, fill_records, read_records
from logstore.kernels import DECODE_FULL, ReadBounds
from logstore.storage.uri import join_uri, open_storage, shown

CHUNK_RECORDS = 5000
_SECOND_LOOK_SECONDS = 0.05
_WINDOW = 4 << 20  # decoded while it is in the processor's cache
_ZEROS_MAX = 1 << 20  # preallocated ones are read at each look

Note = Callable[[str], None]


class PartitionReader:
    """A cursor over one log. ``chunks`` reads to the present end; call it again for new records.

    Set ``offset``, where to begin, and ``end_offset``, where to stop, before the first call.
    ``note`` is called with notes for the reader of the records. ``layout`` is the log as it was
    listed, here or by the last ``chunks``. ``beside`` are the files of the log directory; who reads
    for long reads them again.
    """

    def __init__(self, beside: LogDirFiles, tp: TopicPartition, note: Note) -> None:
        self.topic_partition, self.beside = tp, beside
        self.offset, self.end_offset = 0, MAX_OFFSET
        self.note = note
        self.aborted: tuple[AbortedRange, ...] = ()
        self._directory = join_uri(beside.uri, filenames.partition_dir_name(tp))
        self._base, self._position = -1, 0  # the next batch: its segment, and where in the file
        self._list()

    def _list(self) -> None:
        self.layout = with_rolls(list_partition(self._directory, self.beside), self.note)

    # -- where to begin and to stop ------------------------------------------------------------

    def earliest(self) -> int:
        """The log start offset: the base of the first segment, or above it after DeleteRecords."""
        return self.layout.log_start_offset

    def latest(self) -> int:
        """The offset of the next record, from the headers of the last segment."""
        return log_end_offset(self.layout)

    def first_at(self, timestamp: int) -> int:
        """The offset of the first record at or after ``timestamp`` ms, or the end."""
        found = offset_for_timestamp(self.layout, timestamp)
        return self.latest() if found is None else found

    def last(self, count: int) -> int:
        """The offset of the last ``count`` records that ``chunks`` would yield, or of the first if
        there are fewer.

        Headers are read twice, from the last segment backwards; memory does not grow.
        """
        left = count
        for segment, next_base in reversed([*self.layout.bounded()]):
            held = sum(number for number, _ in self._held(segment, next_base))
            if held >= left:
                skip = held - left
                for number, batch in self._held(segment, next_base):
                    if number > skip:
                        return self._offsets_of(batch)[skip]
                    skip -= number
                return self.latest()  # the segment was cut since
            left -= held
        return self.earliest()

    def _held(self, segment: ListedSegment, next_base: int) -> Iterator[tuple[int, memoryview]]:
        """Yield each batch after the number of its records that would be yielded, by its header if
        that is enough.
        """
        low, high = self.layout.log_start_offset, self.end_offset
        index = SegmentIndex(self.layout, segment)
        with index.windows(position=0, open_end=next_base == MAX_OFFSET) as windows:
            for window, _, table in windows.tables(BatchTable):
                names = ("base_offset", "last_offset", "attributes", "producer_id", "record_count")
                for row, (first, last, attributes, producer, number) in enumerate(
                    zip(*(table.cells(name) for name in names), strict=True)
                ):
                    batch = window[table.span(row, row + 1)]
                    if self._is_left_out(attributes, producer, first):
                        number = 0
                    elif number < 0 or first < low or last >= high:
                        number = len(self._offsets_of(batch))
                    yield number, batch

    def _is_left_out(self, attributes: int, producer_id: int, offset: int) -> bool:
        if attributes & bits.CONTROL:
            return True
        return bool(attributes & bits.TRANSACTIONAL) and any(
            producer == producer_id and first <= offset < marker
            for producer, first, marker in self.aborted
        )

    def _offsets_of(self, batch: memoryview) -> list[int]:
        low = self.layout.log_start_offset
        return [r.offset for r in read_records(batch) if low <= r.offset < self.end_offset]

    def keep_to_committed(self) -> None:
        """Leave out aborted transactions, and end before the first one that is still open.

        Reads the headers of the whole log. Later appends are not read.
        """
        end = self.latest()
        found = follow_transactions(self.layout, end, whole_log=True)
        self.aborted = tuple(found.aborted)
        self.end_offset = min([self.end_offset, end, *found.open_since.values()])

    # -- records -------------------------------------------------------------------------------

    def chunks(self) -> Iterator[list[Record]]:
        """Lists of some thousands of records, checksums checked. Memory: 4 MiB or one batch.

        Raises:
            CorruptBatchError: a batch is damaged. All records before it were yielded.
        """
        self._list()
        for segment, next_base in self.layout.bounded():
            base = segment.base_offset
            if base < self._base or next_base <= self.offset:
                continue
            if base >= self.end_offset:
                return
            index = SegmentIndex(self.layout, segment)
            try:
                if base > self._base:
                    self._base, self._position = base, index.floor(self.offset)
                yield from self._segment(index, next_base)
            except FileNotFoundError:
                place = printable(index.path)
                self.note(f"{place}: deleted during the read; its records are left out")
            except MemoryError:
                reason = f"not enough memory for the batch at byte {self._position}"
                raise ResourceBusyError(index.path, "read", reason) from None

    def _segment(self, index: SegmentIndex, next_base: int) -> Iterator[list[Record]]:
        """The rest of one segment."""
        is_last, looked_at = next_base == MAX_OFFSET, -1
        aborted = overlapping(self.aborted, self._base, next_base)
        while True:
            try:
                with index.windows(position=self._position, open_end=is_last) as windows:
                    windows = replace(windows, zeros_max=_ZEROS_MAX, window=_WINDOW)
                    for window, position, table in windows.tables(BatchTable):
                        data = window[: table.end]
                        yield from self._records(data, aborted, index.path, position)
                        if table.cells("base_offset")[-1] >= self.end_offset:
                            return
                return
            except CorruptBatchError:
                if not is_last or looked_at == self._position:
                    raise
                looked_at = self._position  # it may be being written
                time.sleep(_SECOND_LOOK_SECONDS)

    def _records(
        self, data: memoryview, aborted: Sequence[AbortedRange], path: str, position: int
    ) -> Iterator[list[Record]]:
        """The records of ``data``, whole batches that lie at ``position`` of the file."""
        at, status = 0, DECODE_FULL
        while status == DECODE_FULL:
            chunk: list[Record] = []
            fault: CorruptBatchError | None = None
            bounds = ReadBounds(self.offset, self.end_offset, aborted=aborted)
            try:
                at, status = fill_records(data, at, chunk, CHUNK_RECORDS, bounds)
            except CorruptBatchError as error:
                fault = error.located(path, position)
            if chunk:
                self.offset = chunk[-1].offset + 1
                yield chunk
            if fault is not None:
                raise fault
            self._position = position + at


def readers_of(
    directory: str, topic: str, only: Collection[int], note: Note
) -> list[PartitionReader]:
    """Readers of the partitions of a topic, or of ``only`` some; without them the command ends."""
    storage, path = open_storage(directory)
    info = storage.info(path)
    if info is None or not info.is_dir:
        fail(f"{printable(shown(directory))}: no such directory")
    found = partitions_of(directory, topic)
    for partition in only:
        if partition not in found:
            wanted = f"partition {partition} of {topic!r}"
            fail(f"{printable(shown(directory))}: there is no {wanted}, only {found}")
    chosen = sorted(set(only)) or found
    beside = LogDirFiles(directory, note)
    beside.read()
    return [PartitionReader(beside, TopicPartition(topic, p), note) for p in chosen]
