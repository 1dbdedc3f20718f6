"""Blocking producer and consumer over a ``Transport``: what a service embeds, and tests use.

They behave as Kafka's clients do: metadata is refreshed when a leader has moved, retriable errors
are retried until the delivery timeout, and an idempotent producer's retries leave no duplicates.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from checkpoints.types import TopicPartition
from logstore.clock import Clock, SystemClock
from logstore.errors import CorruptBatchError, OffsetOutOfRangeError
from logstore.format.batch import encode_batch
from logstore.format.compression import Compression
from logstore.format.reader import iter_batches, read_records
from logstore.log.reading import EARLIEST, LATEST
from logstore.partitioner import Partitioner, partitioner
from logstore.types import Record
from replication.error_codes import ErrorCode
from replication.errors import (
    BrokerUnavailableError,
    LeaderNotAvailableError,
    ReplicationError,
    RequestTimedOutError,
    UnknownPartitionError,
    error_for,
)
from replication.messages import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
)
from replication.state import NO_LEADER
from replication.transport import Transport

RETRY_BACKOFF_S = 0.02
ANSWER_GRACE_S = 1.0  # beyond the time that a request itself may take

R = TypeVar("R")


class RecordMetadata(NamedTuple):
    """Where an acknowledged batch is; offset −1 with acks=0."""

    tp: TopicPartition
    base_offset: int
    record_count: int


class Client:
    """Sends requests and waits for the answers; knows who leads what. Safe for many threads."""

    def __init__(
        self,
        transport: Transport,
        brokers: Callable[[], Sequence[int]],
        clock: Clock | None = None,
    ) -> None:
        """``brokers`` names those that may be asked for metadata."""
        self.clock: Clock = clock or SystemClock()
        self._transport = transport
        self._brokers = brokers
        self._partitions: dict[TopicPartition, PartitionMetadata] = {}
        self._topic_ids: Mapping[str, uuid.UUID | None] = {}
        self._asked = 0
        self._controller_id = -1

    def call(self, broker_id: int, request: Request, timeout_s: float) -> Response:
        """
        Raises:
            BrokerUnavailableError: no answer; the request may have been carried out.
        """
        answered = threading.Event()
        box: list[Response | None] = []

        def on_reply(response: Response | None) -> None:
            box.append(response)
            answered.set()

        self._transport.send(broker_id, request, on_reply)
        if not answered.wait(timeout_s) or box[0] is None:
            raise BrokerUnavailableError(f"no answer of broker {broker_id}")
        return box[0]

    def refresh(self) -> None:
        """Ask a broker who leads what, each time another one: one that is cut off from the others
        has old news, and what is known under a higher leader epoch stays.

        Raises:
            BrokerUnavailableError: none answers.
        """
        brokers = list(self._brokers())
        self._asked += 1
        first = self._asked % max(1, len(brokers))
        for broker_id in brokers[first:] + brokers[:first]:
            try:
                response = self.call(broker_id, MetadataRequest(), ANSWER_GRACE_S)
            except BrokerUnavailableError:
                continue
            assert isinstance(response, MetadataResponse)
            if not response.brokers:
                continue  # it has just started
            self._partitions = {p.tp: self._newer(p, response) for p in response.partitions}
            self._topic_ids = response.topic_ids
            self._controller_id = response.controller_id
            return
        raise BrokerUnavailableError("no broker answers")

    def _newer(self, found: PartitionMetadata, response: MetadataResponse) -> PartitionMetadata:
        topic, known = found.tp.topic, self._partitions.get(found.tp)
        same = self._topic_ids.get(topic) == response.topic_ids.get(topic)
        if known is not None and same and known.leader_epoch > found.leader_epoch:
            return known
        return found

    def controller_id(self) -> int:
        """−1 when there is none, or nobody knows."""
        self.refresh()
        return self._controller_id

    def partitions(self, topic: str) -> list[TopicPartition]:
        """
        Raises:
            UnknownPartitionError: there is no such topic.
        """
        for attempt in (0, 1):
            found = sorted(tp for tp in self._partitions if tp.topic == topic)
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
        found = self._partitions.get(tp)
        if found is None:
            self.refresh()
            found = self._partitions.get(tp)
        if found is None:
            raise UnknownPartitionError(f"{tp} is not known")
        if found.leader_id == NO_LEADER:
            raise LeaderNotAvailableError(f"{tp} has no leader")
        return found

    def now_s(self) -> float:
        """Elapsed time, for deadlines."""
        return self.clock.monotonic_ns() / 1e9

    @staticmethod
    def pause() -> None:
        """Before something is tried again."""
        threading.Event().wait(RETRY_BACKOFF_S)

    def retry(self, call: Callable[[], R], timeout_s: float) -> R:
        """Call until it succeeds, fails for good, or the time is over; then the last error."""
        deadline = self.now_s() + timeout_s
        while True:
            try:
                return call()
            except ReplicationError as error:
                if not error.retriable or self.now_s() + RETRY_BACKOFF_S > deadline:
                    raise
            self.pause()
            try:
                self.refresh()
            except BrokerUnavailableError:
                continue


class Producer:
    """Sends batches to the leaders of their partitions.

    Args:
        acks: 0, 1 or −1 (all in-sync replicas; the default).
        producer_id: makes it idempotent: a retry is written once (R-86). Then one producer is for
            one thread.
        partitioner: ``murmur2`` (Kafka's) or ``murmur3``, or an object.
        delivery_timeout_s: how long a batch is retried; ``request_timeout_ms`` how long a leader
            may wait for its followers in one attempt.
    """

    def __init__(
        self,
        client: Client,
        *,
        acks: int = -1,
        producer_id: int | None = None,
        partitioner_name: str | Partitioner = "murmur2",
        compression: Compression = Compression.NONE,
        delivery_timeout_s: float = 30.0,
        request_timeout_ms: int = 10_000,
    ) -> None:
        self._client = client
        self._acks = acks
        self._producer_id = producer_id
        self._sequences: dict[TopicPartition, int] = {}
        self._partitioner = (
            partitioner(partitioner_name) if isinstance(partitioner_name, str) else partitioner_name
        )
        self._compression = compression
        self._delivery_timeout_s = delivery_timeout_s
        self._request_timeout_ms = request_timeout_ms

    def partition_for(self, topic: str, key: bytes | None) -> int:
        """The partition that ``key`` goes to."""
        return self._partitioner.partition(key, len(self._client.partitions(topic)))

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
                self._partitioner.on_new_batch()
        return self.send_batch(topic, partition, [(key, value, timestamp_ms, tuple(headers))])

    def send_keyed(
        self, topic: str, records: Iterable[tuple[Any, ...]]
    ) -> dict[int, RecordMetadata]:
        """Send ``(key, value, …)`` records, one batch to each partition; by partition."""
        batches: dict[int, list[tuple[Any, ...]]] = {}
        count = len(self._client.partitions(topic))
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
                outcome is then unknown unless the class says otherwise.
            InvalidRecordError: a record is malformed; nothing was sent.
        """
        tp = TopicPartition(topic, partition)
        now_ms = self._client.clock.wall_ms()
        if self._producer_id is None:
            batch = encode_batch(records, compression=self._compression, default_timestamp=now_ms)
        else:
            sequence = self._sequences.get(tp, 0)
            batch = encode_batch(
                records, compression=self._compression, default_timestamp=now_ms,
                producer_id=self._producer_id, producer_epoch=0, base_sequence=sequence,
            )  # fmt: skip
        base = self.send_encoded(tp, batch)
        if self._producer_id is not None:
            self._sequences[tp] = (sequence + len(records)) % 2**31
        return RecordMetadata(tp, base, len(records))

    def send_encoded(self, tp: TopicPartition, batch: bytes | bytearray | memoryview) -> int:
        """As ``send_batch`` for ready batches; the base offset."""
        return self._client.retry(lambda: self._attempt(tp, batch), self._delivery_timeout_s)

    def _attempt(self, tp: TopicPartition, batch: bytes | bytearray | memoryview) -> int:
        leader = self._client.leader(tp)
        request = ProduceRequest(
            self._acks, self._request_timeout_ms, (ProducePartition(tp, batch),)
        )
        response = self._client.call(
            leader.leader_id, request, self._request_timeout_ms / 1000 + ANSWER_GRACE_S
        )
        assert isinstance(response, ProduceResponse)
        (part,) = response.partitions
        if part.error_code is not ErrorCode.NONE:
            raise error_for(part.error_code, part.error_message)
        return part.base_offset


class Consumer:
    """Reads one or more partitions in order, from positions that it keeps itself.

    Args:
        isolation: ``read_committed`` hides open and aborted transactions.
        reset: where to go when a position is out of range: ``earliest``, ``latest``, or None to
            raise ``OffsetOutOfRangeError``.
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
    ) -> None:
        self._client = client
        self._isolation = IsolationLevel[isolation.upper()]
        self._reset = None if reset is None else {"earliest": EARLIEST, "latest": LATEST}[reset]
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self.positions: dict[TopicPartition, int | None] = dict.fromkeys(partitions)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.positions[tp] = offset

    def offset_for(self, tp: TopicPartition, timestamp: int) -> int:
        """Offset of the first record at or after ``timestamp`` ms, or EARLIEST, LATEST; or −1."""

        def attempt() -> int:
            leader = self._client.leader(tp)
            request = ListOffsetsRequest(
                (ListOffsetsPartition(tp, timestamp),), isolation_level=self._isolation
            )
            response = self._client.call(leader.leader_id, request, ANSWER_GRACE_S)
            assert isinstance(response, ListOffsetsResponse)
            (part,) = response.partitions
            if part.error_code is not ErrorCode.NONE:
                raise error_for(part.error_code)
            return part.offset

        return self._client.retry(attempt, self._timeout_s)

    def poll(self, max_wait_ms: int = 500) -> list[tuple[TopicPartition, Record]]:
        """What is there, or what comes within the time: at least one record, or nothing.

        Raises:
            ReplicationError: a leader still refuses at the end of ``timeout_s``.
            CorruptBatchError: a checksum is wrong.
        """
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in self.positions:
            leader = self._client.retry(lambda tp=tp: self._client.leader(tp), self._timeout_s)  # type: ignore[misc]
            by_leader.setdefault(leader.leader_id, []).append(tp)
        found: list[tuple[TopicPartition, Record]] = []
        for leader_id, tps in by_leader.items():
            wait = 0 if found else max_wait_ms // len(by_leader)
            found += self._fetch(leader_id, tps, wait)
        # The next poll begins with another partition.
        if self.positions:
            first = next(iter(self.positions))
            self.positions[first] = self.positions.pop(first)
        return found

    def _position(self, tp: TopicPartition) -> int:
        position = self.positions[tp]
        if position is None:
            position = self.offset_for(tp, EARLIEST if self._reset is None else self._reset)
            self.positions[tp] = position
        return position

    def _fetch(
        self, leader_id: int, tps: list[TopicPartition], wait_ms: int
    ) -> list[tuple[TopicPartition, Record]]:
        parts = tuple(FetchPartition(tp, self._position(tp), self._max_bytes) for tp in tps)
        request = FetchRequest(
            parts, max_wait_ms=wait_ms, max_bytes=self._max_bytes * len(parts),
            isolation_level=self._isolation,
        )  # fmt: skip
        try:
            response = self._client.call(leader_id, request, wait_ms / 1000 + ANSWER_GRACE_S)
        except BrokerUnavailableError:
            self._stale()
            return []
        assert isinstance(response, FetchResponse)
        found: list[tuple[TopicPartition, Record]] = []
        for part in response.partitions:
            if part.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._out_of_range(part.tp, part.log_start_offset, part.high_watermark)
            elif part.error_code is not ErrorCode.NONE:
                error = error_for(part.error_code)
                if not error.retriable:
                    raise error
                self._stale()
            elif part.records:
                found += self._take(part.tp, part)
        return found

    def _take(
        self, tp: TopicPartition, part: FetchPartitionResponse
    ) -> list[tuple[TopicPartition, Record]]:
        position = self._position(tp)
        committed = self._isolation is IsolationLevel.READ_COMMITTED
        end = part.last_stable_offset if committed else part.high_watermark
        aborted = [
            (t.producer_id, t.first_offset, t.last_offset) for t in part.aborted_transactions
        ]
        try:
            records = read_records(
                part.records, from_offset=position, end_offset=end, aborted=aborted
            )
        except CorruptBatchError as error:
            raise error.located(str(tp)) from None
        # Beyond what is left out, too: control batches and aborted records.
        last = max((batch.last_offset for batch in iter_batches(part.records)), default=-1)
        self.positions[tp] = max(position, min(last + 1, end))
        return [(tp, record) for record in records]

    def _out_of_range(self, tp: TopicPartition, start: int, end: int) -> None:
        if self._reset is None:
            raise OffsetOutOfRangeError(str(tp), self.positions[tp] or 0, start, end)
        self.positions[tp] = None

    def _stale(self) -> None:
        self._client.pause()
        try:
            self._client.refresh()
        except BrokerUnavailableError:
            return

    def read_to_end(self, timeout_s: float = 30.0) -> list[tuple[TopicPartition, Record]]:
        """All records from the positions up to where the partitions ended at the call.

        Raises:
            RequestTimedOutError: not done in time.
        """
        ends = {tp: self.offset_for(tp, LATEST) for tp in self.positions}
        deadline = self._client.now_s() + timeout_s
        found: list[tuple[TopicPartition, Record]] = []
        while any(self._position(tp) < end for tp, end in ends.items()):
            if self._client.now_s() > deadline:
                raise RequestTimedOutError(f"read {len(found)} records, then no more")
            found += self.poll(100)
        return found
