"""Pure checks on batch headers, offsets, records and marks: values in, problems out.

Nothing here reads a file or knows a partition, so a Spark job over segments can use the same
checks. docs/verify.md says what each rule means.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.format import attributes as bits
from logstore.format.codecs.compression import Compression
from logstore.verify.common.report import UNKNOWN, Problem, error, info, warning

MAX_RELATIVE_OFFSET = 2**31 - 1
_KNOWN_BITS = 0x7F
_AFTER_CUT = ": as a cut leaves it, until it is written again"
MAGIC = 2
_NO_PRODUCER = (UNKNOWN, 0)


class Row(NamedTuple):
    """One batch header, as a row of the kernels' table; ``position`` is a byte of the file."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    record_count: int
    magic: int

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def is_control(self) -> bool:
        return self.magic == MAGIC and bool(self.attributes & bits.CONTROL)

    @property
    def is_transactional(self) -> bool:
        return self.magic == MAGIC and bool(self.attributes & bits.TRANSACTIONAL)

    @property
    def has_hole(self) -> bool:
        """Whether compaction removed records (F-92)."""
        span = self.last_offset - self.base_offset + 1
        return self.magic == MAGIC and self.record_count != span

    @property
    def has_horizon(self) -> bool:
        """Whether compaction set the delete horizon (F-95), or somebody else its bit."""
        return self.magic == MAGIC and bool(self.attributes & bits.DELETE_HORIZON)


def check_header(row: Row) -> Iterator[Problem]:
    """Find fields that contradict each other although the checksum is right (F-54 … F-75)."""
    at = row.position, row.base_offset
    codec = row.attributes & bits.CODEC_MASK
    if codec > Compression.ZSTD or (row.magic < MAGIC and codec == Compression.ZSTD):
        yield error("log-codec", f"codec {codec} does not exist in magic {row.magic}", *at)
    if row.magic < MAGIC:
        return
    if row.attributes & ~_KNOWN_BITS:
        yield warning(
            "log-attributes", f"unknown attribute bits in {row.attributes & 0xFFFF:#06x}", *at
        )
    span = row.last_offset - row.base_offset + 1
    if row.record_count > span:
        yield error("log-record-count", f"{row.record_count} records for {span} offsets", *at)
    if not row.record_count and row.size > 61:
        yield error(
            "log-empty-batch", f"no records, but {row.size - 61} bytes behind the header", *at
        )
    yield from _check_producer(row)
    plain_times = not row.attributes & (bits.LOG_APPEND_TIME | bits.DELETE_HORIZON)
    if plain_times and not row.has_hole and row.max_timestamp < row.base_timestamp:
        message = f"largest timestamp {row.max_timestamp} is below the first {row.base_timestamp}"
        yield warning("log-max-timestamp", message, *at)


def _check_producer(row: Row) -> Iterator[Problem]:
    """The producer fields fit each other (F-75).

    A control batch without a producer is allowed: the Raft metadata log has such batches. Clients
    that are not idempotent write −1 into epoch and sequence, but Sarama a sequence of 0, and
    KafkaJS both as 0; no broker looks at them.
    """
    at = row.position, row.base_offset
    if row.producer_id >= 0:
        if row.is_control and not row.is_transactional:
            yield warning("log-transactional", "a marker that is not transactional", *at)
        if row.producer_epoch < 0:
            yield warning("log-producer-epoch", f"producer {row.producer_id} without an epoch", *at)
        if row.base_sequence < 0 and not row.is_control:
            yield warning("log-sequence", f"producer {row.producer_id} without a sequence", *at)
    else:
        if row.is_transactional:
            yield warning("log-transactional", "transactional, but without a producer id", *at)
        if row.producer_id != UNKNOWN or row.producer_epoch not in _NO_PRODUCER:
            message = f"producer {row.producer_id} with epoch {row.producer_epoch}"
            yield warning("log-producer-epoch", message, *at)
        if row.base_sequence not in _NO_PRODUCER and not row.is_control:
            message = f"sequence {row.base_sequence} without a producer id"
            yield warning("log-sequence", message, *at)
    if row.is_control and row.base_sequence != UNKNOWN:
        yield warning("log-sequence", f"a control batch with sequence {row.base_sequence}", *at)


