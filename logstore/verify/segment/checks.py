"""All rules for the batches of one segment, a table of batches at a time.

Kernels look at a whole table and say where something is unusual. Only those batches are checked one
by one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import partial

from logstore.common.errors import CorruptBatchError
from logstore.format import attributes as bits
from logstore.format import filenames
from logstore.format.control import parse_end_transaction_marker
from logstore.format.header import CRC_POSITION, parse_header
from logstore.format.reader import batch_records
from logstore.kernels import BatchSurvey, SequenceWatch, survey_batches
from logstore.verify.common.batch_rules import (
    MAGIC,
    MAX_RELATIVE_OFFSET,
    EpochRun,
    OffsetOrder,
    Row,
    check_header,
)
from logstore.verify.common.digests import ContentDigests
from logstore.verify.common.header_table import (
    ATTRIBUTES,
    BASE,
    EPOCH,
    POSITION,
    PRODUCER,
    PRODUCER_EPOCH,
    SEQUENCE,
    HeaderTable,
)
from logstore.verify.common.header_table import (
    MAGIC as MAGIC_COLUMN,
)
from logstore.verify.common.report import UNKNOWN, Severity, error, info
from logstore.verify.segment.content import RecordCheck, check_records_of, record_check
from logstore.verify.segment.index_entries import IndexEntries
from logstore.verify.segment.indexes import OffsetIndexCheck, Skipped, TimeIndexCheck
from logstore.verify.segment.producers import PRODUCERS_MAX, SequencedBatch
from logstore.verify.segment.records import check_content, check_horizons
from logstore.verify.segment.segment_check import SegmentJob, SegmentResult, VerifyOptions

_EPOCH_RUNS_MAX = 50_000
_JUMPS_MAX = 100  # reported for each segment


class SegmentChecks:
    """Takes the tables of a segment in order, and fills in ``result``.

    Args:
        following: the base offset of the batch at a byte of the log, −1 if unknown.
    """

    def __init__(
        self,
        job: SegmentJob,
        options: VerifyOptions,
        following: Callable[[int], int],
        offset_entries: IndexEntries,
        time_entries: IndexEntries,
        result: SegmentResult,
    ) -> None:
        self.job, self.options, self.result = job, options, result
        self.order = OffsetOrder(job.base, job.next_base, job.base, next_is_empty=job.next_is_empty)
        self.skipped = Skipped()
        self._following = following
        self._offset_index = OffsetIndexCheck(offset_entries)
        self._time_index = TimeIndexCheck(time_entries)
        self._digests = ContentDigests(options.fingerprint, job.compare)
        self._sequences: SequenceWatch | None = SequenceWatch(PRODUCERS_MAX)
        tp = job.tp
        content = record_check(*tp, job.partitions) if tp and options.deep else None
        self._content: RecordCheck | None = content
        self._marks = sorted(job.snapshots)
        result.producers.floor = job.floor
        self._epoch_starts = sorted(job.epoch_starts)
        self._trusted = True
        self._hidden_from = self._hidden_end = UNKNOWN
        self._wanted = list(job.wanted)

    def note_hidden(self, last_offset: int, *, is_whole: bool = True) -> None:
        """Note that a batch follows which exists but cannot be read. A torn one is not the end of
        the log.
        """
        if self._hidden_from < 0:
            self._hidden_from = self.order.expected
        self._hidden_end = max(self._hidden_end, last_offset + 1)
        self._trusted = self.result.producers.complete = False
        if is_whole:
            self.result.end_offset = max(self.result.end_offset, last_offset + 1)
        self.order.expected = UNKNOWN

    def _count_hidden(self, end: int) -> int:
        """Count records below ``end`` that damage has hidden, if it is known where that begins."""
        if self._hidden_from < 0:
            return 0
        first, self._hidden_from = max(self._hidden_from, self.job.floor), UNKNOWN
        return max(0, min(end, self.job.base + MAX_RELATIVE_OFFSET) - first)

    def check_batches(self, view: memoryview, table: HeaderTable) -> None:
        """Check the next batches, whose bytes lie in ``view``."""
        survey = self._headers(table, view)
        self._note_wanted(view, table)
        if survey.producers:
            self._producers(view, table, survey)
        self._digests.add(view, table)
        if self.options.deep:
            problems = self.result.problems_of(filenames.LOG_SUFFIX)
            wrapped: list[int] = []
            found = list(check_content(view, table, self.options.unpacked_max, wrapped))
            if survey.horizons:
                found += check_horizons(view, table, self.options.unpacked_max)
            if self._content is not None:
                found += check_records_of(view, table, self.options.unpacked_max, self._content)
            problems.extend(found)
            self.result.records += sum(wrapped)
            broken = {p.position for p in found if p.severity is Severity.ERROR}
            for row in table.rows() if broken else ():
                if row.position in broken:
                    self.result.unreadable += max(0, row.record_count)

    def check_large_batch(
        self, head: bytes, content: Iterator[memoryview], table: HeaderTable
    ) -> None:
        """Check one batch that is too large for one buffer: its header, then the rest in pieces.

        Its records are not decoded, and its producer is not part of the replay.
        """
        survey = self._headers(table, None)
        self._note_wanted(memoryview(head), table)
        if survey.producers:
            self.result.producers.complete = False
        self._digests.add(memoryview(head), table, content)
        if self.options.deep:
            row = table.row(0)
            message = f"records not decoded: a batch of {row.size} bytes"
            problem = info("not-checked", message, row.position, row.base_offset)
            self.result.problems_of(filenames.LOG_SUFFIX).append(problem)

    def _headers(self, table: HeaderTable, view: memoryview | None) -> BatchSurvey:
        """Check everything that needs no content, unless an index names an offset inside a batch.
        Then the table has the offsets of the batches as their neighbours prove them.
        """
        job, result = self.job, self.result
        result.unreadable += self._count_hidden(table.column(BASE)[0])
        survey = survey_batches(
            table.columns, table.count, self.order.expected, job.base, job.next_base
        )
        problems = result.problems_of(filenames.LOG_SUFFIX)
        for number in survey.odd:
            problems.extend(check_header(table.row(number)))
        result.holes = result.holes or survey.holes
        result.horizons = result.horizons or survey.horizons
        if not self._advance(table, survey):
            self._place(table)
        is_as_claimed = table.in_order or table.bases == table.column(BASE)
        trusted = self._trusted and is_as_claimed
        if result.first_offset < 0:
            result.first_offset = table.bases[0]
        result.end_offset = max(result.end_offset, table.lasts[-1] + 1)
        result.batches += table.count
        result.records += survey.records
        result.max_timestamp = max(result.max_timestamp, survey.max_timestamp)
        if survey.min_timestamp >= 0:
            known = result.min_timestamp
            result.min_timestamp = min(survey.min_timestamp, known if known >= 0 else 2**63)
        self._epochs(table, survey.epochs)
        self._offset_index.compare(table, self.skipped, self._time_index.largest)
        reached = partial(self._reached, view, table)
        self._time_index.compare(table, survey.max_timestamp, trusted, reached)
        return survey

    def _reached(
        self, view: memoryview | None, table: HeaderTable, number: int, offset: int
    ) -> bool:
        """As `indexes.Reached` says.

        A batch is decoded at most once, because time entries ascend.
        """
        row = table.row(number)
        if row.magic != MAGIC:
            return True
        if offset < row.base_offset:  # in a gap, which has its own finding
            return offset >= self.job.base
        if view is None or not self.options.deep:
            return True
        at = row.position - table.start
        batch = view[at : at + row.size]
        limit = self.options.unpacked_max
        try:
            records = batch_records(
                batch, parse_header(batch), check_crc=False, decompressed_limit=limit
            )
        except CorruptBatchError:
            return True  # which has its own finding
        first = (r.offset for r in records if r.timestamp == row.max_timestamp)
        return next(first, UNKNOWN) == offset

    # -- offsets, epochs -----------------------------------------------------------------------

    def _advance(self, table: HeaderTable, survey: BatchSurvey) -> bool:
        """Pass a table whose offsets ascend. False if its batches must be placed one by one."""
        gaps, bases, lasts = survey.gaps, table.bases, table.lasts
        if gaps is None:
            return False
        order, last = self.order, table.count - 1

        def due(row: int) -> int:
            return lasts[row - 1] + 1 if row else order.expected

        if gaps and gaps[-1] == last:  # what follows decides whether it is a gap
            delta = lasts[last] - bases[last]
            if due(last) + delta < self._following(table.end) <= lasts[last]:
                return False
        positions = table.column(POSITION)
        found = ((table.start + positions[g], due(g), bases[g] - due(g)) for g in gaps)
        order.advance(lasts[last] + 1, found)
        return True

    def _place(self, table: HeaderTable) -> None:
        """Find the offsets that the neighbours prove. Wrong ones are reported."""
        bases, lasts, rows = [], [], table.rows()
        problems = self.result.problems_of(filenames.LOG_SUFFIX)
        for index, row in enumerate(rows):
            if index + 1 < len(rows):
                after = rows[index + 1]
                following = UNKNOWN if after.record_count < 0 else after.base_offset
            else:
                following = self._following(row.end)
            placed = self.order.place(row, following)
            problems.extend(placed.problems)
            if placed.base_offset != row.base_offset:  # index entries may know its true offsets
                self.skipped.append((row.position, row.end))
            bases.append(placed.base_offset)
            lasts.append(placed.last_offset)
        table.place(bases, lasts)

    def _epochs(self, table: HeaderTable, changes: list[int]) -> None:
        """Add the runs of equal leader epochs. Formats before magic 2 have none."""
        runs, known = self.result.epochs, self._epoch_starts
        bases, lasts = table.bases, table.lasts
        if table.in_order:
            known = known[bisect_left(known, bases[0]) : bisect_right(known, bases[-1])]
        epochs, magics, positions = map(table.column, (EPOCH, MAGIC_COLUMN, POSITION))
        breaks = {bisect_left(bases, offset) for offset in known}
        starts = sorted({*changes, *(row for row in breaks if row < table.count)})
        for start, stop in zip(starts, [*starts[1:], table.count], strict=True):
            if magics[start] != MAGIC:
                continue
            epoch, begins = epochs[start], start in breaks and bases[start] in known
            if runs and runs[-1].epoch == epoch and not begins:
                last = runs.pop()
                first, position = last.first_offset, last.position
            else:
                first, position = bases[start], table.start + positions[start]
            if len(runs) < _EPOCH_RUNS_MAX:
                runs.append(EpochRun(epoch, position, first, lasts[stop - 1], self.job.base))

    # -- producers -----------------------------------------------------------------------------

    def _producers(self, view: memoryview, table: HeaderTable, survey: BatchSurvey) -> None:
        """Feed the replay. Between marks and markers only some batches of a producer matter."""
        facts = self.result.producers
        bases, lasts, in_order = table.bases, table.lasts, table.in_order
        if self._sequences is not None and in_order and facts.complete:
            self._watch(self._sequences, table, (survey.gaps or [table.count])[0])
        if not in_order or survey.gaps or not facts.complete:
            self._sequences = None  # what is missing or out of order has its own finding
        controls = set(survey.controls)
        starts = list(range(table.count))
        if in_order:
            stops = {bisect_left(bases, mark) for mark in self._marks}
            stops.add(bisect_left(lasts, self.job.floor))
            starts = sorted({0, *controls, *(row + 1 for row in controls), *stops} - {table.count})
        for start, stop in zip(starts, [*starts[1:], table.count], strict=True):
            while self._marks and self._marks[0] <= bases[start]:
                facts.mark(self._marks.pop(0))
            for number in self._deciding_rows(table, start, stop, survey.transactional):
                row = table.row(number)._replace(
                    base_offset=bases[number], last_offset=lasts[number]
                )
                marker = self._marker(view, table, row) if number in controls else None
                facts.add(row, marker)

    def _watch(self, watch: SequenceWatch, table: HeaderTable, count: int) -> None:
        """The first ``count`` batches."""
        facts = self.result.producers
        firsts, jumps = watch.take(table.columns, count)
        columns = (PRODUCER, PRODUCER_EPOCH, SEQUENCE, POSITION)
        producers, epochs, sequences, positions = map(table.column, columns)

        def batch(row: int) -> SequencedBatch:
            place = table.bases[row], table.start + positions[row]
            return SequencedBatch(producers[row], epochs[row], sequences[row], *place)

        facts.firsts += [batch(row) for row in firsts if sequences[row] >= 0]
        for row, due, previous in jumps[: _JUMPS_MAX - len(facts.jumps)]:
            facts.jumps.append((batch(row), due, previous))

    def _deciding_rows(
        self, table: HeaderTable, start: int, stop: int, transactional: bool
    ) -> list[int]:
        """The rows that decide what is known about the producers of rows ``[start, stop)``: the
        last row of each, and the first that opens a transaction.
        """
        producers = table.column(PRODUCER)[start:stop]
        rows = set(dict(zip(producers, range(start, stop), strict=True)).values())
        if transactional:
            attributes = table.column(ATTRIBUTES)[start:stop]
            opening: dict[int, int] = {}
            for row, producer, found in zip(range(start, stop), producers, attributes, strict=True):
                if found & bits.TRANSACTIONAL:
                    opening.setdefault(producer, row)
            rows.update(opening.values())
        return sorted(row for row in rows if producers[row - start] >= 0)

    def _marker(self, view: memoryview, table: HeaderTable, row: Row) -> tuple[bool, int] | None:
        """The marker of a control batch; None for another type, or if compaction removed it."""
        if not row.record_count:
            return None
        at = row.position - table.start
        try:
            return parse_end_transaction_marker(view[at : at + row.size])
        except CorruptBatchError as failure:
            if not self.options.deep:  # otherwise decoding all records reports it
                problem = error("log-control-record", failure.reason, row.position, row.base_offset)
                self.result.problems_of(filenames.LOG_SUFFIX).append(problem)
            self.result.producers.complete = False
            return None

    def _note_wanted(self, view: memoryview, table: HeaderTable) -> None:
        bases, lasts = table.bases, table.lasts
        while self._wanted and self._wanted[0] <= lasts[-1]:
            offset = self._wanted.pop(0)
            at = bisect_left(lasts, offset)
            row = table.row(at)
            whole = row.magic == MAGIC and not (row.has_hole or row.has_horizon)
            if bases[at] <= offset and whole:
                crc = table.column(POSITION)[at] + CRC_POSITION
                stored = int.from_bytes(view[crc : crc + 4], "big")
                self.result.batches_at[offset] = bases[at], stored

    # -- end -----------------------------------------------------------------------------------

    def finish(self, size: int) -> None:
        """Finish after the log was read up to byte ``size``."""
        result = self.result
        for offset in self._marks:
            result.producers.mark(offset)
        self._offset_index.finish(size, self.skipped)
        closed = self.job.trimmed and filenames.TIME_INDEX_SUFFIX in self.job.files
        sound = self._trusted and not result.tail
        self._time_index.finish(closed, sound)
        if self._offset_index.several:
            settled = closed and sound and not result.vanished
            self._offset_index.check_several(self._time_index.timestamps() if settled else None)
        following = self.job.next_base
        hidden = self._count_hidden(following if following >= 0 else self._hidden_end)
        if result.tail:  # its place in the log decides whether it counts
            result.tail_records = hidden
        else:
            result.unreadable += hidden
        if self.order.expected >= 0:  # otherwise damage hid it
            self.order.missing += max(0, following - self.order.expected)
        result.missing = self.order.missing
        result.gap_count, result.gaps = self.order.gap_count, self.order.gaps
        result.fingerprint, result.ranges = self._digests.fingerprint, self._digests.ranges
        if result.end_offset < 0:
            result.first_offset = result.end_offset = self.job.base
