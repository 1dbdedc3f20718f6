"""One of the compared replicas: its digests joined over segments, and its findings."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from logstore.format import filenames
from logstore.verify.common.batch_rules import EpochRun
from logstore.verify.common.digests import RangeDigest
from logstore.verify.common.report import UNKNOWN, Finding, PartitionReport, Problem, Severity
from logstore.verify.partition.partition_check import PartitionCheck, is_compacted
from logstore.verify.replicas.range_diff import DiffRange, RangeStart
from logstore.verify.segment.segment_check import SegmentResult

_EPOCH_RULES = frozenset(("log-negative-epoch", "log-epoch", "log-no-epoch", "log-epoch-falls"))


class ComparedReplica:
    """A replica whose segments could all be read, with its digests by the number of their range."""

    def __init__(
        self, check: PartitionCheck, report: PartitionReport, results: Sequence[SegmentResult]
    ) -> None:
        self.check, self.report, self.results = check, report, results
        self.name = report.directory
        self.end, self.mark = self.report.log_end_offset, self.check.facts.high_watermark
        self.epochs = [run for result in self.results for run in result.epochs]
        self.ranges: dict[int, RangeDigest] = {}
        self.range_starts: dict[int, list[RangeStart]] = {}
        self._logs: set[str] = set()  # not what only waits to replace one of them
        for job, result in zip(self.check.jobs, self.results, strict=True):
            path = job.path(filenames.LOG_SUFFIX)
            self._logs.add(path)
            for digest in result.ranges:
                before = self.ranges.get(digest.number)
                self.ranges[digest.number] = before.joined(digest) if before else digest
                starts = self.range_starts.setdefault(digest.number, [])
                if not starts or starts[-1].path != path:
                    starts.append(RangeStart(self.check.storage, path, digest.position))

    def compared(self, start: int, end: int) -> None:
        """Note that offsets ``[start, end)`` were compared with another replica."""
        self.report.compared_from = start
        self.report.compared_end = max(self.report.compared_end, end)

    # -- where equality ends -------------------------------------------------------------------

    @property
    def ends(self) -> bool:
        """Whether its last segment is still there. Retention may have deleted the others since."""
        return bool(self.results) and filenames.LOG_SUFFIX not in self.results[-1].vanished

    @property
    def compacted(self) -> bool:
        return is_compacted(self.check, self.results)

    @property
    def compacted_end(self) -> int:
        """The end of the last segment with gaps.

        A follower receives what its leader has compacted, even if its own cleaner has never run.
        """
        return self._behind(r.base for r in self.results if r.holes or r.horizons or r.gap_count)

    @property
    def vanished_end(self) -> int:
        """The end of the last segment that was deleted since it was listed."""
        return self._behind(r.base for r in self.results if filenames.LOG_SUFFIX in r.vanished)

    def _behind(self, bases: Iterable[int]) -> int:
        last = max(bases, default=UNKNOWN)
        following = (result.base for result in self.results if result.base > last)
        return UNKNOWN if last < 0 else next(following, self.end)

    # -- findings ------------------------------------------------------------------------------

    def finding(
        self,
        severity: Severity,
        rule: str,
        message: str,
        offset: int = UNKNOWN,
        place: DiffRange | None = None,
    ) -> Finding:
        """A finding at ``place``, or else at the segment that should hold ``offset``."""
        jobs, base, name = self.check.jobs, UNKNOWN, ""
        if offset >= 0:
            base = jobs[max(bisect_right(jobs, offset, key=lambda job: job.base) - 1, 0)].base
            name = self.check.file_name(base, filenames.LOG_SUFFIX)
        position = place.position if place else UNKNOWN
        problem = Problem(severity, rule, message, position, offset)
        return self.check.finding(os.path.basename(place.path) if place else name, problem, base)

    def reports_unreadable(self, start: int, end: int) -> bool:
        """Whether a finding already reports an unreadable batch at offsets ``[start, end)``."""
        return any(
            finding.severity is Severity.ERROR
            and finding.file in self._logs
            and start <= finding.offset < end
            for finding in self.check.findings
        )

    def finds_epoch_wrong(self, run: EpochRun) -> bool:
        """Whether the replica's own files show that the leader epoch of a run is wrong. What may
        be as it should, an info, says nothing against a comparison.
        """
        return any(
            finding.rule in _EPOCH_RULES
            and finding.severity is not Severity.INFO
            and finding.offset == run.first_offset
            for finding in self.check.findings
        )

    def epoch_range(self, run: EpochRun) -> DiffRange:
        name = self.check.file_name(run.segment_base, filenames.LOG_SUFFIX)
        path = os.path.join(self.check.directory, name)
        text = f"leader epoch {run.epoch} at offsets {run.first_offset}…{run.last_offset}"
        return DiffRange(path, run.position, run.last_offset, run.epoch, text)


def assign_side_names(sides: Sequence[ComparedReplica]) -> None:
    """Name the sides by broker id if the ids differ, else by directory."""
    brokers = [side.report.broker for side in sides]
    if len(set(brokers)) == len(brokers):
        for side in sides:
            broker = side.report.broker
            side.name = f"broker {broker}" if broker.isdigit() else broker
