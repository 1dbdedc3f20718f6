"""Whether the replicas of a topic are all in sync."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from checkpoints.types import TopicPartition
from replication.simulator.world.cluster import SimCluster


def not_in_sync(
    cluster: SimCluster,
    topic_id: uuid.UUID | None,
    replicas_of: Mapping[TopicPartition, tuple[int, ...]],
) -> str:
    """Say why the first partition is not in sync; empty if all are."""
    for tp, replicas in replicas_of.items():
        ends, leaders = set(), 0
        for broker_id in replicas:
            broker = cluster.machines[broker_id].broker
            partition = None if broker is None else broker.replica_manager.partitions.get(tp)
            if partition is None or partition.log is None:
                return f"{tp}: b{broker_id} has no replica"
            if partition.log.topic_id != topic_id:
                return f"{tp}: b{broker_id} has a log of topic {partition.log.topic_id}"
            leaders += partition.is_leader
            if partition.is_leader and len(partition.isr.committed) < len(replicas):
                return f"{tp}: not all are in the ISR {partition.isr.committed}"
            ends.add((partition.log.log_end_offset, partition.log.high_watermark))
        if leaders != 1:
            return f"{tp}: {leaders} brokers lead"
        if len(ends) > 1 or any(end != mark for end, mark in ends):
            return f"{tp}: log ends and high watermarks are {sorted(ends)}"
    return ""
