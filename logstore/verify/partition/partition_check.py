"""One partition directory: which segments it has, and how their results are joined.

``PartitionCheck`` lists the directory and reads its small files first, because a running broker
writes them after the log; then come the segments, in any order; ``finish`` joins their results.
A segment that could not be read proves nothing. The findings of its neighbours are reported all the
same.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from checkpoints.checkpoint_file import FileState
from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from checkpoints.meta_properties import META_PROPERTIES
from checkpoints.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadata,
    PartitionMetadataFile,
    topic_id_to_text,
)
from checkpoints.types import TopicPartition
from logstore.common.errors import InvalidTopicError
from logstore.format import filenames
from logstore.storage.base import FileInfo, Storage
from logstore.verify.common.batch_rules import (
    EpochRun,
    check_epoch_entries,
    check_epochs,
    check_first_epoch,
)
from logstore.verify.common.digests import Fingerprint
from logstore.verify.common.report import (
    LISTED_MAX,
    UNKNOWN,
    Finding,
    PartitionReport,
    Problem,
    Severity,
    error,
    info,
    warning,
)
from logstore.verify.common.text_files import CheckedFile, check_epoch_form, check_metadata
from logstore.verify.partition.ends import (
    LogDirFacts,
    check_checkpoints,
    check_rolls,
    standing_at,
    tail_problem,
    weigh,
)
from logstore.verify.partition.own_files import OwnFiles, is_own_file
from logstore.verify.partition.producer_files import CheckedSegments, ProducerFiles
from logstore.verify.partition.waiting_files import WaitingFiles
from logstore.verify.segment.content import OF_COORDINATORS
from logstore.verify.segment.diagnosis import TORN
from logstore.verify.segment.producers import ProducerFacts, check_snapshot
from logstore.verify.segment.segment_check import (
    SegmentJob,
    SegmentResult,
    VerifyOptions,
    file_name,
)

_NO_END = 2**63 - 1
_EXTRA_SUFFIXES = (filenames.TEMPORARY_SUFFIX, ".cut", ".aside")
_ALMOST = re.compile(r"\.(log|index|timeindex|txnindex|snapshot)$")
_SIZED = (filenames.LOG_SUFFIX, filenames.INDEX_SUFFIX, filenames.TIME_INDEX_SUFFIX)
SIZE_MAX = 2**31 - 1
"""The largest log in bytes, whose positions are i32, and the largest preallocated index."""


@dataclass(slots=True)
class PartitionCheck:
    """The check of one partition directory; the module says in what order.

    ``only`` is the base offset of the one segment that is wanted, −1 for all. ``sizes`` are the
    sizes of the ``.log`` files of ``jobs`` when the directory was listed. ``uri`` opens the storage
    on another machine.
    """

    storage: Storage
    directory: str
    options: VerifyOptions
    facts: LogDirFacts = field(default_factory=LogDirFacts)
    only: int = UNKNOWN
    uri: str = ""
    findings: list[Finding] = field(default_factory=list)
    jobs: list[SegmentJob] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    files: int = 0
    suppressed: int = 0
    metadata: PartitionMetadata | None = None
    epochs: list[tuple[int, int]] | None = None
    """The entries of leader-epoch-checkpoint; None if they cannot be used."""
    own: OwnFiles | None = None
    replacements: WaitingFiles = field(init=False)
    partitions: int = 0
    """How many partitions of the topic are known at least."""
    tp: TopicPartition | None = None
    """The partition of that name; None for another name, and until the directory is listed."""
    _snapshots: list[int] = field(default_factory=list)
    _bases: list[int] = field(default_factory=list)
    """Of all segments that have a ``.log``."""
    _rolled: frozenset[int] = frozenset()
    """Bases of the segments that wait as ``.log.swap`` for the segment before them."""
    _last_settled: int = UNKNOWN
    """Base of the last segment that is not a roll. From there on a crash may have torn the log."""
    _refused: set[tuple[int, str]] = field(default_factory=set)
    """Bases and suffixes of files that were reported instead of read."""
    _listed: dict[str, FileInfo] = field(default_factory=dict)
    _epochs_state: FileState = FileState.MISSING
    _tail: Severity | None = None
    """Of a finding that the log ends with bytes that are no batch, if it is worse than an info."""

    def prepare(self) -> None:
        """List the directory, read the small files, plan the segments.

        Raises:
            OSError: the directory cannot be listed.
        """
        self.tp = partition_of(self.directory)
        if os.path.basename(absolute(self.directory)) == filenames.CLUSTER_METADATA_DIR:
            # A clean shutdown has no part in it: its marker promises nothing of this log.
            self.facts = replace(self.facts, clean=False if self.facts.clean else self.facts.clean)
        entries = self.storage.scan_dir(self.directory)
        infos = [entry for entry in entries if entry.is_file]
        self.files = len(infos)
        self._listed = {entry.name: entry for entry in entries}
        for entry in entries:
            if not entry.is_file:
                self._report_irregular(entry)
        segments = self._sort_out(infos)
        if self.only < 0:
            self._read_metadata()
            self.epochs = self._read_epochs()
            self.own = OwnFiles(self.storage, self.directory, self._find)
            self.own.read(infos)
            if self.own.clean_stop is not None:
                self.facts = replace(self.facts, clean=True)
        bases = sorted(base for base, found in segments.items() if filenames.LOG_SUFFIX in found)
        if not bases and any(file.name == META_PROPERTIES for file in infos):
            raise OSError("a log directory inside another directory: its own path is wanted")
        self._bases = bases
        self._orphans(segments)
        starts = sorted(start for _, start in self.epochs or ())
        wanted = sorted({*self._snapshots, *(self.own.wanted if self.own else ())})
        self._last_settled = max((base for base in bases if base not in self._rolled), default=-1)
        for base, end in pairwise([*bases, UNKNOWN]):
            if self.only not in (UNKNOWN, base):
                continue
            trimmed = base < self._last_settled or self.facts.clean is True
            job = SegmentJob(
                self.directory,
                base,
                end,
                frozenset(segments[base]),
                _inside(self._snapshots, base, end),
                trimmed,
                _inside(starts, base - 1, end),
                wanted=_inside(wanted, base - 1, end),
                floor=self._floor,
                is_roll=base in self._rolled,
                next_is_empty=end >= 0 and not segments[end][filenames.LOG_SUFFIX].size,
                tp=self.tp,
                partitions=self.partitions,
            )
            self.jobs.append(job)
            self.sizes.append(segments[base][filenames.LOG_SUFFIX].size)

    def __post_init__(self) -> None:
        self.replacements = WaitingFiles(self.directory)

    @property
    def all_jobs(self) -> list[SegmentJob]:
        """The segments, then the files that a start will put in the place of some."""
        return [*self.jobs, *self.replacements.jobs]

    @property
    def whole(self) -> bool:
        """Whether no segment was refused.

        Otherwise a part of the replica would be compared as the whole.
        """
        return all(suffix != filenames.LOG_SUFFIX for _, suffix in self._refused)

    @property
    def first_offset(self) -> int:
        """The offset from which on this replica should equal the others. Known after `prepare`."""
        facts = self.facts
        return max(self.jobs[0].base, facts.log_start, facts.cleaner_offset)

    @property
    def _floor(self) -> int:
        """The log start as far as it is known. 0 may also mean the base of the first segment."""
        stop = self.own.clean_stop if self.own else None
        return max(self.facts.log_start, stop.log_start_offset if stop else 0, 0)

    # -- looking again -------------------------------------------------------------------------

    def is_disturbed(self) -> bool:
        """Whether segments were replaced, cut or deleted since they were listed.

        The cleaner of a running broker does that. Then files of two moments may have been compared.

        Raises:
            OSError: the directory can no longer be listed.
        """
        now = {entry.name: entry for entry in self.storage.scan_dir(self.directory)}
        return _is_replaced(self._listed, now, {job.base for job in self.jobs})

    def again(self) -> PartitionCheck:
        """A new check of the same directory, prepared, which counts and compares as this one.

        Raises:
            OSError: the directory cannot be listed.
        """
        found = PartitionCheck(
            self.storage, self.directory, self.options, self.facts, self.only, self.uri
        )
        found.partitions = self.partitions
        found.prepare()
        spec = next((job.compare for job in self.jobs if job.compare), None)
        found.jobs = [replace(job, compare=spec) for job in found.jobs]
        return found

    def read_small(self, name: str) -> None:
        """Check one small file of the directory by itself."""
        parsed = filenames.parse_segment_file(name)
        if name == PARTITION_METADATA:
            self._read_metadata()
        elif name == LEADER_EPOCH:
            epochs = self._read_epochs()
            self._find_all(LEADER_EPOCH, check_epoch_entries(epochs or [], _NO_END))
        elif parsed is not None:
            entries = self._producer_files().read_snapshot(parsed.offset)
            self._find_all(name, check_snapshot(parsed.offset, entries or (), {}, exact=False))

    def _producer_files(self) -> ProducerFiles:
        return ProducerFiles(self.storage, self.directory, self._find)

    # -- findings ------------------------------------------------------------------------------

    def finding(self, name: str, problem: Problem, base: int = UNKNOWN) -> Finding:
        """The finding in a file of the directory, or in the directory itself."""
        path = os.path.join(self.directory, name) if name else self.directory
        return _weighed(self.facts, self._bases, name, problem).in_file(
            path, self.tp, self.facts.broker, base
        )

    def _find(self, name: str, problem: Problem, base: int = UNKNOWN) -> None:
        self.findings.append(self.finding(name, problem, base))

    def _find_all(self, name: str, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self._find(name, problem)

    def _find_in_log(self, base: int, problem: Problem) -> None:
        self._find_in(base, filenames.LOG_SUFFIX, problem)

    def _find_in(self, base: int, suffix: str, problem: Problem) -> None:
        self._find(self.file_name(base, suffix), problem, base)

    def file_name(self, base: int, suffix: str) -> str:
        return file_name(base, suffix, is_roll=base in self._rolled)

    # -- files ---------------------------------------------------------------------------------

    def _report_irregular(self, entry: FileInfo) -> None:
        """Report what is not a regular file, and do not open it.

        A directory may have any name except that of a file.
        """
        parsed = filenames.parse_segment_file(entry.name)
        if entry.name in (PARTITION_METADATA, LEADER_EPOCH):
            return  # reported where it is read
        if self.only >= 0 and (parsed is None or parsed.offset != self.only):
            return
        known = parsed is not None or is_own_file(entry.name)
        if parsed is not None and not parsed.transition:
            self._refused.add((parsed.offset, parsed.suffix))
        what = "a directory" if entry.is_dir else "no regular file, or a link to none"
        if known:
            self._find(entry.name, error("not-a-file", f"is {what}: not read"))
        elif not entry.is_dir:
            self._find(entry.name, warning("not-a-file", f"is {what}"))

    def _sort_out(self, infos: Iterable[FileInfo]) -> dict[int, dict[str, FileInfo]]:
        """Segment base → suffix → file. Leftovers and odd names are reported (F-16, F-24, S-53)."""
        segments: dict[int, dict[str, FileInfo]] = {}
        self._rolled = frozenset(filenames.roll_marks((file.name for file in infos), 0))
        for file in infos:
            parsed = filenames.parse_segment_file(file.name)
            if parsed is None:
                if self.only >= 0:
                    continue
                if file.name.endswith(_EXTRA_SUFFIXES):
                    message = "left behind by a write or a recovery"
                    self._find(file.name, info("leftover", message))
                elif _ALMOST.search(file.name):
                    message = "not 20 digits of an offset below 2⁶³: not part of the log"
                    self._find(file.name, warning("file-name", message))
            elif self.only >= 0 and parsed.offset < self.only:
                continue
            elif parsed.transition and not _is_roll(parsed, self._rolled):
                if self.only < 0:
                    told = self.replacements.take(file, parsed)
                    self._find_all(file.name, [told] if told else [])
            elif parsed.suffix in _SIZED and file.size > SIZE_MAX:
                message = f"{file.size} bytes, it has at most {SIZE_MAX}: not read"
                self._find(
                    file.name, error("too-large", message, offset=parsed.offset), parsed.offset
                )
                self._refused.add((parsed.offset, parsed.suffix))
            elif parsed.suffix == filenames.SNAPSHOT_SUFFIX:
                if self.only < 0:
                    self._snapshots.append(parsed.offset)
            else:
                segments.setdefault(parsed.offset, {})[parsed.suffix] = file
        self._snapshots.sort()
        for base, problem in self.replacements.plan(SIZE_MAX):
            self._find(file_name(base, filenames.LOG_SUFFIX, is_roll=True), problem, base)
        for base in sorted(self._rolled & segments.keys() if self.only < 0 else ()):
            message = "not settled: the next start takes it in if nothing before it is lost"
            severity = warning if self.facts.clean else info  # a clean stop settles all
            self._find_in_log(base, severity("leftover", message, offset=base))
        return segments

    def _orphans(self, segments: dict[int, dict[str, FileInfo]]) -> None:
        """Report indexes without a log, and logs without an index (F-241, F-242)."""
        for base, found in sorted(segments.items()):
            if self.only not in (UNKNOWN, base):
                continue
            log = found.get(filenames.LOG_SUFFIX)
            if log is None and (base, filenames.LOG_SUFFIX) in self._refused:
                continue
            if log is None:
                for file in found.values():
                    message = "there is no .log of this name: the next start deletes it"
                    self._find(file.name, warning("index-without-log", message, offset=base), base)
                continue
            for suffix in (filenames.INDEX_SUFFIX, filenames.TIME_INDEX_SUFFIX):
                if suffix not in found and log.size and (base, suffix) not in self._refused:
                    message = "missing beside a .log with data"
                    self._find_in(base, suffix, warning("log-without-index", message, offset=base))

    def _small_file(self, name: str, rule: str) -> CheckedFile:
        return CheckedFile(self.storage, self.directory, name, rule, self._find)

    def _read_metadata(self) -> None:
        with self._small_file(PARTITION_METADATA, "partition-metadata") as file:
            self.metadata = PartitionMetadataFile(file.path, file).read()
            if self.metadata is not None:
                file.report(check_metadata(file.data, self.metadata))

    def _read_epochs(self) -> list[tuple[int, int]] | None:
        """The leader epochs on file; None if they cannot be compared with the batches."""
        with self._small_file(LEADER_EPOCH, "epochs-form") as file:
            self._epochs_state, entries = LeaderEpochCheckpoint(file.path, file).inspect()
            file.report(check_epoch_form(file.data, entries))
            return [(int(epoch), int(start)) for epoch, start in entries]
        return None

    # -- joining -------------------------------------------------------------------------------

    def finish(
        self, found: Sequence[SegmentResult], swapped: Sequence[SegmentResult] = ()
    ) -> PartitionReport:
        """Join the results of all jobs but those that failed, in order of their bases; ``swapped``
        are those of replacements.

        Raises:
            OSError: a snapshot or a transaction index could not be read.
        """
        if self.facts.clean and not self.closed_cleanly():  # a broker started meanwhile
            self.facts = replace(self.facts, clean=False)
        by_base = {result.base: result for result in found}
        results = [by_base.get(job.base) or _unread(job.base) for job in self.jobs]
        report = self._report(results)
        compacted = is_compacted(self, results)
        claimed = 0
        for result in found:
            self.suppressed += result.suppressed
            claimed = self._add_findings(result, active=result.base >= self._last_settled)
            report.unreadable += result.unreadable + claimed
            report.unreadable += 0 if compacted else result.missing
        self._join(results, compacted)
        promised = max(self.facts.recovery_point, self.facts.high_watermark)
        sparse = compacted or is_compacted(self, [*results, *swapped])
        for name, base, problem in self.replacements.check(
            swapped, results, promised, compacted=sparse
        ):
            self._find(name, problem, base)
        ends = not results or filenames.LOG_SUFFIX not in results[-1].vanished
        end_offset = report.log_end_offset if ends else _NO_END
        if self.only < 0:
            self._check_epochs(results, end_offset)
            if ends:
                reached = report.log_end_offset
                reached += claimed if results and results[-1].tail == TORN else 0
                report.unreadable += max(0, promised - max(reached, self.facts.log_start))
                last = self.file_name(results[-1].base, filenames.LOG_SUFFIX) if results else "."
                self._find_all(
                    last,
                    check_checkpoints(
                        self.facts, end_offset, self._tail, self._is_settled, is_empty=not results
                    ),
                )
                self._check_own(report, results)
        stretch = CheckedSegments(
            self.jobs,
            results,
            self.only <= 0,
            compacted,
            end_offset,
            self._tail is not None,
            self._floor,
            self.only < 0 and ends and self.closed_cleanly(),
            self.tp is None or self.tp.topic not in OF_COORDINATORS,
        )
        self._producer_files().check(stretch, self._snapshots)
        return report

    def _report(self, results: list[SegmentResult]) -> PartitionReport:
        facts = self.facts
        topic, partition = self.tp or ("", UNKNOWN)
        report = PartitionReport(
            self.directory,
            topic,
            partition,
            broker=facts.broker,
            high_watermark=facts.high_watermark,
            recovery_point=facts.recovery_point,
        )
        fingerprint = Fingerprint()
        for result in results:
            report.segments += 1
            report.bytes += result.size
            report.batches += result.batches
            report.records += result.records
            fingerprint = fingerprint.joined(result.fingerprint)
        if self.options.fingerprint:
            report.fingerprint = fingerprint.hex()
        if results:
            report.log_start_offset = max(results[0].base, facts.log_start)
            # An empty segment that begins inside another one is not the end.
            ends = (r.end_offset for r in results if results[-1].size == 0)
            report.log_end_offset = max(results[-1].base, results[-1].end_offset, *ends)
        times = [r for r in results if r.min_timestamp >= 0]
        report.min_timestamp = min((r.min_timestamp for r in times), default=UNKNOWN)
        report.max_timestamp = max((r.max_timestamp for r in times), default=UNKNOWN)
        report.segment_sizes = tuple((r.base, r.size, r.records) for r in results[:LISTED_MAX])
        report.epochs = _epochs_of(results)
        return report

    def _add_findings(self, result: SegmentResult, active: bool) -> int:
        """Add the findings of a segment. Returns how many records its torn end has lost."""
        for suffix in result.vanished:
            message = "vanished during the check: deleted by its broker"
            self._find_in(result.base, suffix, info("file-vanished", message))
        for suffix in sorted(result.problems, key=filenames.SEGMENT_SUFFIXES.index):
            for problem in result.problems[suffix]:
                self._find_in(result.base, suffix, problem)
        if result.tail:
            problem = tail_problem(result, self.facts, active=active)
            self._find_in_log(result.base, problem)
            # An info does not explain why committed records are missing: zeros may be those.
            if problem.severity is not Severity.INFO:
                if active and self._tail is not Severity.ERROR:
                    self._tail = problem.severity
                return result.tail_records
        return 0

    def _join(self, results: list[SegmentResult], compacted: bool) -> None:
        """Report gaps inside and between segments.

        Only compaction makes them normal (I-11, F-307).
        """
        for result in results:
            for position, expected, missing in result.gaps if not compacted else ():
                message = f"{missing} offsets are missing before this batch"
                self._find_in_log(
                    result.base, warning("log-offset-order", message, position, expected)
                )
            if result.horizons and not compacted:
                message = "a delete horizon in a log that shows no other sign of compaction"
                self._find_in_log(result.base, info("log-attributes", message))
            if compacted and result.gap_count:
                message = f"{result.gap_count} gaps between offsets: the log is compacted"
                self._find_in_log(result.base, info("log-compacted-gap", message))
        if self.only < 0:
            for base, problem in check_rolls(results, self._rolled, self.facts):
                self._find_in_log(base, problem)
        if self.only >= 0 or compacted:
            return
        for one, two in pairwise(results):
            if ".log" in one.vanished or ".log" in two.vanished or two.base in self._rolled:
                continue
            if one.size == 0:
                message = f"empty, and followed by segment {two.base}"
                self._find_in_log(one.base, warning("log-offset-order", message, offset=one.base))
            elif one.end_offset < two.base and not one.tail:
                message = f"{two.base - one.end_offset} offsets are missing before this segment, "
                message += f"behind {filenames.segment_file_name(one.base, '.log')}"
                self._find_in_log(two.base, warning("log-offset-order", message, 0, one.end_offset))

    def _check_epochs(self, results: list[SegmentResult], end_offset: int) -> None:
        runs: list[EpochRun] = [run for result in results for run in result.epochs]
        if runs and self._epochs_state is FileState.EMPTY:  # a new log may have got its first batch
            self.epochs = self._read_epochs()
        entries = self.epochs
        if entries is not None:
            closed = self.closed_cleanly()
            problems = list(check_epoch_entries(entries, end_offset, closed=closed))
            self._find_all(LEADER_EPOCH, problems)
            if any(problem.severity is Severity.ERROR for problem in problems):
                entries = None
        start = max(results[0].base if results else 0, self.facts.log_start)
        if entries == [] and any(run.epoch >= 0 and run.last_offset >= start for run in runs):
            if self._epochs_state is FileState.EMPTY:
                message = "an empty file, but batches with epochs in the log"
                problem = warning("epochs-start", message)
            else:  # a log whose epochs fell is cut below them: none is left
                missing = self._epochs_state is FileState.MISSING
                message = "missing" if missing else "no epochs on file"
                message += ": leader epochs are compared with their neighbours only"
                problem = info("epochs-start", message)
            self._find(LEADER_EPOCH, problem)
        found = list(check_epochs(runs, entries or None))
        if entries and start <= end_offset and self.closed_cleanly():
            self._find_all(LEADER_EPOCH, check_first_epoch(runs, entries, start))
        if any(problem.rule == "log-epoch" for _, problem in found):
            # A broker that became leader since may have added an epoch: look again.
            newer = self._read_epochs()
            if newer and newer != self.epochs:
                found = list(check_epochs(runs, newer))
        for run, problem in found[: self.options.findings_max]:
            self._find_in_log(run.segment_base, problem)
        self.suppressed += max(0, len(found) - self.options.findings_max)

    def _check_own(self, report: PartitionReport, results: list[SegmentResult]) -> None:
        if self.own is None:
            return
        topic_id = topic_id_to_text(self.metadata.topic_id) if self.metadata else ""
        start, end = report.log_start_offset, report.log_end_offset
        self.own.check_cursors(topic_id, start, end, results)
        if results:
            self.own.check_clean_stop(results[0].base, self.facts.log_start, end)

    def _is_settled(self) -> bool:
        """Whether a clean stop wrote an entry for this directory.

        It writes none for a directory that is moving.
        """
        plain = self.tp is not None and not self.directory.endswith(filenames.DIR_SUFFIXES)
        return plain and self.closed_cleanly(CLEAN_SHUTDOWN)

    def closed_cleanly(self, marker: str = "") -> bool:
        """Whether the log is still as a clean stop left it.

        Opening a log removes the marker before the log changes. ``marker`` asks for the marker of
        the log directory; without it the log's own marker counts too.
        """
        name = os.path.basename(absolute(self.directory))
        if not self.facts.clean or name == filenames.CLUSTER_METADATA_DIR:  # never marked as clean
            return False
        parent = os.path.dirname(absolute(self.directory))
        paths = [os.path.join(parent, CLEAN_SHUTDOWN)]
        if not marker:
            paths.append(os.path.join(self.directory, filenames.CLEAN_STOP))
        return any(self.storage.info(path) is not None for path in paths)


def is_compacted(check: PartitionCheck, results: Iterable[SegmentResult]) -> bool:
    """Whether gaps are normal here, by any of the signs that a compaction leaves.

    A kill may have left it before it wrote its checkpoint. A delete horizon without a gap is
    no sign: any client can set its bit.
    """
    results = list(results)
    properties = check.own.properties if check.own else None
    policy = properties.values.get("cleanup.policy", "") if properties else ""
    return (
        check.facts.cleaner_offset >= 0
        or "compact" in policy.split(",")
        or any(result.holes for result in results)
        or (any(r.horizons for r in results) and any(r.missing for r in results))
    )


def _weighed(facts: LogDirFacts, bases: list[int], name: str, problem: Problem) -> Problem:
    """A start that has to scan a segment rebuilds all that belongs to it."""
    parsed = filenames.parse_segment_file(name)
    if parsed is None:
        return problem
    end = parsed.offset
    if parsed.suffix != filenames.SNAPSHOT_SUFFIX:  # of what is below its offset
        at = bisect_right(bases, end)
        end = bases[at] if at < len(bases) else _NO_END
    return weigh(problem, parsed.suffix, standing_at(facts, end - 1))


def _is_roll(file: filenames.SegmentFile, rolled: frozenset[int]) -> bool:
    named = (file.suffix, file.transition) == (filenames.LOG_SUFFIX, filenames.SWAP_SUFFIX)
    return named and file.offset in rolled


def partition_of(directory: str) -> TopicPartition | None:
    """The partition whose directory has this name, whatever its suffix."""
    try:
        return filenames.parse_partition_dir(os.path.basename(absolute(directory))).topic_partition
    except InvalidTopicError:
        return None


def absolute(path: str) -> str:
    """A local path without ``.`` and ``..``. A URI is absolute already."""
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def _is_replaced(
    listed: Mapping[str, FileInfo], now: Mapping[str, FileInfo], bases: set[int]
) -> bool:
    """Whether files of segments with these bases are smaller, other or gone, or new ones came."""
    active = max(bases, default=UNKNOWN)
    for name, before in listed.items():
        parsed = filenames.parse_segment_file(name)
        if parsed is None or parsed.suffix == filenames.SNAPSHOT_SUFFIX:
            continue
        after = now.get(name)
        if after is None or after.size < before.size:
            return True
        grows = parsed.offset >= active or parsed.suffix == filenames.TXN_INDEX_SUFFIX
        is_same = (after.size, after.mtime_ms) == (before.size, before.mtime_ms)
        if before.is_file and not grows and not is_same:
            return True
    names = (filenames.parse_segment_file(name) for name in now.keys() - listed.keys())
    return any(
        new.suffix == filenames.LOG_SUFFIX and new.offset < active and new.offset not in bases
        for new in names
        if new is not None and not new.transition
    )


def _inside(offsets: list[int], base: int, end: int) -> tuple[int, ...]:
    """The sorted ``offsets`` that lie in ``(base, end]``; ``end`` −1 means no bound."""
    first = bisect_right(offsets, base)
    return tuple(offsets[first : bisect_right(offsets, end) if end >= 0 else None])


def _unread(base: int) -> SegmentResult:
    """Stands for a segment that could not be read."""
    gone = (filenames.LOG_SUFFIX,)
    return SegmentResult(base, vanished=gone, producers=ProducerFacts(complete=False))


def _epochs_of(results: Iterable[SegmentResult]) -> tuple[tuple[int, int, int], ...]:
    """Each leader epoch with its first and last offset, as the batches have it."""
    epochs: list[tuple[int, int, int]] = []
    for run in (run for result in results for run in result.epochs):
        if epochs and epochs[-1][0] == run.epoch:
            epochs[-1] = (run.epoch, epochs[-1][1], run.last_offset)
        elif len(epochs) == LISTED_MAX:
            break
        else:
            epochs.append((run.epoch, run.first_offset, run.last_offset))
    return tuple(epochs)
