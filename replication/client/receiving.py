"""The core of a consumer: positions and fetches, driven by events.

A position is compared with the leader's log before a fetch under another leader epoch, and by every
fetch, which has the epoch of the last record that was read. So a truncation below the position, or
a topic that was created again, is noticed before a record is returned. The consumer then goes back
to where the logs diverge, or raises (KIP-320). It never skips a record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, CorruptBatchError, LogstoreError
from logstore.common.types import Record
from logstore.log.reading.fetching import EARLIEST
from replication.client.metadata import Metadata
from replication.client.positions import NO_REPLICA, FetchPosition, PositionStep
from replication.client.questions import Question, Questions
from replication.client.reactions import FETCH, ClientFetchReaction
from replication.client.sending import RETRY_BACKOFF
from replication.common.error_codes import ErrorCode
from replication.common.errors import BrokerUnavailableError, ReplicationError, error_for
from replication.common.messages import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    IsolationLevel,
    Response,
    TopicPartitionMetadata,
)
from replication.common.retrying import Backoff
from replication.common.runtime import Runtime
from replication.common.transport import Transport

MAX_BYTES = 50 << 20  # of one answer: Kafka's fetch.max.bytes
PREFERRED_REPLICA_MS = 300_000  # how long another replica is used: Kafka's metadata.max.age.ms
_PASSES = 8  # passes of one poll after its time, while each moves a position

Found: TypeAlias = list[tuple[TopicPartition, Record]]


class PollResult(NamedTuple):
    """``error`` is set only without records: earlier records are returned first."""

    records: Found
    error: LogstoreError | None = None


OnPolled: TypeAlias = Callable[[PollResult], None]


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The configuration of a consumer.

    ``reset`` is EARLIEST, LATEST or None. ``timeout_ms`` is how long a partition may fail before a
    poll ends with its error. ``rack_id`` is the rack of the consumer (KIP-392).
    """

    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    reset: int | None = EARLIEST
    max_bytes: int = 1 << 20
    timeout_ms: int = 30_000
    rack_id: str = ""
    backoff: Backoff = RETRY_BACKOFF

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ConfigError(f"max_bytes={self.max_bytes} is below 1")


@dataclass(slots=True, eq=False)
class _Poll:
    """One poll under way."""

    max_wait_ms: int
    on_done: OnPolled
    until_ms: int | None = None  # set at the first fetch: no wait before it
    found: Found = field(default_factory=list)
    error: LogstoreError | None = None
    open: int = 0  # requests without an answer
    stale: bool = False  # the leader may have changed, so refresh before the next pass
    passes: int = 0
    nodes: deque[tuple[int, list[TopicPartition]]] = field(default_factory=deque)


