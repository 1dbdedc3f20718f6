"""Metadata, DescribeCluster and DescribeTopicPartitions (W-20 to W-24)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from checkpoints.loggers import get_logger
from logstore.format.filenames import CLUSTER_METADATA
from replication.apis.common import operations
from replication.apis.common.addresses import listener_of
from replication.apis.common.config import ApisConfig
from replication.apis.common.handlers import ApiArea, ReceivedRequest, Reply
from replication.apis.common.topic_names import TopicNameOrId, is_valid, missing_code
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.errors import InvalidRequestError
from replication.common.internal_topics import INTERNAL_TOPICS
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    BROKER_DEFAULT,
    CreateTopicRequest,
    MetadataRequest,
    MetadataResponse,
    Response,
    TopicPartitionMetadata,
    TopicResponse,
)
from replication.common.state import NO_LEADER, Endpoint
from replication.protocol import ZERO_UUID
from replication.protocol import messages as wire

T = TypeVar("T")

logger = get_logger(__name__)

MAX_CREATIONS = 1000  # that are on their way; a client asks again for the others
FIRST_WITH_NULL_FOR_ALL = 1
FIRST_WITH_PERMISSION = 4
FIRST_WITH_IDS_ALONE = 12
BROKERS, CONTROLLERS = 1, 2  # endpoint types of DescribeCluster


class MetadataApi(ApiArea):
    """Says who leads what, and where. Makes missing topics where that is allowed."""

    def __init__(self, broker: Broker, config: ApisConfig) -> None:
        self._broker = broker
        self._metadata = broker.metadata
        self._config = config
        self._log = LimitedLogger(logger, broker.runtime.clock)
        self._creating: set[str] = set()  # asked of the controller, not answered yet
        self._lock = threading.Lock()  # guards the set

    # -- Metadata ------------------------------------------------------------------------------

    def metadata(
        self, received: ReceivedRequest, request: wire.MetadataRequest, reply: Reply
    ) -> None:
        """Describe all topics or those asked for. The answer never waits: a missing topic that may
        be made is UNKNOWN_TOPIC_OR_PARTITION, and there when the client asks again (W-23)."""
        version = received.api_version
        asked: list[TopicNameOrId] | None = None
        if request.topics or (request.topics is not None and version >= FIRST_WITH_NULL_FOR_ALL):
            # A topic that is named twice is answered once, as Kafka does.
            asked = list(dict.fromkeys(_asked(topic, version) for topic in request.topics))
        if asked is not None and version < FIRST_WITH_IDS_ALONE and any(map(_has_id, asked)):
            refused = [
                wire.MetadataResponse.MetadataResponseTopic(
                    ErrorCode.INVALID_REQUEST, each.name or "", each.topic_id
                )
                for each in request.topics or ()
            ]
            reply(wire.MetadataResponse(topics=tuple(refused)))
            return
        if asked is not None and any(each.name is None for each in asked):
            asked = [each for each in asked if each.name is None]
        may_create = self._config.auto_create_topics_enable and (
            version < FIRST_WITH_PERMISSION or request.allow_auto_topic_creation
        )
        if asked is not None and may_create:
            self._create_missing(asked)
        names = None
        if asked is not None:
            names = [each.name or self._metadata.topic_name(each.topic_id) for each in asked]
        known = self._known(None if names is None else [name for name in names if name])
        by_topic = _by_topic(known)
        endpoints = _endpoints(known, listener_of(received))
        topics = []
        if asked is None or names is None:
            asked = [TopicNameOrId(name, ZERO_UUID) for name in by_topic]
            names = list(by_topic)
        for each, name in zip(asked, names, strict=True):
            parts = None if name is None else by_topic.get(name)
            if name is None or parts is None:
                topics.append(_unknown(each))
            else:
                topic_id = known.topic_ids[name] or ZERO_UUID
                topics.append(_topic(name, topic_id, parts, endpoints))
        if request.include_topic_authorized_operations:
            topics = [
                each
                if each.name is None
                else each._replace(topic_authorized_operations=operations.OF_TOPICS)
                for each in topics
            ]
        kind = wire.MetadataResponse
        reply(
            kind(
                brokers=self._brokers(endpoints, kind.MetadataResponseBroker),
                cluster_id=self._broker.log_manager.cluster_id,
                controller_id=known.controller_id
                if known.controller_id in endpoints
                else NO_LEADER,
                topics=tuple(topics),
                cluster_authorized_operations=operations.OF_CLUSTERS
                if request.include_cluster_authorized_operations
                else operations.NOT_ASKED,
            )
        )

    def _create_missing(self, asked: Iterable[TopicNameOrId]) -> None:
        """Have the controller make topics with its defaults: each once, whoever asks for it and how
        often."""
        for name in self._missing(asked):
            with self._lock:
                if name in self._creating or len(self._creating) >= MAX_CREATIONS:
                    continue
                self._creating.add(name)
            request = CreateTopicRequest(name, BROKER_DEFAULT, BROKER_DEFAULT)
            self._broker.ask_controller(request, partial(self._created, name))

    def _missing(self, asked: Iterable[TopicNameOrId]) -> list[str]:
        """The names that a topic made for a client may have, and that none has."""
        return [
            name
            for name, _ in asked
            if name is not None
            and name not in INTERNAL_TOPICS  # their coordinators make them
            and name != CLUSTER_METADATA
            and is_valid(name)
            and self._metadata.topic_id(name) is None
        ]

    def _created(self, name: str, answer: Response | None) -> None:
        with self._lock:
            self._creating.discard(name)
        code = answer.error_code if isinstance(answer, TopicResponse) else ErrorCode.NOT_CONTROLLER
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._log.warning("topic %s is not created: %s", name, code.name, about=code)

    def _known(self, names: Iterable[str] | None) -> MetadataResponse:
        controller = self._broker.controller_id
        wanted = None if names is None else tuple(dict.fromkeys(names))
        return self._metadata.describe(
            MetadataRequest(wanted), NO_LEADER if controller is None else controller
        )

    def _brokers(
        self, endpoints: dict[int, Endpoint], kind: Callable[[int, str, int, str | None], T]
    ) -> tuple[T, ...]:
        """Structures of node id, host, port and rack."""
        return tuple(
            kind(broker_id, each.host, each.port, self._metadata.rack(broker_id))
            for broker_id, each in endpoints.items()
        )

    # -- DescribeCluster -----------------------------------------------------------------------

    def describe_cluster(
        self, received: ReceivedRequest, request: wire.DescribeClusterRequest, reply: Reply
    ) -> None:
        kind = wire.DescribeClusterResponse
        if request.endpoint_type != BROKERS:
            is_known = request.endpoint_type == CONTROLLERS
            reply(
                kind(
                    error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
                    if is_known
                    else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                    error_message="only brokers are served here",
                )
            )
            return
        known = self._known(())
        endpoints = _endpoints(known, listener_of(received))
        reply(
            kind(
                cluster_id=self._broker.log_manager.cluster_id or "",
                controller_id=known.controller_id,
                brokers=self._brokers(endpoints, kind.DescribeClusterBroker),
                cluster_authorized_operations=operations.OF_CLUSTERS
                if request.include_cluster_authorized_operations
                else operations.NOT_ASKED,
            )
        )

    # -- DescribeTopicPartitions ---------------------------------------------------------------

    def describe_topic_partitions(
        self, received: ReceivedRequest, request: wire.DescribeTopicPartitionsRequest, reply: Reply
    ) -> None:
        """Describe topics in pages of a bounded number of partitions. ``next_cursor`` begins the
        next page."""
        kind = wire.DescribeTopicPartitionsResponse
        limit = min(request.response_partition_limit, self._config.max_request_partition_size_limit)
        limit = max(1, limit)  # a page has something on it, whatever was asked for
        cursor = request.cursor
        if cursor is not None and cursor.partition_index < 0:
            raise InvalidRequestError("a cursor before the first partition")
        named = sorted({topic.name for topic in request.topics})
        is_all = not named
        names = self._metadata.topics if is_all else named
        if cursor is not None:
            if not is_all and cursor.topic_name not in named:
                raise InvalidRequestError("a cursor at a topic that is not asked for")
            names = [name for name in names if name >= cursor.topic_name]
        names, beyond = self._of_a_page(names, cursor, limit)
        known = self._known(names)
        endpoints = _endpoints(known, listener_of(received))
        by_topic = _by_topic(known)
        topics, left = [], limit
        next_cursor = None
        for name in names:
            parts = by_topic.get(name)
            first = 0
            if cursor is not None and cursor.topic_name == name:
                first = cursor.partition_index
            if not left:
                next_cursor = kind.Cursor(name, first)
                break
            if parts is None:
                if not is_all:
                    topics.append(
                        kind.DescribeTopicPartitionsResponseTopic(
                            missing_code(name),
                            name,
                            topic_authorized_operations=operations.OF_TOPICS,
                        )
                    )
                continue
            wanted = [part for part in parts if part.tp.partition >= first]
            page, rest = wanted[:left], wanted[left:]
            left -= len(page)
            topics.append(
                kind.DescribeTopicPartitionsResponseTopic(
                    ErrorCode.NONE,
                    name,
                    known.topic_ids[name] or ZERO_UUID,
                    name in INTERNAL_TOPICS,
                    tuple(self._described(part, endpoints) for part in page),
                    operations.OF_TOPICS,
                )
            )
            if rest:
                next_cursor = kind.Cursor(name, rest[0].tp.partition)
                break
        if next_cursor is None and beyond is not None:  # a topic went while we looked
            next_cursor = kind.Cursor(beyond, 0)
        reply(kind(topics=tuple(topics), next_cursor=next_cursor))

    def _of_a_page(
        self,
        names: list[str],
        cursor: wire.DescribeTopicPartitionsRequest.Cursor | None,
        limit: int,
    ) -> tuple[list[str], str | None]:
        """The topics that a page of so many partitions needs, with the one that the next page
        begins with, and the first of the others. So a page costs what is on it (W-237)."""
        for at, name in enumerate(names):
            if limit < 0:
                return names[:at], name
            first = cursor.partition_index if cursor and cursor.topic_name == name else 0
            limit -= max(0, len(self._metadata.partitions_of(name)) - first)
        return names, None

    def _described(
        self, part: TopicPartitionMetadata, endpoints: dict[int, Endpoint]
    ) -> wire.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition:
        code, leader = _led_by(part, endpoints)
        known = self._metadata.registration(part.tp)
        return wire.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
            code,
            part.tp.partition,
            leader,
            part.leader_epoch,
            part.replicas,
            part.isr,
            () if known is None else known.elr,
            () if known is None or known.last_known_leader < 0 else (known.last_known_leader,),
            part.offline,
        )


def is_led(broker: Broker, topic: str) -> bool:
    """Whether this broker knows a leader of each partition of a topic that exists."""
    tps = broker.metadata.partitions_of(topic)
    return bool(tps) and all(map(broker.knows_leader, tps))


def _asked(topic: wire.MetadataRequest.MetadataRequestTopic, version: int) -> TopicNameOrId:
    """Return the name and id that a topic is asked by. Where both are given, the id counts."""
    by_id = version >= FIRST_WITH_IDS_ALONE and topic.topic_id != ZERO_UUID
    return TopicNameOrId(None if by_id else topic.name, topic.topic_id)


def _has_id(asked: TopicNameOrId) -> bool:
    return asked.name is None or asked.topic_id != ZERO_UUID


def _unknown(asked: TopicNameOrId) -> wire.MetadataResponse.MetadataResponseTopic:
    if asked.name is None:
        return wire.MetadataResponse.MetadataResponseTopic(
            ErrorCode.UNKNOWN_TOPIC_ID, None, asked.topic_id
        )
    return wire.MetadataResponse.MetadataResponseTopic(
        missing_code(asked.name), asked.name, ZERO_UUID, asked.name in INTERNAL_TOPICS
    )


def _topic(
    name: str,
    topic_id: uuid.UUID,
    parts: Iterable[TopicPartitionMetadata],
    endpoints: dict[int, Endpoint],
) -> wire.MetadataResponse.MetadataResponseTopic:
    kind = wire.MetadataResponse
    partitions = []
    for part in parts:
        code, leader = _led_by(part, endpoints)
        partitions.append(
            kind.MetadataResponsePartition(
                code,
                part.tp.partition,
                leader,
                part.leader_epoch,
                part.replicas,
                part.isr,
                part.offline,
            )
        )
    return kind.MetadataResponseTopic(
        ErrorCode.NONE, name, topic_id, name in INTERNAL_TOPICS, tuple(partitions)
    )


def _led_by(part: TopicPartitionMetadata, endpoints: dict[int, Endpoint]) -> tuple[ErrorCode, int]:
    """The leader, if the client can reach it by its own listener."""
    if part.error_code is ErrorCode.NONE and part.leader_id not in endpoints:
        return ErrorCode.LISTENER_NOT_FOUND, NO_LEADER
    return part.error_code, part.leader_id


def _by_topic(known: MetadataResponse) -> dict[str, list[TopicPartitionMetadata]]:
    found: dict[str, list[TopicPartitionMetadata]] = {topic: [] for topic in known.topic_ids}
    for part in known.partitions:
        found[part.tp.topic].append(part)
    return found


def _endpoints(known: MetadataResponse, listener: str) -> dict[int, Endpoint]:
    """The brokers that have this listener, by id."""
    found = {}
    for broker in known.brokers:
        endpoint = broker.registration.endpoint(listener)
        if endpoint is not None:
            found[broker.registration.broker_id] = endpoint
    return found
