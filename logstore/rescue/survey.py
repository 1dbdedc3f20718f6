"""One ``.log`` file from front to end: which batches are good, and what lies between them.

The medium may refuse some bytes. A batch is good if its checksum matches, its header does not
contradict itself, and its records decode. No checksum covers base offset and leader epoch, so
``placing`` decides where it belongs.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import cast

from logstore.common.bounds import UNPACKED_MAX, WHOLE_BATCH_MAX
from logstore.common.errors import CorruptBatchError
from logstore.format.batch_search import PREFIX, BatchSearch
from logstore.format.header import HEADER_SIZE
from logstore.format.legacy import legacy_records, parse_legacy
from logstore.kernels import (
    SCAN_BAD_SIZE,
    SCAN_COLUMNS,
    SCAN_END,
    SCAN_FULL,
    SCAN_INCOMPLETE,
    SCAN_REASONS,
    SCAN_TAIL,
    survey_batches,
)
from logstore.rescue.placing import Damage, RescuedRange
from logstore.storage.base import File, Storage
from logstore.verify.common.batch_rules import MAGIC, check_header
from logstore.verify.common.header_table import (
    ATTRIBUTES,
    BASE,
    COUNT,
    EPOCH,
    LAST,
    POSITION,
    ROWS,
    HeaderTable,
)
from logstore.verify.common.header_table import MAGIC as MAGIC_COLUMN
from logstore.verify.common.report import Severity
from logstore.verify.segment.records import check_content

OPEN_MAX = 64
_PAGE = 4096


class FilePool:
    """Files of sources, for reading; at most ``OPEN_MAX`` of them are open at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        file = self._open.pop(path, None) or self._storage.open(path, writable=False)
        self._open[path] = file
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)[1].close()
        return file

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


