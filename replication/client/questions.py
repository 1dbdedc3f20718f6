"""Questions of a consumer to leaders before it may fetch: where to begin, whether the log still has
what was read, and where the log begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError, OffsetOutOfRangeError
from logstore.log.reading.fetching import EARLIEST, LATEST
from replication.client.positions import FetchPosition, PositionStep
from replication.client.reactions import QUESTION, AskReaction
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


class _AskedPosition(NamedTuple):
    """A position as it was when a leader was asked, and what takes the answer."""

    position: FetchPosition
    step: PositionStep
    offset: int | None
    apply: Callable[[FetchPosition, Any], LogstoreError | None]


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

    def ask_leaders(self, questions: list[Question], on_answered: OnAnswered) -> int:
        """Send the requests. Returns their number."""
        # A broker refuses a request that names a partition twice.
        lists: dict[tuple[int, int], list[tuple[_AskedPosition, ListOffsetsPartition]]] = {}
        epochs: dict[int, list[tuple[_AskedPosition, OffsetForLeaderPartition]]] = {}
        for position, leader in questions:
            tp, epoch, node = position.tp, leader.leader_epoch, leader.leader_id
            if position.step is PositionStep.VALIDATE:
                asked = _AskedPosition(position, position.step, position.offset, _validated)
                part = OffsetForLeaderPartition(tp, position.epoch, epoch, position.topic_id)
                epochs.setdefault(node, []).append((asked, part))
                continue
            for which in BOUNDS if position.step is PositionStep.BOUNDS else (self._reset,):
                apply = partial(_listed, which=which)
                asked = _AskedPosition(position, position.step, position.offset, apply)
                listed = ListOffsetsPartition(tp, which, epoch, position.topic_id)
                lists.setdefault((node, which), []).append((asked, listed))
        for (node, _), offsets in lists.items():
            parts = tuple(part for _, part in offsets)
            request = ListOffsetsRequest(parts, isolation_level=self._isolation)
            self._send(node, request, [asked for asked, _ in offsets], on_answered)
        for node, ends in epochs.items():
            wanted = OffsetForLeaderEpochRequest(tuple(part for _, part in ends))
            self._send(node, wanted, [asked for asked, _ in ends], on_answered)
        return len(lists) + len(epochs)

    def _send(
        self, node: int, request: Request, asked: list[_AskedPosition], on_answered: OnAnswered
    ) -> None:
        self._transport.send(
            node,
            request,
            lambda response: self._actor.post(
                partial(self._answered, node, asked, on_answered, response)
            ),
            self._timeout_ms,
        )

    def _answered(
        self,
        node: int,
        asked: list[_AskedPosition],
        on_answered: OnAnswered,
        response: Response | None,
    ) -> None:
        error: LogstoreError | None = None
        answers: dict[TopicPartition, Any] = {}
        if isinstance(response, ListOffsetsResponse | OffsetForLeaderEpochResponse):
            answers = {part.tp: part for part in response.partitions}
        for position, step, offset, apply in asked:
            if position.step is not step or position.offset != offset:
                continue  # moved since
            part = answers.get(position.tp)
            if part is not None and part.error_code is ErrorCode.NONE:
                error = apply(position, part) or error
            else:
                error = self._refused(position, node, part and part.error_code) or error
        on_answered(error)

    def _refused(
        self, position: FetchPosition, node: int, code: ErrorCode | None
    ) -> LogstoreError | None:
        """The error that ends the poll, if a retry would not help."""
        if code is None:
            self._on_failed(position, BrokerUnavailableError(f"no answer of broker {node}"))
            return None
        error = error_for(code)
        self._on_failed(position, error)
        return error if QUESTION[code] is AskReaction.FAIL else None


def _listed(
    position: FetchPosition, part: ListOffsetsPartitionResponse, which: int
) -> LogstoreError | None:
    if position.step is PositionStep.RESET:
        position.begin(part.offset)
        return None
    position.bounds[which] = part.offset
    if len(position.bounds) < len(BOUNDS):
        return None
    offset = position.offset or 0
    bounds = [position.bounds[each] for each in BOUNDS]
    position.begin(offset)  # a later poll may succeed
    return OffsetOutOfRangeError(str(position.tp), offset, *bounds)


def _validated(position: FetchPosition, part: OffsetForLeaderPartitionResponse) -> None:
    position.succeeded()
    position.compare(EpochEndOffset(part.leader_epoch, part.end_offset))
