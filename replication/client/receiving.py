"""The core of a consumer: positions, and fetches of what comes next, as events.

A position is compared with the leader's log before it is fetched from under another leader epoch,
and with every fetch, which carries the epoch of the last record that was read. So a log that was
truncated below the position, or a topic made anew, is noticed before a record of it is given out:
the consumer goes back to where the logs part, or says so (KIP-320). It never passes over a record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.errors import CorruptBatchError, LogstoreError, OffsetOutOfRangeError
from logstore.format.reader import iter_batches, read_records
from logstore.log.reading import EARLIEST, LATEST
from logstore.types import Record
from replication.client.metadata import ANSWER_TIMEOUT_MS, Metadata
from replication.client.positions import NO_REPLICA, Position, Step, diverging_offset
from replication.client.reactions import (
    FETCH,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    AskReaction,
    FetchReaction,
)
from replication.client.sending import ANSWER_GRACE_MS, RETRY_BACKOFF
from replication.error_codes import ErrorCode
from replication.errors import (
    BrokerUnavailableError,
    LogTruncationError,
    ReplicationError,
    TopicMadeAnewError,
    error_for,
)
from replication.messages import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResponse,
    PartitionMetadata,
    Response,
)
from replication.retrying import Backoff
from replication.runtime import Runtime
from replication.transport import Transport

logger = get_logger(__name__)

PREFERRED_REPLICA_MS = 300_000  # how long another replica is asked: Kafka's metadata.max.age.ms
_PASSES = 8  # of one poll, beyond its time, while each brings a position further

Found: TypeAlias = list[tuple[TopicPartition, Record]]


class PollResult(NamedTuple):
    """``error`` is set only without records: what was read before it comes first."""

    records: Found
    error: LogstoreError | None = None


OnPolled: TypeAlias = Callable[[PollResult], None]


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """``reset`` is EARLIEST, LATEST or None; ``timeout_ms`` how long a partition may fail in a row
    before a poll ends with its error; ``rack_id`` where the consumer is (KIP-392)."""

    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    reset: int | None = EARLIEST
    max_bytes: int = 1 << 20
    timeout_ms: int = 30_000
    rack_id: str = ""
    backoff: Backoff = RETRY_BACKOFF


class _Poll:
    """One poll under way."""

    __slots__ = ("error", "found", "max_wait_ms", "nodes", "on_done", "open", "passes", "until_ms")

    def __init__(self, max_wait_ms: int, on_done: OnPolled) -> None:
        self.max_wait_ms, self.on_done = max_wait_ms, on_done
        self.until_ms: int | None = None  # set at the first fetch: what comes before is not waiting
        self.found: Found = []
        self.error: LogstoreError | None = None
        self.open = 0  # requests without an answer
        self.passes = 0
        self.nodes: deque[tuple[int, list[TopicPartition]]] = deque()


class ConsumerCore:
    """See the module. One poll at a time; ``seek`` and ``positions`` are for whoever polls, or for
    callbacks. An answer to what was asked before a ``seek`` counts no more.
    """

    def __init__(
        self,
        runtime: Runtime,
        transport: Transport,
        metadata: Metadata,
        partitions: Iterable[TopicPartition],
        config: ConsumerConfig,
    ) -> None:
        self.positions: dict[TopicPartition, Position] = {tp: Position() for tp in partitions}
        self._runtime, self._transport, self._metadata = runtime, transport, metadata
        self._config = config
        self._actor = runtime.actor("consumer")
        self._poll: _Poll | None = None

    def seek(self, tp: TopicPartition, offset: int | None) -> None:
        """Read on from an offset; None: from where ``reset`` says."""
        self.positions.setdefault(tp, Position()).seek(offset)

    def poll(self, max_wait_ms: int, on_done: OnPolled) -> None:
        """Fetch what is there, or what comes within the time; ``on_done`` is told once."""
        self._actor.post(partial(self._begin, _Poll(max_wait_ms, on_done)))

    def _begin(self, poll: _Poll) -> None:
        if self._poll is not None:
            poll.on_done(PollResult([], ReplicationError("the consumer is polled already")))
            return
        self._poll = poll
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
        """Bring every position to where it can be fetched from, then fetch."""
        now_ms = self._runtime.now_ms()
        ready: dict[int, list[TopicPartition]] = {}
        asks: list[tuple[TopicPartition, Position, PartitionMetadata]] = []
        lost: list[TopicPartition] = []
        for tp, position in self.positions.items():
            if self._is_given_up(position, now_ms):
                self._finish(poll, position.last_error)
                return
            if position.retry_at_ms > now_ms:
                continue
            leader = self._metadata.leader(tp)
            if not isinstance(leader, PartitionMetadata):
                lost.append(tp)
                self._failed(position, leader)
                continue
            self._look_at(tp, position, leader)
            if position.step is Step.STOPPED:
                self._finish(poll, position.error)
                return
            if position.step is Step.FETCH:
                node = self._node_of(position, leader, now_ms)
                ready.setdefault(node, []).append(tp)
            else:
                asks.append((tp, position, leader))
        if lost:
            poll.open += 1
            self._metadata.refresh(
                lambda answered: self._actor.post(partial(self._refreshed, poll, lost))
            )
        if asks:
            self._ask(poll, asks)
        if lost or asks:
            return
        if ready:
            self._fetch(poll, ready, now_ms)
        else:
            self._pause(poll, now_ms)

    def _is_given_up(self, position: Position, now_ms: int) -> bool:
        if position.failures and now_ms - position.failing_since_ms >= self._config.timeout_ms:
            position.failing_since_ms = now_ms
            return True
        return False

    def _failed(self, position: Position, error: LogstoreError) -> None:
        pause_ms = self._config.backoff.delay_ms(position.failures + 1, self._runtime.random)
        position.failed(error, self._runtime.now_ms(), pause_ms)

    def _refreshed(self, poll: _Poll, lost: list[TopicPartition]) -> None:
        for tp in lost:
            if isinstance(self._metadata.leader(tp), PartitionMetadata) and tp in self.positions:
                self.positions[tp].retry_at_ms = 0
        self._asked(poll)

    def _pause(self, poll: _Poll, now_ms: int) -> None:
        """All partitions have failed and wait."""
        until_ms = min(position.retry_at_ms for position in self.positions.values())
        if poll.until_ms is not None:
            if now_ms >= poll.until_ms:
                self._finish(poll)
                return
            until_ms = min(until_ms, poll.until_ms)
        self._runtime.call_later(
            max(1, until_ms - now_ms), lambda: self._actor.post(partial(self._advance, poll))
        )

    def _look_at(self, tp: TopicPartition, position: Position, leader: PartitionMetadata) -> None:
        """Another topic of the same name, or another leadership?"""
        topic_id = self._metadata.view.topic_ids.get(tp.topic)
        if position.topic_id is None:
            position.topic_id = topic_id
        elif topic_id is not None and topic_id != position.topic_id:
            if position.offset is not None and self._config.reset is None:
                error = TopicMadeAnewError(tp, position.offset, position.topic_id, topic_id)
                position.stop(error)
                return
            logger.warning(
                "%s was deleted and made anew: position %s is given up", tp, position.offset
            )
            position.seek(None)
            position.topic_id = topic_id
        if leader.leader_epoch != position.leader_epoch:
            known, position.leader_epoch = position.leader_epoch >= 0, leader.leader_epoch
            position.preferred = NO_REPLICA
            if known and position.step is Step.FETCH and position.epoch >= 0:
                position.step = Step.VALIDATE

    def _ask(
        self, poll: _Poll, asks: list[tuple[TopicPartition, Position, PartitionMetadata]]
    ) -> None:
        """One request of a kind to each leader."""
        lists: dict[int, list[ListOffsetsPartition]] = {}
        epochs: dict[int, list[OffsetForLeaderPartition]] = {}
        for tp, position, leader in asks:
            epoch = leader.leader_epoch
            match position.step:
                case Step.VALIDATE:
                    parts = epochs.setdefault(leader.leader_id, [])
                    parts.append(OffsetForLeaderPartition(tp, position.epoch, epoch))
                case Step.BOUNDS:
                    lists.setdefault(leader.leader_id, []).extend(
                        ListOffsetsPartition(tp, which, epoch) for which in (EARLIEST, LATEST)
                    )
                case _:
                    which = EARLIEST if self._config.reset is None else self._config.reset
                    lists.setdefault(leader.leader_id, []).append(
                        ListOffsetsPartition(tp, which, epoch)
                    )
        poll.open += len(lists) + len(epochs)
        for node, asked in lists.items():
            self._transport.send(
                node, ListOffsetsRequest(tuple(asked), isolation_level=self._config.isolation),
                self._on_actor(self._listed, poll, node, {part.tp for part in asked}),
                ANSWER_TIMEOUT_MS,
            )  # fmt: skip
        for node, wanted in epochs.items():
            before = {part.tp: self.positions[part.tp].offset for part in wanted}
            self._transport.send(
                node, OffsetForLeaderEpochRequest(tuple(wanted)),
                self._on_actor(self._validated, poll, node, before), ANSWER_TIMEOUT_MS,
            )  # fmt: skip

    def _on_actor(
        self, handle: Callable[..., None], *arguments: object
    ) -> Callable[[Response | None], None]:
        return lambda response: self._actor.post(partial(handle, *arguments, response))

    def _asked(self, poll: _Poll) -> None:
        poll.open -= 1
        if not poll.open:
            self._advance(poll)

    def _listed(
        self, poll: _Poll, node: int, tps: set[TopicPartition], response: Response | None
    ) -> None:
        stale = False
        answers: dict[TopicPartition, list[ListOffsetsPartitionResponse]] = {}
        if isinstance(response, ListOffsetsResponse):
            for part in response.partitions:
                answers.setdefault(part.tp, []).append(part)
        for tp in tps:
            position = self.positions.get(tp)
            if position is None or position.step not in (Step.RESET, Step.BOUNDS):
                continue
            parts = answers.get(tp, [])
            code = next((p.error_code for p in parts if p.error_code is not ErrorCode.NONE), None)
            if not parts or code is not None:
                stale |= self._refused(poll, position, node, code, LIST_OFFSETS)
            elif position.step is Step.BOUNDS:
                offset, (start, end) = position.offset or 0, (parts[0].offset, parts[-1].offset)
                poll.error = OffsetOutOfRangeError(str(tp), offset, start, end)
                position.step = Step.FETCH
                position.succeeded()
            else:
                position.offset, position.step = parts[0].offset, Step.FETCH
                position.succeeded()
        self._settle(poll, stale)

    def _validated(
        self,
        poll: _Poll,
        node: int,
        before: dict[TopicPartition, int | None],
        response: Response | None,
    ) -> None:
        stale = False
        answers: dict[TopicPartition, OffsetForLeaderPartitionResponse] = {}
        if isinstance(response, OffsetForLeaderEpochResponse):
            answers = {part.tp: part for part in response.partitions}
        for tp, offset in before.items():
            position = self.positions.get(tp)
            if position is None or position.step is not Step.VALIDATE or position.offset != offset:
                continue
            part = answers.get(tp)
            if part is None or part.error_code is not ErrorCode.NONE:
                code = None if part is None else part.error_code
                stale |= self._refused(poll, position, node, code, OFFSET_FOR_LEADER_EPOCH)
                continue
            position.succeeded()
            self._compare(tp, position, EpochEndOffset(part.leader_epoch, part.end_offset))
        self._settle(poll, stale)

    def _settle(self, poll: _Poll, stale: bool) -> None:
        if poll.error is not None and not poll.found and poll.open == 1:
            self._finish(poll)
        elif stale:
            self._metadata.refresh(lambda answered: self._actor.post(partial(self._asked, poll)))
        else:
            self._asked(poll)

    def _refused(
        self,
        poll: _Poll,
        position: Position,
        node: int,
        code: ErrorCode | None,
        table: Mapping[ErrorCode, AskReaction],
    ) -> bool:
        """A question was not answered; whether that may be because another broker leads."""
        if code is None:
            self._failed(position, BrokerUnavailableError(f"no answer of broker {node}"))
            return True
        error = error_for(code)
        self._failed(position, error)
        if table[code] is AskReaction.FAIL:
            poll.error = error
        return True

    # -- findings ------------------------------------------------------------------------------

    def _compare(self, tp: TopicPartition, position: Position, answer: EpochEndOffset) -> None:
        """What the leader has of the epoch of our last record."""
        if answer.end_offset < 0 or answer.epoch < 0:
            self._truncated(tp, position, None)
            return
        diverging = diverging_offset(position, answer)
        if diverging is not None:
            self._truncated(tp, position, diverging)
        elif position.out_of_range:
            self._out_of_range(tp, position)
        else:
            position.step = Step.FETCH

    def _truncated(self, tp: TopicPartition, position: Position, diverging: int | None) -> None:
        offset = position.offset
        assert offset is not None
        position.out_of_range = False
        if self._config.reset is None:
            position.stop(LogTruncationError(tp, offset, diverging))
        elif diverging is None:
            logger.warning("%s was truncated: position %s is given up", tp, offset)
            position.seek(None)
        else:
            logger.warning(
                "%s was truncated: from position %s back to %s, where the logs part", tp, offset,
                diverging,
            )  # fmt: skip
            position.offset, position.step = diverging, Step.FETCH
            position.epochs.cut(diverging)

    def _out_of_range(self, tp: TopicPartition, position: Position) -> None:
        position.out_of_range = False
        if self._config.reset is None:
            position.step = Step.BOUNDS
        else:
            logger.warning("%s: position %s is out of range", tp, position.offset)
            position.seek(None)

    # -- fetching ------------------------------------------------------------------------------

    @staticmethod
    def _node_of(position: Position, leader: PartitionMetadata, now_ms: int) -> int:
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
        """Ask the next broker; at most one waits for records, and none after some are found."""
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
                    tp, position.offset, config.max_bytes, position.leader_epoch, position.epoch,
                    topic_id=position.topic_id,
                )
            )  # fmt: skip
        request = FetchRequest(
            tuple(parts), max_wait_ms=wait_ms, max_bytes=config.max_bytes * len(parts),
            isolation_level=config.isolation, rack_id=config.rack_id,
        )  # fmt: skip
        self._transport.send(
            node, request, self._on_actor(self._fetched, poll, node, parts, again),
            wait_ms + ANSWER_GRACE_MS,
        )  # fmt: skip

    def _end_pass(self, poll: _Poll, again: bool) -> None:
        """``again``: a position was moved, or failed; else there is nothing new."""
        assert poll.until_ms is not None
        stopped = [p for p in self.positions.values() if p.step is Step.STOPPED]
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
                or position.step is not Step.FETCH
                or position.offset != asked.fetch_offset
            ):
                continue  # moved by somebody since
            part = answers.get(asked.tp)
            of_leader = position.preferred != node
            if part is None:
                error = error_for(code) if code else BrokerUnavailableError(f"no answer of {node}")
                self._elsewhere(position, of_leader, error)
                again = stale = True
                continue
            match FETCH[part.error_code]:
                case FetchReaction.DONE:
                    again |= self._take(poll, position, asked, part, of_leader, node)
                case FetchReaction.OUT_OF_RANGE if of_leader:
                    again = True
                    position.out_of_range = True
                    if position.epoch >= 0:
                        position.step = Step.VALIDATE
                    else:
                        self._out_of_range(asked.tp, position)
                case FetchReaction.FAIL:
                    poll.error = error_for(part.error_code)
                    self._failed(position, poll.error)
                case reaction:
                    self._elsewhere(position, of_leader, error_for(part.error_code))
                    again = True
                    stale |= reaction is FetchReaction.REFRESH
        if stale:
            self._metadata.refresh(
                lambda answered: self._actor.post(partial(self._fetch_next, poll, again))
            )
        else:
            self._fetch_next(poll, again)

    def _elsewhere(self, position: Position, of_leader: bool, error: ReplicationError) -> None:
        """After a pause: a leader of the past sends back to the follower that has just refused."""
        if not of_leader:
            position.preferred = NO_REPLICA
        self._failed(position, error)

    def _take(
        self,
        poll: _Poll,
        position: Position,
        asked: FetchPartition,
        part: FetchPartitionResponse,
        of_leader: bool,
        node: int,
    ) -> bool:
        """Whether the position was sent elsewhere."""
        tp = asked.tp
        if part.diverging_epoch is not None:
            if of_leader:
                self._compare(tp, position, part.diverging_epoch)
            else:
                self._elsewhere(position, of_leader, error_for(ErrorCode.REPLICA_NOT_AVAILABLE))
            return True
        if part.preferred_read_replica not in (NO_REPLICA, node) and of_leader:
            position.preferred = part.preferred_read_replica
            position.preferred_until_ms = self._runtime.now_ms() + PREFERRED_REPLICA_MS
            return True
        try:
            if part.records:
                self._read(poll, position, asked, part)
        except CorruptBatchError as error:
            poll.error = error.located(str(tp))
            self._failed(position, poll.error)
            return False
        position.succeeded()
        return False

    def _read(
        self,
        poll: _Poll,
        position: Position,
        asked: FetchPartition,
        part: FetchPartitionResponse,
    ) -> None:
        """
        Raises:
            CorruptBatchError: a checksum is wrong, or an epoch, which no checksum covers.
        """
        offset = asked.fetch_offset
        committed = self._config.isolation is IsolationLevel.READ_COMMITTED
        end = part.last_stable_offset if committed else part.high_watermark
        aborted = [
            (t.producer_id, t.first_offset, t.last_offset) for t in part.aborted_transactions
        ]
        records = read_records(part.records, from_offset=offset, end_offset=end, aborted=aborted)
        # Beyond what is left out, too: control batches and aborted records.
        next_offset, highest = offset, asked.current_leader_epoch
        read: list[tuple[int, int]] = []
        for batch in iter_batches(part.records):
            if batch.base_offset >= end:
                break
            epoch = batch.leader_epoch
            if 0 <= highest < epoch:
                reason = f"leader epoch {epoch} above {highest}, that of the leader"
                raise CorruptBatchError("", batch.position, reason)
            read.append((epoch, max(batch.base_offset, offset)))
            next_offset = min(batch.last_offset + 1, end)
        for epoch, first in read:
            position.epochs.note(epoch, first)
        position.offset = max(offset, next_offset)
        poll.found += [(asked.tp, record) for record in records]
