"""Fetch (W-40 to W-49)."""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import groupby

from checkpoints.types import TopicPartition
from logstore.common.types import Buffer
from logstore.format.attributes import CONTROL
from logstore.format.index_entry import AbortedTxn
from logstore.kernels import SCAN_COLUMNS, SCAN_FULL, scan_batches
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    CONSUMER,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    IsolationLevel,
    unresolved_topic,
)
from replication.common.state import UNKNOWN_EPOCH
from replication.protocol import ZERO_UUID
from replication.protocol import messages as wire
from replication.wire.common import code_of

FIRST_WITH_SESSIONS = 7
FIRST_WITH_LEADERS = 12
FIRST_WITH_LAST_EPOCH = 12
FIRST_WITH_IDS = 13
FIRST_WITH_REPLICA_STATE = 15
FIRST_WITH_ENDPOINTS = 16
_END = 2**63 - 1
_ROWS = 256
_COLUMNS = tuple(SCAN_COLUMNS.index(each) for each in ("base_offset", "attributes", "producer_id"))

TopicName = Callable[[uuid.UUID], str | None]


def latest_version(request: FetchRequest) -> int | None:
    """Only sessions that know every id can name topics by them."""
    return FIRST_WITH_IDS - 1 if None in _names(request) else None


def _names(request: FetchRequest) -> Mapping[uuid.UUID | None, str]:
    """The topics of the session by id; None among them: an id is not known."""
    if request.topic_names is not None:
        return request.topic_names
    return {part.topic_id: part.tp.topic for part in request.partitions}


# -- requests ---------------------------------------------------------------------------------


def request_to(request: FetchRequest, version: int) -> wire.FetchRequest:
    kind = wire.FetchRequest
    has_last = version >= FIRST_WITH_LAST_EPOCH
    topics = tuple(
        [
            kind.FetchTopic(
                topic,
                topic_id or ZERO_UUID,
                tuple(
                    [
                        kind.FetchPartition(
                            part.tp.partition,
                            part.current_leader_epoch,
                            part.fetch_offset,
                            part.last_fetched_epoch if has_last else UNKNOWN_EPOCH,
                            part.log_start_offset,
                            part.partition_max_bytes,
                        )
                        for part in parts
                    ]
                ),
            )
            for (topic, topic_id), parts in groupby(
                request.partitions, lambda part: (part.tp.topic, part.topic_id)
            )
        ]
    )
    has_sessions = version >= FIRST_WITH_SESSIONS
    forgotten = tuple(
        kind.ForgottenTopic(tp.topic, topic_id or ZERO_UUID, (tp.partition,))
        for tp, topic_id in request.forgotten
    )
    made = kind(
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=topics,
        forgotten_topics_data=forgotten if has_sessions else (),
        rack_id=request.rack_id,
    )
    if version < FIRST_WITH_REPLICA_STATE:
        return made._replace(replica_id=request.replica_id)
    return made._replace(replica_state=kind.ReplicaState(request.replica_id, request.replica_epoch))


def request_from(
    request: wire.FetchRequest,
    version: int,
    name_of: TopicName,
    *,
    max_bytes: int,
    takes_slices: bool,
) -> FetchRequest:
    """
    Args:
        name_of: the name of a topic by its id.
        max_bytes: that an answer may have, whatever is asked for.
        takes_slices: records may go from file to socket.
    """
    with_ids = version >= FIRST_WITH_IDS

    def named(name: str, topic_id: uuid.UUID) -> tuple[str, uuid.UUID | None]:
        if not with_ids:
            return name, None
        return name_of(topic_id) or unresolved_topic(topic_id), topic_id

    replica_id, replica_epoch = request.replica_id, UNKNOWN_EPOCH
    if version >= FIRST_WITH_REPLICA_STATE:
        replica_id, replica_epoch = request.replica_state
    return FetchRequest(
        tuple(
            [
                FetchPartition(
                    TopicPartition(name, part.partition),
                    part.fetch_offset,
                    part.partition_max_bytes,
                    part.current_leader_epoch,
                    part.last_fetched_epoch,
                    part.log_start_offset,
                    topic_id,
                )
                for topic in request.topics
                for name, topic_id in (named(topic.topic, topic.topic_id),)
                for part in topic.partitions
            ]
        ),
        max(replica_id, CONSUMER),
        replica_epoch,
        request.max_wait_ms,
        request.min_bytes,
        min(request.max_bytes, max_bytes),
        IsolationLevel(request.isolation_level),
        request.rack_id,
        request.session_id,
        request.session_epoch,
        tuple(
            [
                (TopicPartition(name, partition), topic_id)
                for topic in request.forgotten_topics_data
                for name, topic_id in (named(topic.topic, topic.topic_id),)
                for partition in topic.partitions
            ]
        ),
        takes_slices=takes_slices,
        names_by_id=with_ids,
    )


