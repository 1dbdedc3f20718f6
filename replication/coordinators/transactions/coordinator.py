"""Transactions on one broker: runs its shards, and does for them what needs the broker (Kafka's
``TransactionCoordinator``)."""

from __future__ import annotations

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
from replication.coordinators.coordinator import TopicCoordinator
from replication.coordinators.effects import (
    AllocateProducerId,
    ClientRequest,
    MarkersWritten,
    Outward,
    ProducerIdAllocated,
    ReserveProducerIds,
    WriteMarkers,
)
from replication.coordinators.runtime import Deliver
from replication.coordinators.transactions.config import TransactionConfig
from replication.coordinators.transactions.markers import TransactionMarkerChannelManager
from replication.coordinators.transactions.shard import TransactionShard
from replication.coordinators.transactions.state import TransactionMetadata
from replication.coordinators.transactions.transitions import Answer
from replication.protocol import messages as wire


class TransactionCoordinator(TopicCoordinator):
    """See the module. Every method may be called from any thread that holds no lock.

    Args:
        broker: has AddPartitionsToTxn of other brokers served from here on.
    """

    def __init__(self, broker: Broker, config: TransactionConfig | None = None) -> None:
        self.config = config or TransactionConfig()
        self._markers = TransactionMarkerChannelManager(
            broker.runtime,
            broker.transport,
            broker.metadata,
            request_timeout_ms=broker.config.request_timeout_ms,
        )
        super().__init__(
            broker,
            TRANSACTION_STATE,
            self.config.partitions,
            self.config.replication_factor,
            {
                "compression.type": "uncompressed",
                "unclean.leader.election.enable": "false",
                "min.insync.replicas": str(self.config.min_isr),
                "segment.bytes": str(self.config.segment_bytes),
            },
            lambda partition, leader_epoch: TransactionShard(partition, leader_epoch, self.config),
            self._carry_out,
        )
        broker.serve(AddPartitionsToTxnRequest, self.add_partitions)

    def list_transactions(
        self, answer: Callable[[ErrorCode, list[TransactionMetadata]], None]
    ) -> None:
        """All transactions of this broker."""
        self.list_all(ClientRequest(wire.ListTransactionsRequest()), answer)

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
            case WriteMarkers(token, marker):
                self._markers.write(
                    marker, is_current, lambda code: deliver(MarkersWritten(token, code))
                )
