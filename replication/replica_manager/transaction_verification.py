"""Before a transaction begins in a partition, its leader asks the coordinator whether it may
(Kafka's ``AddPartitionsToTxnManager``).

Otherwise a batch that arrives after the end of its transaction would begin another one that never
ends, and readers of committed records would stop there forever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from checkpoints.types import TopicPartition
from logstore.common.errors import CorruptBatchError, InvalidProducerEpochError, LogstoreError
from logstore.common.types import Buffer
from logstore.format.header import HEADER_SIZE, BatchHeader, parse_header
from logstore.segments.producer_state import VerificationStateEntry
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import TRANSACTION_STATE
from replication.common.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    ProduceRequest,
    Response,
    TransactionSupport,
)
from replication.common.retrying import reactions
from replication.common.runtime import Runtime
from replication.common.state import NO_LEADER
from replication.common.transport import Transport
from replication.replica_manager.hosted_partitions import HostedPartitions
from replication.replica_manager.metadata_cache import MetadataCache

RETRY_MS = 20
RETRY_FOR_MS = 100  # the end of the transaction before, whose markers are on their way

Then = Callable[[Mapping[TopicPartition, ErrorCode]], None]

# The answer to a producer whose coordinator says this. Errors of the way to the coordinator become
# one at which every producer sends again, and does not ask for metadata first.
_E = ErrorCode
ERROR_OF_VERIFICATION = reactions(
    {
        _E.NONE: [_E.NONE],
        _E.INVALID_PRODUCER_ID_MAPPING: [_E.INVALID_PRODUCER_ID_MAPPING],
        _E.INVALID_TXN_STATE: [_E.INVALID_TXN_STATE],
        _E.TRANSACTION_ABORTABLE: [_E.TRANSACTION_ABORTABLE],
        _E.CONCURRENT_TRANSACTIONS: [_E.CONCURRENT_TRANSACTIONS],
        _E.UNKNOWN_TOPIC_OR_PARTITION: [_E.UNKNOWN_TOPIC_OR_PARTITION],
        _E.INVALID_REQUEST: [_E.INVALID_REQUEST],
        _E.INVALID_PRODUCER_EPOCH: [_E.PRODUCER_FENCED, _E.INVALID_PRODUCER_EPOCH],
        _E.NOT_ENOUGH_REPLICAS: [
            _E.NETWORK_EXCEPTION,
            _E.COORDINATOR_LOAD_IN_PROGRESS,
            _E.COORDINATOR_NOT_AVAILABLE,
            _E.NOT_COORDINATOR,
            _E.NOT_ENOUGH_REPLICAS,
        ],
    },
    otherwise=_E.UNKNOWN_SERVER_ERROR,
)


def error_for_producer(code: ErrorCode, support: TransactionSupport) -> ErrorCode:
    """Translate a coordinator's refusal for a producer of that version."""
    code = ERROR_OF_VERIFICATION[code]
    if code is ErrorCode.TRANSACTION_ABORTABLE and support is TransactionSupport.DEFAULT_ERROR:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and support < TransactionSupport.ADD_PARTITION:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code


