"""The APIs of transactional and idempotent producers (W-150 to W-164)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from checkpoints.types import TopicPartition
from replication.apis.common.handlers import ApiArea, ReceivedRequest, Reply
from replication.apis.common.patterns import InvalidPatternError, Pattern
from replication.apis.common.refusals import answered
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.gathering import Gathering
from replication.common.internal_topics import TRANSACTION_STATE
from replication.common.messages import (
    AddPartitionsToTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    Response,
    TxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.coordinators.coordinator import InternalTopic
from replication.coordinators.effects import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ClientRequest
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.coordinators.transactions.state import (
    TransactionMetadata,
    TransactionState,
)
from replication.coordinators.transactions.transitions import Answer
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.protocol.partitions import by_topic, partitions_of
from replication.wire import transactions as codec

# The first version of each API whose clients know PRODUCER_FENCED (W-157).
FENCED_SINCE: Mapping[ApiKey, int] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}


class TransactionApis(ApiArea):
    """Answers producers. All decisions are made in ``TransactionCoordinator``."""

    def __init__(
        self, broker: Broker, coordinator: TransactionCoordinator, group_topic: InternalTopic
    ) -> None:
        self._broker = broker
        self._metadata = broker.metadata
        self._coordinator = coordinator
        self._group_topic = group_topic

    # -- InitProducerId --------------------------------------------------------------------------

    def init_producer_id(
        self, received: ReceivedRequest, request: wire.InitProducerIdRequest, reply: Reply
    ) -> None:
        """Without a transactional id any broker answers, with an id of its own block."""

        def answer(code: ErrorCode, producer_id: int = -1, producer_epoch: int = -1) -> None:
            reply(wire.InitProducerIdResponse(0, code, producer_id, producer_epoch))

        transactional_id = request.transactional_id
        known = request.producer_id != NO_PRODUCER_ID
        if known != (request.producer_epoch != NO_PRODUCER_EPOCH) or transactional_id == "":
            answer(ErrorCode.INVALID_REQUEST)
        elif transactional_id is None:
            self._broker.handle(InitProducerIdRequest(), partial(_allocated, answer))
        else:
            asked = ClientRequest(request)
            self._ask_coordinator(received, transactional_id, asked, lambda found: answer(*found))

    def _ask_coordinator(
        self,
        received: ReceivedRequest,
        transactional_id: str,
        request: ClientRequest,
        done: Callable[[Answer], None],
    ) -> None:
        """Ask for a change of an id. ``done`` gets the answer as the client's version knows it."""

        def on_answer(found: Any) -> None:
            answer = found if isinstance(found, Answer) else Answer(found)
            code = _for_client(received, answer.error_code)
            done(answer._replace(error_code=code))

        if transactional_id:
            self._coordinator.request(transactional_id, request, on_answer)
        else:
            on_answer(ErrorCode.INVALID_REQUEST)

    # -- partitions ------------------------------------------------------------------------------

    def add_partitions_to_txn(
        self, received: ReceivedRequest, request: wire.AddPartitionsToTxnRequest, reply: Reply
    ) -> None:
        """One transaction of a client, or several that the leader of partitions asks for."""
        key, version = ApiKey.ADD_PARTITIONS_TO_TXN, received.api_version
        transactions = request.transactions
        if version < codec.FIRST_OF_LEADERS:
            one = wire.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                False,
                request.v3_and_below_topics,
            )
            transactions = (one,)
        gathering: Gathering[Sequence[ErrorCode]] = Gathering(
            len(transactions),
            lambda found: reply(answered(key, version, request, chain.from_iterable(found))),
        )
        for at, asked in enumerate(transactions):
            self._add(received, asked, partial(gathering.take_answer, at))

    def _add(
        self,
        received: ReceivedRequest,
        asked: wire.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction,
        done: Callable[[Sequence[ErrorCode]], None],
    ) -> None:
        tps = partitions_of(asked.topics)

        def on_answer(found: Any) -> None:
            if isinstance(found, dict):
                done([found[tp] for tp in tps])
            else:
                code = found.error_code if isinstance(found, Answer) else found
                done([_for_client(received, code)] * len(tps))

        unknown: set[TopicPartition] = set()
        if received.api_version < codec.FIRST_OF_LEADERS:  # their leader knows them
            unknown = {tp for tp in tps if self._metadata.registration(tp) is None}
        if not asked.transactional_id:
            on_answer(ErrorCode.INVALID_REQUEST)
        elif unknown:
            missing, other = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.OPERATION_NOT_ATTEMPTED,
            )
            done([missing if tp in unknown else other for tp in tps])
        else:
            request = ClientRequest(codec.addition_from(asked), received.api_version)
            self._coordinator.request(asked.transactional_id, request, on_answer)

    def add_offsets_to_txn(
        self, received: ReceivedRequest, request: wire.AddOffsetsToTxnRequest, reply: Reply
    ) -> None:
        """Add the partition of a group, where the transaction commits offsets."""

        def done(found: Answer) -> None:
            reply(wire.AddOffsetsToTxnResponse(error_code=found.error_code))

        partition = self._group_topic.partition_of(request.group_id)
        if not request.transactional_id:
            done(Answer(ErrorCode.INVALID_REQUEST))
        elif partition is None:
            self._group_topic.create()
            done(Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            tp = TopicPartition(self._group_topic.name, partition)
            producer = request.transactional_id, request.producer_id, request.producer_epoch
            message = AddPartitionsToTxnRequest(*producer, (tp,), verify_only=False)
            asked = ClientRequest(message, codec.FIRST_OF_LEADERS - 1)
            self._ask_coordinator(received, request.transactional_id, asked, done)

    # -- EndTxn ----------------------------------------------------------------------------------

    def end_txn(self, received: ReceivedRequest, request: wire.EndTxnRequest, reply: Reply) -> None:
        """Commit or abort. Answered as soon as it is decided; the markers follow."""
        self._ask_coordinator(
            received,
            request.transactional_id,
            ClientRequest(request, received.api_version),
            lambda found: reply(wire.EndTxnResponse(0, *found)),
        )

    # -- WriteTxnMarkers -------------------------------------------------------------------------

    def write_txn_markers(
        self, received: ReceivedRequest, request: wire.WriteTxnMarkersRequest, reply: Reply
    ) -> None:
        """Append markers for an operator who aborts a transaction that nobody ends. The leader of a
        partition takes the marker as if the coordinator had sent it (W-155).

        Each partition has its own answer. A marker is refused if no coordinator can have sent it,
        if it is for the coordinators' own topic, or if a client gives it an epoch that would fence
        the real coordinator or the producer (W-212).
        """
        is_client = not received.connection.listener.is_inter_broker
        markers = tuple(
            marker
            for marker in request.markers
            if any(topic.partition_indexes for topic in marker.topics)
        )
        answers: list[dict[TopicPartition, ErrorCode]] = []
        wanted: dict[int, TxnMarker] = {}
        for at, marker in enumerate(markers):
            tps = partitions_of(marker.topics)
            refused = _refused_markers(marker, tps)
            for tp in tps if is_client else ():
                if self._is_ahead(marker, tp):
                    refused.setdefault(tp, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            answers.append(refused)
            rest = tuple(tp for tp in dict.fromkeys(tps) if tp not in refused)
            if rest:
                wanted[at] = codec.marker_from(marker, rest)

        def done(response: Response | None) -> None:
            if isinstance(response, WriteTxnMarkersResponse):
                for at, codes in zip(wanted, response.markers, strict=True):
                    answers[at].update(codes)
            # A broker that stops gives no answers, since another will lead.
            reply(codec.written_to(markers, answers, ErrorCode.NOT_LEADER_OR_FOLLOWER))

        self._broker.handle(WriteTxnMarkersRequest(tuple(wanted.values())), done)

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

        def on_answer(at: int, found: Any) -> None:
            gathering.take_answer(at, _described(ids[at], found))

        for at, transactional_id in enumerate(ids):
            if transactional_id:
                asked = ClientRequest(wire.DescribeTransactionsRequest((transactional_id,)))
                self._coordinator.request(transactional_id, asked, partial(on_answer, at))
            else:
                on_answer(at, ErrorCode.INVALID_REQUEST)

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

        def done(code: ErrorCode, found: list[TransactionMetadata]) -> None:
            listed = tuple(
                kind.TransactionState(one.transactional_id, one.producer_id, one.state.kafka_name)
                for one in found
                if wanted(one)
            )
            reply(kind(error_code=code, unknown_state_filters=unknown, transaction_states=listed))

        self._coordinator.list_transactions(done)


def _allocated(answer: Callable[[ErrorCode, int, int], None], response: Response | None) -> None:
    """No error says that this broker cannot get new ids, so it has to ask again here."""
    if (
        not isinstance(response, InitProducerIdResponse)
        or response.error_code is ErrorCode.BROKER_NOT_AVAILABLE
    ):
        answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
    else:
        answer(response.error_code, response.producer_id, response.producer_epoch)


def _refused_markers(
    marker: wire.WriteTxnMarkersRequest.WritableTxnMarker, tps: Sequence[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    if min(marker.producer_id, marker.producer_epoch, marker.transaction_version) < 0:
        return dict.fromkeys(tps, ErrorCode.INVALID_REQUEST)
    return {tp: ErrorCode.INVALID_TOPIC_EXCEPTION for tp in tps if tp.topic == TRANSACTION_STATE}


def _for_client(received: ReceivedRequest, code: ErrorCode) -> ErrorCode:
    """A coordinator's error as the client's version knows it."""
    is_known = received.api_version >= FENCED_SINCE[ApiKey(received.api_key)]
    is_renamed = code is ErrorCode.PRODUCER_FENCED and not is_known
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_renamed else code


def _described(
    transactional_id: str, found: TransactionMetadata | ErrorCode
) -> wire.DescribeTransactionsResponse.TransactionState:
    kind = wire.DescribeTransactionsResponse
    if isinstance(found, ErrorCode):
        return kind.TransactionState(found, transactional_id)
    return kind.TransactionState(
        ErrorCode.NONE,
        transactional_id,
        found.state.kafka_name,
        found.timeout_ms,
        found.start_ms,
        found.producer_id,
        found.producer_epoch,
        by_topic(((tp, tp.partition) for tp in sorted(found.partitions)), kind.TopicData),
    )
