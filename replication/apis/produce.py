"""Produce (W-30 to W-35)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

from checkpoints.types import TopicPartition
from logstore.common.types import Buffer
from logstore.format.attributes import CODEC_MASK, TRANSACTIONAL
from logstore.format.codecs.compression import Compression
from replication.apis.common.addresses import listener_of, node_endpoints
from replication.apis.common.handlers import ApiArea, ReceivedRequest, Reply
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import INTERNAL_TOPICS
from replication.common.messages import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Response,
)
from replication.network import CLOSE, NO_RESPONSE
from replication.protocol import messages as wire
from replication.wire import produce as codec

FIRST_WITH_ZSTD = 7

OF_ALL = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
"""Refusals of one partition for which nothing of the request is appended, as in Kafka."""
ZSTD = int(Compression.ZSTD)

# What is read of a batch: size, format, attributes. The log checks the rest.
_FRONT = Struct(">8xi4xB5xB")  # batch length, magic, low byte of the attributes
_OVERHEAD = 12  # base offset and length, which the length does not count
_LENGTH_AT = 8
_LENGTH_MIN = 14  # of a message of magic 0
_MAGIC_AT = 16

LEAST_SIZE = _FRONT.size  # bytes
MAGIC = 2  # the last one there is

Part = codec.Part
TopicProduceResponse = wire.ProduceResponse.TopicProduceResponse


class ProduceApi(ApiArea):
    """Answers producers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._metadata = broker.metadata

    def produce(
        self, received: ReceivedRequest, request: wire.ProduceRequest, reply: Reply
    ) -> None:
        """Append, and answer as ``acks`` says. Without acks nothing is answered; an error closes
        the connection then, so that the producer notices."""
        version = received.api_version
        has_name = request.transactional_id is not None
        wanted: list[ProducePartition] = []
        refused: dict[int, Part] = {}  # by place in the request; these do not reach the log
        shape: list[tuple[str, uuid.UUID, int]] = []
        for topic in request.topic_data:
            name: str | None = topic.name
            if version >= codec.FIRST_WITH_IDS:
                name = self._metadata.topic_name(topic.topic_id)
            shape.append((topic.name, topic.topic_id, len(topic.partition_data)))
            for index, data in topic.partition_data:
                tp = TopicPartition(name or "", index)
                records: Any = data or b""  # of a request: only answers have slices
                refusal = _refusal_of(tp, records, version, has_name=has_name)
                if refusal is not None and refusal.error_code in OF_ALL:
                    reply(_refused(request, refusal) if request.acks else CLOSE)
                    return
                if name is None:
                    refusal = Part(index, ErrorCode.UNKNOWN_TOPIC_ID, -1)
                elif refusal is not None and self._metadata.registration(tp) is None:
                    refusal = None  # a missing partition comes before any other fault
                if refusal is None:
                    wanted.append(ProducePartition(tp, records))
                else:
                    refused[len(wanted) + len(refused)] = refusal

        # While the answer waits for followers, nothing holds the bytes of the request.
        acks, listener = request.acks, listener_of(received)

        def answer(response: Response | None) -> None:
            if not isinstance(response, ProduceResponse):  # the broker stops
                reply(CLOSE)
            elif acks == 0:
                failed = refused or any(part.error_code for part in response.partitions)
                reply(CLOSE if failed else NO_RESPONSE)
            else:
                reply(self.response(version, listener, shape, refused, response))

        transactional_id = request.transactional_id
        self._broker.handle(
            ProduceRequest(acks, request.timeout_ms, tuple(wanted))
            if transactional_id is None
            else ProduceRequest(
                acks,
                request.timeout_ms,
                tuple(wanted),
                transactional_id,
                codec.transaction_support(version),
            ),
            answer,
        )

    def response(
        self,
        version: int,
        listener: str,
        shape: Sequence[tuple[str, uuid.UUID, int]],
        refused: Mapping[int, Part],
        response: ProduceResponse,
    ) -> wire.ProduceResponse:
        """The message for partitions in the order of ``shape``: name, id and partitions of each
        topic; ``refused`` has those that did not reach the log, by their places."""
        appended = iter(response.partitions)
        topics = []
        begin = 0
        for name, topic_id, count in shape:
            parts = [
                refused.get(place) or codec.part_to(next(appended), version)
                for place in range(begin, begin + count)
            ]
            topics.append(TopicProduceResponse(name, topic_id, tuple(parts)))
            begin += count
        endpoints: tuple[wire.ProduceResponse.NodeEndpoint, ...] = ()
        if version >= codec.FIRST_WITH_LEADERS:
            leaders = [each.current_leader[0] for each in response.partitions if each.error_code]
            if leaders:
                kind = wire.ProduceResponse.NodeEndpoint
                endpoints = node_endpoints(self._metadata, leaders, listener, kind)
        return wire.ProduceResponse(tuple(topics), node_endpoints=endpoints)


