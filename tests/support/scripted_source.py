"""A Kafka on real sockets that has what a test gave it, and says what a test makes of that.

``ScriptedSource`` answers truly by itself. Each of its `lies` sees every exchange before it is
sent, and may change the answer, hold it back, cut it, or send something else.
"""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from checkpoints.types import TopicPartition
from logstore.kernels import crc32c
from replication.common.error_codes import ErrorCode
from replication.protocol import (
    ZERO_UUID,
    ApiKey,
    decode_request,
    encode_response,
    parse_request_header,
    response_header,
)
from replication.protocol import messages as wire
from tests.support.until import patience

LATEST, EARLIEST = -1, -2
_LENGTH = struct.Struct(">i")
_BATCH = struct.Struct(">qiibIhi")  # base, length, epoch, magic, CRC, attributes, last offset delta
_CRC_END = 21
_NO_CODE = ErrorCode.NONE

Versions = Mapping[ApiKey, tuple[int, int]]
KAFKA_4: Versions = {
    ApiKey.FETCH: (4, 17),
    ApiKey.LIST_OFFSETS: (1, 9),
    ApiKey.METADATA: (0, 13),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
}
KAFKA_2_8: Versions = {
    **KAFKA_4,
    ApiKey.FETCH: (0, 12),
    ApiKey.LIST_OFFSETS: (0, 6),
    ApiKey.METADATA: (0, 11),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 4),
    ApiKey.DESCRIBE_CONFIGS: (0, 4),
}
KAFKA_2_1: Versions = {
    ApiKey.FETCH: (0, 10),
    ApiKey.LIST_OFFSETS: (0, 4),
    ApiKey.METADATA: (0, 7),
    ApiKey.API_VERSIONS: (0, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 2),
    ApiKey.DESCRIBE_CONFIGS: (0, 2),
}


class BatchHeader(NamedTuple):
    base: int
    last: int
    epoch: int
    size: int


def header_of(batch: bytes, at: int = 0) -> BatchHeader:
    base, length, epoch, _, _, _, delta = _BATCH.unpack_from(batch, at)
    return BatchHeader(base, base + delta, epoch, 12 + length)


def split(records: bytes) -> list[bytes]:
    """The batches of a run of them; one that is not whole is left out."""
    found, at = [], 0
    while at + _BATCH.size <= len(records):
        size = header_of(records, at).size
        if size <= 12 or at + size > len(records):
            break
        found.append(records[at : at + size])
        at += size
    return found


@dataclass
class SourceLog:
    """One partition as it is.

    Attributes:
        high_watermark: None for the end of the log.
    """

    batches: list[bytes] = field(default_factory=list)
    leader: int = 0
    leader_epoch: int = 0
    log_start: int = 0
    high_watermark: int | None = None
    base: int = 0  # where it began

    @property
    def end(self) -> int:
        return header_of(self.batches[-1]).last + 1 if self.batches else self.base

    @property
    def committed(self) -> int:
        return self.end if self.high_watermark is None else min(self.high_watermark, self.end)

    def read(self, offset: int, max_bytes: int) -> bytes:
        found: list[bytes] = []
        size = 0
        for batch in self.batches:
            head = header_of(batch)
            if head.last < offset:
                continue
            if head.last >= self.committed or (found and size + head.size > max_bytes):
                break
            found.append(batch)
            size += head.size
        return b"".join(found)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """As Kafka's epoch cache: the largest epoch that is not above, and where it ends. One below
        all that are known ends where these begin; one above them is not known: (−1, −1)."""
        starts: dict[int, int] = {}
        for batch in self.batches:
            head = header_of(batch)
            starts.setdefault(head.epoch, max(head.base, self.log_start))
        starts.setdefault(self.leader_epoch, self.end)
        if epoch == self.leader_epoch:
            return epoch, self.end
        higher = min((each for each in starts if each > epoch), default=None)
        if higher is None:
            return -1, -1
        below = max((each for each in starts if each <= epoch), default=epoch)
        return below, starts[higher]


@dataclass
class SourceTopic:
    partitions: dict[int, SourceLog]
    topic_id: uuid.UUID = field(default_factory=uuid.uuid4)
    config: dict[str, str] = field(default_factory=dict)
    code: ErrorCode = _NO_CODE


