"""The report of a verification: findings with their place, and counts with a fingerprint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from checkpoints.printable import one_line, printable
from checkpoints.types import TopicPartition
from logstore.common.json_fields import json_fields

UNKNOWN = -1
"""Stands for a position, offset or partition that a finding does not have."""

LISTED_MAX = 1000
"""How many leader epochs and how many segments the report of one partition lists at most."""


class Severity(StrEnum):
    """``ERROR``: bytes are wrong or missing.

    ``WARNING``: suspicious, or left by a crash and repaired by the next start. ``INFO``: worth
    knowing, nothing is wrong.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Problem(NamedTuple):
    """A finding whose file is not known yet, as the pure rules return it."""

    severity: Severity
    rule: str
    message: str
    position: int = UNKNOWN
    offset: int = UNKNOWN

    def in_file(
        self, path: str, tp: TopicPartition | None, broker: str, base: int = UNKNOWN
    ) -> Finding:
        """The finding in a file of a partition, of the segment with this ``base``."""
        topic, partition = tp or ("", UNKNOWN)
        severity, rule, message, position, offset = self
        return Finding(
            severity, rule, path, message, topic, partition, base, position, offset, broker
        )


error = partial(Problem, Severity.ERROR)
warning = partial(Problem, Severity.WARNING)
info = partial(Problem, Severity.INFO)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, or one thing worth knowing.

    ``position`` is a byte of ``file``, or a line number of a text file. ``offset`` is the offset of
    the record or batch. Both are −1 where there is none. ``rule`` is the id of a row of
    docs/verify.md, such as ``log-checksum``. ``broker`` is the id in meta.properties, or else the
    path of the log directory. It is empty for a partition without a log directory around it.
    """

    severity: Severity
    rule: str
    file: str
    message: str
    topic: str = ""
    partition: int = UNKNOWN
    segment_base: int = UNKNOWN
    position: int = UNKNOWN
    offset: int = UNKNOWN
    broker: str = ""

    def to_dict(self) -> dict[str, Any]:
        return json_fields(self)

    def __str__(self) -> str:
        place = printable(self.file) + (f" at {self.position}" if self.position >= 0 else "")
        return one_line(f"{self.severity} {self.rule} {place}: {self.message}")


@dataclass(slots=True)
class PartitionReport:
    """The content of one partition.

    ``[log_start_offset, log_end_offset)`` is derived from the files alone.

    ``fingerprint`` is 32 hex digits over the content in order of offsets. It is the same on every
    replica, whatever its segment boundaries, and empty if it was not asked for. ``epochs`` lists
    (epoch, first offset, last offset), ``segment_sizes`` (base offset, bytes, records); each has at
    most `LISTED_MAX` entries, the oldest first. Timestamps are the smallest and largest of the
    batches, in ms. Offsets ``[compared_from, compared_end)`` were compared with another replica.
    `UNKNOWN` stands for a value that no file gives, such as a high watermark without an entry in
    its checkpoint.
    """

    directory: str
    topic: str = ""
    partition: int = UNKNOWN
    segments: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    fingerprint: str = ""
    broker: str = ""
    high_watermark: int = UNKNOWN
    recovery_point: int = UNKNOWN
    min_timestamp: int = UNKNOWN
    max_timestamp: int = UNKNOWN
    epochs: tuple[tuple[int, int, int], ...] = ()
    segment_sizes: tuple[tuple[int, int, int], ...] = ()
    compared_from: int = UNKNOWN
    compared_end: int = UNKNOWN
    unreadable: int = 0
    """Records that the files promise and do not give (docs/verify.md, "What cannot be read")."""


@dataclass(slots=True, repr=False)
class VerifyReport:
    """The result for all paths. ``unusable`` lists, as one line each, what could not be checked."""

    findings: list[Finding] = field(default_factory=list)
    partitions: list[PartitionReport] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    files: int = 0
    suppressed: int = 0
    """How many findings were left out because their file had too many."""

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Whether everything could be read, and nothing is worse than an info."""
        return not self.unusable and not any(
            finding.severity is not Severity.INFO for finding in self.findings
        )

    @property
    def unreadable(self) -> int:
        """The number of records of all partitions that cannot be read."""
        return sum(partition.unreadable for partition in self.partitions)

    @property
    def verdict(self) -> str:
        """All of it in a line."""
        counts = ", ".join(
            f"{count:,} {severity}{'' if count == 1 else 's'}"
            for severity in Severity
            if (count := self.count(severity))
        )
        if self.suppressed:
            counts += f", and {self.suppressed:,} more findings in the same files"
        if self.unreadable:
            counts += f"; {self.unreadable:,} records cannot be read"
        verdict = "clean" if self.clean else "not clean"
        if self.unusable:
            verdict = "not all could be checked"
        return f"{self.files:,} files: {verdict}{': ' if counts else ''}{counts}"

    def __repr__(self) -> str:
        return f"<VerifyReport {self.verdict}>"

    def refuse(self, path: str, reason: object) -> None:
        """Note that ``path`` could not be checked."""
        text, place = str(reason), printable(path)
        self.unusable.append(text if place in text else f"{place}: {text}")

    def extend(self, findings: Iterable[Finding]) -> None:
        self.findings.extend(findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "clean": self.clean,
            "errors": self.count(Severity.ERROR),
            "warnings": self.count(Severity.WARNING),
            "infos": self.count(Severity.INFO),
            "suppressed": self.suppressed,
            "files": self.files,
            "bytes": sum(p.bytes for p in self.partitions),
            "batches": sum(p.batches for p in self.partitions),
            "records": sum(p.records for p in self.partitions),
            "unreadable": self.unreadable,
            "partitions": [json_fields(partition) for partition in self.partitions],
            "findings": [finding.to_dict() for finding in self.findings],
            "unusable": list(self.unusable),
        }