def _refused(request: wire.ProduceRequest, refusal: Part) -> wire.ProduceResponse:
    """The same refusal for each partition."""
    return wire.ProduceResponse(
        tuple(
            TopicProduceResponse(
                topic.name,
                topic.topic_id,
                tuple(refusal._replace(index=part.index) for part in topic.partition_data),
            )
            for topic in request.topic_data
        )
    )


def _refusal_of(
    tp: TopicPartition, records: Buffer, version: int, *, has_name: bool
) -> Part | None:
    """Check what a producer sent: exactly one batch of magic 2. The log accepts more than that.

    Only coordinators write their topics, because they would load what a client wrote there.
    ``has_name``: whether the producer has a transactional id.
    """
    index = tp.partition
    if tp.topic in INTERNAL_TOPICS:
        reason = f"{tp.topic} is written by its coordinators"
        return Part(index, ErrorCode.INVALID_TOPIC_EXCEPTION, -1, error_message=reason)
    if len(records) < LEAST_SIZE:
        return _refusal_of_other(index, records)
    size, magic, attributes = front_of(records)
    if size < len(records) and is_unreadable(records):
        return _refusal_of_other(index, records)
    has_zstd = attributes & CODEC_MASK == ZSTD and magic == MAGIC and size <= len(records)
    if has_zstd and version < FIRST_WITH_ZSTD:
        reason = f"zstd needs version {FIRST_WITH_ZSTD}"
        return Part(index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1, error_message=reason)
    if size != len(records) or magic != MAGIC:
        return _refusal_of_other(index, records)
    if attributes & TRANSACTIONAL and not has_name:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return Part(index, code, -1, error_message="a transaction without a transactional id")
    return None


def _refusal_of_other(index: int, records: Buffer) -> Part:
    """The refusal of bytes that are not one batch of magic 2."""
    code = ErrorCode.INVALID_RECORD
    if is_unreadable(records):
        code, reason = ErrorCode.CORRUPT_MESSAGE, "no batch"
    elif len(records) < LEAST_SIZE or front_of(records)[0] > len(records):
        reason = "no whole batch"
    elif front_of(records)[1] != MAGIC:
        reason = f"a batch of magic {front_of(records)[1]}; {MAGIC} is expected"
    else:
        reason = "more than one batch in a partition"
    return Part(index, code, -1, error_message=reason)


def front_of(records: Buffer) -> tuple[int, int, int]:
    """Size in bytes, magic and attributes of the first batch, as it says itself. The size is
    negative if it lies. At least ``LEAST_SIZE`` bytes must be there.
    """
    length, magic, attributes = _FRONT.unpack_from(records)
    return _OVERHEAD + length, magic, attributes


def is_unreadable(records: Buffer) -> bool:
    """Whether a batch of no format begins there. False if there are too few bytes to tell."""
    if len(records) < _OVERHEAD:
        return False
    length = int.from_bytes(records[_LENGTH_AT:_OVERHEAD], "big", signed=True)
    return length < _LENGTH_MIN or (len(records) > _MAGIC_AT and records[_MAGIC_AT] > MAGIC)
