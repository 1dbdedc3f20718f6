"""What the groups of a broker have done since its start, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupStats:
    """Changed in the turns of the coordinator's actor, and read from any thread."""

    completed_rebalances: int = 0
    committed_offsets: int = 0
    expired_offsets: int = 0