def check_records(row: Row, offsets: Sequence[int], timestamps: Sequence[int]) -> Iterator[Problem]:
    """Compare the decoded offsets and timestamps with their header (F-55, F-57, F-75)."""
    at = row.position, row.base_offset
    if not len(offsets):
        return
    if offsets[0] < row.base_offset or offsets[-1] > row.last_offset:
        message = f"records have offsets {offsets[0]}…{offsets[-1]}, the batch ends at "
        yield error("log-record-offsets", message + str(row.last_offset), *at)
    if row.magic < MAGIC and row.attributes & bits.LOG_APPEND_TIME:
        return
    largest = max(timestamps)
    if largest != row.max_timestamp and row.magic > 0:
        message = f"largest timestamp {row.max_timestamp}, the records have {largest}"
        yield warning("log-max-timestamp", message, *at)
    if min(timestamps) < UNKNOWN:
        yield warning("log-timestamp", f"a record has timestamp {min(timestamps)}", *at)


class Placed(NamedTuple):
    """The offsets of a batch as its neighbours prove them."""

    base_offset: int
    last_offset: int
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class OffsetOrder:
    """Offsets of consecutive batches of a segment ascend, inside its range (I-11).

    No checksum covers the base offset or the order of batches (F-62). Where two batches disagree,
    the one that follows decides which is wrong. ``expected`` is the next offset, −1 when damage has
    hidden it. ``gaps`` holds ``(position, offset, missing)`` of the first gaps, and ``missing`` is
    the sum over all, because only compaction makes gaps normal.
    """

    segment_base: int
    next_base: int = UNKNOWN
    expected: int = UNKNOWN
    gap_count: int = 0
    missing: int = 0
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    out_of_range: int = 0
    gaps_kept: int = 100
    next_is_empty: bool = False

    def advance(self, end: int, gaps: Iterable[tuple[int, int, int]]) -> None:
        """Pass batches that ascend inside the segment, up to the offset ``end``."""
        for gap in gaps:
            self._gap(*gap)
        self.expected = end

    def _gap(self, position: int, offset: int, missing: int) -> None:
        self.gap_count += 1
        self.missing += missing
        if len(self.gaps) < self.gaps_kept:
            self.gaps.append((position, offset, missing))

    def place(self, row: Row, following: int) -> Placed:
        """Judge one batch; ``following`` is the base offset of the next one, −1 if unknown."""
        base, last, expected = row.base_offset, row.last_offset, self.expected
        hidden_first = row.magic < MAGIC and row.record_count < 0  # a legacy wrapper (F-103)
        problems: list[Problem] = []
        delta = last - base
        if expected >= 0 and base != expected and not (hidden_first and base > expected):
            if following >= 0 and following == expected + delta + 1:
                problems.append(self._moved(row, expected))
                base, last = expected, expected + delta
            elif base < expected:
                message = f"starts below the offset {expected} due here"
                problems.append(error("log-offset-order", message, row.position, base))
                if following != last + 1:
                    base, last = expected, expected + delta
            elif expected + delta < following <= last:
                problems.append(self._moved(row, expected))
                base = last = following - 1
            elif last - self.segment_base <= MAX_RELATIVE_OFFSET:
                self._gap(row.position, expected, base - expected)
        if not problems:
            problems.extend(self._in_range(row))
        self.expected = last + 1
        return Placed(base, last, tuple(problems))

    def _moved(self, row: Row, expected: int) -> Problem:
        message = f"base offset {row.base_offset}: the batches around it leave room for {expected}"
        return error("log-base-offset", message, row.position, expected)

    def _in_range(self, row: Row) -> Iterator[Problem]:
        """Report the first batch outside ``[segment base, next base)``.

        An overlap has many of them.
        """
        base, position, severity = row.base_offset, row.position, error
        relative = row.last_offset - self.segment_base
        if base < self.segment_base:
            message = f"below the base {self.segment_base} of its segment"
        elif 0 <= self.next_base <= row.last_offset:
            message = f"the segment reaches into the next one, which begins at {self.next_base}"
            if self.next_is_empty:
                severity, message = (
                    warning,
                    f"{message} and is empty: the next start removes that one",
                )
        elif relative > MAX_RELATIVE_OFFSET:
            yield error(
                "log-offset-span", f"{relative} offsets above the segment base", position, base
            )
            return
        else:
            return
        self.out_of_range += 1
        if self.out_of_range == 1:
            yield severity("log-offset-order", message, position, base)


@dataclass(frozen=True, slots=True)
class EpochRun:
    """Consecutive batches of one leader epoch: ``[first offset, last offset]``."""

    epoch: int
    position: int
    first_offset: int
    last_offset: int
    segment_base: int = UNKNOWN


