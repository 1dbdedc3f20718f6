"""How far a mirror is, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from checkpoints.types import TopicPartition


class PartitionState(Enum):
    WAITING = "waiting"  # nobody leads it at the source, or its leader does not answer
    BEHIND = "behind"
    CAUGHT_UP = "caught up"
    REFUSED = "refused"  # what the source sends is not valid; it is asked again and again
    FAILED = "failed"  # tried again with the next look at the source's topics
    GONE = "gone"  # the source shows the topic no more


@dataclass(frozen=True, slots=True)
class MirroredStatus:
    """
    Attributes:
        source_high_watermark: as the source said last; None before it did.
        bytes: that were appended in this run.
        cuts: of this run.
        reason: why nothing comes at present; of a partition that is refused, failed or waiting.
        lost: offsets behind the end that the source has deleted, and that nobody will mirror.
    """

    state: PartitionState
    log_start_offset: int
    log_end_offset: int
    source_high_watermark: int | None = None
    bytes: int = 0
    cuts: int = 0
    reason: str = ""
    lost: int = 0

    @property
    def lag(self) -> int | None:
        """Records behind the source; None if that is not known."""
        if self.source_high_watermark is None:
            return None
        return max(0, self.source_high_watermark - self.log_end_offset - self.lost)


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """
    Attributes:
        answered_ms_ago: since the source last answered anything; None: not in this run.
        unreachable: why the source could not be asked at the last try; "" if it could.
        failure: why the mirror as a whole does not go on.
        findings: events of the report in this run that somebody should look at.
    """

    cluster_id: str
    partitions: Mapping[TopicPartition, MirroredStatus] = field(default_factory=dict)
    answered_ms_ago: int | None = None
    unreachable: str = ""
    failure: str = ""
    findings: int = 0

    @property
    def lag(self) -> int:
        """Records behind, of all partitions for which that is known."""
        return sum(each.lag or 0 for each in self.partitions.values())

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.partitions.values())

    @property
    def cuts(self) -> int:
        return sum(each.cuts for each in self.partitions.values())

    def count(self, *states: PartitionState) -> int:
        """How many partitions are in one of these states."""
        return sum(each.state in states for each in self.partitions.values())


__all__ = ["MirrorStatus", "MirroredStatus", "PartitionState"]
