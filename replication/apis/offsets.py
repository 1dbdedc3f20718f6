"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords (W-55 to W-57)."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from logstore.log.reading.fetching import EARLIEST, LATEST, MAX_TIMESTAMP
from replication.apis.common.handlers import ApiArea, ReceivedRequest, Reply
from replication.apis.common.refusals import refusal
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import INTERNAL_TOPICS
from replication.common.messages import (
    CONSUMER,
    DeleteRecordsPartitionResponse,
    DeleteRecordsResponse,
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
    Response,
)
from replication.network import CLOSE
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.protocol.partitions import by_partition
from replication.wire import offsets as codec

EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
ELSEWHERE = (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)  # where nothing is kept
# The first version in which a client may ask for it.
SPECIAL = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


class OffsetsApi(ApiArea):
    """Questions about offsets, and the end of old ones."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def list_offsets(
        self, received: ReceivedRequest, request: wire.ListOffsetsRequest, reply: Reply
    ) -> None:
        """Find offsets by special timestamp, or of the first record at or after a time."""
        version, kind = received.api_version, wire.ListOffsetsResponse
        if not 0 <= request.isolation_level <= IsolationLevel.READ_COMMITTED:  # as Kafka does
            reply(refusal(ApiKey.LIST_OFFSETS, version, request, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        asked = by_partition(request.topics)
        counts = Counter(tp for tp, _ in asked)
        own = [
            kind.ListOffsetsPartitionResponse(part.partition_index, ErrorCode.INVALID_REQUEST)
            if counts[tp] > 1
            else _unsupported(part, version)
            for tp, part in asked
        ]

        def answer(response: Response | None) -> None:
            if not isinstance(response, ListOffsetsResponse):
                reply(CLOSE)
                return
            found = iter(response.partitions)
            listed = []
            for (_, part), known in zip(asked, own, strict=True):
                each = codec.listed_to(next(found), version) if known is None else known
                if part.timestamp in ELSEWHERE and not each.error_code:
                    each = kind.ListOffsetsPartitionResponse(part.partition_index)
                listed.append(each)
            parts = iter(listed)
            topics = tuple(
                kind.ListOffsetsTopicResponse(name, tuple(islice(parts, len(of_topic))))
                for name, of_topic in request.topics
            )
            reply(kind(topics=topics))

        wanted = tuple(
            ListOffsetsPartition(
                tp,
                EARLIEST if part.timestamp in (EARLIEST_LOCAL, *ELSEWHERE) else part.timestamp,
                part.current_leader_epoch,
            )
            for (tp, part), known in zip(asked, own, strict=True)
            if known is None
        )
        level = IsolationLevel(request.isolation_level)
        replica_id = max(request.replica_id, CONSUMER)
        self._broker.handle(ListOffsetsRequest(wanted, replica_id, level), answer)

    def offset_for_leader_epoch(
        self, received: ReceivedRequest, request: wire.OffsetForLeaderEpochRequest, reply: Reply
    ) -> None:
        """Say where leader epochs end."""

        def answer(response: Response | None) -> None:
            if isinstance(response, OffsetForLeaderEpochResponse):
                reply(codec.epoch_response_to(request, response.partitions))
            else:
                reply(CLOSE)

        self._broker.handle(codec.epoch_request_from(request), answer)

    def delete_records(
        self, received: ReceivedRequest, request: wire.DeleteRecordsRequest, reply: Reply
    ) -> None:
        """Raise log starts; answered when all live replicas have done so.

        Topics of coordinators lose records by compaction alone."""
        asked = codec.deletion_from(request)
        refused = {
            tp
            for tp, _ in asked.partitions
            if tp.topic in INTERNAL_TOPICS and self._broker.metadata.registration(tp) is not None
        }

        def answer(response: Response | None) -> None:
            if not isinstance(response, DeleteRecordsResponse):
                reply(CLOSE)
                return
            invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
            results = [DeleteRecordsPartitionResponse(tp, invalid) for tp in refused]
            reply(codec.deleted_to([*results, *response.partitions]))

        wanted = tuple(each for each in asked.partitions if each[0] not in refused)
        self._broker.handle(asked._replace(partitions=wanted), answer)


def _unsupported(
    asked: wire.ListOffsetsRequest.ListOffsetsPartition, version: int
) -> wire.ListOffsetsResponse.ListOffsetsPartitionResponse | None:
    """The answer to a special timestamp that the version does not have; None to any other."""
    if asked.timestamp >= 0 or version >= SPECIAL.get(asked.timestamp, version + 1):
        return None
    kind = wire.ListOffsetsResponse.ListOffsetsPartitionResponse
    return kind(asked.partition_index, ErrorCode.UNSUPPORTED_VERSION)
