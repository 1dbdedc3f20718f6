"""What a demo found, as values: for the table, for JSON and for the exit code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from logstore.common.json_fields import json_fields


@dataclass(slots=True)
class DemoStep:
    """One thing that was measured. ``size`` in bytes of batches."""

    name: str
    records: int
    size: int
    seconds: float

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_second(self) -> float:
        return self.size / 1e6 / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        return json_fields(self) | {
            "recordsPerSecond": round(self.records_per_second),
            "megabytesPerSecond": round(self.megabytes_per_second, 1),
        }


@dataclass(slots=True)
class DemoPartition:
    """One partition: all counts are records, the sizes bytes of its log."""

    partition: int
    sent: int
    flushed: int
    recovered: int
    bytes_scanned: int
    bytes_cut: int
    cut_reason: str
    seconds: float
    final: int = 0


@dataclass(slots=True)
class WriterOutcome:
    """The outcome of a demo. ``faults`` is empty only if everything was proven."""

    directory: str
    records: int
    seed: int
    steps: list[DemoStep] = field(default_factory=list)
    partitions: list[DemoPartition] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return json_fields(self) | {"steps": [step.to_dict() for step in self.steps]}
