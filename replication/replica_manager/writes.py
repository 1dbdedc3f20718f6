"""Requests that change logs, at once or when all replicas have the change: produce, transaction
markers, deletions of records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError, RecordRejectedError, ResourceBusyError
from logstore.common.types import Buffer
from logstore.format.batch import end_transaction_marker
from logstore.format.control import ControlType
from logstore.kernels import AppendInfo
from logstore.segments.producer_state import AppendOrigin, TransactionCheck
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    InvalidRequiredAcksError,
    UnknownPartitionError,
    error_for,
)
from replication.common.gathering import Gathering
from replication.common.messages import (
    DeleteRecordsPartitionResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.common.runtime import Runtime
from replication.partition import LeaderAppend, Partition
from replication.replica_manager.fetch_reader import answer_code
from replication.replica_manager.hosted_partitions import HostedPartitions
from replication.replica_manager.purgatory import MAX_WAIT_MS, DelayedOperation
from replication.replica_manager.transaction_verification import AddPartitionsToTxnManager
from replication.replica_manager.waiting import BrokerStats, WaitingRequests

_NO_ERROR = ErrorCode.NONE  # bound once: looking it up takes 0.4 µs on Python 3.11

UncommittedAppend = Callable[[Callable[[ProduceResponse], None]], None]
"""Takes what is to be called once the append is committed, or is not to be waited for any more."""

WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors of an append whose answer has no log start offset. All others have it."""


