"""What a verification found: findings with their place, and counts with a fingerprint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from checkpoints.printable import one_line, printable
from logstore.common.json_fields import json_fields

UNKNOWN = -1
"""Stands for a position, offset or partition that a finding does not have."""

LISTED_MAX = 1000
"""Leader epochs, and segments, that the report of one partition lists."""


class Severity(StrEnum):
    """``ERROR``: bytes are wrong or missing. ``WARNING``: suspicious, or a crash left it and the
    next start repairs it. ``INFO``: worth knowing, nothing is wrong.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Problem(NamedTuple):
    """A finding before its file is known: what the pure rules return."""

    severity: Severity
    rule: str
    position: int
    offset: int
    message: str


def error(rule: str, position: int, offset: int, message: str) -> Problem:
    return Problem(Severity.ERROR, rule, position, offset, message)


def warning(rule: str, position: int, offset: int, message: str) -> Problem:
    return Problem(Severity.WARNING, rule, position, offset, message)


def info(rule: str, position: int, offset: int, message: str) -> Problem:
    return Problem(Severity.INFO, rule, position, offset, message)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, or one thing worth knowing.

    ``position`` is a byte of ``file``, in a text file a line number; ``offset`` that of the record
    or batch concerned; each is −1 where there is none. ``rule`` is the id of a row
    of docs/verify.md, such as ``log-checksum``.
    ``broker`` is the id in meta.properties, else the path of the log directory; empty where a
    partition stands alone.
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
    """What one partition holds. ``[log_start_offset, log_end_offset)`` goes by the files alone.

    ``fingerprint`` is 32 hex digits over the content in order of offsets, the same on every
    replica whatever its segment boundaries; empty when it was not asked for. ``epochs`` has an
    epoch with its first and last offset, ``segment_sizes`` a base offset with bytes and records,
    each at most `LISTED_MAX` of them, from the oldest on. Timestamps are the smallest and largest
    of the batches, in ms. Offsets ``[compared_from, compared_end)`` were compared with another
    replica. `UNKNOWN` stands for what nothing tells: a checkpoint without an entry, no replica.
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
    """Records of damaged batches, as far as offsets and headers tell how many there were."""


@dataclass(slots=True)
class VerifyReport:
    """The result for all paths. ``unusable`` lists, as one line each, what could not be checked."""

    findings: list[Finding] = field(default_factory=list)
    partitions: list[PartitionReport] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    files: int = 0
    suppressed: int = 0
    """Findings left out because their file had too many."""

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Nothing worse than an info, and everything could be read."""
        return not self.unusable and not any(
            finding.severity is not Severity.INFO for finding in self.findings
        )

    @property
    def unreadable(self) -> int:
        """Records that cannot be read, of all partitions."""
        return sum(partition.unreadable for partition in self.partitions)

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
