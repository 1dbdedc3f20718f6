"""A Produce of one batch to one partition, from the bytes of the request to those of the answer.

Producers that send one record after the other ask nothing else, and the messages of the protocol
cost such a request more than its append does. So this reads the one shape that they send. It leaves
any other, and whatever is wrong with this one before the log has seen it, to ``ProduceApi``, which
answers with the same bytes (W-238). What the log refuses is answered by its messages, too.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sized
from functools import partial
from struct import Struct, error

from checkpoints.types import TopicPartition
from logstore.format.attributes import TRANSACTIONAL
from logstore.kernels import AppendInfo
from replication.apis.kafka_apis import INLINE_BYTES
from replication.apis.produce import LEAST_SIZE, MAGIC, ProduceApi, front_of
from replication.broker.broker import Broker, BrokerState
from replication.common.internal_topics import INTERNAL_TOPICS
from replication.common.messages import ProducePartitionResponse, ProduceResponse
from replication.network import ConnectionInfo, Respond, Send
from replication.protocol import (
    ZERO_UUID,
    ApiKey,
    error_codes,
    response_encoder,
    response_header,
)
from replication.wire.produce import FIRST_WITH_IDS

FIRST_VERSION, LAST_VERSION = 9, 13
"""Those with variable-length numbers. The last one has ids of topics in the place of names."""

# The length of the client id, behind size, key, version and correlation id.
_CLIENT_AT, _CLIENT_END = 12, 14
_FRONT = Struct(">BBhiBB")  # tags, no transactional id, acks, timeout, one topic, its first byte
_PARTITION = Struct(">BiB")  # one partition, its index, the first byte of the records' length
_ID_SIZE = 16
_NO_TAGS = b"\0\0\0"  # of partition, topic and request
_NOTHING_MORE = (1, 0, 0, 0, 0, 0)  # no record errors, message, tags twice, throttle, tags
_ONE = 2  # a length is one more than there is
_ACKS = (1, -1)
_LONG, _TWO = 0x7F, 0x3FFF  # the largest number of one byte, and of two
_SHAPE = (0, 0, _ONE, _ONE)
_RUNNING = BrokerState.RUNNING  # bound once: looking it up takes 0.2 µs on Python 3.11


@functools.cache
def _answer_of(topic_size: int) -> Struct:
    """The layout of an answer without an error: size, correlation id, tags; the topic; of the
    partition its index, no error, three numbers, no record errors, no message; throttle time."""
    return Struct(f">iiBB{topic_size}sBihqqqBBBBiB")


@functools.lru_cache(1024)
def _topic_id(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=data)


def one_batch_of(frame: memoryview, version: int) -> tuple[bytes, int, bytes, int, int] | None:
    """The topic as it is written, its length in front of a name; the partition's index; a copy of
    the batch; acks and timeout. None if the request has another shape, or is malformed."""
    end = len(frame) - len(_NO_TAGS)
    try:
        client_size = int.from_bytes(frame[_CLIENT_AT:_CLIENT_END], signed=True)
        at = _CLIENT_END
        if client_size > 0:
            at += client_size
            str(frame[_CLIENT_END:at], "utf-8")
        elif client_size < -1:
            return None
        tags, no_id, acks, timeout_ms, topics, name_size = _FRONT.unpack_from(frame, at)
        topic_at = at + _FRONT.size - 1
        at = topic_at + (_ID_SIZE if version >= FIRST_WITH_IDS else name_size)
        partitions, index, size = _PARTITION.unpack_from(frame, at)
        if (tags, no_id, topics, partitions) != _SHAPE or acks not in _ACKS:
            return None
        topic = bytes(frame[topic_at:at])
        at += _PARTITION.size
        if size > _LONG:
            size = (size & _LONG) | frame[at] << 7
            at += 1
            if size > _TWO:
                size = (size & _TWO) | frame[at] << 14  # no more: the frame is not that large
                at += 1
    except (IndexError, ValueError, error):
        return None
    if at + size - 1 != end or frame[end:] != _NO_TAGS:
        return None
    records = bytes(frame[at:end])
    if len(records) < LEAST_SIZE:
        return None
    size, magic, attributes = front_of(records)
    if size != len(records) or magic != MAGIC or attributes & TRANSACTIONAL:
        return None
    return topic, index, records, acks, timeout_ms


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
    ) -> bytes | Callable[[Respond], None] | None:
        """Carry out the request in ``frame``. See ``FastPath``."""
        if not FIRST_VERSION <= version <= LAST_VERSION or len(frame) > INLINE_BYTES:
            return None
        for detour in self._detours:
            if detour:
                return None
        if self._broker.state is not _RUNNING or not self._metadata.is_complete:
            return None
        found = one_batch_of(frame, version)
        if found is None:
            return None
        topic, index, records, acks, timeout_ms = found
        name = self._name_of(topic, version)
        if not name or name in INTERNAL_TOPICS:
            return None
        info = self._append(TopicPartition(name, index), records, acks, timeout_ms)
        if type(info) is AppendInfo:
            layout = _answer_of(len(topic))
            return layout.pack(
                layout.size - 4,
                correlation_id,
                0,
                _ONE,
                topic,
                _ONE,
                index,
                0,
                info.first_offset,
                info.log_append_time,
                info.log_start_offset,
                *_NOTHING_MORE,
            )
        in_messages = partial(self._in_messages, version, correlation_id, connection, topic)
        if isinstance(info, ProducePartitionResponse):
            refusal = in_messages(ProduceResponse((info,)))
            return lambda respond: respond(refusal)
        await_commit = info
        return lambda respond: await_commit(lambda response: respond(in_messages(response)))

    def _name_of(self, topic: bytes, version: int) -> str | None:
        """None if there is none, or it is not to be had here."""
        if version >= FIRST_WITH_IDS:
            return self._metadata.topic_name(_topic_id(topic))
        if not 1 < len(topic) <= _LONG or topic[0] != len(topic):
            return None
        try:
            return str(topic[1:], "utf-8")
        except UnicodeDecodeError:
            return None

    def _in_messages(
        self,
        version: int,
        correlation_id: int,
        connection: ConnectionInfo,
        topic: bytes,
        response: ProduceResponse,
    ) -> Send:
        """An answer by the messages of the protocol, as ``ProduceApi`` makes them."""
        has_id, (part,) = version >= FIRST_WITH_IDS, response.partitions
        shape = ("", _topic_id(topic), 1) if has_id else (part.tp.topic, ZERO_UUID, 1)
        message = self._plain.response(version, connection.listener.name, [shape], {}, response)
        header = response_header(ApiKey.PRODUCE, version, correlation_id)
        body = response_encoder(ApiKey.PRODUCE, version)(message)
        return Send([header, *body], errors=error_codes(message))
