"""One segment: its batches in bounded windows, and its indexes while they pass by.

``verify_segment`` needs a storage and a ``SegmentJob`` and gives a ``SegmentResult`` that can be
sent between processes: segments are checked in parallel, and joined by ``partition.py``.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from logstore.errors import CorruptBatchError
from logstore.format import attributes as bits
from logstore.format import filenames
from logstore.format.control import parse_end_transaction_marker
from logstore.kernels import (
    HEADER_SIZE,
    SCAN_BAD_CRC,
    SCAN_COLUMNS,
    SCAN_END,
    SCAN_FULL,
    SCAN_INCOMPLETE,
    SCAN_TAIL,
    crc32c,
    scan_batches,
)
from logstore.storage.base import File, Storage
from logstore.verify.damage import WHOLE_BATCH_MAX, ZEROS, diagnose
from logstore.verify.fingerprint import Fingerprint
from logstore.verify.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    OffsetIndexCheck,
    Skipped,
    TimeIndexCheck,
    read_entries,
    used_size,
)
from logstore.verify.producers import ProducerFacts
from logstore.verify.records import check_content
from logstore.verify.report import UNKNOWN, Problem, error, info, warning
from logstore.verify.rules import MAGIC, EpochRun, OffsetOrder, Row, check_header

WINDOW = 4 << 20
_ROWS = 4096
_EPOCH_RUNS_MAX = 50_000
_TABLE = [SCAN_COLUMNS.index(name) for name in Row._fields]
(
    _POSITION,
    _SIZE,
    _BASE,
    _LAST,
    _BASE_TIMESTAMP,
    _MAX_TIMESTAMP,
    _EPOCH,
    _PRODUCER,
    _PRODUCER_EPOCH,
    _SEQUENCE,
    _ATTRIBUTES,
    _COUNT,
    _MAGIC,
) = range(len(Row._fields))

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """``deep``: decode every record, not only check headers and checksums. ``unpacked_max``: bytes
    that one compressed batch may unpack to. ``findings_max``: per file, the rest is counted."""

    deep: bool = True
    fingerprint: bool = True
    unpacked_max: int = 16 << 20
    findings_max: int = 1000
    threads: int = 0


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """A segment to check. ``next_base`` is −1 for the active one, the last of its partition.

    ``snapshots``: offsets where the state of producers is wanted. ``files``: the suffixes present.
    ``epoch_starts``: where leader-epoch-checkpoint has epochs begin, so that runs end there.
    ``trimmed``: rolled or cleanly shut down, so that its indexes have their final size (F-137).
    """

    directory: str
    base: int
    next_base: int = UNKNOWN
    files: frozenset[str] = frozenset((filenames.LOG_SUFFIX,))
    snapshots: tuple[int, ...] = ()
    trimmed: bool = False
    epoch_starts: tuple[int, ...] = ()

    def path(self, suffix: str) -> str:
        return os.path.join(self.directory, filenames.segment_file_name(self.base, suffix))


@dataclass(slots=True)
class SegmentResult:
    """What one segment told. ``problems`` go by suffix; ``tail`` is what the ``.log`` ends with
    besides whole batches, from byte ``tail_position`` on."""

    base: int
    size: int = 0
    batches: int = 0
    records: int = 0
    first_offset: int = UNKNOWN
    end_offset: int = UNKNOWN
    problems: dict[str, list[Problem]] = field(default_factory=dict)
    suppressed: int = 0
    gap_count: int = 0
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    holes: bool = False
    epochs: list[EpochRun] = field(default_factory=list)
    producers: ProducerFacts = field(default_factory=ProducerFacts)
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    tail: str = ""
    tail_position: int = UNKNOWN
    tail_offset: int = UNKNOWN
    tail_problem: Problem | None = None
    grew: bool = False
    vanished: tuple[str, ...] = ()


def verify_segment(
    storage: Storage, job: SegmentJob, options: VerifyOptions, progress: Progress | None = None
) -> SegmentResult:
    """Check one segment with its offset and time index. Reads only.

    Memory: a window of 4 MiB, a table of 4,096 batches, and a batch of up to 16 MiB.

    Raises:
        OSError: the medium refused. A file that is gone is noted, not raised.
    """
    try:
        log = storage.open(job.path(filenames.LOG_SUFFIX), writable=False)
    except FileNotFoundError:
        return SegmentResult(job.base, vanished=(filenames.LOG_SUFFIX,))
    try:
        return _SegmentScan(storage, job, options, progress, log).run()
    finally:
        log.close()


class _SegmentScan:
    def __init__(
        self,
        storage: Storage,
        job: SegmentJob,
        options: VerifyOptions,
        progress: Progress | None,
        log: File,
    ) -> None:
        self.storage, self.job, self.options, self.progress = storage, job, options, progress
        self.log = log
        self.result = SegmentResult(job.base)
        self.order = OffsetOrder(job.base, job.next_base, job.base)
        self.skipped = Skipped([])
        self.trusted = True
        self.marks = sorted(job.snapshots)
        self.columns = array("q", bytes(8 * len(SCAN_COLUMNS) * _ROWS))
        self.indexes: list[File] = []

    def run(self) -> SegmentResult:
        try:
            # Before the log: a running broker writes the log first, and indexes it later.
            self.offset_index = self._offset_index()
            self.time_index = self._time_index()
            self.size = self.result.size = self.log.size()
            self._scan()
            self._finish()
        finally:
            for file in self.indexes:
                file.close()
        return self.result

    # -- indexes -------------------------------------------------------------------------------

    def _problems(self, suffix: str) -> list[Problem]:
        return self.result.problems.setdefault(suffix, [])

    def _open_index(self, suffix: str) -> File | None:
        if suffix not in self.job.files:
            return None
        try:
            file = self.storage.open(self.job.path(suffix), writable=False)
        except FileNotFoundError:
            self.result.vanished += (suffix,)
            return None
        self.indexes.append(file)
        return file

    def _offset_index(self) -> OffsetIndexCheck | None:
        file = self._open_index(filenames.INDEX_SUFFIX)
        if file is None:
            return None
        problems = self._problems(filenames.INDEX_SUFFIX)
        used, size = used_size(file, OFFSET_ENTRY)
        self._check_length(problems, used, size, OFFSET_ENTRY.size)
        entries = read_entries(file, OFFSET_ENTRY, used, self.job.base)
        return OffsetIndexCheck(entries, problems, self.log.size())

    def _time_index(self) -> TimeIndexCheck:
        """Without the file too: the check knows the largest timestamp."""
        file = self._open_index(filenames.TIME_INDEX_SUFFIX)
        if file is None:
            return TimeIndexCheck(iter(()), [])
        problems = self._problems(filenames.TIME_INDEX_SUFFIX)
        used, size = used_size(file, TIME_ENTRY)
        if not used and size == TIME_ENTRY.size:
            used = size  # timestamp 0 of the first record: a real entry of zeros (F-137)
        self._check_length(problems, used, size, TIME_ENTRY.size)
        return TimeIndexCheck(read_entries(file, TIME_ENTRY, used, self.job.base), problems)

    def _check_length(self, problems: list[Problem], used: int, size: int, width: int) -> None:
        if size % width:
            message = f"{size % width} bytes behind the last whole entry"
            problems.append(warning("F-141", size - size % width, UNKNOWN, message))
        elif used < size and self.job.trimmed:
            message = f"{size - used} zero bytes at the end of an index that is not in use"
            problems.append(warning("F-137", used, UNKNOWN, message))

    # -- batches -------------------------------------------------------------------------------

    def _scan(self) -> None:
        position, window = 0, WINDOW
        while position < self.size:
            want = min(window, self.size - position)
            with self.log.view(position, want) as view:
                if len(view) < want:  # cut meanwhile: a truncation on a running broker
                    self.size = self.result.size = position + len(view)
                    self.result.grew = True
                    continue
                rows, done, status = scan_batches(view, 0, self.columns)
                if rows:
                    self._take(view, position, rows)
            self._tell(done)
            position += done
            window = WINDOW
            if status in (SCAN_FULL, SCAN_END):
                continue
            if status in (SCAN_TAIL, SCAN_INCOMPLETE) and position - done + want < self.size:
                if done:
                    continue
                framed = self._framed_size(position)
                if framed <= min(WHOLE_BATCH_MAX, self.size - position):
                    window = max(framed, WINDOW)
                    continue
                if framed <= self.size - position:
                    step = self._large(position, framed)
                    if step:
                        self._tell(step)
                        position += step
                        continue
                    status = SCAN_BAD_CRC
            after = self._bad(position, status)
            if after < 0:
                self._tell(self.size - position)
                return
            self._tell(after - position)
            position = after

    def _tell(self, count: int) -> None:
        if self.progress is not None and count:
            self.progress(count)

    def _framed_size(self, position: int) -> int:
        head = self.log.read_at(position, 12)
        return 12 + int.from_bytes(head[8:12], "big", signed=True)

    def _bad(self, position: int, status: int) -> int:
        """Tell of what is at ``position``; where to go on, or −1."""
        found = diagnose(self.log, self.size, position, status, self.order.expected)
        result = self.result
        end = found.resume if found.resume >= 0 else self.size
        self.skipped.add(position, end)
        if found.tail:
            result.tail, result.tail_position = found.tail, position
            result.tail_offset = self.order.expected
            result.tail_problem = found.problem
            if found.tail != ZEROS:
                self._hidden(found.last_offset)
            return UNKNOWN
        assert found.problem is not None
        self._problems(filenames.LOG_SUFFIX).append(found.problem)
        self._hidden(found.last_offset)
        return found.resume

    def _hidden(self, last_offset: int) -> None:
        """A batch that cannot be read, but is known to be there."""
        self.trusted = self.result.producers.complete = False
        result = self.result
        result.end_offset = max(result.end_offset, last_offset + 1)
        self.order.expected = UNKNOWN

    def _large(self, position: int, size: int) -> int:
        """A batch too large to look at in one piece: checksum and header only; 0 if bad."""
        head = self.log.read_at(position, HEADER_SIZE)
        if len(head) < HEADER_SIZE or head[16] != MAGIC:
            return 0
        crc = 0
        for piece in self._pieces(position + 21, position + size):
            crc = crc32c(piece, crc)
        if crc != int.from_bytes(head[17:21], "big"):
            return 0
        # The header as a row: the kernel sees it as a whole batch when only the length differs.
        short = bytearray(head)
        short[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
        if scan_batches(short, 0, self.columns, False)[0] != 1:
            return 0
        self.columns[SCAN_COLUMNS.index("size") * _ROWS] = size
        self._take(None, position, 1)
        if self.options.fingerprint:
            pieces = self._pieces(position + 21, position + size)
            self.result.fingerprint.add(int.from_bytes(head[:8], "big"), pieces)
        if self.options.deep:
            message = f"records not decoded: a batch of {size} bytes"
            problem = info("I-18", position, int.from_bytes(head[:8], "big"), message)
            self._problems(filenames.LOG_SUFFIX).append(problem)
        return size

    def _pieces(self, start: int, end: int) -> Iterator[memoryview]:
        for at in range(start, end, WINDOW):
            with self.log.view(at, min(WINDOW, end - at)) as view:
                yield view

    # -- a table of batches --------------------------------------------------------------------

    def _take(self, view: memoryview | None, start: int, count: int) -> None:
        """All rules on ``count`` valid batches; the table's positions count from ``start``."""
        table = [self.columns[c * _ROWS : c * _ROWS + count].tolist() for c in _TABLE]
        if start:
            table[_POSITION] = [position + start for position in table[_POSITION]]
        rows: list[Row] | None = None
        if self._needs_rows(table):
            rows = [Row(*fields) for fields in zip(*table, strict=True)]
            self._check_rows(rows)
        bases, lasts = table[_BASE], table[_LAST]
        if not self.order.follows(bases, lasts):
            rows = rows or [Row(*fields) for fields in zip(*table, strict=True)]
            bases, lasts = self._place(rows)
        result = self.result
        if result.first_offset < 0:
            result.first_offset = bases[0]
        result.end_offset = max(result.end_offset, lasts[-1] + 1)
        result.batches += count
        result.records += sum(n for n in table[_COUNT] if n > 0)
        self._epochs(table, bases, lasts)
        end = table[_POSITION][-1] + table[_SIZE][-1]
        if self.offset_index is not None:
            self.offset_index.take(table[_POSITION], lasts, end, self.skipped)
        placed_anew = bases != table[_BASE]
        self.time_index.take(lasts, table[_MAX_TIMESTAMP], self.trusted and not placed_anew)
        if view is not None:
            if max(table[_PRODUCER]) >= 0 or self._has_control(table):
                rows = rows or [Row(*fields) for fields in zip(*table, strict=True)]
                self._producers(view, start, rows, bases, lasts)
            self._content(view, start, table, rows, bases)

    def _needs_rows(self, table: list[list[int]]) -> bool:
        """Whether a batch is not as plain as a client's without a producer."""
        attributes = table[_ATTRIBUTES]
        deltas = [last - base + 1 for base, last in zip(table[_BASE], table[_LAST], strict=True)]
        return not (
            min(attributes) == max(attributes) == 0
            and min(table[_MAGIC]) == max(table[_MAGIC]) == MAGIC
            and max(table[_PRODUCER]) == UNKNOWN
            and max(table[_SEQUENCE]) == UNKNOWN
            and table[_COUNT] == deltas
            and all(map(int.__le__, table[_BASE_TIMESTAMP], table[_MAX_TIMESTAMP]))
        )

    def _check_rows(self, rows: list[Row]) -> None:
        problems = self._problems(filenames.LOG_SUFFIX)
        for row in rows:
            problems.extend(check_header(row))
            self.result.holes = self.result.holes or row.has_hole

    def _place(self, rows: list[Row]) -> tuple[list[int], list[int]]:
        """Offsets as the neighbours prove them; tells of those that are wrong."""
        bases, lasts = [], []
        problems = self._problems(filenames.LOG_SUFFIX)
        for index, row in enumerate(rows):
            following = self._following(rows, index)
            placed = self.order.place(row, following)
            problems.extend(placed.problems)
            if placed.base_offset != row.base_offset:  # index entries may know its true offsets
                self.skipped.add(row.position, row.end)
            bases.append(placed.base_offset)
            lasts.append(placed.last_offset)
        return bases, lasts

    def _following(self, rows: list[Row], index: int) -> int:
        """Base offset of the batch after a row; of the next segment after the last one."""
        if index + 1 < len(rows):
            following = rows[index + 1]
            return UNKNOWN if following.record_count < 0 else following.base_offset
        end = rows[index].end
        if end >= self.size:
            return self.job.next_base
        head = self.log.read_at(end, 17)
        if len(head) < 17 or head[16] != MAGIC:
            return UNKNOWN
        return int.from_bytes(head[:8], "big", signed=True)

    def _epochs(self, table: list[list[int]], bases: list[int], lasts: list[int]) -> None:
        """Runs of equal leader epochs; formats before magic 2 have none."""
        epochs, runs = table[_EPOCH], self.result.epochs
        breaks = {bisect_left(bases, offset) for offset in self.job.epoch_starts}
        start = 0
        while start < len(epochs):
            epoch, stop = epochs[start], min((b for b in breaks if b > start), default=len(epochs))
            if min(epochs[start:stop]) != epoch or max(epochs[start:stop]) != epoch:
                stop = next(i for i in range(start, stop) if epochs[i] != epoch)
            if table[_MAGIC][start] == MAGIC:
                begins = start in breaks and bases[start] in self.job.epoch_starts
                if runs and runs[-1].epoch == epoch and not begins:
                    last = runs.pop()
                    first, position = last.first_offset, last.position
                else:
                    first, position = bases[start], table[_POSITION][start]
                if len(runs) < _EPOCH_RUNS_MAX:
                    runs.append(EpochRun(epoch, position, first, lasts[stop - 1], self.job.base))
            start = stop

    # -- producers, content --------------------------------------------------------------------

    def _has_control(self, table: list[list[int]]) -> bool:
        return any(attributes & bits.CONTROL for attributes in table[_ATTRIBUTES])

    def _producers(
        self,
        view: memoryview,
        start: int,
        rows: list[Row],
        bases: list[int],
        lasts: list[int],
    ) -> None:
        facts = self.result.producers
        for row, base, last in zip(rows, bases, lasts, strict=True):
            while self.marks and self.marks[0] <= base:
                facts.mark(self.marks.pop(0))
            if row.producer_id < 0 or row.magic < MAGIC:
                continue
            marker = None
            if row.is_control and row.record_count:
                try:
                    batch = view[row.position - start : row.end - start]
                    marker = parse_end_transaction_marker(batch)
                except CorruptBatchError as failure:
                    if not self.options.deep:  # else the decoding of all records tells of it
                        problem = error("F-80", row.position, base, failure.reason)
                        self._problems(filenames.LOG_SUFFIX).append(problem)
                    facts.complete = False
            facts.add(row._replace(base_offset=base, last_offset=last), marker)

    def _content(
        self,
        view: memoryview,
        start: int,
        table: list[list[int]],
        rows: list[Row] | None,
        bases: list[int],
    ) -> None:
        if self.options.fingerprint:
            positions, sizes, magics = table[_POSITION], table[_SIZE], table[_MAGIC]
            skipped = (21 if magic == MAGIC else 16 for magic in magics)  # up to the checksum
            starts = (p - start + skip for p, skip in zip(positions, skipped, strict=True))
            ends = (p - start + size for p, size in zip(positions, sizes, strict=True))
            self.result.fingerprint.add_all(view, bases, starts, ends)
        if self.options.deep:
            rows = rows or [Row(*fields) for fields in zip(*table, strict=True)]
            problems = self._problems(filenames.LOG_SUFFIX)
            problems.extend(check_content(view, start, rows, self.options.unpacked_max))

    # -- end -----------------------------------------------------------------------------------

    def _finish(self) -> None:
        result = self.result
        for offset in self.marks:
            result.producers.mark(offset)
        if self.offset_index is not None:
            self.offset_index.finish(self.size, self.skipped)
        has_time_index = filenames.TIME_INDEX_SUFFIX in self.job.files
        self.time_index.finish(
            self.job.trimmed and has_time_index, self.trusted and not result.tail
        )
        result.gap_count, result.gaps = self.order.gap_count, self.order.gaps
        if result.end_offset < 0:
            result.first_offset = result.end_offset = self.job.base
        if self.log.size() != self.size:
            result.grew = True
        for suffix, problems in result.problems.items():
            if len(problems) > self.options.findings_max:
                result.suppressed += len(problems) - self.options.findings_max
                del problems[self.options.findings_max :]
            problems.sort(key=lambda problem: problem.position)
            result.problems[suffix] = problems