def check_epochs(
    runs: Sequence[EpochRun], cache: Sequence[tuple[int, int]] | None
) -> Iterator[tuple[EpochRun, Problem]]:
    """Leader epochs agree with ``leader-epoch-checkpoint`` (F-203), or else with their neighbours.

    Epochs fall in healthy logs, where a cluster with a fresh controller goes on. The checkpoint
    then has the lower epoch and forgets the higher ones (F-204); a recovery that derives it keeps
    the highest (F-232). ``cache`` is None when the file cannot be used. It says nothing below its
    first entry (F-255).
    """
    known = [run for run in runs if run.epoch != UNKNOWN]
    later = [*(run.epoch for run in known[1:]), UNKNOWN]
    before, seen = UNKNOWN, set[int]()
    for index, run in enumerate(known):
        at = run.position, run.first_offset
        cached, begins = (_cached(at, cache) for at in (run.last_offset, run.first_offset))
        wrong = next((e for e in (cached, begins) if e is not None and e != run.epoch), None)
        if run.epoch < UNKNOWN:
            yield run, error("log-negative-epoch", f"leader epoch {run.epoch} is negative", *at)
            continue
        if wrong is not None:
            is_known = wrong in seen or begins is None  # else its batches are deleted
            is_derived = begins in (None, wrong) and run.epoch < wrong != later[index]
            if not (is_known and is_derived):
                message = f"leader epoch {run.epoch}, leader-epoch-checkpoint says {wrong}"
                where = "" if wrong == cached else " where it begins"
                yield run, error("log-epoch", message + where, *at)
                continue
        elif not cache and _stands_out(known, index):
            message = f"leader epoch {run.epoch}: the batches around it have {before}"
            yield run, error("log-epoch-falls", message, *at)
            continue
        if run.epoch < before:
            message = f"leader epoch {run.epoch} after {before}: a new controller began anew"
            yield run, info("log-epoch-falls", message, *at)
        before = run.epoch
        seen.add(before)
    if before >= 0 and len(known) < len(runs):
        run = next(run for run in runs if run.epoch == UNKNOWN)
        message = "leader epoch −1 between batches that have one"
        yield run, warning("log-no-epoch", message, run.position, run.first_offset)


def _stands_out(runs: Sequence[EpochRun], index: int) -> bool:
    """Whether the runs before and after are of one epoch, and this one is not."""
    if not 0 < index < len(runs) - 1:
        return False
    before, after = runs[index - 1].epoch, runs[index + 1].epoch
    return before == after != runs[index].epoch


def _cached(offset: int, cache: Sequence[tuple[int, int]] | None) -> int | None:
    """The epoch that the checkpoint gives an offset; None below its first entry.

    An epoch that begins inside a run differs from the run's own epoch at its first or at its last
    offset. Only the first entry may begin inside a run, because it moves with the log start.
    """
    at = bisect_right(cache or (), offset, key=lambda entry: entry[1])
    return cache[at - 1][0] if cache and at else None


def check_epoch_entries(
    entries: Sequence[tuple[int, int]], end_offset: int, *, closed: bool = False
) -> Iterator[Problem]:
    """Entries ascend in both numbers and start inside the log (F-203, F-249).

    Positions of the problems are line numbers. A truncation removes the entries above the new log
    end later, so after a crash they are still there for the next start to remove, unless the log
    was ``closed`` cleanly.
    """
    previous = (UNKNOWN, UNKNOWN)
    for line, (epoch, start) in enumerate(entries, 3):
        if epoch <= previous[0] or start <= previous[1]:
            message = f"epoch {epoch} at {start} after epoch {previous[0]} at {previous[1]}"
            yield error("log-epoch", message, line, start)
        elif start > end_offset:
            message = f"epoch {epoch} starts at {start}, the log ends at {end_offset}"
            severity = warning if closed else info
            yield severity("epochs-range", message if closed else message + _AFTER_CUT, line, start)
        previous = epoch, start


def check_first_epoch(
    runs: Sequence[EpochRun], entries: Sequence[tuple[int, int]], log_start: int
) -> Iterator[Problem]:
    """The checkpoint of a log that was closed cleanly does not begin before the log.

    It may begin later: epochs fell, or a kill came when it was cut for deleted records and the log
    start was not on file yet.
    """
    _, first = entries[0]
    if first < log_start:
        message = f"begins at {first}, below the log start offset {log_start}"
        yield warning("epochs-range", message, 3, first)
        return
    for run in runs:
        from_offset = max(run.first_offset, log_start)
        if run.epoch >= 0 and from_offset <= run.last_offset and from_offset < first:
            message = f"begins at {first}, the log has epoch {run.epoch} at {from_offset}"
            yield info("epochs-start", message, 3, first)
            return
