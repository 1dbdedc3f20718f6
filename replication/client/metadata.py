"""A client's metadata: the leaders of partitions (Kafka's ``Metadata``)."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from replication.client.reactions import METADATA, AskReaction
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    LeaderNotAvailableError,
    ReplicationError,
    UnknownPartitionError,
    error_for,
)
from replication.common.messages import (
    MetadataRequest,
    MetadataResponse,
    Response,
    TopicPartitionMetadata,
)
from replication.common.runtime import Actor, Runtime
from replication.common.state import NO_LEADER
from replication.common.transport import Transport

logger = get_logger(__name__)

ANSWER_TIMEOUT_MS = 1000  # of requests that are answered at once, without a network between
MAX_AGE_MS = 300_000  # Kafka's metadata.max.age.ms

T = TypeVar("T")


class ClusterView(NamedTuple):
    """The content of one answer. Immutable."""

    partitions: Mapping[TopicPartition, TopicPartitionMetadata] = {}
    topic_ids: Mapping[str, uuid.UUID | None] = {}
    controller_id: int = NO_LEADER  # −1: none or unknown
    topic_errors: Mapping[str, ErrorCode] = {}


class Metadata:
    """Requests metadata from brokers in turn, one request at a time. Thread-safe.

    A broker that is cut off has old metadata. So each request goes to another broker, and an entry
    with a higher leader epoch stays.

    Attributes:
        view: the present metadata, replaced by each answer.
        answer_timeout_ms: timeout of requests that are answered at once.
    """

    def __init__(
        self,
        runtime: Runtime,
        transport: Transport,
        brokers: Callable[[], Sequence[int]],
        max_age_ms: int = MAX_AGE_MS,
        *,
        answer_timeout_ms: int = ANSWER_TIMEOUT_MS,
        only_wanted: bool = False,
        may_create: bool = False,
    ) -> None:
        """
        Args:
            brokers: returns the brokers to ask.
            max_age_ms: for ``keep_fresh``.
            only_wanted: ask for topics that a caller has named, not for all of the cluster.
            may_create: let the broker make those that are missing, if it is configured so.
        """
        self.view = ClusterView()
        self.answer_timeout_ms = answer_timeout_ms
        self._wanted: dict[str, None] | None = {} if only_wanted else None
        self._may_create = may_create
        self._runtime = runtime
        self._max_age_ms = max_age_ms
        self._asked_ms = runtime.now_ms()
        self._brokers = brokers
        self._transport = transport
        self._actor = runtime.actor("client-metadata")
        self._asked = 0
        self._waiting: deque[Callable[[bool], None]] = deque()

    def brokers(self) -> list[int]:
        """The brokers to ask; none if the caller's function fails."""
        try:
            return list(self._brokers())
        except Exception:  # an error of the caller's code; waiting calls still need an answer
            logger.exception("no broker addresses could be had")
            return []

    def keep_fresh(self) -> None:
        """Refresh old metadata although nothing failed, because a topic may have more partitions.

        No call waits for the answer.
        """
        if self._runtime.now_ms() - self._asked_ms >= self._max_age_ms:
            self._asked_ms = self._runtime.now_ms()
            self.refresh(lambda answered: None)

    def refresh(self, on_done: Callable[[bool], None]) -> None:
        """Ask brokers until one answers. ``on_done`` gets whether one did, on any thread."""
        self._actor.post(partial(self._refresh, on_done))

    def _refresh(self, on_done: Callable[[bool], None]) -> None:
        self._waiting.append(on_done)
        if len(self._waiting) > 1:
            return
        brokers = self.brokers()
        self._asked_ms = self._runtime.now_ms()
        self._asked += 1
        first = self._asked % max(1, len(brokers))
        self._ask_next(brokers[first:] + brokers[:first])

    def _ask_next(self, brokers: list[int]) -> None:
        if not brokers:
            self._finish(False)
            return

        def on_reply(response: Response | None) -> None:
            self._actor.post(partial(self._answered, brokers[1:], response))

        topics = None if self._wanted is None else tuple(self._wanted)
        request = MetadataRequest(topics, self._may_create)
        self._transport.send(brokers[0], request, on_reply, self.answer_timeout_ms)

    def _answered(self, others: list[int], response: Response | None) -> None:
        # A broker without brokers in its answer has just started, and knows nothing yet.
        if not isinstance(response, MetadataResponse) or not response.brokers:
            self._ask_next(others)
            return
        known = self.view
        partitions = {p.tp: _newer(known, p, response.topic_ids) for p in response.partitions}
        self.view = ClusterView(
            partitions, response.topic_ids, response.controller_id, response.topic_errors
        )
        self._finish(True)

    def _finish(self, answered: bool) -> None:
        waiting, self._waiting = self._waiting, deque()
        call_all(self._actor, waiting, answered)

    def note_leader(
        self, tp: TopicPartition, hint: tuple[int, int], on_learned: Callable[[], None]
    ) -> bool:
        """Note the leader (id, leader epoch) that a broker named which does not lead (KIP-951).

        True if that is new; then ``on_learned`` is called. Leader epochs rise, so brokers that name
        each other cannot cause a loop.
        """
        leader_id, leader_epoch = hint
        known = self.view.partitions.get(tp)
        if known is None or leader_id == NO_LEADER or leader_epoch <= known.leader_epoch:
            return False
        self._actor.post(partial(self._set_leader, tp, leader_id, leader_epoch, on_learned))
        return True

    def _set_leader(
        self, tp: TopicPartition, leader_id: int, leader_epoch: int, on_learned: Callable[[], None]
    ) -> None:
        view = self.view
        known = view.partitions.get(tp)
        if known is not None and leader_epoch > known.leader_epoch:
            newer = known._replace(
                error_code=ErrorCode.NONE, leader_id=leader_id, leader_epoch=leader_epoch
            )
            self.view = view._replace(partitions={**view.partitions, tp: newer})
        on_learned()

    def want(self, topic: str) -> None:
        """Ask for this topic, too, from the next request on."""
        if self._wanted is not None:
            self._wanted[topic] = None

    def refusal(self, topic: str) -> ReplicationError | None:
        """Say why there is no such topic for this client, if that will not change."""
        code = self.view.topic_errors.get(topic, ErrorCode.NONE)
        return error_for(code, topic) if METADATA[code] is AskReaction.FAIL else None

    def leader(self, tp: TopicPartition) -> TopicPartitionMetadata | ReplicationError:
        """The metadata of a partition with a leader, or why it is not available."""
        found = self.view.partitions.get(tp)
        if found is None:
            self.want(tp.topic)
            return self.refusal(tp.topic) or UnknownPartitionError(f"{tp} is not known")
        if found.error_code is ErrorCode.NONE and found.leader_id != NO_LEADER:
            return found
        if METADATA[found.error_code] is AskReaction.FAIL:
            return error_for(found.error_code)
        if found.leader_id == NO_LEADER:
            return LeaderNotAvailableError(f"{tp} has no leader")
        return found


def call_all(actor: Actor, waiting: deque[Callable[[T], None]], value: T) -> None:
    """Call all waiting callbacks on ``actor``. One that raises does not stop the others."""
    try:
        while waiting:
            waiting.popleft()(value)
    finally:
        if waiting:
            actor.post(partial(call_all, actor, waiting, value))


def _newer(
    known: ClusterView, found: TopicPartitionMetadata, topic_ids: Mapping[str, uuid.UUID | None]
) -> TopicPartitionMetadata:
    topic, before = found.tp.topic, known.partitions.get(found.tp)
    same = known.topic_ids.get(topic) == topic_ids.get(topic)
    if before is not None and same and before.leader_epoch > found.leader_epoch:
        return before
    return found
