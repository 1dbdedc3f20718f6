"""What a check of a mirror found: values, and their JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from checkpoints.printable import printable
from checkpoints.types import TopicPartition

DIFFERENCES_MAX = 100
"""Of one partition; a hostile source could cause millions."""


class DifferenceKind(StrEnum):
    DIFFERS = "differs"  # both sides have these offsets, with other content
    MISSING = "missing"  # the source has a batch that is not in the files, or cannot be read there
    EXTRA = "extra"  # the files have a batch that the source does not have
    TOPIC = "topic"  # another topic of the name


class UncomparedReason(StrEnum):
    EXPIRED = "expired"  # the source does not have it any more
    BEHIND = "behind"  # the source has it, the mirror not yet
    NOT_HERE = "not here"  # the mirror has no log of this partition
    GONE = "gone"  # the source has no such partition
    COMPACTED = "compacted"  # the source has compacted it since: only what it still has is compared
    NOT_ASKED = "no answer"  # the source did not answer, or refused

    @property
    def is_failure(self) -> bool:
        """Whether nobody knows what a comparison would have found."""
        return self is UncomparedReason.NOT_ASKED


class OffsetDifference(NamedTuple):
    """Offsets ``[offset, end_offset)``; −1 where it is not about offsets."""

    kind: DifferenceKind
    offset: int
    end_offset: int
    message: str


class Uncompared(NamedTuple):
    """Offsets ``[offset, end_offset)`` that were not compared, and why."""

    reason: UncomparedReason
    offset: int
    end_offset: int
    message: str = ""


@dataclass(slots=True)
class PartitionComparison:
    """One partition: offsets ``[start, end)`` were compared."""

    tp: TopicPartition
    start: int = 0
    end: int = 0
    batches: int = 0
    bytes: int = 0
    differences: list[OffsetDifference] = field(default_factory=list)
    dropped: int = 0  # further differences
    uncompared: list[Uncompared] = field(default_factory=list)

    def add(self, kind: DifferenceKind, offset: int, end_offset: int, message: str) -> None:
        """Add a difference. One that goes on where the last one ended, alike, is one with it."""
        last = self.differences[-1] if self.differences else None
        if last is not None and last.kind is kind and last.end_offset == offset:
            self.differences[-1] = last._replace(end_offset=end_offset)
        elif len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(OffsetDifference(kind, offset, end_offset, message))
        else:
            self.dropped += 1

    def leave_out(
        self, reason: UncomparedReason, offset: int, end_offset: int, message: str = ""
    ) -> None:
        """Note offsets that are not compared; of two neighbours with one reason one remains."""
        if offset >= end_offset >= 0:
            return
        last = self.uncompared[-1] if self.uncompared else None
        if last is not None and last.reason is reason and last.end_offset == offset:
            self.uncompared[-1] = last._replace(end_offset=end_offset)
        else:
            self.uncompared.append(Uncompared(reason, offset, end_offset, message))

    @property
    def offsets(self) -> int:
        return max(0, self.end - self.start)

    def lines(self) -> Iterator[str]:
        """What is to be said of it, a line each, the differences first."""
        for each in self.differences:
            yield f"{each.kind}: {self._place(each.offset, each.end_offset)}: {each.message}"
        if self.dropped:
            yield f"{DifferenceKind.DIFFERS}: {self.tp}: {self.dropped:,} more ranges"
        for left in self.uncompared:
            text = f"not compared: {self._place(left.offset, left.end_offset)}: {left.reason}"
            yield f"{text}: {left.message}" if left.message else text

    def _place(self, offset: int, end_offset: int) -> str:
        return f"{self.tp}" + (f" {offset}…{end_offset - 1}" if 0 <= offset < end_offset else "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "offset": self.start,
            "endOffset": self.end,
            "batches": self.batches,
            "bytes": self.bytes,
            "differences": [
                {
                    "kind": each.kind.value,
                    "offset": each.offset,
                    "endOffset": each.end_offset,
                    "message": each.message,
                }
                for each in self.differences
            ],
            "moreDifferences": self.dropped,
            "notCompared": [
                {
                    "reason": left.reason.value,
                    "offset": left.offset,
                    "endOffset": left.end_offset,
                    "message": left.message,
                }
                for left in self.uncompared
            ],
        }


@dataclass(slots=True)
class MirrorCheckReport:
    """All partitions that were asked for."""

    cluster_id: str
    partitions: list[PartitionComparison] = field(default_factory=list)

    @property
    def differences(self) -> int:
        return sum(len(part.differences) + part.dropped for part in self.partitions)

    @property
    def unusable(self) -> list[str]:
        """What nobody could compare, though it is asked for."""
        return [
            f"{part.tp}: {left.message or left.reason}"
            for part in self.partitions
            for left in part.uncompared
            if left.reason.is_failure
        ]

    @property
    def is_equal(self) -> bool:
        return not self.differences

    @property
    def verdict(self) -> str:
        """All of it in a line."""
        compared = [
            part
            for part in self.partitions
            if part.offsets or not (part.uncompared or part.differences)
        ]
        empty = sum(not part.offsets for part in compared)
        text = f"{len(compared):,} of {len(self.partitions):,} partitions compared"
        text += f" ({empty:,} empty), " if empty else ", "
        text += f"{sum(part.offsets for part in compared):,} offsets, "
        text += f"{sum(part.bytes for part in compared):,} bytes: "
        if self.differences:
            count = self.differences
            return text + f"{count:,} difference{'' if count == 1 else 's'}"
        if self.unusable:
            return text + "not all could be compared"
        left = sum(
            each.end_offset - each.offset
            for part in self.partitions
            for each in part.uncompared
            if each.offset >= 0 and each.reason is not UncomparedReason.COMPACTED
        )
        same = "equal" if compared else "nothing is known"
        return text + same + (f"; {left:,} offsets were not compared" if left else "")

    def lines(self) -> Iterator[str]:
        for part in self.partitions:
            yield from map(printable, part.lines())

    def to_dict(self) -> dict[str, Any]:
        return {
            "equal": self.is_equal,
            "differences": self.differences,
            "clusterId": self.cluster_id,
            "partitions": [part.to_dict() for part in self.partitions],
            "unusable": self.unusable,
            "verdict": self.verdict,
        }
