"""Blocking clients over the cores: what a service embeds, and tests use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from checkpoints.types import TopicPartition
from logstore.clock import Clock, SystemClock
from logstore.errors import InvalidRecordError
from logstore.format.compression import Compression
from logstore.format.header import BatchHeader
from logstore.format.reader import parse_batch
from logstore.log.reading import EARLIEST, LATEST
from logstore.partitioner import Partitioner, partitioner
from logstore.types import Buffer, Record
from replication.client.asking import OffsetLookup
from replication.client.inline import InlineRuntime
from replication.client.metadata import ANSWER_TIMEOUT_MS, Metadata
from replication.client.producer_id import ProducerIds
from replication.client.receiving import ConsumerConfig, ConsumerCore, PollResult
from replication.client.sending import (
    ANSWER_GRACE_MS,
    RETRY_BACKOFF,
    ProducerConfig,
    ProducerCore,
    SendResult,
)
from replication.errors import (
    BrokerUnavailableError,
    ReplicationError,
    RequestTimedOutError,
    UnknownPartitionError,
)
from replication.messages import IsolationLevel, PartitionMetadata, Request, Response
from replication.runtime import Runtime
from replication.transport import Transport

_PATIENCE_S = 60.0  # beyond the time by which a core answers: it would be broken

R = TypeVar("R")
T = TypeVar("T")


class RecordMetadata(NamedTuple):
    """Where an acknowledged batch is; offset −1 with acks=0."""

    tp: TopicPartition
    base_offset: int
    record_count: int


class _Answer(Generic[T]):
    """What one thread waits for and another brings."""

    __slots__ = ("_there", "_value")

    def __init__(self) -> None:
        self._there = threading.Lock()  # cheaper than an Event by half
        self._there.acquire()
        self._value: list[T] = []

    def put(self, value: T) -> None:
        self._value.append(value)
        self._there.release()

    def get(self, timeout_s: float) -> T:
        if not self._there.acquire(timeout=timeout_s):
            raise BrokerUnavailableError(f"no answer for {timeout_s:.0f} s")
        return self._value[0]


class Client:
    """Sends requests and waits for the answers; knows who leads what. Safe for many threads."""

    def __init__(
        self,
        transport: Transport,
        brokers: Callable[[], Sequence[int]],
        clock: Clock | None = None,
        *,
        timers: Runtime | None = None,
    ) -> None:
        """``brokers`` names those that may be asked for metadata; ``timers`` is a runtime whose
        timers may be used, otherwise a thread for them begins when one is needed."""
        self.clock: Clock = clock or SystemClock()
        self.runtime = InlineRuntime(self.clock, timers)
        self.transport = transport
        self.metadata = Metadata(self.runtime, transport, brokers)

    def call(self, broker_id: int, request: Request, timeout_s: float) -> Response:
        """
        Raises:
            BrokerUnavailableError: no answer; the request may have been carried out.
        """
        answer: _Answer[Response | None] = _Answer()
        self.transport.send(broker_id, request, answer.put, int(timeout_s * 1000))
        response = answer.get(timeout_s + _PATIENCE_S)
        if response is None:
            raise BrokerUnavailableError(f"no answer of broker {broker_id}")
        return response

    def refresh(self) -> None:
        """Ask a broker who leads what, each time another one: one that is cut off from the others
        has old news, and what is known under a higher leader epoch stays.

        Raises:
            BrokerUnavailableError: none answers.
        """
        answer: _Answer[bool] = _Answer()
        self.metadata.refresh(answer.put)
        limit_s = (1 + len(self.metadata.brokers())) * ANSWER_TIMEOUT_MS / 1000
        if not answer.get(limit_s + _PATIENCE_S):
            raise BrokerUnavailableError("no broker answers")

    def controller_id(self) -> int:
        """−1 when there is none, or nobody knows."""
        self.refresh()
        return self.metadata.view.controller_id

    def partitions(self, topic: str) -> list[TopicPartition]:
        """
        Raises:
            UnknownPartitionError: there is no such topic.
        """
        for attempt in (0, 1):
            found = sorted(tp for tp in self.metadata.view.partitions if tp.topic == topic)
            if found:
                return found
            if attempt == 0:
                self.refresh()
        raise UnknownPartitionError(f"there is no topic {topic!r}")

    def leader(self, tp: TopicPartition) -> PartitionMetadata:
        """
        Raises:
            LeaderNotAvailableError, UnknownPartitionError
        """
        found = self.metadata.leader(tp)
        if isinstance(found, UnknownPartitionError):
            self.refresh()
            found = self.metadata.leader(tp)
        if isinstance(found, ReplicationError):
            raise found
        return found

    def new_producer_id(self, timeout_s: float = 30.0) -> int:
        """An id that no other producer of the cluster has, or will have.

        Raises:
            ReplicationError: no broker can hand one out.
        """

        def attempt() -> int:
            answer: _Answer[int | ReplicationError] = _Answer()
            ProducerIds(self.runtime, self.transport, self.metadata).get(answer.put)
            found = answer.get(_PATIENCE_S)
            if isinstance(found, ReplicationError):
                raise found
            return found

        return self.retry(attempt, timeout_s)

    def now_s(self) -> float:
        """Elapsed time, for deadlines."""
        return self.clock.monotonic_ns() / 1e9

    def retry(self, call: Callable[[], R], timeout_s: float) -> R:
        """Call until it succeeds, fails for good, or the time is over; then the last error.

        Whoever calls something that changes anything must bear that it is carried out twice.
        """
        deadline = self.now_s() + timeout_s
        failures = 0
        while True:
            try:
                return call()
            except ReplicationError as error:
                failures += 1
                pause_s = RETRY_BACKOFF.delay_ms(failures, self.runtime.random) / 1000
                if not error.retriable or self.now_s() + pause_s > deadline:
                    raise
            threading.Event().wait(pause_s)
            try:
                self.refresh()
            except BrokerUnavailableError:
                continue


class Producer:
    """Sends batches to the leaders of their partitions. Safe for many threads.

    Without idempotence a batch that is sent again after an unknown outcome may be in the log twice,
    as with Kafka's producer.

    Args:
        acks: 0, 1 or −1 (all in-sync replicas; the default).
        idempotent: a batch is in its partition once, however often it had to be sent, and batches
            of one thread in order (R-86). A broker hands out the producer id.
        producer_id: idempotent under this id, which nothing else may ever have used.
        partitioner: ``murmur2`` (Kafka's) or ``murmur3``, or an object.
        delivery_timeout_s: how long a batch is retried; ``request_timeout_ms`` how long a leader
            may wait for its followers in one attempt.
    Raises:
        ConfigError: idempotent with other acks than −1.
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
            acks, idempotent, producer_id, int(delivery_timeout_s * 1000), request_timeout_ms,
            compression,
        )  # fmt: skip
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
        """Send ``(key, value, …)`` records, one batch to each partition; by partition."""
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
            ReplicationError: refused for good, or still failing at the delivery timeout; the
                outcome is then unknown unless the class says otherwise. An idempotent producer goes
                on with the next batch; to send this one again is to risk that it is there twice.
            InvalidRecordError: a record is malformed; nothing was sent.
        """
        tp = TopicPartition(topic, partition)
        answer: _Answer[SendResult] = _Answer()
        self._core.send(tp, records, answer.put)
        return RecordMetadata(tp, self._offset(answer), len(records))

    def send_encoded(self, tp: TopicPartition, batch: Buffer) -> int:
        """As ``send_batch`` for ready batches; the base offset.

        Raises:
            InvalidRecordError: not exactly one batch, of an idempotent producer.
        """
        count = 0
        if self._config.is_idempotent:
            header = parse_batch(batch)
            if not isinstance(header, BatchHeader) or header.end_position != len(batch):
                raise InvalidRecordError("an idempotent producer sends one whole batch at a time")
            count = header.last_offset_delta + 1
        answer: _Answer[SendResult] = _Answer()
        self._core.send_encoded(tp, batch, count, answer.put)
        return self._offset(answer)

    def _offset(self, answer: _Answer[SendResult]) -> int:
        result = answer.get(self._limit_s + _PATIENCE_S)
        if result.error is not None:
            raise result.error
        return result.base_offset


class Consumer:
    """Reads one or more partitions in order, from positions that it keeps itself.

    It notices when what it has read is not in the log any more: that the log was truncated, or its
    topic made anew. Polls of several threads come one after the other.

    Args:
        isolation: ``read_committed`` hides open and aborted transactions.
        reset: where to go when a position is out of range, or its topic was made anew:
            ``earliest``, ``latest``, or None to raise. After a truncation it goes back to where the
            logs part.
        timeout_s: how long a partition may fail in a row before ``poll`` raises.
        rack: where the consumer is: a replica in its rack may be read instead of the leader.
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
        policy = None if reset is None else {"earliest": EARLIEST, "latest": LATEST}[reset]
        self._config = ConsumerConfig(
            IsolationLevel[isolation.upper()], policy, max_bytes, int(timeout_s * 1000), rack
        )
        self._core = ConsumerCore(
            client.runtime, client.transport, client.metadata, partitions, self._config
        )
        self._timeout_s = timeout_s
        self._lock = threading.Lock()

    @property
    def positions(self) -> Mapping[TopicPartition, int | None]:
        """The offset of the next record of each partition; None before the leader was asked."""
        return {tp: position.offset for tp, position in list(self._core.positions.items())}

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read on from an offset, whatever was found out about the position before it."""
        with self._lock:
            self._core.seek(tp, offset)

    def offset_for(self, tp: TopicPartition, timestamp: int) -> int:
        """Offset of the first record at or after ``timestamp`` ms, or EARLIEST, LATEST; or −1."""
        answer: _Answer[int | ReplicationError] = _Answer()
        client, config = self._client, self._config
        OffsetLookup(
            client.runtime, client.transport, client.metadata, tp, timestamp, config.isolation,
            config.timeout_ms, answer.put,
        ).start()  # fmt: skip
        found = answer.get(self._timeout_s + _PATIENCE_S)
        if isinstance(found, ReplicationError):
            raise found
        return found

    def poll(self, max_wait_ms: int = 500) -> list[tuple[TopicPartition, Record]]:
        """What is there, or what comes within the time: at least one record, or nothing.

        Raises:
            LogTruncationError: what was read is not in the log any more, and ``reset`` is None.
            TopicMadeAnewError: nor is the topic the same, and ``reset`` is None.
            OffsetOutOfRangeError: the position is outside the log, and ``reset`` is None.
            ReplicationError: a leader still refuses at the end of ``timeout_s``.
            CorruptBatchError: a checksum is wrong.
        """
        answer: _Answer[PollResult] = _Answer()
        with self._lock:
            self._core.poll(max_wait_ms, answer.put)
            result = answer.get(max_wait_ms / 1000 + self._timeout_s + _PATIENCE_S)
        if result.error is not None:
            raise result.error
        return result.records

    def read_to_end(self, timeout_s: float = 30.0) -> list[tuple[TopicPartition, Record]]:
        """All records from the positions up to where the partitions ended at the call.

        Raises:
            RequestTimedOutError: not done in time. Otherwise as ``poll``.
        """
        ends = {tp: self.offset_for(tp, LATEST) for tp in self.positions}
        deadline = self._client.now_s() + timeout_s
        found: list[tuple[TopicPartition, Record]] = []
        while self._is_before(ends):
            if self._client.now_s() > deadline:
                raise RequestTimedOutError(f"read {len(found)} records, then no more")
            found += self.poll(100)
        return found

    def _is_before(self, ends: Mapping[TopicPartition, int]) -> bool:
        positions = self.positions
        return any((positions[tp] or 0) < end for tp, end in ends.items())
