"""Fetch on the wire (W-40 to W-49). The replica manager has the sessions, waits and limits."""

from __future__ import annotations

import uuid
from itertools import groupby

from checkpoints.types import TopicPartition
from replication.apis.common.addresses import listener_of, node_endpoints
from replication.apis.common.config import ApisConfig
from replication.apis.common.handlers import Handlers, ReceivedRequest, Reply
from replication.apis.common.refusals import refusal
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    CONSUMER,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    IsolationLevel,
    Response,
    unresolved_topic,
)
from replication.common.state import UNKNOWN_EPOCH
from replication.network import CLOSE
from replication.protocol import ZERO_UUID, ApiKey
from replication.protocol import messages as wire

FIRST_WITH_LEADERS = 12
FIRST_WITH_IDS = 13
FIRST_WITH_REPLICA_STATE = 15
FIRST_WITH_ENDPOINTS = 16


class FetchApi:
    """Answers consumers, and followers that fetch over a socket."""

    def __init__(self, broker: Broker, config: ApisConfig) -> None:
        self._broker = broker
        self._metadata = broker.metadata
        self._max_bytes = config.fetch_max_bytes

    @property
    def handlers(self) -> Handlers:
        return {ApiKey.FETCH: self.fetch}

    def fetch(self, received: ReceivedRequest, request: wire.FetchRequest, reply: Reply) -> None:
        """Read records. Answered at once, or when there is enough to read."""
        version = received.api_version
        if not 0 <= request.isolation_level <= IsolationLevel.READ_COMMITTED:  # as Kafka does
            reply(refusal(ApiKey.FETCH, version, request, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        with_ids = version >= FIRST_WITH_IDS
        replica_id, replica_epoch = request.replica_id, UNKNOWN_EPOCH
        if version >= FIRST_WITH_REPLICA_STATE:
            replica_id, replica_epoch = request.replica_state
        asked = FetchRequest(
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
                    for name, topic_id in (self._topic(topic.topic, topic.topic_id, with_ids),)
                    for part in topic.partitions
                ]
            ),
            max(replica_id, CONSUMER),
            replica_epoch,
            request.max_wait_ms,
            request.min_bytes,
            min(request.max_bytes, self._max_bytes),
            IsolationLevel(request.isolation_level),
            request.rack_id,
            request.session_id,
            request.session_epoch,
            tuple(
                [
                    (TopicPartition(name, partition), topic_id)
                    for topic in request.forgotten_topics_data
                    for name, topic_id in (self._topic(topic.topic, topic.topic_id, with_ids),)
                    for partition in topic.partitions
                ]
            ),
            takes_slices=_takes_slices(received, replica_id),
            names_by_id=with_ids,
        )
        is_committed = asked.isolation_level is IsolationLevel.READ_COMMITTED

        def answer(response: Response | None) -> None:
            if not isinstance(response, FetchResponse):  # the broker stops
                reply(CLOSE)
                return
            reply(self._response(received, response, is_committed))

        self._broker.handle(asked, answer)

    def _topic(
        self, name: str, topic_id: uuid.UUID, with_ids: bool
    ) -> tuple[str, uuid.UUID | None]:
        if not with_ids:
            return name, None
        return self._metadata.topic_name(topic_id) or unresolved_topic(topic_id), topic_id

    def _response(
        self, received: ReceivedRequest, response: FetchResponse, is_committed: bool
    ) -> wire.FetchResponse:
        version = received.api_version
        kind = wire.FetchResponse
        topics = tuple(
            [
                kind.FetchableTopicResponse(
                    topic,
                    topic_id or ZERO_UUID,
                    tuple([_part(part, version, is_committed) for part in parts]),
                )
                for (topic, topic_id), parts in groupby(response.partitions, _topic_of)
            ]
        )
        endpoints: tuple[wire.FetchResponse.NodeEndpoint, ...] = ()
        if version >= FIRST_WITH_ENDPOINTS:
            leaders = [part.current_leader[0] for part in response.partitions]
            if any(leader >= 0 for leader in leaders):
                endpoints = node_endpoints(
                    self._metadata, leaders, listener_of(received), kind.NodeEndpoint
                )
        return kind(
            error_code=response.error_code,
            session_id=response.session_id,
            responses=topics,
            node_endpoints=endpoints,
        )


def _takes_slices(received: ReceivedRequest, replica_id: int) -> bool:
    """Whether records may go from file to socket, because nothing here has to read them."""
    has_tls = received.connection.listener.security_protocol.has_tls
    return replica_id < 0 and not has_tls


def _topic_of(part: FetchPartitionResponse) -> tuple[str, uuid.UUID | None]:
    return part.tp.topic, part.topic_id


def _part(
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
