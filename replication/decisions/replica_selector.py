"""Which replica a consumer should read from (KIP-392; R-147, R-148)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

RACK_AWARE = "RackAwareReplicaSelector"  # the last part of Kafka's class name


class ReplicaView(NamedTuple):
    """A replica that has the requested records."""

    broker_id: int
    rack: str | None
    log_end: int
    behind_ms: int  # when it was last known to have everything


def select_replica(rack: str, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int | None:
    """The follower to go to, or None to stay with the leader.

    The leader serves its own rack and racks without a replica. Other racks are served by their most
    caught-up replica.
    """
    near = [view for view in followers if view.rack == rack]
    if not rack or leader.rack == rack or not near:
        return None
    return max(near, key=lambda view: (view.log_end, -view.behind_ms, view.broker_id)).broker_id
