"""The report of what a rescue did, and what it could not do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from checkpoints.printable import printable

LISTED_MAX = 1000
"""How many gaps, stretches and notes of one partition are listed. The rest is counted."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets ``[first, next)`` that the result lacks, and that may have held records."""

    first: int
    next: int
    reason: str

    def __str__(self) -> str:
        return f"offsets [{self.first}, {self.next}) are missing: {self.reason}"


@dataclass(frozen=True, slots=True)
class SetAside:
    """Batches that are not part of the result, and the file that keeps them, if there is one."""

    path: str
    first: int
    next: int
    batches: int
    reason: str
    file: str = ""

    def __str__(self) -> str:
        kept = f", kept in {self.file}" if self.file else ""
        where = printable(self.path)
        what = f"{self.batches} batches, offsets [{self.first}, {self.next})"
        return f"{where}: {what}: {self.reason}{kept}"


@dataclass(slots=True)
class PartitionRescue:
    """One partition of the result: offsets ``[start, end)``.

    ``gaps`` were lost. ``history_gaps`` counts offsets that were missing before any damage, as
    compaction leaves them, according to a source. ``mended`` counts batches with a corrected header
    field, ``copies`` batches that were found more than once.
    """

    topic: str
    partition: int
    sources: list[str]
    start: int = 0
    end: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    copies: int = 0
    mended: int = 0
    history_gaps: int = 0
    gaps: list[Gap] = field(default_factory=list)
    set_aside: list[SetAside] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dropped: int = 0
    """Entries of these lists beyond ``LISTED_MAX``."""

    @property
    def whole(self) -> bool:
        return not (self.gaps or self.doubts)

    def add(self, where: list[Any], what: Any) -> None:
        if len(where) < LISTED_MAX:
            where.append(what)
        else:
            self.dropped += 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "whole": self.whole,
            "startOffset": self.start,
            "endOffset": self.end,
            "batches": self.batches,
            "records": self.records,
            "bytes": self.bytes,
            "copies": self.copies,
            "mended": self.mended,
            "historyGaps": self.history_gaps,
            "gaps": [asdict(gap) for gap in self.gaps],
            "setAside": [{**asdict(s), "path": printable(s.path)} for s in self.set_aside],
            "doubts": self.doubts,
            "notes": self.notes,
            "sources": [printable(source) for source in self.sources],
            "notListed": self.dropped,
        }


@dataclass(slots=True)
class RescueReport:
    """The report of what a rescue wrote to ``target``. Each of ``notes`` is one line."""

    target: str
    dry_run: bool
    partitions: list[PartitionRescue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing is missing, as far as the sources show."""
        return all(partition.whole for partition in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": printable(self.target),
            "dryRun": self.dry_run,
            "whole": self.whole,
            "partitions": [partition.to_dict() for partition in self.partitions],
            "notes": self.notes,
        }