class ConsumerCore:
    """The core of a consumer.

    One poll at a time; call ``seek`` and ``positions`` from the polling code or from callbacks.
    Answers to requests from before a ``seek`` do not count.
    """

    def __init__(
        self,
        runtime: Runtime,
        transport: Transport,
        metadata: Metadata,
        partitions: Iterable[TopicPartition],
        config: ConsumerConfig,
    ) -> None:
        self._resets = config.reset is not None
        self.positions = {tp: FetchPosition(tp, resets=self._resets) for tp in partitions}
        self._runtime, self._transport, self._metadata = runtime, transport, metadata
        self._config = config
        self._actor = runtime.actor("consumer")
        self._poll: _Poll | None = None
        reset = EARLIEST if config.reset is None else config.reset
        self._questions = Questions(
            transport,
            self._actor,
            config.isolation,
            reset,
            self._not_answered,
            metadata.answer_timeout_ms,
        )

    def seek(self, tp: TopicPartition, offset: int | None) -> None:
        """Continue at an offset; None continues where ``reset`` says."""
        self.positions.setdefault(tp, FetchPosition(tp, resets=self._resets)).seek(offset)

    def poll(self, max_wait_ms: int, on_done: OnPolled) -> None:
        """Fetch records that are available or arrive within the time.

        ``on_done`` is called once.
        """
        self._actor.post(partial(self._begin, _Poll(max_wait_ms, on_done)))

    def _begin(self, poll: _Poll) -> None:
        if self._poll is not None:
            poll.on_done(PollResult([], ReplicationError("the consumer is polled already")))
            return
        self._poll = poll
        self._metadata.keep_fresh()
        if self.positions:
            self._advance(poll)
        else:
            self._finish(poll)

    def _finish(self, poll: _Poll, error: LogstoreError | None = None) -> None:
        self._poll = None
        # The next poll begins with another partition.
        if self.positions:
            first = next(iter(self.positions))
            self.positions[first] = self.positions.pop(first)
        poll.on_done(PollResult(poll.found, None if poll.found else error or poll.error))

    # -- before a fetch ------------------------------------------------------------------------

    def _advance(self, poll: _Poll) -> None:
        """Prepare every position for a fetch, then fetch."""
        if poll.error is not None:
            self._finish(poll)
            return
        now_ms = self._runtime.now_ms()
        topic_ids = self._metadata.view.topic_ids
        ready: dict[int, list[TopicPartition]] = {}
        questions: list[Question] = []
        lost: list[FetchPosition] = []
        for tp, position in self.positions.items():
            if position.retry_at_ms > now_ms:
                continue
            leader = self._metadata.leader(tp)
            if not isinstance(leader, TopicPartitionMetadata):
                lost.append(position)
                self._failed(position, leader)
                continue
            position.compare_metadata(topic_ids.get(tp.topic), leader.leader_epoch)
            if position.step is PositionStep.STOPPED:
                self._finish(poll, position.error)
                return
            if position.step is PositionStep.FETCH:
                ready.setdefault(self._node_of(position, leader, now_ms), []).append(tp)
            else:
                questions.append(Question(position, leader))
        if lost or questions:
            self._prepare(poll, lost, questions)
        elif ready:
            self._fetch(poll, ready, now_ms)
        else:
            self._pause(poll, now_ms)

    def _prepare(self, poll: _Poll, lost: list[FetchPosition], questions: list[Question]) -> None:
        """Find leaders and ask known ones. Check again when all have answered."""
        poll.open = 1  # so that immediate answers do not end it
        if lost:
            poll.open += 1
            self._metadata.refresh(
                lambda answered: self._actor.post(partial(self._refreshed, poll, lost))
            )
        if questions:
            poll.open += self._questions.ask_leaders(questions, partial(self._answered, poll))
        self._close_one(poll)

    def _failed(self, position: FetchPosition, error: LogstoreError) -> None:
        """Pause a position. If it fails for too long, the poll ends with the error."""
        now_ms = self._runtime.now_ms()
        pause_ms = self._config.backoff.delay_ms(position.failures + 1, self._runtime.random)
        position.failed(error, now_ms, pause_ms)
        if self._poll and now_ms - position.failing_since_ms >= self._config.timeout_ms:
            position.failing_since_ms = now_ms
            self._poll.error = error

    def _not_answered(self, position: FetchPosition, error: LogstoreError) -> None:
        self._failed(position, error)
        if self._poll is not None:
            self._poll.stale = True

    def _refreshed(self, poll: _Poll, lost: list[FetchPosition]) -> None:
        for position in lost:
            if isinstance(self._metadata.leader(position.tp), TopicPartitionMetadata):
                position.retry_at_ms = 0
        self._close_one(poll)

    def _answered(self, poll: _Poll, error: LogstoreError | None) -> None:
        poll.error = poll.error or error
        self._close_one(poll)

    def _close_one(self, poll: _Poll) -> None:
        poll.open -= 1
        if poll.open:
            return
        if poll.stale:
            poll.stale = False
            self._metadata.refresh(lambda answered: self._actor.post(partial(self._advance, poll)))
        else:
            self._advance(poll)

    def _pause(self, poll: _Poll, now_ms: int) -> None:
        """Wait, because all partitions have failed."""
        until_ms = min(position.retry_at_ms for position in self.positions.values())
        if poll.until_ms is not None:
            if now_ms >= poll.until_ms:
                self._finish(poll)
                return
            until_ms = min(until_ms, poll.until_ms)
        self._runtime.call_later(
            max(1, until_ms - now_ms), lambda: self._actor.post(partial(self._advance, poll))
        )

    # -- fetching ------------------------------------------------------------------------------

    @staticmethod
    def _node_of(position: FetchPosition, leader: TopicPartitionMetadata, now_ms: int) -> int:
        if position.preferred != NO_REPLICA and position.preferred_until_ms > now_ms:
            return position.preferred
        return leader.leader_id

    def _fetch(self, poll: _Poll, ready: dict[int, list[TopicPartition]], now_ms: int) -> None:
        if poll.until_ms is None:
            poll.until_ms = now_ms + poll.max_wait_ms
        poll.passes += 1
        poll.nodes = deque(ready.items())
        self._fetch_next(poll, False)

    def _fetch_next(self, poll: _Poll, again: bool) -> None:
        """Fetch from the next broker.

        At most one waits for records, and none after some are found.
        """
        if not poll.nodes:
            self._end_pass(poll, again)
            return
        now_ms = self._runtime.now_ms()
        assert poll.until_ms is not None
        wait_ms = 0 if poll.found else max(0, poll.until_ms - now_ms) // len(poll.nodes)
        node, tps = poll.nodes.popleft()
        config, parts = self._config, []
        for tp in tps:
            position = self.positions[tp]
            assert position.offset is not None
            parts.append(
                FetchPartition(
                    tp,
                    position.offset,
                    config.max_bytes,
                    position.leader_epoch,
                    position.epoch,
                    topic_id=position.topic_id,
                )
            )
        # After a failure the leader itself must answer, since it could name the replica that
        # failed.
        failing = any(self.positions[tp].failures for tp in tps)
        request = FetchRequest(
            tuple(parts),
            max_wait_ms=wait_ms,
            max_bytes=min(config.max_bytes * len(parts), max(config.max_bytes, MAX_BYTES)),
            isolation_level=config.isolation,
            rack_id="" if failing else config.rack_id,
        )
        self._transport.send(
            node,
            request,
            lambda response: self._actor.post(
                partial(self._fetched, poll, node, parts, again, response)
            ),
            wait_ms + self._metadata.answer_timeout_ms,
        )

    def _end_pass(self, poll: _Poll, again: bool) -> None:
        """End a pass over the brokers. ``again``: a position was moved or failed."""
        assert poll.until_ms is not None
        stopped = [p for p in self.positions.values() if p.step is PositionStep.STOPPED]
        if poll.found or poll.error is not None or not again:
            self._finish(poll)
        elif stopped:
            self._finish(poll, stopped[0].error)
        elif self._runtime.now_ms() < poll.until_ms or poll.passes < _PASSES:
            self._advance(poll)
        else:
            self._finish(poll)

    def _fetched(
        self,
        poll: _Poll,
        node: int,
        parts: list[FetchPartition],
        again: bool,
        response: Response | None,
    ) -> None:
        answers: dict[TopicPartition, FetchPartitionResponse] = {}
        code: ErrorCode | None = None
        if isinstance(response, FetchResponse):
            answers = {part.tp: part for part in response.partitions}
            code = None if response.error_code is ErrorCode.NONE else response.error_code
        stale = False
        for asked in parts:
            position = self.positions.get(asked.tp)
            if (
                position is None
                or position.step is not PositionStep.FETCH
                or position.offset != asked.fetch_offset
            ):
                continue  # moved since
            part = answers.get(asked.tp)
            of_leader = position.preferred != node
            if part is None:
                error = error_for(code) if code else BrokerUnavailableError(f"no answer of {node}")
                self._elsewhere(position, of_leader, error)
                again = stale = True
                continue
            match FETCH[part.error_code]:
                case ClientFetchReaction.DONE:
                    again |= self._take_answer(poll, position, asked, part, of_leader)
                case ClientFetchReaction.OUT_OF_RANGE if of_leader:
                    again = True
                    position.fall_out_of_range()
                case ClientFetchReaction.FAIL:
                    poll.error = error_for(part.error_code)
                    self._failed(position, poll.error)
                case reaction:
                    self._elsewhere(position, of_leader, error_for(part.error_code))
                    # The broker that is asked for metadata may not know it yet (KIP-951).
                    self._metadata.note_leader(asked.tp, part.current_leader, lambda: None)
                    again = True
                    stale |= reaction is ClientFetchReaction.REFRESH
        if stale:
            self._metadata.refresh(
                lambda answered: self._actor.post(partial(self._fetch_next, poll, again))
            )
        else:
            self._fetch_next(poll, again)

    def _elsewhere(self, position: FetchPosition, of_leader: bool, error: ReplicationError) -> None:
        """Read elsewhere after a pause, because a past leader may name the follower that just
        refused.
        """
        if not of_leader:
            position.preferred = NO_REPLICA
        self._failed(position, error)

    def _take_answer(
        self,
        poll: _Poll,
        position: FetchPosition,
        asked: FetchPartition,
        part: FetchPartitionResponse,
        of_leader: bool,
    ) -> bool:
        """Take an answer.

        Returns whether the position was moved or sent elsewhere, so that it may be fetched again.
        """
        if part.diverging_epoch is not None:
            if of_leader:
                position.compare(part.diverging_epoch)
            else:
                self._elsewhere(position, of_leader, error_for(ErrorCode.REPLICA_NOT_AVAILABLE))
            return True
        if part.preferred_read_replica != NO_REPLICA and of_leader:
            position.preferred = part.preferred_read_replica
            position.preferred_until_ms = self._runtime.now_ms() + PREFERRED_REPLICA_MS
            return True
        if part.records:
            try:
                records = position.take_records(asked, part, self._config.isolation)
            except CorruptBatchError as error:
                poll.error = error.located(str(asked.tp))
                self._failed(position, poll.error)
                return False
            poll.found += [(asked.tp, record) for record in records]
        position.succeeded()
        return False
