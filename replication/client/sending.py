"""The core of a producer: it sends batches to the leaders of their partitions, driven by events.

Every partition has a *lane*. A lane of an idempotent producer has one batch under way at a time. So
a sequence number is assigned when all before it are settled, and is never used for a second batch.
After an outcome that stayed unknown the lane continues with the next producer epoch from sequence 0
(KIP-360), and the broker refuses a late copy of the earlier batch. Epochs are counted for each
partition, as in brokers.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from logstore.common.types import Buffer
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.header import add_sequence, set_producer
from replication.client.metadata import Metadata, call_all
from replication.client.reactions import PRODUCE, ProduceReaction
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    BrokerUnavailableError,
    LeaderNotAvailableError,
    ReplicationError,
    RequestTimedOutError,
    error_for,
)
from replication.common.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    Response,
    TopicPartitionMetadata,
)
from replication.common.retrying import Backoff
from replication.common.runtime import Runtime, Task
from replication.common.state import UNKNOWN_EPOCH
from replication.common.transport import Transport

logger = get_logger(__name__)

MAX_PRODUCER_EPOCH = 2**15 - 1
ID_TIMEOUT_MS = 5000  # of a question for an id: the broker may need the coordinator
ANSWER_GRACE_MS = 1000  # in addition to the time that a request itself may take
RETRY_BACKOFF = Backoff(10, 1000)


OnProducerId = Callable[["int | ReplicationError"], None]


class ProducerIds:
    """The id of one producer, requested at its first use and again when all its epochs are used.

    A lost answer only wastes an id. Thread-safe; ``on_done`` is called on any thread.
    """

    def __init__(self, runtime: Runtime, transport: Transport, metadata: Metadata) -> None:
        self._actor = runtime.actor("client-producer-id")
        self._transport, self._metadata = transport, metadata
        self._current: int | None = None
        self._waiting: deque[OnProducerId] = deque()
        self._asked = 0

    def get(self, on_done: OnProducerId, *, used_up: int | None = None) -> None:
        """Get an id other than ``used_up``, or the reason why there is none now."""
        self._actor.post(partial(self._get, on_done, used_up))

    def _get(self, on_done: OnProducerId, used_up: int | None) -> None:
        if self._current is not None and self._current != used_up:
            on_done(self._current)
            return
        self._waiting.append(on_done)
        if len(self._waiting) > 1:
            return
        brokers = self._metadata.brokers()
        if not brokers:
            self._finish(BrokerUnavailableError("no broker is known"))
            return
        broker_id = brokers[self._asked % len(brokers)]
        self._asked += 1

        def on_reply(response: Response | None) -> None:
            self._actor.post(partial(self._answered, broker_id, response))

        self._transport.send(broker_id, InitProducerIdRequest(), on_reply, ID_TIMEOUT_MS)

    def _answered(self, broker_id: int, response: Response | None) -> None:
        if not isinstance(response, InitProducerIdResponse):
            self._finish(BrokerUnavailableError(f"no answer of broker {broker_id}"))
            return
        if response.error_code is ErrorCode.NONE:
            self._current = response.producer_id
            self._finish(response.producer_id)
        else:
            self._finish(error_for(response.error_code, response.error_message))

    def _finish(self, result: int | ReplicationError) -> None:
        waiting, self._waiting = self._waiting, deque()
        call_all(self._actor, waiting, result)


class Outcome(Enum):
    """The final knowledge of a producer about a batch."""

    ACKNOWLEDGED = "acknowledged"
    NOT_WRITTEN = "not written"
    UNKNOWN = "unknown"  # it may be in the log now or a little later, once


class Stamp(NamedTuple):
    """The producer of a batch, and its place in the sequence."""

    producer_id: int
    epoch: int
    base_sequence: int


class SendResult(NamedTuple):
    """The result of one batch. ``error`` is set unless it was acknowledged.

    ``base_offset`` is −1 with acks=0, and if the broker has the batch but has forgotten its offset.
    """

    outcome: Outcome
    base_offset: int = -1
    error: ReplicationError | None = None
    stamp: Stamp | None = None


OnSent = Callable[[SendResult], None]


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Kafka's ``acks``, ``enable.idempotence``, ``delivery.timeout.ms``, ``request.timeout.ms``.

    ``producer_id`` is the caller's own id, which must never have been used elsewhere.

    Raises:
        ConfigError: a value is out of range, or an idempotent producer has no acks=all (−1), as in
            Kafka.
    """

    acks: int = -1
    idempotent: bool = False
    producer_id: int | None = None
    delivery_timeout_ms: int = 30_000
    request_timeout_ms: int = 10_000
    compression: Compression = Compression.NONE
    backoff: Backoff = RETRY_BACKOFF

    def __post_init__(self) -> None:
        own = self.producer_id
        if own is not None and not (type(own) is int and 0 <= own < 2**63):
            raise ConfigError(f"producer_id={own} is not an integer in [0, 2^63)")
        if self.request_timeout_ms < 0:
            raise ConfigError(f"request_timeout_ms={self.request_timeout_ms} is negative")
        if self.is_idempotent and self.acks != -1:
            raise ConfigError(f"an idempotent producer needs acks=-1 (all), not {self.acks}")

    @property
    def is_idempotent(self) -> bool:
        return self.idempotent or self.producer_id is not None


