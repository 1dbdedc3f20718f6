"""AddPartitionsToTxn and WriteTxnMarkers, as brokers send them to each other (W-155, W-159)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.protocol import messages as wire
from replication.protocol.partitions import by_partition, by_topic, partitions_of
from replication.wire.common import answers_for, code_of

FIRST_OF_LEADERS = 4  # AddPartitionsToTxn from here on is what the leaders of partitions send
FIRST_WITH_TRANSACTION_VERSION = 2  # of WriteTxnMarkers

AddedTransaction = wire.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Marker = wire.WriteTxnMarkersRequest.WritableTxnMarker

# -- AddPartitionsToTxn -----------------------------------------------------------------------


def addition_to(request: AddPartitionsToTxnRequest, version: int) -> wire.AddPartitionsToTxnRequest:
    """One transaction. No version before ``FIRST_OF_LEADERS`` carries it."""
    kind = wire.AddPartitionsToTxnRequest
    transactional_id, producer_id, epoch, tps, verify_only = request
    topics = by_topic(((tp, tp.partition) for tp in tps), kind.AddPartitionsToTxnTopic)
    one = AddedTransaction(transactional_id, producer_id, epoch, verify_only, topics)
    return kind(transactions=(one,))


def addition_from(asked: AddedTransaction) -> AddPartitionsToTxnRequest:
    tps = tuple(partitions_of(asked.topics))
    return AddPartitionsToTxnRequest(*asked[:3], tps, asked.verify_only)


def added_from(
    request: AddPartitionsToTxnRequest, response: wire.AddPartitionsToTxnResponse, version: int
) -> AddPartitionsToTxnResponse:
    tps, whole = request.partitions, code_of(response.error_code)
    if whole:
        return AddPartitionsToTxnResponse(tuple((tp, whole) for tp in tps))
    found = (
        answer
        for each in response.results_by_transaction
        if each.transactional_id == request.transactional_id
        for answer in by_partition(each.topic_results)
    )
    parts = answers_for(tps, found, "AddPartitionsToTxnResponse", version)
    codes = (code_of(part.partition_error_code) for part in parts)
    return AddPartitionsToTxnResponse(tuple(zip(tps, codes, strict=True)))


# -- WriteTxnMarkers --------------------------------------------------------------------------


def markers_to(request: WriteTxnMarkersRequest, version: int) -> wire.WriteTxnMarkersRequest:
    """To a broker that does not know versions of transactions, an end is one of version 0."""
    kind = wire.WriteTxnMarkersRequest
    return kind(
        tuple(
            Marker(
                each.producer_id,
                each.producer_epoch,
                each.is_commit,
                by_topic(
                    ((tp, tp.partition) for tp in each.partitions), kind.WritableTxnMarkerTopic
                ),
                each.coordinator_epoch,
                each.transaction_version if version >= FIRST_WITH_TRANSACTION_VERSION else 0,
            )
            for each in request.markers
        )
    )


def marker_from(marker: Marker, partitions: Iterable[TopicPartition]) -> TxnMarker:
    return TxnMarker(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        tuple(partitions),
        marker.transaction_version,
    )


def written_to(
    markers: Sequence[Marker],
    codes: Sequence[Mapping[TopicPartition, ErrorCode]],
    unanswered: ErrorCode,
) -> wire.WriteTxnMarkersResponse:
    """
    Args:
        codes: of partitions, for each marker.
        unanswered: the code of others.
    """
    kind = wire.WriteTxnMarkersResponse
    part = kind.WritableTxnMarkerPartitionResult
    return kind(
        tuple(
            kind.WritableTxnMarkerResult(
                marker.producer_id,
                by_topic(
                    (
                        (tp, part(tp.partition, known.get(tp, unanswered)))
                        for tp in partitions_of(marker.topics)
                    ),
                    kind.WritableTxnMarkerTopicResult,
                ),
            )
            for marker, known in zip(markers, codes, strict=True)
        )
    )


def written_from(
    request: WriteTxnMarkersRequest, response: wire.WriteTxnMarkersResponse, version: int
) -> WriteTxnMarkersResponse:
    """Answers are by producer, in any order. Kafka has one for all markers of a producer, we have
    one for each. A marker for no partition gets none."""
    answers: dict[int, deque[list[tuple[TopicPartition, Any]]]] = {}
    for producer_id, topics in response.markers:
        answers.setdefault(producer_id, deque()).append(by_partition(topics))
    found = []
    for marker in request.markers:
        queue = answers.get(marker.producer_id) if marker.partitions else None
        own = () if queue is None else queue.popleft() if len(queue) > 1 else queue[0]
        parts = answers_for(marker.partitions, own, "WriteTxnMarkersResponse", version)
        codes = (code_of(part.error_code) for part in parts)
        found.append(tuple(zip(marker.partitions, codes, strict=True)))
    return WriteTxnMarkersResponse(tuple(found))
