"""Blocking clients over the cores, for services and tests."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

from checkpoints.types import TopicPartition
from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import ConfigError, InvalidRecordError
from logstore.common.forks import Ownership, free_in_child
from logstore.common.partitioner import Partitioner, partitioner
from logstore.common.types import Buffer, Record
from logstore.format.codecs.compression import Compression
from logstore.format.header import BatchHeader
from logstore.format.reader import parse_batch
from logstore.log.reading.fetching import EARLIEST, LATEST
from replication.client.inline import InlineRuntime
from replication.client.metadata import MAX_AGE_MS, Metadata
from replication.client.reactions import QUESTION, AskReaction
from replication.client.receiving import ConsumerConfig, ConsumerCore, OnPolled, PollResult
from replication.client.sending import (
    ANSWER_GRACE_MS,
    RETRY_BACKOFF,
    ProducerConfig,
    ProducerCore,
    ProducerIds,
    SendResult,
)
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    BrokerUnavailableError,
    ReplicationError,
    RequestTimedOutError,
    UnknownPartitionError,
    error_for,
)
from replication.common.messages import (
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    Request,
    Response,
    TopicPartitionMetadata,
)
from replication.common.runtime import Runtime
from replication.common.transport import OnReply, Transport

_PATIENCE_S = 60.0  # after the latest answer of a core, which would be a bug

_RESETS = {"earliest": EARLIEST, "latest": LATEST, None: None}

C = TypeVar("C")
K = TypeVar("K")
R = TypeVar("R")
T = TypeVar("T")


def _chosen(name: str, choice: K, choices: Mapping[K, C]) -> C:
    if choice not in choices:
        raise ConfigError(f"{name}={choice} is none of {', '.join(map(str, choices))}")
    return choices[choice]


def _milliseconds(name: str, seconds: float) -> int:
    if not math.isfinite(seconds):
        raise ConfigError(f"{name}={seconds} is not finite")
    return int(seconds * 1000)


class RecordMetadata(NamedTuple):
    """The place of an acknowledged batch. The offset is −1 with acks=0."""

    tp: TopicPartition
    base_offset: int
    record_count: int


class _AwaitedAnswer(Generic[T]):
    """An answer that one thread waits for and another sets."""

    __slots__ = ("_there", "_value")

    def __init__(self) -> None:
        self._there = threading.Lock()  # half the cost of an Event
        self._there.acquire()
        self._value: list[T] = []

    def put(self, value: T) -> None:
        self._value.append(value)
        self.wake()

    def wake(self) -> None:
        """Wake the waiting thread. No value means no answer."""
        with suppress(RuntimeError):  # woken already
            self._there.release()

    def get(self, timeout_s: float) -> T:
        """The value. A wait that Ctrl-C ended may be repeated."""
        limit_s = min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
        if not self._value and not self._there.acquire(timeout=limit_s):
            raise BrokerUnavailableError(f"no answer for {timeout_s:.0f} s")
        if not self._value:
            raise BrokerUnavailableError("the client was closed")
        return self._value[0]


class Client:
    """Sends requests and waits for answers, and caches metadata. Thread-safe.

    ``close``, or the end of a ``with`` block, ends every waiting call, here and in every
    ``Producer`` and ``Consumer`` of the client, with BrokerUnavailableError. So do later calls. In
    a forked child every call is a ForkedError.
    """

    def __init__(
        self,
        transport: Transport,
        brokers: Callable[[], Sequence[int]],
        clock: Clock | None = None,
        *,
        timers: Runtime | None = None,
        metadata_max_age_s: float = MAX_AGE_MS / 1000,
        **metadata_options: Any,
    ) -> None:
        """``brokers`` returns the brokers to ask for metadata.

        ``timers`` is a runtime whose timers may be used; without it a thread for timers starts when
        needed. ``metadata_max_age_s``: new partitions are noticed after this time at the latest
        (Kafka's ``metadata.max.age.ms``). ``metadata_options`` are further ones of ``Metadata``.
        """
        max_age_ms = _milliseconds("metadata_max_age_s", metadata_max_age_s)
        self.clock: Clock = clock or SystemClock()
        self.runtime = InlineRuntime(self.clock, timers)
        self.transport = transport
        self.metadata = Metadata(self.runtime, transport, brokers, max_age_ms, **metadata_options)
        self._waiting: set[_AwaitedAnswer[Any]] = set()
        self._closed = False
        self._ownership = Ownership("a client")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client. Requests that were sent may still be carried out. Idempotent."""
        self._closed = True
        if self._ownership.lost is not None:  # what waits, and the timers, are the parent's
            return
        for answer in list(self._waiting):
            answer.wake()
        self.runtime.close()

    def wait(self, ask: Callable[[Callable[[T], None]], None], timeout_s: float) -> T:
        """Call ``ask`` with a callback, and wait for the value that the callback gets.

        Raises:
            BrokerUnavailableError: no value in time, or the client was closed.
            ForkedError: another process opened the client.
        """
        return self.begin(ask)(timeout_s)

    def begin(self, ask: Callable[[Callable[[T], None]], None]) -> Callable[[float], T]:
        """As ``wait``, in two steps: returns the function that waits, so many seconds at most."""
        self._ownership.check()
        answer: _AwaitedAnswer[T] = _AwaitedAnswer()
        self._waiting.add(answer)
        try:
            if self._closed:  # checked after it was added, so that ``close`` cannot miss it
                raise BrokerUnavailableError("the client was closed")
            ask(answer.put)
        except BaseException:
            self._waiting.discard(answer)
            raise

        def wait(timeout_s: float) -> T:
            try:
                return answer.get(timeout_s)
            finally:
                self._waiting.discard(answer)

        return wait

    def call(self, broker_id: int, request: Request, timeout_s: float) -> Response:
        """
        Raises:
            BrokerUnavailableError: no answer. The request may have been carried out.
        """
        timeout_ms = int(timeout_s * 1000)

        def ask(put: OnReply) -> None:
            self.transport.send(broker_id, request, put, timeout_ms)

        response = self.wait(ask, timeout_s + _PATIENCE_S)
        if response is None:
            raise BrokerUnavailableError(f"no answer of broker {broker_id}")
        return response

    def refresh(self) -> None:
        """Request metadata, each time from another broker.

        A broker that is cut off has old metadata, so an entry with a higher leader epoch stays.

        Raises:
            BrokerUnavailableError: no broker answers.
        """
        limit_s = (1 + len(self.metadata.brokers())) * self.metadata.answer_timeout_ms / 1000
        if not self.wait(self.metadata.refresh, limit_s + _PATIENCE_S):
            raise BrokerUnavailableError("no broker answers")

    def controller_id(self) -> int:
        """The id of the controller; −1 if there is none or it is unknown."""
        self.refresh()
        return self.metadata.view.controller_id

    def partitions(self, topic: str) -> list[TopicPartition]:
        """
        Raises:
            UnknownPartitionError: the topic does not exist.
        """
        self._ownership.check()
        self.metadata.want(topic)
        self.metadata.keep_fresh()
        for attempt in (0, 1):
            # Without a look at those of other topics, of which there may be thousands.
            numbered = (TopicPartition(topic, number) for number in itertools.count())
            found = [*itertools.takewhile(self.metadata.view.partitions.__contains__, numbered)]
            if found:
                return found
            if attempt == 0:
                self.refresh()
        if (refusal := self.metadata.refusal(topic)) is not None:
            raise refusal
        raise UnknownPartitionError(f"there is no topic {topic!r}")

    def topics(self) -> list[str]:
        """The names of all topics of the cluster, in order.

        Raises:
            BrokerUnavailableError: no broker answers.
        """
        timeout_s = self.metadata.answer_timeout_ms / 1000
        for broker_id in self.metadata.brokers():
            with suppress(BrokerUnavailableError):
                found = self.call(broker_id, MetadataRequest(), timeout_s)
                if isinstance(found, MetadataResponse):
                    return sorted(found.topic_ids)
        raise BrokerUnavailableError("no broker answers")

    def leader(self, tp: TopicPartition) -> TopicPartitionMetadata:
        """
        Raises:
            LeaderNotAvailableError, UnknownPartitionError
        """
        self._ownership.check()
        found = self.metadata.leader(tp)
        if isinstance(found, UnknownPartitionError):
            self.refresh()
            found = self.metadata.leader(tp)
        if isinstance(found, ReplicationError):
            raise found
        return found

    def new_producer_id(self, timeout_s: float = 30.0) -> int:
        """A producer id that is unique in the cluster for all time.

        Raises:
            ReplicationError: no broker can assign one.
        """

        def attempt() -> int:
            ids = ProducerIds(self.runtime, self.transport, self.metadata)
            found = self.wait(ids.get, _PATIENCE_S)
            if isinstance(found, ReplicationError):
                raise found
            return found

        return self.retry(attempt, timeout_s)

    def now_s(self) -> float:
        """Elapsed time, for deadlines."""
        return self.clock.monotonic_ns() / 1e9

    def retry(
        self,
        call: Callable[[], R],
        timeout_s: float,
        passes: Callable[[ReplicationError], bool] = lambda error: error.retriable,
    ) -> R:
        """Call until it succeeds, fails for good, or the time is over. Then raise the last error.

        ``call`` may be carried out twice, which matters if it changes something. ``passes`` says
        whether it may succeed after an error.
        """
        deadline = self.now_s() + timeout_s
        failures = 0
        while True:
            try:
                return call()
            except ReplicationError as error:
                failures += 1
                pause_s = RETRY_BACKOFF.delay_ms(failures, self.runtime.random) / 1000
                if not passes(error) or self._closed or self.now_s() + pause_s > deadline:
                    raise
            threading.Event().wait(pause_s)
            try:
                self.refresh()
            except BrokerUnavailableError:
                continue


class Producer:
    """Sends batches to the leaders of their partitions. Thread-safe.

    Without idempotence a batch that is sent again after an unknown outcome may be in the log twice,
    as with Kafka's producer.

    Args:
        acks: 0, 1 or −1 (all in-sync replicas; the default).
        idempotent: a batch is in its partition only once, however often it was sent, and batches of
            one thread are in order (R-86). A broker assigns the producer id.
        producer_id: be idempotent with this id, which must never have been used elsewhere.
        partitioner: ``murmur2`` (Kafka's) or ``murmur3``, or an object.
        delivery_timeout_s: how long a batch is retried. ``request_timeout_ms`` is how long a leader
            may wait for its followers in one attempt.
    Raises:
        ConfigError: a value is out of range, or idempotent without acks=−1.
    """

    def __init__(
        self,
        client: Client,
        *,
        acks: int = -1,
        idempotent: bool = False,
        producer_id: int | None = None,
        partitioner_name: str | Partitioner = "murmur2",
        compression: Compression = Compression.NONE,
        delivery_timeout_s: float = 30.0,
        request_timeout_ms: int = 10_000,
    ) -> None:
        self._client = client
        self._config = ProducerConfig(
            acks,
            idempotent,
            producer_id,
            _milliseconds("delivery_timeout_s", delivery_timeout_s),
            request_timeout_ms,
            compression,
        )
        self._core = ProducerCore(client.runtime, client.transport, client.metadata, self._config)
        self._partitioner = (
            partitioner(partitioner_name) if isinstance(partitioner_name, str) else partitioner_name
        )
        self._partitioner_lock = threading.Lock()
        self._limit_s = delivery_timeout_s + (request_timeout_ms + ANSWER_GRACE_MS) / 1000

    def partition_for(self, topic: str, key: bytes | None) -> int:
        """The partition that ``key`` goes to."""
        count = len(self._client.partitions(topic))
        with self._partitioner_lock:
            return self._partitioner.partition(key, count)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> RecordMetadata:
        """Send one record and wait for its acknowledgement. Raises as ``send_batch``."""
        if partition is None:
            partition = self.partition_for(topic, key)
            if key is None:
                with self._partitioner_lock:
                    self._partitioner.on_new_batch()
        return self.send_batch(topic, partition, [(key, value, timestamp_ms, tuple(headers))])

    def send_keyed(
        self, topic: str, records: Iterable[tuple[Any, ...]]
    ) -> dict[int, RecordMetadata]:
        """Send ``(key, value, …)`` records, one batch to each partition.

        Results are by partition.
        """
        batches: dict[int, list[tuple[Any, ...]]] = {}
        count = len(self._client.partitions(topic))
        with self._partitioner_lock:
            for record in records:
                partition = self._partitioner.partition(record[0], count)
                batches.setdefault(partition, []).append(record)
            self._partitioner.on_new_batch()
        return {p: self.send_batch(topic, p, batch) for p, batch in batches.items()}

    def send_batch(
        self, topic: str, partition: int, records: Sequence[tuple[Any, ...]]
    ) -> RecordMetadata:
        """Send records as one batch and wait for its acknowledgement.

        Args:
            records: ``(key, value[, timestamp_ms[, headers]])``, as ``PartitionLog.append``.
        Raises:
            ReplicationError: refused for good, or still failing at the delivery timeout. The
                outcome is then unknown unless the class says otherwise. An idempotent producer
                continues with the next batch. To send this one again may duplicate it.
            InvalidRecordError: a record is malformed. Nothing was sent.
        """
        return self.begin_batch(topic, partition, records)()

    def begin_batch(
        self, topic: str, partition: int, records: Sequence[tuple[Any, ...]]
    ) -> Callable[[], RecordMetadata]:
        """As ``send_batch`` in two steps: returns the function that waits. Call it once, and again
        only if Ctrl-C ended it.

        So many batches may be on their way. Those of an idempotent producer stay in order.
        """
        tp = TopicPartition(topic, partition)
        wait = self._client.begin(partial(self._core.send, tp, records))
        return lambda: RecordMetadata(tp, self._acknowledged(wait), len(records))

    def send_encoded(self, tp: TopicPartition, batch: Buffer) -> int:
        """Send an encoded batch as ``send_batch`` does. Returns the base offset.

        Raises:
            InvalidRecordError: an idempotent producer got other than exactly one batch.
        """
        count = 0
        if self._config.is_idempotent:
            header = parse_batch(batch)
            if not isinstance(header, BatchHeader) or header.end_position != len(batch):
                raise InvalidRecordError("an idempotent producer sends one whole batch at a time")
            count = header.last_offset_delta + 1
        send = partial(self._core.send_encoded, tp, batch, count)
        return self._acknowledged(self._client.begin(send))

    def _acknowledged(self, wait: Callable[[float], SendResult]) -> int:
        result = wait(self._limit_s + _PATIENCE_S)
        if result.error is not None:
            raise result.error
        return result.base_offset


class Consumer:
    """Reads one or more partitions in order, from positions that it keeps itself.

    It notices if records that it has read are no longer in the log, because the log was truncated
    or its topic created again. Polls of several threads run one after the other.

    Args:
        isolation: ``read_committed`` hides open and aborted transactions.
        reset: where to go if a position is out of range, or its topic was created again:
            ``earliest``, ``latest``, or None to raise. After a truncation it goes back to where the
            logs diverge.
        timeout_s: how long a partition may fail in a row before ``poll`` raises.
        rack: the rack of the consumer. A replica there may be read instead of the leader.
    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(
        self,
        client: Client,
        partitions: Iterable[TopicPartition],
        *,
        isolation: str = "read_uncommitted",
        reset: str | None = "earliest",
        max_bytes: int = 1 << 20,
        timeout_s: float = 30.0,
        rack: str = "",
    ) -> None:
        self._client = client
        levels = {level.name.lower(): level for level in IsolationLevel}
        self._config = ConsumerConfig(
            _chosen("isolation", isolation, levels),
            _chosen("reset", reset, _RESETS),
            max_bytes,
            _milliseconds("timeout_s", timeout_s),
            rack,
        )
        self._core = ConsumerCore(
            client.runtime, client.transport, client.metadata, partitions, self._config
        )
        self._timeout_s = timeout_s
        self._lock = free_in_child(threading.Lock())

    @property
    def positions(self) -> Mapping[TopicPartition, int | None]:
        """The offset of the next record of each partition; None until the leader has answered."""
        return {tp: position.offset for tp, position in list(self._core.positions.items())}

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue at an offset, whatever was known about the previous position."""
        with self._lock:
            self._core.seek(tp, offset)

    def offset_for(self, tp: TopicPartition, timestamp: int) -> int:
        """The first offset at or after ``timestamp`` ms (or EARLIEST, LATEST); −1 if none is."""
        client = self._client

        def ask() -> int:
            leader = client.leader(tp)
            topic_id = client.metadata.view.topic_ids.get(tp.topic)
            asked = ListOffsetsPartition(tp, timestamp, leader.leader_epoch, topic_id)
            request = ListOffsetsRequest((asked,), isolation_level=self._config.isolation)
            timeout_s = client.metadata.answer_timeout_ms / 1000
            response = client.call(leader.leader_id, request, timeout_s)
            assert isinstance(response, ListOffsetsResponse)
            (found,) = response.partitions
            if found.error_code is not ErrorCode.NONE:
                raise error_for(found.error_code)
            return found.offset

        def passes(error: ReplicationError) -> bool:
            return QUESTION[error.code] is AskReaction.AGAIN

        return client.retry(ask, self._timeout_s, passes)

    def poll(self, max_wait_ms: int = 500) -> list[tuple[TopicPartition, Record]]:
        """Records that are available or arrive within the time; an empty list if there are none.

        Raises:
            LogTruncationError: records that were read are no longer in the log, and ``reset`` is
            None.
            TopicRecreatedError: the topic was created again, and ``reset`` is None.
            OffsetOutOfRangeError: the position is outside the log, and ``reset`` is None.
            ReplicationError: a leader still refuses at the end of ``timeout_s``.
            CorruptBatchError: a checksum is wrong.
        """
        poll: Callable[[OnPolled], None] = partial(self._core.poll, max_wait_ms)
        limit_s = max_wait_ms / 1000 + self._timeout_s + _PATIENCE_S
        with self._lock:
            result: PollResult = self._client.wait(poll, limit_s)
        if result.error is not None:
            raise result.error
        return result.records

    def read_to_end(self, timeout_s: float = 30.0) -> list[tuple[TopicPartition, Record]]:
        """All records from the positions up to where the partitions ended at the call.

        Raises:
            RequestTimedOutError: it takes too long. Otherwise as ``poll``.
        """
        ends = {tp: self.offset_for(tp, LATEST) for tp in self.positions}
        deadline = self._client.now_s() + timeout_s
        found: list[tuple[TopicPartition, Record]] = []
        # A position after the end lies in truncated records, which the leader will say.
        if any((self.positions[tp] or 0) > end for tp, end in ends.items()):
            found += self.poll(100)
        while any((self.positions[tp] or 0) < end for tp, end in ends.items()):
            if self._client.now_s() > deadline:
                raise RequestTimedOutError(f"read {len(found)} records, then no more")
            more = self.poll(100)
            found += more
            if not more:  # the log may have been cut since
                ends = {tp: min(end, self.offset_for(tp, LATEST)) for tp, end in ends.items()}
        return found