def _at_once(task: Task) -> None:
    task()


@dataclass(slots=True, eq=False)
class _Send:
    """One batch on its way."""

    batch: Buffer
    record_count: int
    deadline_ms: int
    on_sent: OnSent
    owned: bool  # ``batch`` has no other owner, so it may be stamped in place
    stamp: Stamp | None = None
    failures: int = 0
    may_be_written: bool = False
    last_error: ReplicationError | None = None


class ProducerCore:
    """The core of a producer. Any thread may send.

    ``on_sent`` is called once for each batch, on an actor of ``runtime`` (on any thread with the
    blocking ``Producer``), and must be short.
    """

    def __init__(
        self, runtime: Runtime, transport: Transport, metadata: Metadata, config: ProducerConfig
    ) -> None:
        self.runtime, self.transport, self.metadata = runtime, transport, metadata
        self.config = config
        self.ids: ProducerIds | None = None
        if config.idempotent and config.producer_id is None:
            self.ids = ProducerIds(runtime, transport, metadata)
        self._lanes: dict[TopicPartition, _Lane] = {}

    def send(self, tp: TopicPartition, records: Sequence[tuple[Any, ...]], on_sent: OnSent) -> None:
        """Send records as one batch; ``(key, value[, timestamp_ms[, headers]])`` each.

        Raises:
            InvalidRecordError: a record is malformed. Nothing is sent.
        """
        now_ms = self.runtime.clock.wall_ms()
        compression = self.config.compression
        batch = encode_batch(records, compression=compression, default_timestamp=now_ms)
        self._submit(tp, batch, len(records), on_sent, owned=True)

    def send_encoded(
        self, tp: TopicPartition, batch: Buffer, record_count: int, on_sent: OnSent
    ) -> None:
        """Send an encoded batch, which must not change before ``on_sent``."""
        self._submit(tp, batch, record_count, on_sent, owned=False)

    def _submit(
        self, tp: TopicPartition, batch: Buffer, record_count: int, on_sent: OnSent, *, owned: bool
    ) -> None:
        self.metadata.keep_fresh()
        lane = self._lanes.get(tp)
        if lane is None:
            lane = self._lanes.setdefault(tp, _Lane(tp, self))  # one operation, on any thread
        deadline_ms = self.runtime.now_ms() + self.config.delivery_timeout_ms
        lane.submit(_Send(batch, record_count, deadline_ms, on_sent, owned))


