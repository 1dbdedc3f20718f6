"""The findings of a demo as values: for the tables, for JSON and for the exit code."""

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
class ReplicatedPartition:
    """One partition of the cluster. ``*_before`` the kill and after it; ``cut`` in records."""

    partition: int
    replicas: list[int]
    leader_before: int
    epoch_before: int
    leader: int = -1
    epoch: int = -1
    cut: int = 0
    isr_smallest: int = 0
    records: int = 0
    size: int = 0
    fingerprint: str = ""


@dataclass(slots=True)
class Failover:
    """The kill of a leader, its return, and its later time without links, in records and seconds.

    ``unreplicated``: records that the leader alone acknowledged with acks=1. ``cut``: all records
    that it had to truncate, which are those and the batch that waited for its followers.
    """

    killed: int
    was_controller: bool = False
    led: list[int] = field(default_factory=list)
    acknowledged_at_kill: int = 0
    unreplicated: int = 0
    cut: int = 0
    controller: int = -1
    elected_seconds: float = 0.0
    without_it: int = 0
    rejoined_seconds: float = 0.0
    caught_up: int = 0
    shrunk: list[int] = field(default_factory=list)
    shrunk_seconds: float = 0.0
    expanded_seconds: float = 0.0


@dataclass(slots=True)
class ClusterOutcome:
    """Act two. ``slowest_seconds``: the longest wait for an acknowledgement, failovers included."""

    brokers: list[int]
    min_insync_replicas: int
    failover: Failover | None = None
    acknowledged: int = 0
    slowest_seconds: float = 0.0
    partitions: list[ReplicatedPartition] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CarrierDelay:
    """One carrier's flights; ``departed`` of them left, ``minutes`` late in all."""

    carrier: str
    flights: int
    departed: int
    minutes: int

    @property
    def mean_minutes(self) -> float:
        return self.minutes / self.departed if self.departed else 0.0


@dataclass(slots=True)
class SparkOutcome:
    """Act three. ``answer`` has the carrier with the longest delays first."""

    version: str = ""
    cores: int = 0
    started_seconds: float = 0.0
    files: int = 0
    answer: list[CarrierDelay] = field(default_factory=list)


@dataclass(slots=True)
class DemoOutcome:
    """The outcome of all acts. ``faults`` is empty only if everything was proven.

    ``cluster`` and ``spark`` are None if an earlier act failed, or was not asked for.
    """

    directory: str
    records: int
    seed: int
    steps: list[DemoStep] = field(default_factory=list)
    partitions: list[DemoPartition] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cluster: ClusterOutcome | None = None
    spark: SparkOutcome | None = None

    def to_dict(self) -> dict[str, Any]:
        return json_fields(self) | {"steps": [step.to_dict() for step in self.steps]}