@dataclass
class Exchange:
    """A question and what will be sent.

    Attributes:
        answer: a message; None: nothing is ever sent.
        frame: bytes to send instead, their length not included.
        raw: bytes to send instead, as they are.
        cut_at: the connection ends after so many bytes of the frame.
        after_s: seconds until it is sent; `ScriptedSource.close` ends them.
    """

    number: int
    broker: int
    key: ApiKey
    version: int
    request: Any
    answer: Any
    frame: bytes | None = None
    raw: bytes | None = None
    cut_at: int | None = None
    after_s: float = 0


Lie = Callable[[Exchange], None]


class ScriptedSource:
    """Brokers 0, 1, … on ports of loopback, with one truth."""

    def __init__(
        self,
        topics: Mapping[str, SourceTopic],
        *,
        brokers: int = 1,
        cluster_id: str = "scripted-cluster-00000",
        versions: Versions = KAFKA_4,
        sessions: bool = True,
        lies: Iterable[Lie] = (),
    ) -> None:
        self.topics = dict(topics)
        self.cluster_id = cluster_id
        self.versions = versions
        self.sessions = sessions
        self.lies = list(lies)
        self.asked: Counter[ApiKey] = Counter()
        self.sent_bytes = 0
        self.changed = threading.Condition(threading.RLock())
        self._sessions: dict[int, tuple[int, dict[tuple[Any, int], Any]]] = {}
        self._next_session = 100
        self._closed = False
        self._connections: set[socket.socket] = set()
        self._listeners = [self._listen(number) for number in range(brokers)]

    # -- what a test does ------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in self._listeners)

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def servers(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", each.getsockname()[1]) for each in self._listeners]

    def log(self, topic: str, partition: int = 0) -> SourceLog:
        return self.topics[topic].partitions[partition]

    def logs(self) -> dict[TopicPartition, SourceLog]:
        return {
            TopicPartition(name, number): log
            for name, topic in self.topics.items()
            for number, log in topic.partitions.items()
        }

    def change(self, how: Callable[[], object]) -> None:
        """Change the truth; who waits for records is answered."""
        with self.changed:
            how()
            self.changed.notify_all()

    def drop_connections(self) -> None:
        with self.changed:
            for each in [*self._connections]:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        for each in self._listeners:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self.drop_connections()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- sockets ---------------------------------------------------------------------------------

    def _listen(self, number: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, args=(number, listener), daemon=True).start()
        return listener

    def _accept(self, number: int, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(patience())
                with self.changed:
                    self._connections.add(connection)
                serving = threading.Thread(target=self._serve, args=(number, connection))
                serving.daemon = True
                serving.start()

    def _serve(self, number: int, connection: socket.socket) -> None:
        try:
            with suppress(OSError, ConnectionError):
                while self._exchange(number, connection):
                    pass
        finally:
            with self.changed:
                self._connections.discard(connection)
            connection.close()

    def _exchange(self, number: int, connection: socket.socket) -> bool:
        """Answer one request. False: the connection ends."""
        frame = memoryview(_exactly(connection, *_LENGTH.unpack(_exactly(connection, 4))))
        header = parse_request_header(frame)
        key, version = ApiKey(header.api_key), header.api_version
        first, last = self.versions.get(key, (1, 0))
        refused = not first <= version <= last
        if refused and key is not ApiKey.API_VERSIONS:
            return False
        request = None
        if not refused:
            request = decode_request(key, version, frame[header.body_offset :])
        with self.changed:
            self.asked[key] += 1
            answer = self._answer(number, key, version, request)
            if refused:
                answer, version = answer._replace(error_code=ErrorCode.UNSUPPORTED_VERSION), 0
            exchange = Exchange(self.asked[key], number, key, version, request, answer)
            for lie in self.lies:
                lie(exchange)
            if exchange.after_s:
                self.changed.wait_for(lambda: self._closed, exchange.after_s)
            if exchange.answer is None and exchange.raw is exchange.frame is None:
                self.changed.wait_for(lambda: self._closed)
                return False
        return self._send(connection, exchange, header.correlation_id)

    def _send(self, connection: socket.socket, exchange: Exchange, correlation_id: int) -> bool:
        data = exchange.raw
        if data is None:
            frame = exchange.frame
            if frame is None:
                body = encode_response(exchange.answer, exchange.version)
                head = response_header(exchange.key, exchange.version, correlation_id)
                frame = head + b"".join(bytes(part) for part in body)  # type: ignore[arg-type]
            data = _LENGTH.pack(len(frame)) + frame
        data = data[: exchange.cut_at]
        with self.changed:
            self.sent_bytes += len(data)
        connection.sendall(data)
        return exchange.cut_at is None

    # -- true answers ----------------------------------------------------------------------------

    def _answer(self, broker: int, key: ApiKey, version: int, request: Any) -> Any:
        match key:
            case ApiKey.API_VERSIONS:
                kind = wire.ApiVersionsResponse
                return kind(
                    api_keys=tuple(kind.ApiVersion(k, *v) for k, v in self.versions.items())
                )
            case ApiKey.METADATA:
                return self._metadata(version, request)
            case ApiKey.FETCH:
                return self._fetch(broker, version, request)
            case ApiKey.LIST_OFFSETS:
                return self._list_offsets(broker, request)
            case ApiKey.OFFSET_FOR_LEADER_EPOCH:
                return self._epochs(broker, request)
            case ApiKey.DESCRIBE_CONFIGS:
                return self._configs(request)
            case _:
                raise AssertionError(f"nobody has scripted {key.name}")

    def _metadata(self, version: int, request: Any) -> wire.MetadataResponse:
        kind = wire.MetadataResponse
        names = [*self.topics]
        if request.topics is not None and (request.topics or version > 0):
            by_id = {topic.topic_id: name for name, topic in self.topics.items()}
            names = [each.name or by_id.get(each.topic_id, "") for each in request.topics]
        return kind(
            brokers=tuple(
                kind.MetadataResponseBroker(number, host, port, None)
                for number, (host, port) in enumerate(self.servers)
            ),
            cluster_id=self.cluster_id,
            controller_id=0,
            topics=tuple(self._topic(name, version) for name in names),
        )

    def _topic(self, name: str, version: int) -> wire.MetadataResponse.MetadataResponseTopic:
        kind = wire.MetadataResponse
        topic = self.topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return kind.MetadataResponseTopic(code, name, ZERO_UUID, False, ())
        parts = tuple(
            kind.MetadataResponsePartition(
                ErrorCode.LEADER_NOT_AVAILABLE if log.leader < 0 else _NO_CODE,
                number,
                log.leader,
                log.leader_epoch if version >= 7 else -1,
                (max(0, log.leader),),
                (max(0, log.leader),),
                (),
            )
            for number, log in topic.partitions.items()
        )
        is_internal = name.startswith("__")
        return kind.MetadataResponseTopic(topic.code, name, topic.topic_id, is_internal, parts)

    def _find(
        self, broker: int, name: str, topic_id: uuid.UUID | None, part: Any
    ) -> SourceLog | ErrorCode:
        number = part.partition_index if hasattr(part, "partition_index") else part.partition
        if topic_id is not None:
            found = [each for each in self.topics.values() if each.topic_id == topic_id]
            if not found:
                return ErrorCode.UNKNOWN_TOPIC_ID
            topic: SourceTopic | None = found[0]
        else:
            topic = self.topics.get(name)
        if topic is not None and topic.code:
            return topic.code
        if topic is None or number not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        log = topic.partitions[number]
        if log.leader != broker:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if 0 <= part.current_leader_epoch < log.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if part.current_leader_epoch > log.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return log

    def _fetch(self, broker: int, version: int, request: Any) -> wire.FetchResponse:
        session = self._session(version, request)
        if isinstance(session, ErrorCode):
            return wire.FetchResponse(error_code=session)
        session_id, parts = session
        is_full = request.session_epoch <= 0
        limit_s = min(request.max_wait_ms / 1000, patience())
        answer = self._read(broker, version, request, parts, session_id, is_full)

        def has_news() -> bool:
            nonlocal answer
            answer = self._read(broker, version, request, parts, session_id, is_full)
            return self._closed or _has_news(answer)

        if not _has_news(answer):
            self.changed.wait_for(has_news, limit_s)
        return answer

    def _session(
        self, version: int, request: Any
    ) -> ErrorCode | tuple[int, dict[tuple[Any, int], tuple[str, Any, Any]]]:
        by_id = {topic.topic_id: name for name, topic in self.topics.items()}
        asked = {
            (topic.topic_id if version >= 13 else topic.topic, part.partition): (
                by_id.get(topic.topic_id, "") if version >= 13 else topic.topic,
                topic.topic_id if version >= 13 else None,
                part,
            )
            for topic in request.topics
            for part in topic.partitions
        }
        epoch = request.session_epoch
        if version < 7 or epoch < 0 or not self.sessions:
            self._sessions.pop(request.session_id, None)
            return 0, asked
        if epoch == 0:
            self._sessions.pop(request.session_id, None)
            self._next_session += 1
            self._sessions[self._next_session] = 1, asked
            return self._next_session, asked
        if request.session_id not in self._sessions:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        expected, known = self._sessions[request.session_id]
        if epoch != expected:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                known.pop((topic.topic_id if version >= 13 else topic.topic, number), None)
        known.update(asked)
        self._sessions[request.session_id] = epoch + 1, known
        return request.session_id, known

    def _read(
        self, broker: int, version: int, request: Any, parts: Any, session_id: int, is_full: bool
    ) -> wire.FetchResponse:
        kind = wire.FetchResponse
        left, topics = request.max_bytes, []
        for name, topic_id, part in parts.values():
            found = self._find(broker, name, topic_id, part)
            data = self._part(found, part, version, left)
            left = max(0, left - len(data.records or b""))
            is_news = data.records or data.error_code or data.diverging_epoch.end_offset >= 0
            if is_full or is_news or request.session_epoch < 0:
                topics.append(kind.FetchableTopicResponse(name, topic_id or ZERO_UUID, (data,)))
        return kind(session_id=session_id, responses=tuple(topics))

    def _part(
        self, found: SourceLog | ErrorCode, part: Any, version: int, left: int
    ) -> wire.FetchResponse.PartitionData:
        kind = wire.FetchResponse
        if isinstance(found, ErrorCode):
            return kind.PartitionData(part.partition, found, -1, records=b"")
        data = kind.PartitionData(
            part.partition, 0, found.committed, found.committed, found.log_start, records=b""
        )
        last = part.last_fetched_epoch if version >= 12 else -1
        if last >= 0:
            epoch, end = found.end_of(last)
            if epoch < 0:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
                return kind.PartitionData(part.partition, code, -1, records=b"")
            if epoch < last or end < part.fetch_offset:
                return data._replace(diverging_epoch=kind.EpochEndOffset(epoch, end))
        if not found.log_start <= part.fetch_offset <= found.end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
            return kind.PartitionData(part.partition, code, -1, records=b"")
        if left <= 0:
            return data
        return data._replace(
            records=found.read(part.fetch_offset, min(left, part.partition_max_bytes))
        )

    def _list_offsets(self, broker: int, request: Any) -> wire.ListOffsetsResponse:
        kind = wire.ListOffsetsResponse

        def part_of(name: str, part: Any) -> Any:
            found = self._find(broker, name, None, part)
            if isinstance(found, ErrorCode):
                return kind.ListOffsetsPartitionResponse(part.partition_index, found, -1, -1)
            offset = found.log_start if part.timestamp == EARLIEST else found.committed
            return kind.ListOffsetsPartitionResponse(
                part.partition_index, 0, -1, offset, found.leader_epoch
            )

        return kind(
            topics=tuple(
                kind.ListOffsetsTopicResponse(
                    topic.name, tuple(part_of(topic.name, part) for part in topic.partitions)
                )
                for topic in request.topics
            )
        )

    def _epochs(self, broker: int, request: Any) -> wire.OffsetForLeaderEpochResponse:
        kind = wire.OffsetForLeaderEpochResponse

        def part_of(name: str, part: Any) -> Any:
            found = self._find(broker, name, None, part)
            if isinstance(found, ErrorCode):
                return kind.EpochEndOffset(found, part.partition, -1, -1)
            return kind.EpochEndOffset(0, part.partition, *found.end_of(part.leader_epoch))

        return kind(
            topics=tuple(
                kind.OffsetForLeaderTopicResult(
                    topic.topic, tuple(part_of(topic.topic, part) for part in topic.partitions)
                )
                for topic in request.topics
            )
        )

    def _configs(self, request: Any) -> wire.DescribeConfigsResponse:
        kind = wire.DescribeConfigsResponse

        def result_of(resource: Any) -> Any:
            topic = self.topics.get(resource.resource_name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else _NO_CODE
            configs = () if topic is None else tuple(topic.config.items())
            return kind.DescribeConfigsResult(
                code,
                None,
                resource.resource_type,
                resource.resource_name,
                tuple(
                    kind.DescribeConfigsResourceResult(name, value, False, 1, False)
                    for name, value in configs
                ),
            )

        return kind(results=tuple(result_of(each) for each in request.resources))


def _has_news(answer: wire.FetchResponse) -> bool:
    return bool(answer.error_code) or any(
        part.records or part.error_code or part.diverging_epoch.end_offset >= 0
        for topic in answer.responses
        for part in topic.partitions
    )


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return bytes(data)


# -- lies ----------------------------------------------------------------------------------------


def on_parts(how: Callable[[Any], Any], topic: str | None = None, times: int | None = None) -> Lie:
    """A lie that changes the partitions of answers to fetches: ``how`` gives another one.

    Args:
        topic: of this topic alone.
        times: so often.
    """
    left = [times]

    def lie(exchange: Exchange) -> None:
        if exchange.key is not ApiKey.FETCH or exchange.answer is None or left[0] == 0:
            return
        topics, hit = [], False
        for each in exchange.answer.responses:
            if topic in (None, each.topic):
                parts = tuple(how(part) for part in each.partitions)
                hit |= parts != each.partitions
                topics.append(each._replace(partitions=parts))
            else:
                topics.append(each)
        exchange.answer = exchange.answer._replace(responses=tuple(topics))
        if hit and left[0] is not None:
            left[0] -= 1

    return lie


def on_records(
    how: Callable[[bytes], bytes], topic: str | None = None, times: int | None = None
) -> Lie:
    """As ``on_parts``, for records that are there."""

    def change(part: Any) -> Any:
        return part._replace(records=how(bytes(part.records))) if part.records else part

    return on_parts(change, topic, times)


def diverging(epoch: int, end_offset: int, topic: str | None = None) -> Lie:
    """The logs part there, in whatever version has words for it."""
    where = wire.FetchResponse.EpochEndOffset(epoch, end_offset)
    lie = on_parts(lambda part: part._replace(records=b"", diverging_epoch=where), topic)

    def where_it_fits(exchange: Exchange) -> None:
        if exchange.version >= 12:
            lie(exchange)

    return where_it_fits


def on_answers(key: ApiKey, how: Callable[[Exchange], None], times: int | None = None) -> Lie:
    left = [times]

    def lie(exchange: Exchange) -> None:
        if exchange.key is key and left[0] != 0:
            if left[0] is not None:
                left[0] -= 1
            how(exchange)

    return lie


def with_code(code: ErrorCode) -> Callable[[Any], Any]:
    """For `on_parts`: the error instead of records."""
    return lambda part: part._replace(error_code=code, records=b"", high_watermark=-1)


def rewritten(batch: bytes, **fields: int) -> bytes:
    """The batch with other fields in its header; its checksum is right, unless it is named."""
    names = ("base", "length", "epoch", "magic", "crc", "attributes", "delta")
    values = dict(zip(names, _BATCH.unpack_from(batch), strict=True)) | fields
    changed = _BATCH.pack(*(values[name] for name in names)) + batch[_BATCH.size :]
    if "crc" in fields:
        return changed
    sum_ = crc32c(changed[_CRC_END:])
    return changed[: _CRC_END - 4] + struct.pack(">I", sum_) + changed[_CRC_END:]


def each_rewritten(records: bytes, **fields: int) -> bytes:
    return b"".join(rewritten(each, **fields) for each in split(records))


def last_moved(records: bytes, by: int) -> bytes:
    """The last batch elsewhere, as far as there are offsets."""
    *before, last = split(records)
    base = max(-(2**63), min(2**63 - 1, header_of(last).base + by))
    return b"".join([*before, rewritten(last, base=base)])


__all__ = [
    "KAFKA_2_1",
    "KAFKA_2_8",
    "KAFKA_4",
    "BatchHeader",
    "Exchange",
    "Lie",
    "ScriptedSource",
    "SourceLog",
    "SourceTopic",
    "diverging",
    "each_rewritten",
    "header_of",
    "last_moved",
    "on_answers",
    "on_parts",
    "on_records",
    "rewritten",
    "split",
    "with_code",
]
