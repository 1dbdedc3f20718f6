"""What a backup, a check or a restore found: plain values, for programs and for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from checkpoints.printable import printable
from logstore.common.json_fields import json_fields


class BackupFault(StrEnum):
    """The kinds of findings, by what is wrong."""

    DAMAGED = "damaged"
    """Batches of the source, or of an object, whose checksums do not fit."""
    UNSTABLE = "unstable"
    """A partition of the source changed faster than it could be read."""
    HOLE = "hole"
    """Offsets between log start and end that no object has."""
    GONE = "gone"
    """A partition that the backup before has is not in the source, and its topic is."""
    MISSING = "missing"
    """An object that a commit names is not there."""
    TORN = "torn"
    """An object has another size or another checksum than its commit says."""
    FOREIGN = "foreign"
    """An object of another cluster, or none that a backup puts."""
    ORPHAN = "orphan"
    """An object that no commit names, older than a backup takes."""
    MALFORMED = "malformed"
    """A commit, a manifest or facts that cannot be read."""


@dataclass(frozen=True, slots=True)
class BackupFinding:
    """What is wrong, and where: ``place`` is a path or a key. Offsets are −1 where none are
    concerned; ``end`` is exclusive."""

    fault: BackupFault
    place: str
    reason: str
    topic: str = ""
    partition: int = -1
    first: int = -1
    end: int = -1

    def __str__(self) -> str:
        where = printable(self.place)
        if self.first >= 0:
            where = f"{printable(self.topic)}-{self.partition} [{self.first}, {self.end}): {where}"
        return f"{self.fault}: {where}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        return json_fields(self)


@dataclass(slots=True)
class PartitionResult:
    """How far a partition reaches in a backup, and what this run put of it."""

    topic: str
    partition: int
    log_start_offset: int
    end_offset: int
    segments: int = 0
    put: int = 0
    put_bytes: int = 0
    adopted: int = 0
    kept: int = 0

    def to_dict(self) -> dict[str, Any]:
        return json_fields(self)


@dataclass(slots=True)
class BackupReport:
    """One run. ``number`` is that of the newest commit; ``committed`` says whether this run made
    it, which it does not where nothing has changed."""

    uri: str
    cluster_id: str = ""
    number: int = 0
    committed: bool = False
    partitions: list[PartitionResult] = field(default_factory=list)
    findings: list[BackupFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    requests: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    lied: int = 0
    """How many objects were not there, or not as they were put, when they were read back."""
    pruned: int = 0
    """How many objects of dropped backups were deleted."""

    @property
    def whole(self) -> bool:
        return not self.findings

    @property
    def put_bytes(self) -> int:
        return sum(part.put_bytes for part in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        return json_fields(self) | {"whole": self.whole, "putBytes": self.put_bytes}


__all__ = ["BackupFault", "BackupFinding", "BackupReport", "PartitionResult"]
