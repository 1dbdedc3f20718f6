"""Transactions on one broker: runs its shards, and does for them what needs the broker (Kafka's
``TransactionCoordinator``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import TRANSACTION_STATE
from replication.common.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    Response,
)
from replication.common.transport import OnReply
from replication.coordinators.effects import (
    AllocateProducerId,
    ClientRequest,
    MarkersWritten,
    Outward,
    ProducerIdAllocated,
    ReserveProducerIds,
    WriteMarkers,
)
from replication.coordinators.internal_topic import InternalTopic
from replication.coordinators.runtime import CoordinatorRuntime, Deliver
from replication.coordinators.transactions.config import TransactionConfig
from replication.coordinators.transactions.markers import TransactionMarkerChannelManager
from replication.coordinators.transactions.shard import TransactionShard
from replication.coordinators.transactions.state import TransactionMetadata, TransactionState
from replication.coordinators.transactions.transitions import Answer
from replication.protocol import messages as wire


class TransactionCoordinator:
    """See the module. Every method may be called from any thread that holds no lock.

    Args:
        broker: has AddPartitionsToTxn of other brokers served from here on.
    """

    def __init__(self, broker: Broker, config: TransactionConfig | None = None) -> None:
        self.config = config or TransactionConfig()
        self._broker = broker
        self._markers = TransactionMarkerChannelManager(
            broker.runtime,
            broker.transport,
            broker.metadata,
            request_timeout_ms=broker.config.request_timeout_ms,
        )
        self.runtime = CoordinatorRuntime(
            TRANSACTION_STATE,
            broker.runtime,
            broker.replica_manager,
            self._make_shard,
            self._carry_out,
        )
        self.topic = InternalTopic(
            broker,
            TRANSACTION_STATE,
            self.config.partitions,
            self.config.replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "unclean.leader.election.enable": "false",
                "min.insync.replicas": str(self.config.min_isr),
                "segment.bytes": str(self.config.segment_bytes),
            },
            lambda partition: partition in self.runtime.active,
        )
        broker.serve(AddPartitionsToTxnRequest, self.add_partitions)

    def _make_shard(self, partition: int, leader_epoch: int) -> TransactionShard:
        return TransactionShard(partition, leader_epoch, self.config)

    def startup(self) -> None:
        """Before the broker starts, or at any time after."""
        self.runtime.startup()

    def close(self) -> None:
        self.runtime.close()

    @property
    def states(self) -> Counter[TransactionState]:
        """Transactional ids that are coordinated here, by state; from any thread."""
        found: Counter[TransactionState] = Counter()
        for shard in self.runtime.active_shards:
            assert isinstance(shard, TransactionShard)
            found.update(shard.states)
        return found

    # -- requests ------------------------------------------------------------------------------

    def request(
        self, transactional_id: str, request: ClientRequest, answer: Callable[[object], None]
    ) -> None:
        """``answer`` gets what the shard answers, or an ``ErrorCode`` where another broker
        coordinates the id, or none does yet."""
        partition = self.topic.partition_of(transactional_id)
        if partition is None:
            answer(ErrorCode.NOT_COORDINATOR)
        else:
            self.runtime.request(partition, request, answer)

    def list_transactions(
        self, answer: Callable[[ErrorCode, list[TransactionMetadata]], None]
    ) -> None:
        """All transactions of this broker. While a partition is not loaded the list would not be
        whole, so the answer is an error."""

        def listed(answers: list[object]) -> None:
            found: list[TransactionMetadata] = []
            for each in answers:
                if isinstance(each, ErrorCode) and each is not ErrorCode.NOT_COORDINATOR:
                    answer(each, [])
                    return
                if isinstance(each, list):
                    found += each
            answer(ErrorCode.NONE, found)

        self.runtime.request_all(ClientRequest(wire.ListTransactionsRequest()), listed)

    # -- other brokers -------------------------------------------------------------------------

    def add_partitions(self, request: AddPartitionsToTxnRequest, reply: OnReply) -> None:
        """The leader of partitions asks whether a transaction holds them, or adds them to it."""

        def answered(found: Any) -> None:
            codes = found
            if not isinstance(found, dict):  # one for all
                code = found.error_code if isinstance(found, Answer) else found
                codes = dict.fromkeys(request.partitions, code)
            reply(AddPartitionsToTxnResponse(tuple(codes.items())))

        self.request(request.transactional_id, ClientRequest(request), answered)

    # -- effects -------------------------------------------------------------------------------

    def _carry_out(self, effect: Outward, deliver: Deliver, is_current: Callable[[], bool]) -> None:
        match effect:
            case AllocateProducerId(token, above):

                def allocated(response: Response | None) -> None:
                    code, producer_id = ErrorCode.BROKER_NOT_AVAILABLE, -1
                    if isinstance(response, InitProducerIdResponse):
                        code, producer_id = response.error_code, response.producer_id
                    deliver(ProducerIdAllocated(token, code, producer_id))

                self._broker.producer_ids.handle(InitProducerIdRequest(above), allocated)
            case ReserveProducerIds(through):
                self._broker.producer_ids.reserve(through)
            case WriteMarkers(token):
                self._markers.write(
                    effect, is_current, lambda code: deliver(MarkersWritten(token, code))
                )
