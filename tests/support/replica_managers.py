"""A broker's replica manager on real logs, with a controller, replicas and clients played by the
test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from checkpoints.types import TopicPartition
from logstore.common.config import BrokerConfig, LogConfig
from logstore.manager import LogManager, ManagerOwner
from logstore.testing import FaultyStorage
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import ReplicationError
from replication.common.messages import (
    CONSUMER,
    AlterPartitionItem,
    AlterPartitionResult,
    ControlRequest,
    DeleteRecordsRequest,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    IsolationLevel,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionChange,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from replication.common.state import (
    BrokerRegistration,
    LiveBroker,
    PartitionRegistration,
    TopicAssignment,
)
from replication.partition import Partition
from replication.replica_manager.metadata_cache import MetadataCache
from replication.replica_manager.replica_manager import ReplicaManager
from tests.support.builders import batch
from tests.support.replication import ManualRuntime, RecordingTransport
from tests.support.until import until

TP = TopicPartition("orders", 0)
TOPIC_ID = uuid.UUID(int=7)
BROKER = 1
EPOCH = 100
"""The broker epoch of broker n is EPOCH + n."""


def live(*broker_ids: int, racks: Mapping[int, str] | None = None) -> tuple[LiveBroker, ...]:
    racks = racks or {}
    return tuple(
        LiveBroker(BrokerRegistration(n, rack=racks.get(n)), EPOCH + n) for n in broker_ids
    )


class Answers(list[Any]):
    """What ``respond`` was called with; at most once."""

    def __call__(self, response: Any) -> None:
        assert not self, "answered twice"
        self.append(response)

    @property
    def only(self) -> Any:
        """The response of its only partition."""
        (response,) = self
        (part,) = response.partitions
        return part


class RecordingIsrChannel:
    def __init__(self) -> None:
        self.items: list[AlterPartitionItem] = []
        self._on_result: list[Callable[[AlterPartitionResult], None]] = []

    def submit(
        self, item: AlterPartitionItem, on_result: Callable[[AlterPartitionResult], None]
    ) -> bool:
        self.items.append(item)
        self._on_result.append(on_result)
        return True

    def answer(self, code: ErrorCode) -> None:
        """What the controller says of the oldest change."""
        item, on_result = self.items.pop(0), self._on_result.pop(0)
        isr = tuple(broker for broker, _ in item.new_isr)
        epoch = item.partition_epoch + 1
        on_result(AlterPartitionResult(item.tp, code, BROKER, item.leader_epoch, isr, epoch))

    def commit(self) -> None:
        self.answer(ErrorCode.NONE)


class Host:
    """Broker 1 of a cluster of brokers 1, 2 and 3."""

    def __init__(
        self,
        *,
        storage: FaultyStorage | None = None,
        runtime: ManualRuntime | None = None,
        directories: tuple[str, ...] = ("/logs",),
        log_config: Mapping[str, object] | None = None,
        broker_config: Mapping[str, object] | None = None,
        racks: Mapping[int, str] | None = None,
        threads: bool = False,
        **config: Any,
    ) -> None:
        self.runtime = runtime or ManualRuntime()
        self.storage = storage or FaultyStorage(clock=lambda: self.runtime.clock.wall_ms() / 1000)
        self.transport = RecordingTransport()
        self.metadata = MetadataCache(BROKER)
        self.isr_channel = RecordingIsrChannel()
        self.failed_directories: list[tuple[str, Exception]] = []
        self.refusals: list[ReplicationError] = []
        self.brokers = live(1, 2, 3, racks=racks)
        self.controller_epoch = 1
        self.log_manager = LogManager(
            directories,
            LogConfig(segment_index_bytes=1200).with_properties(log_config or {}),
            broker_config=BrokerConfig.from_properties(broker_config or {}),
            storage=self.storage,
            clock=self.runtime.clock,
            background=False,
            owner=ManagerOwner(
                replicated=True,
                run_later=None if threads else lambda task: task(),
                on_directory_failure=lambda path, error: self.failed_directories.append(
                    (path, error)
                ),
            ),
        )
        self.manager = ReplicaManager(
            BROKER,
            self.log_manager,
            self.runtime,
            self.transport,
            self.metadata,
            self.isr_channel,
            ReplicationConfig(**{"verify_transactions": False, **config}),
            broker_epoch=lambda: EPOCH + BROKER,
            on_foreign_tree=self.refusals.append,
        )
        self.manager.startup()

    def partition(self, tp: TopicPartition = TP) -> Partition:
        return self.manager.partition(tp)

    # -- the controller ------------------------------------------------------------------------

    def change(
        self,
        tp: TopicPartition = TP,
        *,
        leader: int = BROKER,
        epoch: int = 0,
        partition_epoch: int | None = None,
        replicas: tuple[int, ...] = (1, 2),
        isr: tuple[int, ...] | None = None,
        topic_id: uuid.UUID | None = TOPIC_ID,
        config: Mapping[str, str] | None = None,
    ) -> PartitionChange:
        registration = PartitionRegistration(
            replicas,
            replicas if isr is None else isr,
            leader,
            epoch,
            epoch if partition_epoch is None else partition_epoch,
        )
        return PartitionChange(tp, registration, topic_id, config or {})

    def control(self, request: ControlRequest) -> Any:
        """Carry out a request of the controller now."""
        answers: list[Any] = []
        self.manager.control(request, answers.append)
        if isinstance(self.runtime, ManualRuntime):
            self.runtime.run_actor("control-")
        else:
            until(lambda: bool(answers))
        (answer,) = answers
        return answer

    def order(
        self,
        *changes: PartitionChange,
        broker_epoch: int = EPOCH + BROKER,
        is_full: bool = False,
        sequence: int = 0,
        topics: Mapping[str, TopicAssignment] | None = None,
        deleted: Collection[uuid.UUID] = (),
    ) -> LeaderAndIsrResponse:
        response = self.control(
            LeaderAndIsrRequest(
                9,
                self.controller_epoch,
                broker_epoch,
                changes,
                self.brokers,
                sequence,
                is_full,
                topics or {},
                frozenset(deleted),
            )
        )
        assert isinstance(response, LeaderAndIsrResponse)
        return response

    def lead(self, tp: TopicPartition = TP, **change: Any) -> Partition:
        """Become leader; the partition."""
        response = self.order(self.change(tp, **change))
        assert response.partitions == ((tp, ErrorCode.NONE),)
        return self.partition(tp)

    def follow(self, tp: TopicPartition = TP, *, leader: int = 2, **change: Any) -> Partition:
        return self.lead(tp, leader=leader, **change)

    def stop(
        self,
        tp: TopicPartition = TP,
        *,
        epoch: int = -2,
        delete: bool = True,
        topic_id: uuid.UUID | None = TOPIC_ID,
    ) -> StopReplicaResponse:
        stop = StopReplicaPartition(tp, epoch, delete, topic_id)
        response = self.control(
            StopReplicaRequest(9, self.controller_epoch, EPOCH + BROKER, (stop,))
        )
        assert isinstance(response, StopReplicaResponse)
        return response

    def tell(self, *changes: PartitionChange, shutting_down: tuple[int, ...] = ()) -> ErrorCode:
        """UpdateMetadata."""
        request = UpdateMetadataRequest(
            9, self.controller_epoch, EPOCH + BROKER, changes, self.brokers, shutting_down
        )
        return self.control(request).error_code

    def report_failures(self) -> None:
        """What the broker does when the log manager told it of a failed directory."""
        while self.failed_directories:
            path, error = self.failed_directories.pop(0)
            self.manager.on_directory_failure(path, error)  # type: ignore[arg-type]

    # -- clients and followers -----------------------------------------------------------------

    def produce(
        self,
        records: bytes | Mapping[TopicPartition, bytes] | None = None,
        *,
        acks: int = -1,
        timeout_ms: int = 1000,
        **arguments: Any,
    ) -> Answers:
        answers = Answers()
        if not isinstance(records, Mapping):
            records = {TP: batch() if records is None else records}
        parts = tuple(ProducePartition(tp, data) for tp, data in records.items())
        self.manager.writes.produce(ProduceRequest(acks, timeout_ms, parts), answers, **arguments)
        return answers

    def append(self, count: int = 1, tp: TopicPartition = TP) -> ProducePartitionResponse:
        """``count`` records with acks=1."""
        answers = self.produce({tp: batch(count=count)}, acks=1)
        (response,) = answers
        assert isinstance(response, ProduceResponse)
        assert response.partitions[0].error_code is ErrorCode.NONE
        return response.partitions[0]

    def fetch(
        self,
        *parts: FetchPartition,
        replica: int = CONSUMER,
        wait_ms: int = 0,
        min_bytes: int = 1,
        committed: bool = False,
        **arguments: Any,
    ) -> Answers:
        answers = Answers()
        if replica >= 0:
            arguments.setdefault("replica_epoch", EPOCH + replica)
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        request = FetchRequest(
            parts,
            replica,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            isolation_level=isolation,
            **arguments,
        )
        self.manager.fetches.fetch(request, answers)
        return answers

    def replicate(
        self, offset: int, replica: int = 2, tp: TopicPartition = TP, log_start: int = 0
    ) -> FetchPartitionResponse:
        """A follower fetches from ``offset``: it has everything below."""
        answers = self.fetch(part(offset, tp, log_start=log_start), replica=replica)
        (response,) = answers
        assert isinstance(response, FetchResponse)
        return response.partitions[0]

    def delete_records(
        self, offset: int, tp: TopicPartition = TP, timeout_ms: int = 1000
    ) -> Answers:
        answers = Answers()
        self.manager.writes.delete_records(
            DeleteRecordsRequest(((tp, offset),), timeout_ms), answers
        )
        return answers


def part(
    offset: int,
    tp: TopicPartition = TP,
    *,
    epoch: int = -1,
    last_epoch: int = -1,
    log_start: int = -1,
    max_bytes: int = 1 << 20,
    topic_id: uuid.UUID | None = None,
) -> FetchPartition:
    return FetchPartition(tp, offset, max_bytes, epoch, last_epoch, log_start, topic_id)