class Writes:
    """Serves them. Each ``respond`` is called exactly once, before the call returns or later on any
    thread. No lock is held during an answer.
    """

    def __init__(
        self,
        partitions: HostedPartitions,
        transactions: AddPartitionsToTxnManager,
        waiting: WaitingRequests,
        stats: BrokerStats,
        config: ReplicationConfig,
        runtime: Runtime,
    ) -> None:
        self._partitions = partitions
        self._transactions = transactions
        self._waiting = waiting
        self._stats = stats
        self._config = config
        self._runtime = runtime
        self._check_of_transactions = (
            TransactionCheck.VERIFIED if config.verify_transactions else TransactionCheck.NONE
        )

    def produce(
        self,
        request: ProduceRequest,
        respond: Callable[[ProduceResponse], None],
        origin: AppendOrigin = AppendOrigin.CLIENT,
        check: TransactionCheck | None = None,
    ) -> None:
        """Append to partitions that this broker leads, and answer as ``acks`` says (R-79 … R-86).

        ``check``: of transactional batches; by default what the configuration says.

        With acks=0 the answer comes at once, too. The network layer does not send it, and closes
        the connection if it has an error.
        """
        if request.acks not in (-1, 0, 1):
            refused = [self._invalid_acks(part.tp, request.acks) for part in request.partitions]
            respond(ProduceResponse(tuple(refused)))
            return
        verify = self._config.verify_transactions
        if check is None:
            check = self._check_of_transactions
        if verify and request.transactional_id is not None:
            self._transactions.before_append(
                request, lambda errors: self._append(request, errors, respond, origin, check)
            )
        else:
            self._append(request, {}, respond, origin, check)

    def _append(
        self,
        request: ProduceRequest,
        errors: Mapping[TopicPartition, ErrorCode],
        respond: Callable[[ProduceResponse], None],
        origin: AppendOrigin,
        check: TransactionCheck,
    ) -> None:
        """Append to all partitions except those in ``errors``."""
        responses: list[ProducePartitionResponse] = []
        required: dict[int, tuple[int, int]] = {}
        appended: list[tuple[TopicPartition, LeaderAppend]] = []
        size = count = rejected = 0
        for at, part in enumerate(request.partitions):
            try:
                partition = self._partitions.find(part.tp)
                if part.tp in errors:
                    raise error_for(errors[part.tp], "the transaction may not begin here")
                append = partition.leader.append(
                    part.records, request.acks, origin, part.leader_epoch, check
                )
            except Exception as error:
                refuse = self._refusal if part.tp in errors else self._refusal_of_append
                responses.append(refuse(part.tp, error))
                rejected += _rejected_bytes(part.records, error)
                continue
            info = append.info
            if not info.duplicate:
                size += info.size
                count += info.record_count
            appended.append((part.tp, append))
            required[at] = info.last_offset + 1, append.leader_epoch
            responses.append(_response_to(part.tp, info))
        stats = self._stats
        with stats.lock:
            stats.bytes_in += size
            stats.messages_in += count
            stats.bytes_rejected += rejected
        for tp, append in appended:
            if not append.info.duplicate:
                self._waiting.on_append(tp, append.hw_moved)
            elif append.hw_moved:  # the first try did not get so far
                self._waiting.on_high_watermark(tp)
        if request.acks != -1 or not required:
            respond(ProduceResponse(tuple(responses)))
            return
        operation = DelayedProduce(
            request.timeout_ms,
            responses,
            required,
            self._partitions,
            respond,
            self._stats,
            hw_moved=any(append.hw_moved or append.info.duplicate for _, append in appended),
        )
        self._waiting.add(
            self._waiting.produce, operation, [part.tp for part in request.partitions]
        )

    def append_one(
        self, tp: TopicPartition, records: bytes, acks: int, timeout_ms: int
    ) -> AppendInfo | ProducePartitionResponse | UncommittedAppend:
        """Append one batch of a client, with acks of 1 or −1 and without a transaction, as
        ``produce``. Returns the append, or why there is none, or the append that is to be waited
        for."""
        stats = self._stats
        try:
            leader = self._partitions.find(tp).leader
            append = leader.append(records, acks, check=self._check_of_transactions)
        except Exception as error:
            refusal = self._refusal_of_append(tp, error)
            with stats.lock:
                stats.bytes_rejected += _rejected_bytes(records, error)
            return refusal
        info = append.info
        if not info.duplicate:
            with stats.lock:
                stats.bytes_in += info.size
                stats.messages_in += info.record_count
            self._waiting.on_append(tp, append.hw_moved)
        elif append.hw_moved:
            self._waiting.on_high_watermark(tp)
        if acks == 1 or (append.hw_moved and leader.has_committed(append)):
            return info
        return partial(self._await_append, tp, append, timeout_ms)

    def _await_append(
        self,
        tp: TopicPartition,
        append: LeaderAppend,
        timeout_ms: int,
        respond: Callable[[ProduceResponse], None],
    ) -> None:
        info = append.info
        operation = DelayedProduce(
            timeout_ms,
            [_response_to(tp, info)],
            {0: (info.last_offset + 1, append.leader_epoch)},
            self._partitions,
            respond,
            self._stats,
            hw_moved=append.hw_moved or info.duplicate,
        )
        self._waiting.add(self._waiting.produce, operation, [tp])

    def write_txn_markers(
        self,
        request: WriteTxnMarkersRequest,
        respond: Callable[[WriteTxnMarkersResponse], None],
    ) -> None:
        """End transactions in partitions that this broker leads.

        Answered when all markers are committed or failed (W-155).
        """
        gathering: Gathering[tuple[tuple[TopicPartition, ErrorCode], ...]] = Gathering(
            len(request.markers), lambda found: respond(WriteTxnMarkersResponse(tuple(found)))
        )

        def answered(at: int, response: ProduceResponse) -> None:
            codes = tuple((part.tp, part.error_code) for part in response.partitions)
            gathering.take_answer(at, codes)

        timestamp = self._runtime.clock.wall_ms()
        for at, marker in enumerate(request.markers):
            batch = end_transaction_marker(
                ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp=timestamp,
            )
            records = bytes(batch)
            parts = tuple(ProducePartition(tp, records) for tp in marker.partitions)
            self._append(
                ProduceRequest(-1, self._config.request_timeout_ms, parts),
                {},
                partial(answered, at),
                AppendOrigin.COORDINATOR,
                marker.check,
            )

    def await_commit(
        self,
        tp: TopicPartition,
        end_offset: int,
        leader_epoch: int,
        timeout_ms: int,
        respond: Callable[[ErrorCode], None],
    ) -> None:
        """Answer once everything below ``end_offset``, the log end in ``leader_epoch``, is
        committed.

        An error means that it is not, or not by this leader.
        """

        def responded(response: ProduceResponse) -> None:
            respond(response.partitions[0].error_code)

        responses = [ProducePartitionResponse(tp)]
        required = {0: (end_offset, leader_epoch)}
        operation = DelayedProduce(
            timeout_ms, responses, required, self._partitions, responded, self._stats
        )
        self._waiting.add(self._waiting.produce, operation, [tp])

    def _invalid_acks(self, tp: TopicPartition, acks: int) -> ProducePartitionResponse:
        error: LogstoreError = InvalidRequiredAcksError(f"acks={acks}; 0, 1 and -1 are possible")
        if self._partitions.is_unknown(tp):
            error = UnknownPartitionError(f"{tp} is not known here")
        return self._refusal(tp, error)

    def _refusal_of_append(self, tp: TopicPartition, error: Exception) -> ProducePartitionResponse:
        """As ``_refusal``, with the log start offset where Kafka sends it."""
        if isinstance(error, ResourceBusyError):  # perhaps written and only not synced
            self._waiting.on_append(tp, False)
        refusal = self._refusal(tp, error)
        partition = self._partitions.get(tp)
        if refusal.error_code in WITHOUT_LOG_START or partition is None or partition.log is None:
            return refusal
        return refusal._replace(log_start_offset=partition.log.log_start_offset)

    def _refusal(self, tp: TopicPartition, error: Exception) -> ProducePartitionResponse:
        code = answer_code(tp, error)
        records = error.record_errors if isinstance(error, RecordRejectedError) else ()
        return ProducePartitionResponse(
            tp,
            code,
            error_message=str(error),
            record_errors=records,
            current_leader=self._partitions.leader_hint(tp, code),
        )

    def delete_records(
        self, request: DeleteRecordsRequest, respond: Callable[[DeleteRecordsResponse], None]
    ) -> None:
        """Raise log starts. Answered when all live replicas have done so, too (R-96)."""
        responses = []
        wanted: dict[int, int] = {}
        for at, (tp, offset) in enumerate(request.partitions):
            try:
                partition = self._partitions.find(tp)
                start = partition.leader.delete_records(offset)
                low = partition.leader.low_watermark
                self._waiting.on_deletion(tp)
            except Exception as error:
                responses.append(DeleteRecordsPartitionResponse(tp, answer_code(tp, error)))
                continue
            responses.append(DeleteRecordsPartitionResponse(tp, ErrorCode.NONE, low))
            if low < start:
                wanted[at] = start
        if not wanted:
            respond(DeleteRecordsResponse(tuple(responses)))
            return
        operation = DelayedDeleteRecords(
            request.timeout_ms, responses, wanted, self._partitions, respond, self._stats
        )
        self._waiting.add(
            self._waiting.delete_records, operation, [tp for tp, _ in request.partitions]
        )