class AddPartitionsToTxnManager:
    """The manager of one broker. Safe from any thread; nothing here waits."""

    def __init__(
        self,
        runtime: Runtime,
        transport: Transport,
        metadata: MetadataCache,
        partitions: HostedPartitions,
        timeout_ms: int,
    ) -> None:
        self._runtime = runtime
        self._transport = transport
        self._metadata = metadata
        self._partitions = partitions
        self._timeout_ms = timeout_ms

    def before_append(self, request: ProduceRequest, then: Then) -> None:
        """Have those partitions of a produce request verified in which a transaction would begin,
        or added to it. ``then`` is called once, with the errors of those that may not be appended
        to: before the return where nothing needs to be asked."""
        assert request.transactional_id is not None
        producers: dict[tuple[int, int], dict[TopicPartition, int]] = {}
        for part in request.partitions:
            header = _transactional_batch(part.records)
            if header is not None:
                producer = header.producer_id, header.producer_epoch
                producers.setdefault(producer, {})[part.tp] = header.base_sequence
        if len(producers) > 1:  # of one id there is one producer
            tps = [tp for sequences in producers.values() for tp in sequences]
            then(dict.fromkeys(tps, ErrorCode.INVALID_PRODUCER_ID_MAPPING))
            return
        if not producers:
            then({})
            return
        [((producer_id, producer_epoch), sequences)] = producers.items()
        adds = request.transaction_support is TransactionSupport.ADD_PARTITION
        support = request.transaction_support
        self.verify(
            request.transactional_id,
            producer_id,
            producer_epoch,
            sequences,
            lambda errors: then({tp: error_for_producer(c, support) for tp, c in errors.items()}),
            adds=adds,
        )

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        sequences: Mapping[TopicPartition, int],
        then: Then,
        *,
        adds: bool,
    ) -> None:
        """Ask for those partitions in which no transaction of the producer is open. ``then`` gets
        the coordinator's errors, of those that it does not confirm.

        ``sequences``: of the first record for each partition. ``adds``: the coordinator adds the
        partitions to the transaction, as producers expect that know version 2 of transactions.
        """
        asked: dict[TopicPartition, VerificationStateEntry] = {}
        refused: dict[TopicPartition, ErrorCode] = {}
        for tp, sequence in sequences.items():
            try:
                partition = self._partitions.find(tp)
                verification = partition.leader.begin_verification(
                    producer_id, producer_epoch, sequence, bumps_epoch=adds
                )
            except InvalidProducerEpochError:
                refused[tp] = ErrorCode.INVALID_PRODUCER_EPOCH
                continue
            except LogstoreError:  # the append meets it again, and says so
                continue
            if verification is not None:
                asked[tp] = verification
        if not transactional_id:
            refused = dict.fromkeys(asked, ErrorCode.INVALID_REQUEST) | refused
            asked = {}
        if not asked:
            then(refused)
            return
        request = AddPartitionsToTxnRequest(
            transactional_id, producer_id, producer_epoch, tuple(asked), verify_only=not adds
        )
        self._ask_and_confirm(request, asked, lambda errors: then({**refused, **errors}))

    def _ask_and_confirm(
        self,
        request: AddPartitionsToTxnRequest,
        verifications: Mapping[TopicPartition, VerificationStateEntry],
        then: Then,
        tries_left: int = RETRY_FOR_MS // RETRY_MS,
    ) -> None:
        """Ask, and for a moment ask again while the transaction before it ends."""

        def on_codes(codes: Mapping[TopicPartition, ErrorCode]) -> None:
            if ErrorCode.CONCURRENT_TRANSACTIONS in codes.values() and tries_left:
                self._runtime.call_later(
                    RETRY_MS,
                    lambda: self._ask_and_confirm(request, verifications, then, tries_left - 1),
                )
                return
            for tp, verification in verifications.items():
                if codes[tp] is ErrorCode.NONE:
                    verification.confirmed = True
            then({tp: code for tp, code in codes.items() if code is not ErrorCode.NONE})

        self._ask_coordinator(request, on_codes)

    def _ask_coordinator(self, request: AddPartitionsToTxnRequest, answered: Then) -> None:
        """Have the coordinator answer; an error for each partition of the request."""

        def on_reply(response: Response | None) -> None:
            if isinstance(response, AddPartitionsToTxnResponse):
                codes = dict(response.partitions)
                answered({tp: codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR) for tp in tps})
            else:
                answered(dict.fromkeys(tps, ErrorCode.NETWORK_EXCEPTION))

        tps = request.partitions
        coordinator = self._coordinator_of(request.transactional_id)
        if coordinator == NO_LEADER:
            answered(dict.fromkeys(tps, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            self._transport.send(coordinator, request, on_reply, self._timeout_ms)

    def _coordinator_of(self, transactional_id: str) -> int:
        tp = self._metadata.coordinator_partition(TRANSACTION_STATE, transactional_id)
        known = None if tp is None else self._metadata.registration(tp)
        return NO_LEADER if known is None else known.leader


def _transactional_batch(records: Buffer) -> BatchHeader | None:
    """The header of a transactional batch; what else is wrong with it, the log says."""
    if len(records) < HEADER_SIZE:
        return None
    try:
        header = parse_header(records)
    except CorruptBatchError:
        return None
    if not header.is_transactional or header.is_control or header.producer_id < 0:
        return None
    return header
