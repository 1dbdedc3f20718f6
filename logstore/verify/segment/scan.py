"""One segment: its batches in bounded windows, and its indexes while they pass by.

``verify_segment`` needs a storage and a ``SegmentJob`` and gives a ``SegmentResult`` that can be
sent between processes: segments are checked in parallel, and joined by ``PartitionCheck``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from logstore.common.bounds import WHOLE_BATCH_MAX
from logstore.format import filenames
from logstore.format.header import CRC_FROM
from logstore.format.index_entry import OFFSET_ENTRY, TIME_ENTRY
from logstore.format.large_batch import content_crc
from logstore.format.second_opinion import confirm_bad_checksum
from logstore.kernels import (
    HEADER_SIZE,
    SCAN_BAD_CRC,
    SCAN_END,
    SCAN_FULL,
    SCAN_INCOMPLETE,
    SCAN_TAIL,
)
from logstore.storage.base import File, Storage
from logstore.verify.common.batch_rules import MAGIC
from logstore.verify.common.digests import CompareSpec, RangeDigest
from logstore.verify.common.header_table import HeaderTable
from logstore.verify.common.report import UNKNOWN, error, warning
from logstore.verify.segment.checks import SegmentChecks
from logstore.verify.segment.diagnosis import TORN, ZEROS, diagnose
from logstore.verify.segment.index_entries import IndexEntries, used_size
from logstore.verify.segment.segment_check import (
    Problems,
    SegmentJob,
    SegmentResult,
    VerifyOptions,
    open_log,
)

WINDOW = 4 << 20
_BLOCK = 1 << 20
"""So many bytes pass all checks before the next are read: they stay in the second-level cache.
"""

_BATCH_MIN = 26  # bytes: a message of the oldest format without key and value
_AT_AN_END = (SCAN_END, SCAN_TAIL, SCAN_INCOMPLETE)

Progress = Callable[[int], None]


def verify_segment(
    storage: Storage, job: SegmentJob, options: VerifyOptions, progress: Progress | None = None
) -> SegmentResult:
    """Check one segment with its offset and time index. Reads only.

    Memory: a window of 4 MiB, a table of 4,096 batches, and a batch of up to 16 MiB.

    Raises:
        OSError: a file cannot be read. A file that is gone is noted, not raised.
    """
    try:
        log = open_log(storage, job.path(filenames.LOG_SUFFIX))
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
        self.problems = {
            suffix: Problems(options.findings_max) for suffix in filenames.SEGMENT_SUFFIXES
        }
        self.result = SegmentResult(job.base, problems=dict(self.problems))
        self.table = HeaderTable()
        self.indexes: list[File] = []

    def run(self) -> SegmentResult:
        result = self.result
        try:
            # Before the log: a running broker writes the log first, and indexes it later.
            offsets = self._entries(filenames.INDEX_SUFFIX, OFFSET_ENTRY)
            times = self._entries(filenames.TIME_INDEX_SUFFIX, TIME_ENTRY)
            self.size = result.size = self.log.size()
            self.checks = SegmentChecks(
                self.job, self.options, self._base_offset_at, offsets, times, result
            )
            self._scan()
            self.checks.finish(self.size)
        finally:
            for file in self.indexes:
                file.close()
        if self.log.size() != self.size:
            result.grew = True
        for suffix, problems in self.problems.items():
            result.suppressed += problems.dropped
            result.problems[suffix] = sorted(problems, key=lambda problem: problem.position)
        return result

    # -- indexes -------------------------------------------------------------------------------

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

    def _entries(self, suffix: str, layout: struct.Struct) -> IndexEntries:
        """The entries of an index; without the file there are none."""
        problems, file = self.result.problems_of(suffix), self._open_index(suffix)
        if file is None:
            return IndexEntries(None, layout, 0, self.job.base, problems)
        width, log_size = layout.size, self.log.size()
        used, size = used_size(file, layout)
        if layout is TIME_ENTRY and not used and size == width:
            used = size  # timestamp 0 of the first record: a real entry of zeros (F-137)
        if size % width:
            message = f"{size % width} bytes behind the last whole entry"
            problems.append(warning("index-partial-entry", message, size - size % width))
        elif used < size and self.job.trimmed:
            message = f"{size - used} zero bytes at the end of an index that is not in use"
            problems.append(warning("index-zeros", message, used))
        most = (log_size // _BATCH_MIN + 1) * width  # no more entries than there can be batches
        if used > most:
            message = f"{used // width} entries, a log of {log_size} bytes has at most "
            problems.append(error("too-large", message + str(most // width), most))
            used = most
        return IndexEntries(file, layout, used, self.job.base, problems, log_size)

    # -- batches -------------------------------------------------------------------------------

    def _scan(self) -> None:
        position, window = 0, WINDOW
        while position < self.size:
            want = min(window, self.size - position)
            with self.log.view(position, want) as view:
                if len(view) < want:  # cut since: a truncation on a running broker
                    self.size = self.result.size = position + len(view)
                    self.result.grew = True
                    continue
                done, status = self._walk(view, position)
            self._report_progress(done)
            position += done
            window = WINDOW
            if status == SCAN_END:
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
                        self._report_progress(step)
                        position += step
                        continue
                    status = SCAN_BAD_CRC
            after = self._bad(position, status)
            if after < 0:
                self._report_progress(self.size - position)
                return
            self._report_progress(after - position)
            position = after

    def _walk(self, view: memoryview, position: int) -> tuple[int, int]:
        """Check the batches of a window, block by block. Returns where that ended, and why."""
        done, room = 0, _BLOCK
        while True:
            end = min(done + room, len(view))
            after, status = self.table.fill(view[:end], done, position)
            if self.table.count:
                self.checks.check_batches(view, self.table)
            if status != SCAN_FULL and (status not in _AT_AN_END or end == len(view)):
                return after, status
            room = _BLOCK if after > done else len(view)  # for a batch larger than a block
            done = after

    def _report_progress(self, count: int) -> None:
        if self.progress is not None and count:
            self.progress(count)

    def _framed_size(self, position: int) -> int:
        head = self.log.read_at(position, 12)
        return 12 + int.from_bytes(head[8:12], "big", signed=True)

    def _bad(self, position: int, status: int) -> int:
        """Report what is wrong at ``position``. Returns where to go on, or −1."""
        checks, result = self.checks, self.result
        expected = checks.order.expected
        if status == SCAN_BAD_CRC:
            path = self.job.path(filenames.LOG_SUFFIX)
            confirm_bad_checksum(self.log, path, position, self.size)
        found = diagnose(self.log, self.size, position, status, expected)
        end = found.resume if found.resume >= 0 else self.size
        checks.skipped.append((position, end))
        if found.tail:
            result.tail, result.tail_position = found.tail, position
            result.tail_offset = expected
            result.tail_problem = found.problem
            if found.tail != ZEROS or self.job.trimmed:  # otherwise space that was never used
                checks.note_hidden(found.last_offset, is_whole=found.tail != TORN)
            return UNKNOWN
        assert found.problem is not None
        result.problems_of(filenames.LOG_SUFFIX).append(found.problem)
        checks.note_hidden(found.last_offset)
        return found.resume

    def _large(self, position: int, size: int) -> int:
        """Check only checksum and header of a batch that is too large for one buffer. 0 if bad."""
        head = self.log.read_at(position, HEADER_SIZE)
        if len(head) < HEADER_SIZE or head[16] != MAGIC:
            return 0
        if content_crc(self.log, position, size) != int.from_bytes(head[17:21], "big"):
            return 0
        if not self.table.fill_large(head, size, position):
            return 0
        self.checks.check_large_batch(
            head, self._pieces(position + CRC_FROM, position + size), self.table
        )
        return size

    def _pieces(self, start: int, end: int) -> Iterator[memoryview]:
        for at in range(start, end, WINDOW):
            with self.log.view(at, min(WINDOW, end - at)) as view:
                yield view

    def _base_offset_at(self, position: int) -> int:
        """The base offset of the batch at ``position``, or of the next segment at the end; −1 if
        unknown.
        """
        if position >= self.size:
            return self.job.next_base
        head = self.log.read_at(position, 17)
        if len(head) < 17 or head[16] != MAGIC:
            return UNKNOWN
        return int.from_bytes(head[:8], "big", signed=True)


__all__ = [
    "WINDOW",
    "CompareSpec",
    "Progress",
    "RangeDigest",
    "SegmentJob",
    "SegmentResult",
    "VerifyOptions",
    "verify_segment",
]
