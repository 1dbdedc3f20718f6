"""The content of the page, apart from its look: a report cut to a size that a browser can show.

A report has no bound, but a page must have one. The page shows the worst first, counts what it
leaves out and says so, so that no reader takes a part for the whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from logstore.verify.common.report import UNKNOWN, Finding, PartitionReport, Severity, VerifyReport
from logstore.verify.common.rules import RULES
from logstore.verify.html.text import plural

FINDINGS_MAX = 3_000
REPLICAS_MAX = 1_000
PLOTTED_MAX = 60
EPOCHS_MAX = 500
UNUSABLE_MAX = 1_000

_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass(slots=True)
class ReplicaRow:
    """One broker's copy of a partition, with its findings.

    ``lag`` counts offsets behind the longest copy, and is `UNKNOWN` where there is no other copy.
    ``uncommitted`` counts offsets from the high watermark to the log end, and is `UNKNOWN` where no
    high watermark is on file.
    """

    partition: PartitionReport
    findings: list[Finding] = field(default_factory=list)
    lag: int = UNKNOWN

    @property
    def name(self) -> str:
        held = self.partition
        return f"{held.topic}-{held.partition}" if held.topic else held.directory

    @property
    def uncommitted(self) -> int:
        held = self.partition
        known = held.high_watermark != UNKNOWN
        return max(held.log_end_offset - held.high_watermark, 0) if known else UNKNOWN

    @property
    def errors(self) -> int:
        return sum(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def warnings(self) -> int:
        return sum(finding.severity is Severity.WARNING for finding in self.findings)

    @property
    def order(self) -> tuple[str, int, str, str]:
        """The order in which people look for it: by topic, partition, broker."""
        held = self.partition
        return held.topic, held.partition, held.broker, held.directory

    @property
    def urgency(self) -> tuple[int, int]:
        """Sorts the worst first, and among equals the largest."""
        worst = min((_RANKS[f.severity] for f in self.findings), default=len(_RANKS))
        return worst, -self.partition.bytes


@dataclass(frozen=True, slots=True)
class RuleCount:
    severity: Severity
    rule: str
    count: int
    files: int
    example: str


class ReportVerdict(NamedTuple):
    """``level`` is ``clean``, ``warning``, ``error``, or ``partial``: not all was checked."""

    level: str
    headline: str


class Page:
    """A report with its parts in order and its sums. The module says what is left out.

    ``replicas`` are all of them, each with its own findings, ``listed`` those that the table shows,
    and ``plotted`` those in plots.
    """

    def __init__(self, report: VerifyReport) -> None:
        self.report = report
        rows = [ReplicaRow(partition) for partition in report.partitions]
        self._homes = {_location(row.partition.directory): row for row in rows}
        for finding in report.findings:
            home = self._home_of(finding)
            if home is not None:
                home.findings.append(finding)
        for copies in copies_of(rows):
            longest = max(copy.partition.log_end_offset for copy in copies)
            lone = len({copy.partition.directory for copy in copies}) == 1
            for copy in () if lone else copies:
                copy.lag = longest - copy.partition.log_end_offset
        self.replicas = sorted(rows, key=lambda row: row.order)
        self.listed = _most_urgent(self.replicas, REPLICAS_MAX)
        self.plotted = _most_urgent(self.replicas, PLOTTED_MAX)
        self._labels = Counter((row.name, row.partition.broker) for row in rows)

    def _home_of(self, finding: Finding) -> ReplicaRow | None:
        """The replica in whose directory the finding lies."""
        file = _location(finding.file)
        return self._homes.get(file.rpartition("/")[0]) or self._homes.get(file)

    def file_of(self, finding: Finding) -> str:
        """The bare name if partition and broker name the directory, else the path below `root`."""
        home = self._home_of(finding)
        if home is not None and self._labels[home.name, home.partition.broker] == 1:
            return _location(finding.file).rpartition("/")[2]
        return finding.file.removeprefix(self.root)

    @cached_property
    def findings(self) -> list[Finding]:
        """At most `FINDINGS_MAX` findings, the worst first, then in order of files.

        Files take turns when not all findings fit, so that one bad file does not hide another.
        """
        ordered = sorted(
            self.report.findings, key=lambda f: (_RANKS[f.severity], f.file, f.position)
        )
        if len(ordered) <= FINDINGS_MAX:
            return ordered
        turns: Counter[tuple[Severity, str]] = Counter()
        queue = []
        for place, finding in enumerate(ordered):
            turns[finding.severity, finding.file] += 1
            queue.append((_RANKS[finding.severity], turns[finding.severity, finding.file], place))
        return [ordered[place] for place in sorted(p for *_, p in sorted(queue)[:FINDINGS_MAX])]

    @property
    def unusable(self) -> list[str]:
        return self.report.unusable[:UNUSABLE_MAX]

    @property
    def rules(self) -> list[RuleCount]:
        """Counts of all findings by severity and rule, also of those without a row."""
        found: defaultdict[tuple[Severity, str], list[Finding]] = defaultdict(list)
        for finding in self.report.findings:
            found[finding.severity, finding.rule].append(finding)
        rows = [
            RuleCount(severity, rule, len(same), len({f.file for f in same}), same[0].message)
            for (severity, rule), same in found.items()
        ]
        return sorted(rows, key=lambda row: (_RANKS[row.severity], -row.count, row.rule))

    @property
    def explanations(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Each rule that has findings, in the order of the documentation."""
        found = {finding.rule for finding in self.report.findings}
        return [(rule.id, rule.texts) for rule in RULES.values() if rule.id in found]

    @cached_property
    def root(self) -> str:
        """The folder that the paths of all files have in common, ending in a slash, or ""."""
        paths = [finding.file for finding in self.findings]
        paths += [replica.partition.directory + "/" for replica in self.replicas]
        folders = zip(*(path.split("/")[:-1] for path in paths), strict=False)
        shared = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, folders)]
        return "/".join([*shared, ""]) if any(shared) else ""

    @property
    def unplaced(self) -> int:
        """The number of findings without a place in a log: they have no partition or no offset."""
        return sum(self._home_of(f) is None or place_of(f) < 0 for f in self.report.findings)

    @property
    def verdict(self) -> ReportVerdict:
        report = self.report
        if report.unusable:
            return ReportVerdict("partial", "Not everything could be checked")
        if report.count(Severity.ERROR):
            return ReportVerdict("error", "Errors were found")
        if report.count(Severity.WARNING):
            return ReportVerdict("warning", "Warnings were found")
        if not report.files and not report.partitions:
            return ReportVerdict("warning", "Nothing was there to check")
        return ReportVerdict("clean", "Clean")

    @property
    def counts(self) -> list[str]:
        """Such as ``3 errors`` and ``1 warning``. A severity without findings is left out."""
        numbers = ((severity, self.report.count(severity)) for severity in Severity)
        return [plural(number, severity) for severity, number in numbers if number]

    @property
    def partition_count(self) -> int:
        return len(copies_of(self.replicas))

    @property
    def broker_count(self) -> int:
        return len({replica.partition.broker for replica in self.replicas} - {""})

    def total(self, what: str) -> int:
        """The sum over all partitions of ``bytes``, ``batches``, ``segments`` …"""
        return sum(getattr(partition, what) for partition in self.report.partitions)

    def epochs(self) -> list[tuple[ReplicaRow, int, int, int]]:
        """(replica, epoch, first offset, last offset) of all plotted replicas."""
        return [(replica, *run) for replica in self.plotted for run in replica.partition.epochs]


def place_of(finding: Finding) -> int:
    """The offset of a finding, or else the base of its segment, or else `UNKNOWN`."""
    return finding.offset if finding.offset >= 0 else finding.segment_base


def copies_of(replicas: Iterable[ReplicaRow]) -> list[list[ReplicaRow]]:
    """Replicas of the same partition side by side, in the order given."""
    partitions: defaultdict[str, list[ReplicaRow]] = defaultdict(list)
    for replica in replicas:
        partitions[replica.name].append(replica)
    return list(partitions.values())


def _most_urgent(replicas: Sequence[ReplicaRow], limit: int) -> list[ReplicaRow]:
    if len(replicas) <= limit:
        return list(replicas)
    chosen = sorted(replicas, key=lambda replica: replica.urgency)[:limit]
    return sorted(chosen, key=lambda replica: replica.order)


def _location(path: str) -> str:
    """The path without the query of a URI, such as an endpoint."""
    return path.partition("?")[0].rstrip("/")
