"""Questions of a consumer to leaders before it may fetch: where to begin, whether the log still has
what was read, and where the log begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError, OffsetOutOfRangeError
from logstore.log.reading.fetching import EARLIEST, LATEST
from replication.client.positions import FetchPosition, NextStep
from replication.client.reactions import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, AskReaction
from replication.common.error_codes import ErrorCode
from replication.common.errors import BrokerUnavailableError, error_for
from replication.common.messages import (
    EpochEndOffset,
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResponse,
    Request,
    Response,
    TopicPartitionMetadata,
)
from replication.common.runtime import Actor
from replication.common.transport import Transport

BOUNDS = (EARLIEST, LATEST)


class Question(NamedTuple):
    position: FetchPosition
    leader: TopicPartitionMetadata


OnFailed = Callable[[FetchPosition, LogstoreError], None]
OnAnswered = Callable[[LogstoreError | None], None]


class Questions:
    """Asks for many positions with one request of each kind to each leader, on the consumer's
    actor.

    Args:
        on_failed: called with each position whose question was not answered.
        on_answered: called once for each request, with the error that ends the poll, or None.
    """

    def __init__(
        self,
        transport: Transport,
        actor: Actor,
        isolation: IsolationLevel,
        reset: int,
        on_failed: OnFailed,
        timeout_ms: int,
    ) -> None:
        self._transport, self._actor = transport, actor
        self._isolation, self._reset = isolation, reset
        self._on_failed, self._timeout_ms = on_failed, timeout_ms

    def ask(self, questions: list[Question], on_answered: OnAnswered) -> int:
        """Send the requests. Returns their number."""
        # A broker refuses a request that names a partition twice.
        lists: dict[tuple[int, int], list[tuple[FetchPosition, ListOffsetsPartition]]] = {}
        epochs: dict[int, list[tuple[FetchPosition, OffsetForLeaderPartition]]] = {}
        for position, leader in questions:
            tp, epoch, node = position.tp, leader.leader_epoch, leader.leader_id
            if position.step is NextStep.VALIDATE:
                part = OffsetForLeaderPartition(tp, position.epoch, epoch, position.topic_id)
                epochs.setdefault(node, []).append((position, part))
                continue
            for which in BOUNDS if position.step is NextStep.BOUNDS else (self._reset,):
                lists.setdefault((node, which), []).append(
                    (position, ListOffsetsPartition(tp, which, epoch, position.topic_id))
                )
        for (node, which), listed in lists.items():
            request = ListOffsetsRequest(
                tuple(part for _, part in listed), isolation_level=self._isolation
            )
            positions = [position for position, _ in listed]
            self._send(node, request, partial(self._listed, positions, which, node, on_answered))
        for node, compared in epochs.items():
            wanted = OffsetForLeaderEpochRequest(tuple(part for _, part in compared))
            before = [(position, position.offset) for position, _ in compared]
            self._send(node, wanted, partial(self._validated, before, node, on_answered))
        return len(lists) + len(epochs)

    def _send(self, node: int, request: Request, then: Callable[[Response | None], None]) -> None:
        self._transport.send(
            node,
            request,
            lambda response: self._actor.post(partial(then, response)),
            self._timeout_ms,
        )

    def _listed(
        self,
        positions: list[FetchPosition],
        which: int,
        node: int,
        on_answered: OnAnswered,
        response: Response | None,
    ) -> None:
        error: LogstoreError | None = None
        answers: dict[TopicPartition, ListOffsetsPartitionResponse] = {}
        if isinstance(response, ListOffsetsResponse):
            answers = {part.tp: part for part in response.partitions}
        for position in positions:
            if position.step not in (NextStep.RESET, NextStep.BOUNDS):
                continue  # moved since
            part = answers.get(position.tp)
            if part is None or part.error_code is not ErrorCode.NONE:
                code = None if part is None else part.error_code
                error = self._refused(position, node, code, LIST_OFFSETS) or error
            elif position.step is NextStep.RESET:
                position.begin(part.offset)
            else:
                position.bounds[which] = part.offset
                if len(position.bounds) == len(BOUNDS):
                    offset, name = position.offset or 0, str(position.tp)
                    bounds = [position.bounds[each] for each in BOUNDS]
                    error = OffsetOutOfRangeError(name, offset, *bounds)
                    position.begin(offset)  # a later poll may succeed
        on_answered(error)

    def _validated(
        self,
        before: list[tuple[FetchPosition, int | None]],
        node: int,
        on_answered: OnAnswered,
        response: Response | None,
    ) -> None:
        error: LogstoreError | None = None
        answers: dict[TopicPartition, OffsetForLeaderPartitionResponse] = {}
        if isinstance(response, OffsetForLeaderEpochResponse):
            answers = {part.tp: part for part in response.partitions}
        for position, offset in before:
            if position.step is not NextStep.VALIDATE or position.offset != offset:
                continue  # moved since
            part = answers.get(position.tp)
            if part is not None and part.error_code is ErrorCode.NONE:
                position.succeeded()
                position.compare(EpochEndOffset(part.leader_epoch, part.end_offset))
            else:
                code = None if part is None else part.error_code
                error = self._refused(position, node, code, OFFSET_FOR_LEADER_EPOCH) or error
        on_answered(error)

    def _refused(
        self,
        position: FetchPosition,
        node: int,
        code: ErrorCode | None,
        table: Mapping[ErrorCode, AskReaction],
    ) -> LogstoreError | None:
        """The error that ends the poll, if a retry would not help."""
        if code is None:
            self._on_failed(position, BrokerUnavailableError(f"no answer of broker {node}"))
            return None
        error = error_for(code)
        self._on_failed(position, error)
        return error if table[code] is AskReaction.FAIL else None
