"""One question to the leader of a partition, repeated until it is answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from checkpoints.types import TopicPartition
from replication.client.metadata import Metadata
from replication.client.reactions import LIST_OFFSETS, AskReaction
from replication.client.sending import RETRY_BACKOFF
from replication.common.error_codes import ErrorCode
from replication.common.errors import BrokerUnavailableError, ReplicationError, error_for
from replication.common.messages import (
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Response,
    TopicPartitionMetadata,
)
from replication.common.runtime import Runtime
from replication.common.transport import Transport


class OffsetLookup:
    """A ``ListOffsets`` request for one partition.

    ``on_done`` gets the offset (−1: no such record), or the last error at the end of
    ``timeout_ms``.
    """

    def __init__(
        self,
        runtime: Runtime,
        transport: Transport,
        metadata: Metadata,
        tp: TopicPartition,
        timestamp: int,
        isolation: IsolationLevel,
        timeout_ms: int,
        on_done: Callable[[int | ReplicationError], None],
    ) -> None:
        self._runtime, self._transport, self._metadata = runtime, transport, metadata
        self._tp, self._timestamp, self._isolation = tp, timestamp, isolation
        self._deadline_ms = runtime.now_ms() + timeout_ms
        self._on_done = on_done
        self._actor = runtime.actor("offset-lookup")
        self._failures = 0

    def start(self) -> None:
        self._actor.post(self._attempt)

    def _attempt(self) -> None:
        leader = self._metadata.leader(self._tp)
        if not isinstance(leader, TopicPartitionMetadata):
            self._again(leader)
            return
        topic_id = self._metadata.view.topic_ids.get(self._tp.topic)
        part = ListOffsetsPartition(self._tp, self._timestamp, leader.leader_epoch, topic_id)
        request = ListOffsetsRequest((part,), isolation_level=self._isolation)
        self._transport.send(
            leader.leader_id,
            request,
            lambda response: self._actor.post(partial(self._answered, leader.leader_id, response)),
            self._metadata.answer_timeout_ms,
        )

    def _answered(self, node: int, response: Response | None) -> None:
        if not isinstance(response, ListOffsetsResponse):
            self._again(BrokerUnavailableError(f"no answer of broker {node}"))
            return
        (part,) = response.partitions
        if part.error_code is ErrorCode.NONE:
            self._on_done(part.offset)
            return
        error = error_for(part.error_code)
        if LIST_OFFSETS[part.error_code] is AskReaction.FAIL:
            self._on_done(error)
        else:
            self._again(error)

    def _again(self, error: ReplicationError) -> None:
        """Refresh metadata after a pause, then ask the leader again."""
        self._failures += 1
        left_ms = self._deadline_ms - self._runtime.now_ms()
        if left_ms <= 0:
            self._on_done(error)
            return
        pause_ms = RETRY_BACKOFF.delay_ms(self._failures, self._runtime.random)

        def attempt(answered: bool) -> None:
            self._actor.post(self._attempt)

        refresh = partial(self._metadata.refresh, attempt)
        self._runtime.call_later(min(pause_ms, left_ms), refresh)
