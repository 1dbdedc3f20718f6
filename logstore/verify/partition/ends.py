"""The promise for a place in a log, and what may be wrong where nothing is promised.

A clean stop promises the whole log, and a recovery point what is below it. Above, a crash, a kill
or a writer at work may leave anything: the next start scans it. So the same bytes are damage in one
place and none in another, and ``standing_at`` alone decides which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from logstore.format import filenames
from logstore.verify.common.report import UNKNOWN, Problem, Severity, error, info, warning
from logstore.verify.segment.diagnosis import TORN, ZEROS
from logstore.verify.segment.segment_check import SegmentResult


@dataclass(frozen=True, slots=True)
class LogDirFacts:
    """The facts that the log directory gives about one partition; −1 where it says nothing.

    ``clean`` is None for a partition directory without a log directory around it. ``broker`` is the
    id in meta.properties, or else the directory. ``cluster_id`` is empty if it is not known.
    """

    broker: str = ""
    cluster_id: str = ""
    clean: bool | None = None
    points_known: bool = True  # the file with the recovery points could be read
    marks_known: bool = True  # the file with the high watermarks could be read
    recovery_point: int = UNKNOWN
    log_start: int = UNKNOWN
    high_watermark: int = UNKNOWN
    cleaner_offset: int = UNKNOWN


class Standing(Enum):
    """The promise for a place in a log."""

    CLOSED = auto()
    """A clean stop left it, and nobody opened it since."""
    FLUSHED = auto()
    """It lies below the recovery point."""
    OPEN = auto()
    """Nothing: a broker is at work or was killed. The next start scans it."""
    ALONE = auto()
    """No log directory is around the partition, so nothing says how it was left."""


def standing_at(facts: LogDirFacts, offset: int) -> Standing:
    if facts.clean:
        return Standing.CLOSED
    if offset < facts.recovery_point:
        return Standing.FLUSHED
    return Standing.ALONE if facts.clean is None else Standing.OPEN


_REBUILT = frozenset(
    (
        filenames.INDEX_SUFFIX,
        filenames.TIME_INDEX_SUFFIX,
        filenames.TXN_INDEX_SUFFIX,
        filenames.SNAPSHOT_SUFFIX,
    )
)
_NEVER_LEFT = frozenset(("too-large", "not-a-file"))


def weigh(problem: Problem, suffix: str, standing: Standing) -> Problem:
    """A problem of a file of a segment, given what is promised of the last offset it is about.

    The next start rebuilds what belongs to an open place from the batches: indexes, snapshots
    and leader epochs. Until then they may be in any state: a broker writes an entry in two steps, a
    disk its pages in any order, and a cut leaves the epochs on file for later.
    """
    is_derived = suffix in _REBUILT or problem.rule == "log-epoch"
    is_left = standing is Standing.OPEN and is_derived and problem.rule not in _NEVER_LEFT
    if not is_left or problem.severity is Severity.INFO:
        return problem
    message = f"{problem.message}: not flushed yet, the next start builds it anew"
    return problem._replace(severity=Severity.INFO, message=message)


def tail_problem(result: SegmentResult, facts: LogDirFacts, *, active: bool) -> Problem:
    """Judge a tail that holds no whole batch by its place in the log (S-29 … S-31)."""
    position, end = result.tail_position, result.tail_offset
    what = f"{result.tail} of {result.size - position} bytes"
    rule = "log-zero-end" if result.tail == ZEROS else "log-torn-end"
    if result.tail_problem is not None:
        rule, what = result.tail_problem.rule, result.tail_problem.message
    standing = standing_at(facts, end)
    if not active:
        message = f"{what} in a segment that is followed by another"
    elif standing is Standing.CLOSED:
        message = f"{what} behind a clean shutdown"
        rule = rule if result.tail_problem else "log-unclean-end"
    elif standing is Standing.FLUSHED:
        message = f"{what} below the recovery point {facts.recovery_point}"
    elif result.tail_problem is not None and standing is Standing.ALONE:
        message = what
    elif result.tail == ZEROS:
        return info(rule, f"{what}: preallocated, or left by a crash", position, end)
    elif result.grew and result.tail == TORN:
        return info(rule, f"{what}: being written", position, end)
    else:
        return warning(rule, f"{what}: the next start cuts it", position, end)
    return error(rule, message, position, end)


def check_rolls(
    results: Iterable[SegmentResult], rolled: frozenset[int], facts: LogDirFacts
) -> Iterator[tuple[int, Problem]]:
    """A start accepts a roll that begins where the segment before it ends, and sets aside any
    other.
    """
    end, is_known = max(facts.log_start, 0), True
    for result in results:
        is_late = result.base > max(facts.log_start, 0) and result.base != end
        if result.base in rolled and is_late and is_known:
            message = f"begins at {result.base}, what is before it ends at {end}: "
            message += "the next start " + ("sets it aside" if result.size else "removes it")
            yield result.base, warning("leftover", message, offset=end)
        end = max(result.base, result.end_offset, end if result.size == 0 else -1)
        is_known = filenames.LOG_SUFFIX not in result.vanished


def check_checkpoints(
    facts: LogDirFacts,
    end: int,
    tail: Severity | None,
    is_settled: Callable[[], bool],
    *,
    is_empty: bool,
) -> Iterator[Problem]:
    """Check the offsets that the log directory has for this partition (F-222, F-264, I-5).

    ``tail`` is the severity of a finding that the log ends with bytes that are no batch. An error
    explains why committed records are missing.

    A crash leaves checkpoints of any age, so they may lie below the log start (I-16). A clean
    shutdown writes all of them again.
    """
    if facts.recovery_point > end and tail is not Severity.ERROR:
        message = f"ends at offset {end}, below the recovery point {facts.recovery_point}"
        yield error("recovery-point", message, offset=end)
    if facts.log_start > end:
        message = f"ends at offset {end}, below the log start offset {facts.log_start}"
        yield error("log-start-offset", message, offset=end)
    elif facts.clean and 0 <= facts.recovery_point < facts.log_start:
        message = f"recovery point {facts.recovery_point}, below the log start offset "
        message += f"{facts.log_start} behind a clean shutdown"
        yield warning("recovery-point", message, offset=facts.log_start)
    elif facts.clean and 0 <= facts.high_watermark < facts.log_start:
        message = f"high watermark {facts.high_watermark}, below the log start offset "
        message += f"{facts.log_start} behind a clean shutdown"
        yield warning("high-watermark", message, offset=facts.log_start)
    elif facts.points_known and not is_empty and facts.recovery_point < end and is_settled():
        message = f"recovery point {facts.recovery_point}"
        message = message if facts.recovery_point >= 0 else "no recovery point"
        message += f" behind a clean shutdown, the log ends at {end}"
        yield warning("recovery-point", message, offset=end)
    unknown = facts.marks_known and facts.high_watermark < 0
    if unknown and not is_empty and end > facts.log_start and is_settled():
        message = "no high watermark behind a clean shutdown"
        yield warning("high-watermark", message, offset=end)
    if facts.high_watermark > end and tail is None:
        message = f"ends at offset {end}, below the high watermark {facts.high_watermark}"
        severity = error if facts.clean else warning
        yield severity("high-watermark", message, offset=end)
    if facts.cleaner_offset > end:
        message = f"ends at offset {end}, below the cleaner's {facts.cleaner_offset}"
        yield warning("cleaner-offset", message, offset=end)
