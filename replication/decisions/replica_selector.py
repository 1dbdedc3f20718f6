"""Which replica a consumer should read from (KIP-392; R-147, R-148)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

RACK_AWARE = "RackAwareReplicaSelector"  # what follows the last dot of Kafka's class name


class ReplicaView(NamedTuple):
    """A replica that has what the consumer asks for."""

    broker_id: int
    rack: str | None
    log_end: int
    behind_ms: int  # since when it was last known to hold everything


def select_replica(rack: str, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int | None:
    """The follower to go to, or None to stay with the leader.

    The leader serves its own rack, and a rack without a replica; elsewhere the most caught-up
    replica of the consumer's rack.
    """
    near = [view for view in followers if view.rack == rack]
    if not rack or leader.rack == rack or not near:
        return None
    return max(near, key=lambda view: (view.log_end, -view.behind_ms, view.broker_id)).broker_id