# -- responses --------------------------------------------------------------------------------


def response_to(response: FetchResponse, version: int, *, is_committed: bool) -> wire.FetchResponse:
    """The answer, without the addresses of leaders that it names."""
    kind = wire.FetchResponse
    topics = tuple(
        [
            kind.FetchableTopicResponse(
                topic,
                topic_id or ZERO_UUID,
                tuple([_part_to(part, version, is_committed) for part in parts]),
            )
            for (topic, topic_id), parts in groupby(response.partitions, _topic_of)
        ]
    )
    return kind(error_code=response.error_code, session_id=response.session_id, responses=topics)


def _topic_of(part: FetchPartitionResponse) -> tuple[str, uuid.UUID | None]:
    return part.tp.topic, part.topic_id


def _part_to(
    found: FetchPartitionResponse, version: int, is_committed: bool
) -> wire.FetchResponse.PartitionData:
    kind = wire.FetchResponse
    code, records = found.error_code, found.records
    if code is not ErrorCode.NONE:
        part = kind.PartitionData(
            found.tp.partition, code, -1, aborted_transactions=None, records=b""
        )
        if version >= FIRST_WITH_LEADERS and found.current_leader[0] >= 0:
            return part._replace(current_leader=kind.LeaderIdAndEpoch(*found.current_leader))
        return part
    aborted: tuple[wire.FetchResponse.AbortedTransaction, ...] | None = None
    if is_committed:
        aborted = tuple(
            kind.AbortedTransaction(each.producer_id, each.first_offset)
            for each in found.aborted_transactions
        )
    part = kind.PartitionData(
        found.tp.partition,
        0,
        found.high_watermark,
        found.last_stable_offset,
        found.log_start_offset,
        aborted_transactions=aborted,
        preferred_read_replica=found.preferred_read_replica,
        records=records,
    )
    if found.diverging_epoch is not None:
        return part._replace(
            diverging_epoch=kind.EpochEndOffset(*found.diverging_epoch), aborted_transactions=None
        )
    return part


def response_from(
    request: FetchRequest, response: wire.FetchResponse, version: int
) -> FetchResponse:
    """The answer, of topics that were asked for: in a session also by an earlier request."""
    names = _names(request)
    parts = []
    for topic in response.responses:
        name: str | None = topic.topic
        topic_id: uuid.UUID | None = None
        if version >= FIRST_WITH_IDS:
            name, topic_id = names.get(topic.topic_id), topic.topic_id
        if name is not None:
            parts += [_part_from(name, topic_id, part) for part in topic.partitions]
    return FetchResponse(
        tuple(parts),
        code_of(response.error_code),
        response.session_id,
        response.throttle_time_ms,
    )


def _part_from(
    topic: str, topic_id: uuid.UUID | None, part: wire.FetchResponse.PartitionData
) -> FetchPartitionResponse:
    records = part.records or b""
    assert isinstance(records, Buffer)  # answers that came over a wire have no slices
    return FetchPartitionResponse(
        TopicPartition(topic, part.partition_index),
        code_of(part.error_code),
        part.high_watermark,
        part.last_stable_offset,
        part.log_start_offset,
        records,
        None if part.diverging_epoch.end_offset < 0 else EpochEndOffset(*part.diverging_epoch),
        _aborted(records, part.aborted_transactions or ()),
        part.preferred_read_replica,
        (part.current_leader.leader_id, part.current_leader.leader_epoch),
        topic_id,
    )


def _aborted(
    records: Buffer, named: tuple[wire.FetchResponse.AbortedTransaction, ...]
) -> tuple[AbortedTxn, ...]:
    """Aborted transactions with their ends, which the wire leaves out: each ends at the first
    marker of its producer behind its first record. A marker that is not here is behind them all."""
    if not named:
        return ()
    markers: dict[int, list[int]] = {each.producer_id: [] for each in named}
    columns = array("q", bytes(8 * len(SCAN_COLUMNS) * _ROWS))
    start, status = 0, SCAN_FULL
    while status == SCAN_FULL:
        rows, start, status = scan_batches(records, start, columns, check_crc=False)
        bases, attributes, producers = (columns[at * _ROWS : at * _ROWS + rows] for at in _COLUMNS)
        for base, flags, producer in zip(bases, attributes, producers, strict=True):
            if flags & CONTROL and producer in markers:
                markers[producer].append(base)

    def end_of(each: wire.FetchResponse.AbortedTransaction) -> int:
        own = markers[each.producer_id]
        at = bisect_left(own, each.first_offset)
        return own[at] if at < len(own) else _END

    return tuple(
        AbortedTxn(each.producer_id, each.first_offset, end_of(each), -1) for each in named
    )
