"""A Produce of one batch to one partition, from the bytes of the request to those of the answer.

Producers that send one record after the other ask nothing else, and the messages of the protocol
cost such a request more than its append does. So this reads the one shape that they send. It leaves
any other, and whatever is wrong with this one before the log has seen it, to ``ProduceApi``, which
answers with the same bytes (W-238). What the log refuses is answered by its messages, too.
"""

from __future__ import annotations

import functools
from collections.abc import Sized
from struct import Struct, error

from checkpoints.types import TopicPartition
from logstore.format.attributes import TRANSACTIONAL
from logstore.kernels import AppendInfo
from replication.apis.kafka_apis import INLINE_BYTES
from replication.apis.produce import LEAST_SIZE, MAGIC, ProduceApi, front_of
from replication.broker.broker import Broker, BrokerState
from replication.common.internal_topics import INTERNAL_TOPICS
from replication.common.messages import ProducePartitionResponse, ProduceResponse
from replication.network import ConnectionInfo, Send
from replication.protocol import (
    ZERO_UUID,
    ApiKey,
    error_codes,
    response_encoder,
    response_header,
)

FIRST_VERSION, LAST_VERSION = 9, 12
"""Those with variable-length numbers that name topics."""

ACKS = 1
_CLIENT_AT, _CLIENT_END = (
    12,
    14,
)  # the length of the client id, behind size, key, version and correlation id
_FRONT = Struct(">BBhiBB")  # tags, no transactional id, acks, timeout, one topic, its name's length
_PARTITION = Struct(">BiB")  # one partition, its index, the first byte of the records' length
_NO_TAGS = b"\0\0\0"  # of partition, topic and request
_NOTHING_MORE = (1, 0, 0, 0, 0, 0)  # no record errors, message, tags twice, throttle, tags
_ONE = 2  # a length is one more than there is
_LONG, _TWO = 0x7F, 0x3FFF  # the largest number of one byte, and of two
_SHAPE = (0, 0, ACKS, _ONE, _ONE)
_RUNNING = BrokerState.RUNNING  # bound once: looking it up takes 0.2 µs on Python 3.11


@functools.cache
def _answer_of(name_size: int) -> Struct:
    """The layout of an answer without an error: size, correlation id, tags; the topic; of the
    partition its index, no error, three numbers, no record errors, no message; throttle time."""
    return Struct(f">iiBBB{name_size}sBihqqqBBBBiB")


def one_batch_of(frame: memoryview) -> tuple[bytes, TopicPartition, bytes] | None:
    """The topic's name in UTF-8, the partition, and a copy of the batch, of a request in one of the
    versions. None if it has another shape, or is malformed."""
    end = len(frame) - len(_NO_TAGS)
    try:
        client_size = int.from_bytes(frame[_CLIENT_AT:_CLIENT_END], signed=True)
        at = _CLIENT_END
        if client_size > 0:
            at += client_size
            str(frame[_CLIENT_END:at], "utf-8")
        elif client_size < -1:
            return None
        tags, no_id, acks, _, topics, name_size = _FRONT.unpack_from(frame, at)
        name_at = at + _FRONT.size
        at = name_at + name_size - 1
        partitions, index, size = _PARTITION.unpack_from(frame, at)
        if (tags, no_id, acks, topics, partitions) != _SHAPE or not 1 < name_size <= _LONG:
            return None
        name = bytes(frame[name_at:at])
        topic = str(name, "utf-8")
        at += _PARTITION.size
        if size > _LONG:
            size = (size & _LONG) | frame[at] << 7
            at += 1
            if size > _TWO:
                size = (size & _TWO) | frame[at] << 14  # no more: the frame is not that large
                at += 1
    except (IndexError, ValueError, error):
        return None
    if at + size - 1 != end or frame[end:] != _NO_TAGS or topic in INTERNAL_TOPICS:
        return None
    records = bytes(frame[at:end])
    if len(records) < LEAST_SIZE:
        return None
    size, magic, attributes = front_of(records)
    if size != len(records) or magic != MAGIC or attributes & TRANSACTIONAL:
        return None
    return name, TopicPartition(topic, index), records


class ProduceFastPath:
    """Answers whole frames, on the network thread.

    Args:
        detours: while any of them has anything, all requests go the other way.
    """

    def __init__(self, broker: Broker, plain: ProduceApi, detours: tuple[Sized, ...] = ()) -> None:
        self._broker, self._plain, self._detours = broker, plain, detours
        self._metadata = broker.metadata
        self._append = broker.replica_manager.writes.append_one

    def answer(
        self, frame: memoryview, version: int, correlation_id: int, connection: ConnectionInfo
    ) -> bytes | Send | None:
        """Carry out the request in ``frame``. See ``FastPath``."""
        if not FIRST_VERSION <= version <= LAST_VERSION or len(frame) > INLINE_BYTES:
            return None
        for detour in self._detours:
            if detour:
                return None
        if self._broker.state is not _RUNNING or not self._metadata.is_complete:
            return None
        found = one_batch_of(frame)
        if found is None:
            return None
        name, tp, records = found
        info = self._append(tp, records)
        if not isinstance(info, AppendInfo):
            return self._refused(version, correlation_id, connection, info)
        layout = _answer_of(len(name))
        return layout.pack(
            layout.size - 4,
            correlation_id,
            0,
            _ONE,
            len(name) + 1,
            name,
            _ONE,
            tp.partition,
            0,
            info.first_offset,
            info.log_append_time,
            info.log_start_offset,
            *_NOTHING_MORE,
        )

    def _refused(
        self,
        version: int,
        correlation_id: int,
        connection: ConnectionInfo,
        refusal: ProducePartitionResponse,
    ) -> Send:
        message = self._plain.response(
            version,
            connection.listener.name,
            [(refusal.tp.topic, ZERO_UUID, 1)],
            {},
            ProduceResponse((refusal,)),
        )
        header = response_header(ApiKey.PRODUCE, version, correlation_id)
        body = response_encoder(ApiKey.PRODUCE, version)(message)
        return Send([header, *body], errors=error_codes(message))
