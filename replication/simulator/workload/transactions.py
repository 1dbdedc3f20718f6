"""Transactions: batches of a transactional producer, then a marker that the leader writes as for a
transaction coordinator. If not all batches are acknowledged, the transaction is aborted under the
next producer epoch, so that late copies are refused.
"""

from __future__ import annotations

from functools import partial

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.control import ControlType
from logstore.segments.producer_state import AppendOrigin
from replication.client import Outcome as Sent
from replication.client import ProducerConfig, ProducerCore, SendResult
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    TopicPartitionMetadata,
)
from replication.simulator.oracle.history import Transaction, TransactionPhase, Write, WriteOutcome
from replication.simulator.workload.clients import ClientWorld, SimClient
from replication.simulator.world.plan import Operation
from replication.simulator.world.scheduler import US_PER_MS

MARKER_TIMEOUT_MS = 600
AGAIN_MS = 70


class Transactions:
    """All transactions of a schedule.

    Args:
        client: their node in the network.
    """

    def __init__(
        self, client: SimClient, request_timeout_ms: int, delivery_timeout_ms: int
    ) -> None:
        self._client = client
        self._world: ClientWorld = client.world
        config = ProducerConfig(
            acks=-1, request_timeout_ms=request_timeout_ms, delivery_timeout_ms=delivery_timeout_ms
        )
        self._core = ProducerCore(client.runtime, client.transport, client.metadata, config)
        self._all: list[Transaction] = []

    def begin(self, tp: TopicPartition, step: Operation) -> None:
        transaction = Transaction(len(self._all), tp, step)
        self._all.append(transaction)
        self._send(transaction)

    def pending_reason(self) -> str:
        open_ = [t.producer_id for t in self._all if not t.ended]
        return f"transactions of producers {open_} have no end" if open_ else ""

    def _send(self, transaction: Transaction) -> None:
        """Send the next batch, or end the transaction."""
        world = self._world
        if not transaction.batches:
            abort = transaction.size % 3 == 0
            self._end(
                transaction, TransactionPhase.ABORTING if abort else TransactionPhase.COMMITTING
            )
            return
        transaction.batches -= 1
        write = world.history.begin(transaction.tp, -1, 2, 8)
        write.transaction = transaction
        batch = encode_batch(
            [(None, value) for value in write.values],
            default_timestamp=self._client.runtime.clock.wall_ms(),
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            base_sequence=transaction.sequence,
            transactional=True,
        )
        transaction.sequence += len(write.values)
        sent = partial(self._sent, transaction, write)
        self._core.send_encoded(transaction.tp, batch, len(write.values), sent)

    def _sent(self, transaction: Transaction, write: Write, result: SendResult) -> None:
        if result.outcome is Sent.ACKNOWLEDGED:
            self._world.history.settle(write, WriteOutcome.OK, result.base_offset)
            self._send(transaction)
        else:
            self._world.history.settle(write, WriteOutcome.UNKNOWN)
            transaction.epoch += 1
            self._end(transaction, TransactionPhase.ABORTING)

    def _end(self, transaction: Transaction, state: TransactionPhase) -> None:
        transaction.state = state
        self._world.scheduler.note(f"producer {transaction.producer_id} is {state.value}")
        self._mark(transaction)

    def _mark(self, transaction: Transaction) -> None:
        """Write the marker, with retries until a leader has it."""
        leader = self._client.metadata.leader(transaction.tp)
        machine = (
            self._world.cluster.machines[leader.leader_id]
            if isinstance(leader, TopicPartitionMetadata)
            else None
        )
        answered = False

        def respond(response: ProduceResponse | None) -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            code = ErrorCode.NETWORK_EXCEPTION
            if response is not None:
                code = response.partitions[0].error_code
            if code is ErrorCode.NONE:
                transaction.ended = True
                self._world.counters[f"transactions {transaction.state.value}"] += 1
            else:
                self._client.runtime.call_later(AGAIN_MS, partial(self._look, transaction))

        if machine is None or machine.broker is None:
            respond(None)
            return
        marker = end_transaction_marker(
            ControlType.COMMIT if transaction.commits else ControlType.ABORT,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            coordinator_epoch=0,
            timestamp=self._client.runtime.clock.wall_ms(),
        )
        request = ProduceRequest(-1, MARKER_TIMEOUT_MS, (ProducePartition(transaction.tp, marker),))
        produce = machine.broker.replica_manager.writes.produce
        self._world.scheduler.after(
            0,
            machine.process,
            "marker",
            lambda: produce(request, respond, AppendOrigin.COORDINATOR),
        )
        self._world.scheduler.after(
            MARKER_TIMEOUT_MS * US_PER_MS,
            self._client.process,
            "marker timed out",
            lambda: respond(None),
        )

    def _look(self, transaction: Transaction) -> None:
        self._client.metadata.refresh(lambda answered: self._mark(transaction))
