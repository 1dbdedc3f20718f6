"""Check that answers belong to the epoch and the topic id of their request (I-31).

A request with a leader epoch is answered by the leader of that epoch or with an error, even if the
role changed while it was processed or waited. A change of the ISR counts only for the topic whose
id it has, and not for a later topic of that name.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TypeAlias

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    Request,
    Response,
)
from replication.common.state import UNKNOWN_EPOCH
from replication.coordination import nodes
from replication.simulator.world.cluster import SimCluster

Violated: TypeAlias = Callable[[str, TopicPartition, str], None]


class Answers:
    """Checks every answer when it is given."""

    def __init__(self, cluster: SimCluster, violated: Violated) -> None:
        self._cluster = cluster
        self._machines = cluster.machines
        self._violated = violated

    def given(self, broker_id: int, request: Request, response: Response | None) -> None:
        broker = self._machines[broker_id].broker
        if broker is None or response is None:
            return
        if isinstance(request, AlterPartitionRequest):
            if isinstance(response, AlterPartitionResponse):
                self._look_at_changes(broker.controller.epoch, request, response)
            return
        partitions = broker.replica_manager.partitions
        for tp, epoch in _answered(request, response):
            partition = partitions.get(tp)
            now = UNKNOWN_EPOCH if partition is None else partition.leader_epoch
            if epoch not in (UNKNOWN_EPOCH, now):
                self._violated(
                    "I-31",
                    tp,
                    f"b{broker_id} in epoch {now} answers a "
                    f"{type(request).__name__} of epoch {epoch}",
                )

    def _look_at_changes(
        self, epoch: int, request: AlterPartitionRequest, response: AlterPartitionResponse
    ) -> None:
        """Check only the present controller. What a past one repeats is written already."""
        tree = self._cluster.coordinator.tree
        present = None if tree is None else tree.get(nodes.CONTROLLER_EPOCH)
        if present is None or nodes.decode_number(nodes.CONTROLLER_EPOCH, present.data) != epoch:
            return
        accepted = {part.tp for part in response.partitions if part.error_code is ErrorCode.NONE}
        for item in request.partitions:
            now = self._topic_id(item.tp.topic) if item.tp in accepted else None
            if now is not None and now != item.topic_id:
                self._violated(
                    "I-31", item.tp, f"a change of topic {item.topic_id} is accepted for {now}"
                )

    def _topic_id(self, name: str) -> uuid.UUID | None:
        tree = self._cluster.coordinator.tree
        node = None if tree is None else tree.get(nodes.topic_path(name))
        return None if node is None else nodes.decode_topic(name, node.data).topic_id


def _answered(request: Request, response: Response) -> Iterator[tuple[TopicPartition, int]]:
    """Partitions that were answered without an error, and the epoch in the request."""
    answers: dict[TopicPartition, ErrorCode] = {}
    if isinstance(response, FetchResponse | ListOffsetsResponse | OffsetForLeaderEpochResponse):
        answers = {part.tp: part.error_code for part in response.partitions}
    if isinstance(request, FetchRequest | ListOffsetsRequest | OffsetForLeaderEpochRequest):
        for part in request.partitions:
            if answers.get(part.tp) is ErrorCode.NONE:
                yield part.tp, part.current_leader_epoch
