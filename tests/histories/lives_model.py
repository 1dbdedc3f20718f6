"""What a log of a name should hold in its present life, and what may be found after a crash."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

from logstore.log import PartitionLog


@dataclass(slots=True)
class Life:
    """One log from its creation to its deletion; a truncation makes another value of it."""

    topic_id: uuid.UUID | None
    mark: int
    """``retention.ms`` of the topic: which configuration the log must have."""
    base: int = 0
    values: list[bytes] = field(default_factory=list)
    """Of the records from ``base`` on; no two lives share any."""
    bases: list[int] = field(default_factory=list)
    """Where its batches begin."""
    start: int = 0
    starts: set[int] = field(default_factory=lambda: {0})
    """Log starts that this life had: a crash may bring back an older one."""
    flushed: int = 0
    """Promised to be on the disk."""
    reached: int = 0
    """How far a flush under way may have come."""
    high_watermark: int = 0
    cut: bool = False
    """It is being cut away, so any prefix may be left."""

    @property
    def end(self) -> int:
        return self.base + len(self.values)

    def cuts(self) -> list[int]:
        """Where a truncation leaves no batch in two; the first reaches the log start."""
        floor = max((base for base in self.bases if base <= self.start), default=self.start)
        return sorted({floor, *(base for base in self.bases if base > self.start)})

    def copy(self, **changes: object) -> Life:
        fresh: dict[str, object] = {
            "values": list(self.values),
            "bases": list(self.bases),
            "starts": set(self.starts),
        }
        return replace(self, **(fresh | changes))  # type: ignore[arg-type]

    def truncated(self, offset: int) -> Life:
        """``truncate_to``."""
        if offset >= self.end:
            return self.copy()
        start = min(self.start, offset)
        return self.copy(
            values=self.values[: offset - self.base],
            bases=[base for base in self.bases if base < offset],
            start=start,
            starts={s for s in self.starts if s <= offset} | {start},
            flushed=min(self.flushed, offset),
            high_watermark=min(self.high_watermark, offset),
        )

    def begun_anew(self, offset: int) -> Life:
        """``truncate_fully_and_start_at``."""
        return self.copy(
            base=offset,
            values=[],
            bases=[],
            start=offset,
            starts={offset},
            flushed=0,
            high_watermark=offset,
        )

    def faults(self, log: PartitionLog, *, killed: bool, replicated: bool) -> list[str]:
        """Why ``log``, just loaded, cannot be this life; nothing when it can.

        Args:
            killed: only the process ended, so that no written record may be missing.
        """
        start, end = log.log_start_offset, log.log_end_offset
        wrong = []
        if log.topic_id != self.topic_id:
            wrong.append(f"topic id {log.topic_id}, not {self.topic_id}")
        if log.config.retention_ms != self.mark:
            wrong.append(f"configuration {log.config.retention_ms}, not {self.mark}")
        if start not in self.starts:
            wrong.append(f"log start {start}, not one of {sorted(self.starts)}")
        least = 0 if self.cut else self.end if killed else self.flushed
        if not least <= end <= max(self.end, start):
            wrong.append(f"log end {end}, outside [{least}, {max(self.end, start)}]")
        if log.recovery_point > max(self.flushed, self.reached, start):
            wrong.append(f"recovery point {log.recovery_point}, flushed up to {self.flushed}")
        if replicated and not start <= log.high_watermark <= max(start, self.high_watermark):
            wrong.append(f"high watermark {log.high_watermark}, not above {self.high_watermark}")
        found = [(r.offset, r.value) for r in log.records()]
        due = [
            (o, self.values[o - self.base]) if self.base <= o < self.end else (o, None)
            for o in range(start, end)
        ]
        if found != due:
            wrong.append(f"records {found}, not {due}")
        return wrong

    def adopt(self, log: PartitionLog, *, killed: bool) -> Life:
        """The life goes on from what a crash left of it."""
        start, end = log.log_start_offset, log.log_end_offset
        base, values = self.base, self.values[: end - self.base]
        if end > self.end:  # all records are lost, but not that the log starts behind them
            base, values = end, []
        return self.copy(
            base=base,
            values=values,
            bases=[b for b in self.bases if base <= b < end],
            start=start,
            starts={s for s in self.starts if s <= start},
            flushed=min(self.flushed, end) if killed else end,
            high_watermark=log.high_watermark,
            reached=min(self.reached, end),
            cut=False,
        )


Candidates = list[Life | None]
"""Which lives a name may have, after a crash; None: no log."""
