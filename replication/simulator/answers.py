"""What a broker may answer: nothing under another epoch than that of the request (I-31).

A request that names a leader epoch is answered by the leader of that epoch, or with an error: also
when the role changed while it was carried out, or waited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from checkpoints.types import TopicPartition
from replication.error_codes import ErrorCode
from replication.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    Request,
    Response,
)
from replication.simulator.cluster import SimCluster
from replication.state import UNKNOWN_EPOCH

Violated: TypeAlias = Callable[[str, TopicPartition, str], None]


class Answers:
    """Looks at every answer as it is given."""

    def __init__(self, cluster: SimCluster, violated: Violated) -> None:
        self._machines = cluster.machines
        self._violated = violated

    def given(self, broker_id: int, request: Request, response: Response | None) -> None:
        broker = self._machines[broker_id].broker
        if broker is None or response is None:
            return
        partitions = broker.replica_manager.partitions
        for tp, epoch in _answered(request, response):
            partition = partitions.get(tp)
            now = UNKNOWN_EPOCH if partition is None else partition.leader_epoch
            if epoch not in (UNKNOWN_EPOCH, now):
                self._violated(
                    "I-31", tp, f"b{broker_id} in epoch {now} answers a "
                    f"{type(request).__name__} of epoch {epoch}"
                )  # fmt: skip


def _answered(request: Request, response: Response) -> Iterator[tuple[TopicPartition, int]]:
    """Partitions that got an answer other than an error, and the epoch that was asked for."""
    answers: dict[TopicPartition, ErrorCode] = {}
    if isinstance(response, FetchResponse | ListOffsetsResponse | OffsetForLeaderEpochResponse):
        answers = {part.tp: part.error_code for part in response.partitions}
    if isinstance(request, FetchRequest | ListOffsetsRequest | OffsetForLeaderEpochRequest):
        for part in request.partitions:
            if answers.get(part.tp) is ErrorCode.NONE:
                yield part.tp, part.current_leader_epoch