class PatchyFile:
    """A file whose unreadable bytes (EIO) read as zeros.

    Zeros never form a batch with a matching checksum, so a lost sector costs only the batch around
    it. ``unreadable`` has the positions of the unreadable pages.
    """

    def __init__(self, pool: FilePool, path: str) -> None:
        self._pool = pool
        self.path = path
        self.unreadable: set[int] = set()

    def size(self) -> int:
        return self._pool.get(self.path).size()

    def read_at(self, position: int, size: int) -> bytes:
        file = self._pool.get(self.path)
        try:
            return file.read_at(position, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        size = max(min(size, file.size() - position), 0)
        pages = range(position - position % _PAGE, position + size, _PAGE)
        return b"".join(self._page(file, page, position, position + size) for page in pages)

    def _page(self, file: File, page: int, start: int, end: int) -> bytes:
        first, stop = max(page, start), min(page + _PAGE, end)
        try:
            return file.read_at(first, stop - first)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.unreadable.add(page)
            return bytes(stop - first)

    @contextmanager
    def view(self, position: int, size: int) -> Iterator[memoryview]:
        yield memoryview(self.read_at(position, size))


CRC = SCAN_COLUMNS.index("crc")
WINDOW = 4 << 20

_CODEC = 7
Found = RescuedRange | Damage


class Survey:
    """Walks one file. ``has_holes``: compaction removed records from its batches."""

    def __init__(self, file: PatchyFile, number: int, on_bytes: Callable[[int], None]) -> None:
        self._file, self._number, self._on_bytes = file, number, on_bytes
        self._size = file.size()
        self._search = BatchSearch(cast(File, file), 0, self._size)
        self._table = HeaderTable()
        self._good_until = 0  # where the last good batch ends
        self._next = -1  # the offset after it
        self.has_holes = False

    def run(self) -> Iterator[Found]:
        """Pieces of one epoch without a gap inside, and damage, in the order of the file."""
        position, window = 0, WINDOW
        while position < self._size:
            view = memoryview(self._file.read_at(position, min(window, self._size - position)))
            if not view:  # cut since it was opened
                return
            done, status = self._table.fill(view, 0, position)
            if self._table.count:
                yield from self._batches(view)
            at_end = position + len(view) >= self._size
            position += done
            self._on_bytes(done)
            window = WINDOW
            if status in (SCAN_END, SCAN_FULL):
                continue
            if status in (SCAN_TAIL, SCAN_INCOMPLETE) and not at_end:
                if done:
                    continue
                framed = self._framed_size(position)
                if len(view) < framed <= WHOLE_BATCH_MAX:
                    window = framed
                    continue
            after = yield from self._beside(position, status)
            self._on_bytes(after - position)
            position = after

    def _framed_size(self, position: int) -> int:
        return PREFIX + int.from_bytes(self._file.read_at(position, PREFIX)[8:], "big", signed=True)

    # -- good batches --------------------------------------------------------------------------

    def _batches(self, view: memoryview) -> Iterator[Found]:
        """The batches of the table, whose checksums a scan has verified."""
        table = self._table
        survey = survey_batches(table.columns, table.count, -1, table.column(BASE)[0], -1)
        self.has_holes = self.has_holes or survey.holes or survey.horizons
        bad = self._undecodable(view, survey.odd)
        breaks = set(survey.epochs)
        if min(table.column(MAGIC_COLUMN)) < MAGIC:
            place_legacy(view, table)
            breaks.update(self._breaks())
        else:
            breaks.update(self._breaks() if survey.gaps is None else survey.gaps)
        breaks.update(row + after for row in bad for after in (0, 1))
        starts = sorted(breaks | {0, table.count})
        for first, end in pairwise(starts):
            yield self._rows(first, end) if first not in bad else self._bad_row(first, bad[first])

    def _breaks(self) -> Iterator[int]:
        """Rows that do not begin where the row before them ends."""
        table = self._table
        bases, lasts, magics = (table.column(c) for c in (BASE, LAST, MAGIC_COLUMN))
        for row in range(1, table.count):
            if bases[row] != lasts[row - 1] + 1 or magics[row] != magics[row - 1]:
                yield row

    def _rows(self, first: int, end: int) -> RescuedRange:
        table = self._table
        start, stop = self._bytes(first)[0], self._bytes(end - 1)[1]
        hidden = start - self._good_until
        joined = not hidden
        self._good_until, self._next = stop, table.column(LAST)[end - 1] + 1
        return RescuedRange(
            self._number,
            start,
            stop,
            table.column(BASE)[first],
            self._next,
            table.column(EPOCH)[first],
            end - first,
            table.column(MAGIC_COLUMN)[first],
            joined,
            hidden,
            first_crc=table.column(CRC)[first],
            last_crc=table.column(CRC)[end - 1],
        )

    def _bytes(self, row: int) -> tuple[int, int]:
        start, size = self._table.columns[row : row + ROWS + 1 : ROWS]
        return self._table.start + start, self._table.start + start + size

    def _bad_row(self, row: int, reason: str) -> Damage:
        return Damage(self._number, *self._bytes(row), reason, self._table.column(LAST)[row] + 1)

    def _undecodable(self, view: memoryview, odd: list[int]) -> dict[int, str]:
        """Rows of batches whose header or records contradict a checksum that matches."""
        table = self._table
        found = {
            row: problem.message
            for row in odd
            for problem in check_header(table.row(row))
            if problem.severity is Severity.ERROR
        }
        positions = table.column(POSITION)
        for problem in check_content(view, table, UNPACKED_MAX):
            if problem.severity is Severity.ERROR:
                row = bisect_right(positions, problem.position - table.start) - 1
                found[row] = problem.message
        return found

    # -- the rest ------------------------------------------------------------------------------

    def _beside(self, position: int, status: int) -> Generator[Found, None, int]:
        """Yield what is at ``position``, where a scan finds no batch. Returns where to go on."""
        found = self._search.at(position)
        if found is not None:  # good, and too large for one buffer
            return (yield from self._large(position, found.size))
        after = self._search.next(position + 1)
        end = self._size if after is None else after.position
        mended = self._search.fitting_header(position, end)
        if mended is not None:
            return (yield from self._mended(position, *mended))
        end = self._believed_end(position, end, status)
        reason = self._reason(position, end, status)
        yield Damage(self._number, position, end, reason, self._claimed(position))
        return end

    def _large(self, position: int, size: int) -> Generator[Found, None, int]:
        head = self._file.read_at(position, HEADER_SIZE)
        if self._table.fill_large(head, size, position):
            yield self._rows(0, 1)
        return position + size

    def _mended(self, position: int, size: int, magic: int) -> Generator[Found, None, int]:
        """A batch in which only the length or the magic is wrong."""
        head = self._file.read_at(position, HEADER_SIZE)
        if magic == MAGIC:
            right = head[:8] + (size - PREFIX).to_bytes(4, "big") + head[12:16] + b"\2" + head[17:]
            if self._table.fill_large(right, size, position):
                yield self._rows(0, 1)._replace(mended=True)
                return position + size
        yield Damage(self._number, position, position + size, "a damaged header")
        return position + size

    def _believed_end(self, position: int, found: int, status: int) -> int:
        """Return where the damage ends: after the batch, if its length leads to another batch.

        What looks like a batch inside may be the value of a record.
        """
        claimed = position + self._framed_size(position)
        framed = status != SCAN_BAD_SIZE and found < claimed <= self._size
        if framed and (claimed == self._size or self._search.at(claimed) is not None):
            return claimed
        return found

    def _reason(self, position: int, end: int, status: int) -> str:
        if self._search.gave_up:
            return "too many bytes that look like batches: the search gave up"
        if any(position - 4096 < page < end for page in self._file.unreadable):
            return "the medium refused to read it"
        if not any(self._file.read_at(position, min(end - position, HEADER_SIZE))):
            return "zeros"
        return SCAN_REASONS[status]

    def _claimed(self, position: int) -> int:
        """The offset after a batch that continues the log, according to its own header."""
        head = self._file.read_at(position, HEADER_SIZE)
        base, delta = int.from_bytes(head[:8], "big"), int.from_bytes(head[23:27], "big")
        fits = len(head) == HEADER_SIZE and base == self._next and head[16] == MAGIC
        return base + delta + 1 if fits and delta < 1 << 31 else -1


def place_legacy(view: memoryview, table: HeaderTable) -> None:
    """Give compressed batches of the old formats the offset of their first message; the header
    has that of the last one alone."""
    columns = table.columns
    for row in range(table.count):
        if columns[COUNT * ROWS + row] < 0 and columns[ATTRIBUTES * ROWS + row] & _CODEC:
            at = columns[POSITION * ROWS + row]
            try:
                batch = parse_legacy(view, at)
                records = legacy_records(view, batch, check_crc=False, limit=UNPACKED_MAX)
            except CorruptBatchError:
                continue
            columns[BASE * ROWS + row] = min(records[0].offset, columns[LAST * ROWS + row])
