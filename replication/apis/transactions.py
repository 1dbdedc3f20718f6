"""The APIs of transactional and idempotent producers (W-150 to W-164)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from checkpoints.types import TopicPartition
from replication.apis.common.handlers import Handlers, ReceivedRequest, Reply
from replication.apis.common.patterns import InvalidPatternError, Pattern
from replication.apis.common.waits import Gathering
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import TRANSACTION_STATE
from replication.common.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    Response,
    TxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.coordinators.effects import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from replication.coordinators.internal_topic import InternalTopic
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.coordinators.transactions.requests import (
    AddPartitions,
    Answer,
    Described,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    Verified,
    VerifyPartitions,
)
from replication.coordinators.transactions.state import (
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
)
from replication.protocol import ApiKey
from replication.protocol import messages as wire

# The first version of each API whose clients know PRODUCER_FENCED (W-157).
FENCED_SINCE: Mapping[ApiKey, int] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
FIRST_OF_SEVERAL = 4  # AddPartitionsToTxn from here on holds several transactions
FIRST_THAT_BUMPS = 5  # EndTxn

AddResults = tuple[wire.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult, ...]


class TransactionApis:
    """Answers producers. All decisions are made in ``TransactionCoordinator``."""

    def __init__(
        self, broker: Broker, coordinator: TransactionCoordinator, group_topic: InternalTopic
    ) -> None:
        self._broker = broker
        self._metadata = broker.metadata
        self._coordinator = coordinator
        self._group_topic = group_topic

    @property
    def handlers(self) -> Handlers:
        return {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets,
            ApiKey.END_TXN: self.end_transaction,
            ApiKey.WRITE_TXN_MARKERS: self.write_markers,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe_transactions,
            ApiKey.LIST_TRANSACTIONS: self.list_transactions,
        }

    # -- InitProducerId --------------------------------------------------------------------------

    def init_producer_id(
        self, received: ReceivedRequest, request: wire.InitProducerIdRequest, reply: Reply
    ) -> None:
        """Without a transactional id any broker answers, with an id of its own block."""

        def answer(code: ErrorCode, producer_id: int = -1, producer_epoch: int = -1) -> None:
            reply(
                wire.InitProducerIdResponse(
                    error_code=code, producer_id=producer_id, producer_epoch=producer_epoch
                )
            )

        transactional_id = request.transactional_id
        known = request.producer_id != NO_PRODUCER_ID
        if known != (request.producer_epoch != NO_PRODUCER_EPOCH) or transactional_id == "":
            answer(ErrorCode.INVALID_REQUEST)
        elif transactional_id is None:
            self._broker.handle(InitProducerIdRequest(), partial(_allocated, answer))
        else:
            self._coordinator.request(
                transactional_id,
                InitProducerId(
                    transactional_id,
                    request.transaction_timeout_ms,
                    request.producer_id,
                    request.producer_epoch,
                ),
                lambda found: answer(*_for_client(received, found)),
            )

    # -- partitions ------------------------------------------------------------------------------

    def add_partitions(
        self, received: ReceivedRequest, request: wire.AddPartitionsToTxnRequest, reply: Reply
    ) -> None:
        """One transaction of a client, or several that the leader of partitions asks for."""
        if received.api_version < FIRST_OF_SEVERAL:
            kind = wire.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
            asked = kind(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                False,
                request.v3_and_below_topics,
            )
            self._add(
                received,
                asked,
                lambda results: reply(
                    wire.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
                ),
            )
            return
        transactions = request.transactions
        result = wire.AddPartitionsToTxnResponse.AddPartitionsToTxnResult
        gathering: Gathering[AddResults] = Gathering(
            len(transactions),
            lambda found: reply(
                wire.AddPartitionsToTxnResponse(
                    results_by_transaction=tuple(
                        result(asked.transactional_id, results)
                        for asked, results in zip(transactions, found, strict=True)
                    )
                )
            ),
        )
        for at, asked in enumerate(transactions):
            self._add(received, asked, partial(gathering.take, at))

    def _add(
        self,
        received: ReceivedRequest,
        asked: wire.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction,
        done: Callable[[AddResults], None],
    ) -> None:
        tps = [
            TopicPartition(topic.name, number)
            for topic in asked.topics
            for number in topic.partitions
        ]

        def answer(codes: Mapping[TopicPartition, ErrorCode], other: ErrorCode) -> None:
            kind = wire.AddPartitionsToTxnResponse
            done(
                tuple(
                    kind.AddPartitionsToTxnTopicResult(
                        topic.name,
                        tuple(
                            kind.AddPartitionsToTxnPartitionResult(
                                number, codes.get(TopicPartition(topic.name, number), other)
                            )
                            for number in topic.partitions
                        ),
                    )
                    for topic in asked.topics
                )
            )

        if not asked.transactional_id:
            answer({}, ErrorCode.INVALID_REQUEST)
            return
        unknown = [tp for tp in tps if self._metadata.registration(tp) is None]
        if unknown:
            answer(
                dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                ErrorCode.OPERATION_NOT_ATTEMPTED,
            )
            return
        producer = asked.transactional_id, asked.producer_id, asked.producer_epoch

        def answered(found: object) -> None:
            missing: Iterable[TopicPartition] = ()
            if isinstance(found, Verified):
                missing, found = found.missing, Answer(found.error_code)
            code, _, _ = _for_client(received, found)
            answer(dict.fromkeys(missing, ErrorCode.TRANSACTION_ABORTABLE), code)

        version = TransactionVersion.TV_0
        if received.api_version >= FIRST_OF_SEVERAL:
            version = TransactionVersion.TV_2
        self._coordinator.request(
            asked.transactional_id,
            VerifyPartitions(*producer, frozenset(tps))
            if asked.verify_only
            else AddPartitions(*producer, frozenset(tps), version),
            answered,
        )

    def add_offsets(
        self, received: ReceivedRequest, request: wire.AddOffsetsToTxnRequest, reply: Reply
    ) -> None:
        """Add the partition of a group, where the transaction commits offsets."""

        def answered(found: object) -> None:
            reply(wire.AddOffsetsToTxnResponse(error_code=_for_client(received, found)[0]))

        partition = self._group_topic.partition_of(request.group_id)
        if not request.transactional_id:
            answered(ErrorCode.INVALID_REQUEST)
        elif partition is None:
            self._group_topic.create()
            answered(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            tp = TopicPartition(self._group_topic.name, partition)
            self._coordinator.request(
                request.transactional_id,
                AddPartitions(
                    request.transactional_id,
                    request.producer_id,
                    request.producer_epoch,
                    frozenset({tp}),
                ),
                answered,
            )

    # -- EndTxn ----------------------------------------------------------------------------------

    def end_transaction(
        self, received: ReceivedRequest, request: wire.EndTxnRequest, reply: Reply
    ) -> None:
        """Commit or abort. Answered as soon as it is decided; the markers follow."""

        def answered(found: object) -> None:
            code, producer_id, producer_epoch = _for_client(received, found)
            reply(
                wire.EndTxnResponse(
                    error_code=code, producer_id=producer_id, producer_epoch=producer_epoch
                )
            )

        if not request.transactional_id:
            answered(ErrorCode.INVALID_REQUEST)
            return
        bumps = received.api_version >= FIRST_THAT_BUMPS
        self._coordinator.request(
            request.transactional_id,
            EndTransaction(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                request.committed,
                TransactionVersion.TV_2 if bumps else TransactionVersion.TV_0,
            ),
            answered,
        )

    # -- WriteTxnMarkers -------------------------------------------------------------------------

    def write_markers(
        self, received: ReceivedRequest, request: wire.WriteTxnMarkersRequest, reply: Reply
    ) -> None:
        """Append markers for an operator who aborts a transaction that nobody ends. The leader of a
        partition takes the marker as if the coordinator had sent it (W-155).

        Each partition has its own answer. A marker is refused if no coordinator can have sent it,
        if it is for the coordinators' own topic, or if a client gives it an epoch that would fence
        the real coordinator or the producer (W-212).
        """
        is_client = not received.connection.listener.is_inter_broker
        answers: list[dict[TopicPartition, ErrorCode]] = []
        wanted: dict[int, TxnMarker] = {}
        for at, marker in enumerate(request.markers):
            tps = [
                TopicPartition(topic.name, index)
                for topic in marker.topics
                for index in topic.partition_indexes
            ]
            refused = _refused_markers(marker, tps)
            for tp in tps if is_client else ():
                if self._is_ahead(marker, tp):
                    refused.setdefault(tp, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            answers.append(refused)
            rest = tuple(tp for tp in dict.fromkeys(tps) if tp not in refused)
            if rest:
                wanted[at] = TxnMarker(
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.transaction_result,
                    marker.coordinator_epoch,
                    rest,
                    marker.transaction_version,
                )

        def answered(response: Response | None) -> None:
            if isinstance(response, WriteTxnMarkersResponse):
                for at, codes in zip(wanted, response.markers, strict=True):
                    answers[at].update(codes)
            reply(_markers_answered(request, answers))

        self._broker.handle(WriteTxnMarkersRequest(tuple(wanted.values())), answered)

    def _is_ahead(
        self, marker: wire.WriteTxnMarkersRequest.WritableTxnMarker, tp: TopicPartition
    ) -> bool:
        """Whether an epoch is above the one in the partition, as DescribeProducers shows it to
        operators; 0 without any, which they use then."""
        partition = self._broker.replica_manager.partitions.get(tp)
        log = None if partition is None else partition.log
        known = None if log is None else log.producers.known.producers.get(marker.producer_id)
        epochs = (0, 0) if known is None else (known.producer_epoch, known.coordinator_epoch)
        asked = marker.producer_epoch, marker.coordinator_epoch
        return any(each > max(0, last) for each, last in zip(asked, epochs, strict=True))

    # -- for people who look ---------------------------------------------------------------------

    def describe_transactions(
        self, received: ReceivedRequest, request: wire.DescribeTransactionsRequest, reply: Reply
    ) -> None:
        kind = wire.DescribeTransactionsResponse
        ids = tuple(dict.fromkeys(request.transactional_ids))  # each once (W-237)
        gathering: Gathering[wire.DescribeTransactionsResponse.TransactionState] = Gathering(
            len(ids), lambda found: reply(kind(transaction_states=tuple(found)))
        )

        def answered(at: int, found: object) -> None:
            gathering.take(at, _described(ids[at], found))

        for at, transactional_id in enumerate(ids):
            if transactional_id:
                self._coordinator.request(
                    transactional_id, DescribeTransaction(transactional_id), partial(answered, at)
                )
            else:
                answered(at, ErrorCode.INVALID_REQUEST)

    def list_transactions(
        self, received: ReceivedRequest, request: wire.ListTransactionsRequest, reply: Reply
    ) -> None:
        kind = wire.ListTransactionsResponse
        try:
            text = request.transactional_id_pattern
            pattern = Pattern(text) if text else None
        except InvalidPatternError:
            reply(kind(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION))
            return
        known = {state.kafka_name for state in TransactionState}
        states, ids = frozenset(request.state_filters), frozenset(request.producer_id_filters)
        unknown = tuple(dict.fromkeys(each for each in request.state_filters if each not in known))
        now_ms = self._broker.runtime.clock.wall_ms()

        def wanted(one: TransactionMetadata) -> bool:
            return (
                (not states or one.state.kafka_name in states)
                and (not ids or one.producer_id in ids)
                and (pattern is None or pattern.matches(one.transactional_id))
                # An id without a transaction has the start -1, and so is older than any.
                and (request.duration_filter < 0 or now_ms - one.start_ms > request.duration_filter)
            )

        def answered(code: ErrorCode, found: list[TransactionMetadata]) -> None:
            listed = tuple(
                kind.TransactionState(one.transactional_id, one.producer_id, one.state.kafka_name)
                for one in found
                if wanted(one)
            )
            reply(kind(error_code=code, unknown_state_filters=unknown, transaction_states=listed))

        self._coordinator.list_transactions(answered)


def _allocated(answer: Callable[[ErrorCode, int, int], None], response: Response | None) -> None:
    """No error tells a client that this broker cannot get new ids, so it has to ask again here."""
    if (
        not isinstance(response, InitProducerIdResponse)
        or response.error_code is ErrorCode.BROKER_NOT_AVAILABLE
    ):
        answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
    else:
        answer(response.error_code, response.producer_id, response.producer_epoch)


def _refused_markers(
    marker: wire.WriteTxnMarkersRequest.WritableTxnMarker, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    if min(marker.producer_id, marker.producer_epoch, marker.transaction_version) < 0:
        return dict.fromkeys(tps, ErrorCode.INVALID_REQUEST)
    return {tp: ErrorCode.INVALID_TOPIC_EXCEPTION for tp in tps if tp.topic == TRANSACTION_STATE}


def _markers_answered(
    request: wire.WriteTxnMarkersRequest, answers: Iterable[Mapping[TopicPartition, ErrorCode]]
) -> wire.WriteTxnMarkersResponse:
    """In the order of the request. A broker that stops gives none, since another will lead."""
    kind = wire.WriteTxnMarkersResponse
    return kind(
        markers=tuple(
            kind.WritableTxnMarkerResult(
                marker.producer_id,
                tuple(
                    kind.WritableTxnMarkerTopicResult(
                        topic.name,
                        tuple(
                            kind.WritableTxnMarkerPartitionResult(
                                index,
                                codes.get(
                                    TopicPartition(topic.name, index),
                                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                                ),
                            )
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker, codes in zip(request.markers, answers, strict=True)
            if any(topic.partition_indexes for topic in marker.topics)
        )
    )


def _for_client(received: ReceivedRequest, found: object) -> Answer:
    """What the client's version knows of a coordinator's answer."""
    if isinstance(found, ErrorCode):
        found = Answer(found)
    elif not isinstance(found, Answer):
        found = Answer(ErrorCode.UNKNOWN_SERVER_ERROR)
    since = FENCED_SINCE[ApiKey(received.api_key)]
    if found.error_code is ErrorCode.PRODUCER_FENCED and received.api_version < since:
        return found._replace(error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
    return found


def _described(
    transactional_id: str, found: object
) -> wire.DescribeTransactionsResponse.TransactionState:
    kind = wire.DescribeTransactionsResponse
    if isinstance(found, Described) and found.transaction is not None:
        one = found.transaction
        topics: dict[str, list[int]] = {}
        for tp in sorted(one.partitions):
            topics.setdefault(tp.topic, []).append(tp.partition)
        return kind.TransactionState(
            ErrorCode.NONE,
            transactional_id,
            one.state.kafka_name,
            one.timeout_ms,
            one.start_ms,
            one.producer_id,
            one.producer_epoch,
            tuple(kind.TopicData(topic, tuple(numbers)) for topic, numbers in topics.items()),
        )
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    if isinstance(found, ErrorCode):
        code = found
    elif isinstance(found, Described):
        code = found.error_code
    return kind.TransactionState(code, transactional_id)