def _response_to(tp: TopicPartition, info: AppendInfo) -> ProducePartitionResponse:
    return ProducePartitionResponse(
        tp, _NO_ERROR, info.first_offset, info.log_append_time, info.log_start_offset
    )


def _rejected_bytes(records: Buffer, error: Exception) -> int:
    """How many bytes of a refused append count as rejected."""
    return len(records) if isinstance(error, RecordRejectedError) else 0


class _DelayedWrite(DelayedOperation):
    """Waits until all partitions of a request have what it wants.

    Args:
        responses: one for each partition of the request. Those that wait have no error so far.
        required: position in ``responses`` → what it waits for.
    """

    def __init__(
        self,
        timeout_ms: int,
        responses: Sequence[Any],
        required: dict[int, Any],
        partitions: HostedPartitions,
        respond: Callable[[Any], None],
        stats: BrokerStats,
    ) -> None:
        super().__init__(min(timeout_ms, MAX_WAIT_MS))
        self._responses = list(responses)
        self._required = required
        self._partitions = partitions
        self._respond = respond
        self._stats = stats


class DelayedProduce(_DelayedWrite):
    """Waits until the appends of acks=all are committed in every partition (R-81, R-84 … R-86).

    ``required`` is the high watermark that commits an append, and the leader epoch of its batches,
    because another leader's records at these offsets are not ours. ``hw_moved``: whether an append
    moved it, so that a check before watching may succeed.
    """

    def __init__(
        self,
        timeout_ms: int,
        responses: Sequence[ProducePartitionResponse],
        required: dict[int, tuple[int, int]],
        partitions: HostedPartitions,
        respond: Callable[[ProduceResponse], None],
        stats: BrokerStats,
        *,
        hw_moved: bool = True,
    ) -> None:
        super().__init__(timeout_ms, responses, required, partitions, respond, stats)
        self.checks_first = hw_moved or timeout_ms <= 0
        self._only: tuple[Partition, int, int] | None = None  # the last of ``required``

    def try_complete(self) -> bool:
        # Most are checked several times, for one partition.
        only = self._only
        if only is not None and only[0].leader.is_waiting_for(only[1], only[2]):
            return False
        for at, (required, leader_epoch) in list(self._required.items()):
            tp = self._responses[at].tp
            try:
                partition = self._partitions.find(tp)
                if partition.leader.is_waiting_for(required, leader_epoch):
                    if len(self._required) == 1:
                        self._only = partition, required, leader_epoch
                    continue
                done, code = partition.leader.acks_satisfied(required, leader_epoch)
            except Exception as error:
                done, code = True, answer_code(tp, error)
            if done:
                del self._required[at]
                if code is not ErrorCode.NONE:
                    self._fail(at, code)
        return not self._required and self.force_complete()

    def _fail(self, at: int, code: ErrorCode) -> None:
        response = self._responses[at]
        self._responses[at] = response._replace(
            error_code=code, current_leader=self._partitions.leader_hint(response.tp, code)
        )

    def on_complete(self) -> None:
        for at in self._required:  # they may or may not become committed yet
            self._fail(at, ErrorCode.REQUEST_TIMED_OUT)
        self._respond(ProduceResponse(tuple(self._responses)))

    def on_expiration(self) -> None:
        with self._stats.lock:
            self._stats.produce_expirations += len(self._required)


class DelayedDeleteRecords(_DelayedWrite):
    """Waits until no live replica has the deleted records any more (R-96): for low watermarks."""

    def try_complete(self) -> bool:
        for at, wanted in list(self._required.items()):
            tp = self._responses[at].tp
            try:
                low, code = self._partitions.find(tp).leader.low_watermark, ErrorCode.NONE
            except Exception as error:
                low, code = -1, answer_code(tp, error)
            if code is not ErrorCode.NONE or low >= wanted:
                del self._required[at]
            self._responses[at] = DeleteRecordsPartitionResponse(tp, code, low)
        return not self._required and self.force_complete()

    def on_complete(self) -> None:
        for at in self._required:
            self._responses[at] = self._responses[at]._replace(
                error_code=ErrorCode.REQUEST_TIMED_OUT
            )
        self._respond(DeleteRecordsResponse(tuple(self._responses)))

    def on_expiration(self) -> None:
        with self._stats.lock:
            self._stats.delete_records_expirations += len(self._required)