class _Lane:
    """The batches to one partition.

    For an idempotent producer they keep their order, and everything except ``submit`` runs on an
    actor.
    """

    def __init__(self, tp: TopicPartition, core: ProducerCore) -> None:
        self._tp = tp
        self._runtime, self._transport = core.runtime, core.transport
        self._metadata, self._config, self._ids = core.metadata, core.config, core.ids
        self._idempotent = core.config.is_idempotent
        # Without idempotence batches are independent, and each has one event at a time.
        self._post: Callable[[Task], None] = (
            core.runtime.actor(f"producer {tp}").post if self._idempotent else _at_once
        )
        self._queue: deque[_Send] = deque()
        self._busy = False
        # The stamp of the next batch; None: another producer id is needed.
        own = core.config.producer_id
        self._next: Stamp | None = None if own is None else Stamp(own, 0, 0)
        self._used_up: int | None = None
        self._topic_id: uuid.UUID | None = None  # topic and leader of the last attempt
        self._leader_epoch = UNKNOWN_EPOCH
        self._last: TopicPartitionMetadata | None = None
        self._fenced: ReplicationError | None = None

    def submit(self, send: _Send) -> None:
        if self._idempotent:
            self._post(partial(self._submitted, send))
        else:
            self._attempt(send)

    def _submitted(self, send: _Send) -> None:
        if self._busy:
            self._queue.append(send)
        else:
            self._busy = True
            self._attempt(send)

    # -- one batch -----------------------------------------------------------------------------

    def _attempt(self, send: _Send) -> None:
        """Send a batch, or find out what is missing for that."""
        left_ms = send.deadline_ms - self._runtime.now_ms()
        if left_ms <= 0:
            self._expire(send)
            return
        leader = self._leader()
        if not isinstance(leader, TopicPartitionMetadata):
            self._not_yet(send, leader)
            return
        if self._idempotent and send.stamp is None and not self._stamp(send):
            return
        config = self._config
        timeout_ms = config.request_timeout_ms
        request = ProduceRequest(config.acks, timeout_ms, (ProducePartition(self._tp, send.batch),))
        post, answered = self._post, self._answered
        self._transport.send(
            leader.leader_id,
            request,
            lambda response: post(partial(answered, send, leader.leader_id, response)),
            min(timeout_ms + ANSWER_GRACE_MS, left_ms),
        )

    def _leader(self) -> TopicPartitionMetadata | ReplicationError:
        """The leader, never one with a lower leader epoch than the last: it may lack what a later
        one has.
        """
        found = self._metadata.leader(self._tp)
        if found is self._last or not isinstance(found, TopicPartitionMetadata):
            return found
        topic_id = self._metadata.view.topic_ids.get(self._tp.topic)
        if topic_id != self._topic_id:
            self._topic_id, self._leader_epoch = topic_id, found.leader_epoch
        elif found.leader_epoch < self._leader_epoch:
            return LeaderNotAvailableError(f"{self._tp}: only an earlier leader is known")
        self._leader_epoch, self._last = found.leader_epoch, found
        return found

    def _stamp(self, send: _Send) -> bool:
        """Give a batch its place in the sequence. False if that must wait for a producer id."""
        if self._fenced is not None:
            self._end(send, SendResult(self._outcome(send), error=self._fenced))
            return False
        stamp = self._next
        if stamp is None:
            assert self._ids is not None
            self._ids.get(
                lambda found: self._post(partial(self._on_producer_id, send, found)),
                used_up=self._used_up,
            )
            return False
        # A copy, unless the bytes have no other owner: a late message must not change.
        batch = send.batch if send.owned else bytearray(send.batch)
        assert isinstance(batch, bytearray)
        if batch:  # no batch: the broker says what is wrong
            set_producer(batch, *stamp)
        send.batch, send.stamp, send.owned = batch, stamp, False
        self._next = stamp._replace(
            base_sequence=add_sequence(stamp.base_sequence, send.record_count)
        )
        return True

    def _on_producer_id(self, send: _Send, found: int | ReplicationError) -> None:
        if isinstance(found, ReplicationError):
            self._not_yet(send, found)
        else:
            self._next = Stamp(found, 0, 0)
            self._attempt(send)

    def _answered(self, send: _Send, leader_id: int, response: Response | None) -> None:
        if not isinstance(response, ProduceResponse):
            send.may_be_written = True
            self._not_yet(send, BrokerUnavailableError(f"no answer of broker {leader_id}"))
            return
        (part,) = response.partitions
        code = part.error_code
        if code is ErrorCode.NONE:  # before the table, because only this one must be fast
            offset = -1 if self._config.acks == 0 else part.base_offset
            self._end(send, SendResult(Outcome.ACKNOWLEDGED, offset, stamp=send.stamp))
            return
        error = error_for(code, part.error_message)
        match PRODUCE[code]:
            case ProduceReaction.DUPLICATE:
                self._end(send, SendResult(Outcome.ACKNOWLEDGED, stamp=send.stamp))
            case ProduceReaction.REFUSED:
                self._again(send, part, error)
            case ProduceReaction.UNKNOWN:
                send.may_be_written = True
                self._again(send, part, error)
            case ProduceReaction.NEW_EPOCH if send.stamp is not None:
                self._begin_epoch(send, error)
            case ProduceReaction.FENCED if send.stamp is not None:
                self._on_fenced(send, error)
            case ProduceReaction.FAIL | ProduceReaction.NEW_EPOCH | ProduceReaction.FENCED:
                self._fail(send, error)
            case _:
                send.may_be_written = True
                self._fail(send, error)

    def _again(self, send: _Send, part: ProducePartitionResponse, error: ReplicationError) -> None:
        """Retry at once with the leader that the answer names, or else after a pause."""
        send.last_error = error
        if self._config.acks == 0:  # no caller waits, but the next batch should find the leader
            self._metadata.refresh(lambda answered: None)
            self._end(send, SendResult(Outcome.UNKNOWN))
        elif not self._metadata.note_leader(
            self._tp,
            part.current_leader,
            lambda: self._post(partial(self._attempt, send)),
        ):
            self._not_yet(send, error)

    def _not_yet(self, send: _Send, error: ReplicationError) -> None:
        """Refresh metadata after a pause, and then send again."""
        send.last_error = error
        send.failures += 1
        left_ms = send.deadline_ms - self._runtime.now_ms()
        if left_ms <= 0:
            self._expire(send)
            return
        pause_ms = self._config.backoff.delay_ms(send.failures, self._runtime.random)

        def attempt(answered: bool) -> None:
            self._post(partial(self._attempt, send))

        self._runtime.call_later(min(pause_ms, left_ms), lambda: self._metadata.refresh(attempt))

    # -- the sequence --------------------------------------------------------------------------

    def _begin_epoch(self, send: _Send, error: ReplicationError) -> None:
        """Begin a new producer epoch, because the leader has lost earlier batches and so does not
        have this one: earlier attempts went to it or to leaders of lower epochs. Once it knows the
        new epoch, it refuses late copies of the old one.
        """
        assert send.stamp is not None
        logger.warning(
            "%s: sequence %s of producer %s epoch %s is out of order: on under the next epoch",
            self._tp,
            send.stamp.base_sequence,
            send.stamp.producer_id,
            send.stamp.epoch,
        )
        self._bump(send.stamp)
        send.stamp = None
        self._not_yet(send, error)

    def _bump(self, stamp: Stamp) -> None:
        if stamp.epoch < MAX_PRODUCER_EPOCH:
            self._next = Stamp(stamp.producer_id, stamp.epoch + 1, 0)
        elif self._ids is not None:
            self._next, self._used_up = None, stamp.producer_id
        else:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
            self._fenced = error_for(code, f"producer {stamp.producer_id} has used all its epochs")

    def _on_fenced(self, send: _Send, error: ReplicationError) -> None:
        assert send.stamp is not None
        if self._ids is None:
            self._fenced = error  # the id belongs to another producer now
        else:
            self._next, self._used_up = None, send.stamp.producer_id
        self._end(send, SendResult(self._outcome(send), error=error, stamp=send.stamp))

    # -- the end of one batch ------------------------------------------------------------------

    def _expire(self, send: _Send) -> None:
        error = send.last_error or RequestTimedOutError(f"{self._tp}: not sent in time")
        self._fail(send, error)

    def _fail(self, send: _Send, error: ReplicationError) -> None:
        if send.stamp is not None:
            self._bump(send.stamp)
        self._end(send, SendResult(self._outcome(send), error=error, stamp=send.stamp))

    @staticmethod
    def _outcome(send: _Send) -> Outcome:
        return Outcome.UNKNOWN if send.may_be_written else Outcome.NOT_WRITTEN

    def _end(self, send: _Send, result: SendResult) -> None:
        if self._queue:
            self._post(partial(self._attempt, self._queue.popleft()))
        else:
            self._busy = False
        send.on_sent(result)
