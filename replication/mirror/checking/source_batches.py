"""The batches of a running cluster as a consumer gets them: bytes, up to the high watermark.

What comes is taken for what it is: bytes of somebody else. Only whole batches that go up in offsets
count, and a bad one ends the comparison of its partition, by name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from checkpoints.partition_metadata import topic_id_from_text
from checkpoints.types import TopicPartition
from logstore.common.clock import Clock, SystemClock
from logstore.common.types import Buffer
from logstore.directory.windows import BatchTable
from logstore.kernels import SCAN_REASONS
from replication.admin import AdminClient, Answered, TopicStatus, WireConnection
from replication.admin.admin_client import AGAIN, EARLIEST, LATEST
from replication.admin.topics import topic_statuses
from replication.common.error_codes import ErrorCode
from replication.common.messages import FetchPartition, FetchPartitionResponse, FetchRequest
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH
from replication.protocol import ApiKey
from replication.wire import fetch as wire_fetch

FETCH_BYTES = 4 << 20
MAX_WAIT_MS = 500
THROTTLE_MAX_S = 10.0
_EMPTY_ANSWERS = 4
"""In a row, until a range counts as empty: a quota may also be the reason."""
_LATER = (*AGAIN, ErrorCode.NETWORK_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class SourceChunk(NamedTuple):
    """Whole batches that follow each other, or none: the source has nothing in ``[from, next)``.

    Attributes:
        next_offset: up to where the source was read.
        problem: why what follows cannot be read; empty.
    """

    data: Buffer
    batches: int
    next_offset: int
    problem: str = ""


class SourceBounds(NamedTuple):
    """The offsets of a partition at the source; ``failure`` if they could not be had."""

    start: int
    end: int
    failure: Answered | None = None


class SourceRefusalError(Exception):
    """The source does not give the batches of a partition."""


class OutOfRangeError(Exception):
    """The source does not have the offset, or not any more."""


class ReadPace:
    """Holds a reader back to a rate; None is no limit."""

    def __init__(self, bytes_per_s: float | None, clock: Clock | None = None) -> None:
        self._rate, self._clock = bytes_per_s, clock or SystemClock()
        self._due_ns = self._clock.monotonic_ns()
        self._never = threading.Event()

    def took(self, size: int) -> None:
        """Wait until so many bytes more fit the rate."""
        if not self._rate:
            return
        now_ns = self._clock.monotonic_ns()
        self._due_ns = max(self._due_ns, now_ns) + int(size / self._rate * 1e9)
        self._never.wait((self._due_ns - now_ns) / 1e9)


class SourceBatches:
    """For one thread at a time."""

    def __init__(self, client: AdminClient, pace: ReadPace) -> None:
        self._client, self._pace = client, pace
        self._leaders: dict[TopicPartition, int] = {}

    def topics(self) -> tuple[str | None, Mapping[str, Answered]]:
        """The cluster's id, and a ``TopicStatus`` of each topic.

        Raises:
            WireError: no broker answers.
        """
        metadata = self._client.metadata()
        found = topic_statuses(metadata)
        for answer in found.values():
            self._note_leaders(answer.value)
        return metadata.cluster_id, found

    def _note_leaders(self, topic: TopicStatus) -> None:
        self._leaders |= {each.tp: each.leader for each in topic.partitions}

    def bounds(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, SourceBounds]:
        """Where logs begin, and their high watermarks. The end is asked for first: what a mirror
        has was below it before, and begins no later than the source does after."""
        tps = list(tps)
        ends = self._client.list_offsets(tps, LATEST, patient=True)
        starts = self._client.list_offsets(tps, EARLIEST, patient=True)
        found = {}
        for tp in tps:
            failure = next((each[tp] for each in (ends, starts) if each[tp].code), None)
            if failure is not None:
                found[tp] = SourceBounds(-1, -1, failure)
            else:
                found[tp] = SourceBounds(starts[tp].value, ends[tp].value)
        return found

    def chunk(self, tp: TopicPartition, topic_id: str | None, offset: int, end: int) -> SourceChunk:
        """The next batches of ``[offset, end)``.

        Raises:
            OutOfRangeError: the source has no such offset.
            SourceRefusalError: it does not answer, or refuses.
        """
        for _ in range(_EMPTY_ANSWERS):
            part = self._fetch(tp, topic_id, offset)
            data = part.batches
            if len(data):
                self._pace.took(len(data))
                return _whole(data, offset, end)
        return SourceChunk(b"", 0, end)

    def _fetch(
        self, tp: TopicPartition, topic_id: str | None, offset: int
    ) -> FetchPartitionResponse:
        asked = FetchPartition(
            tp,
            offset,
            FETCH_BYTES,
            UNKNOWN_EPOCH,
            UNKNOWN_EPOCH,
            topic_id=None if topic_id is None else topic_id_from_text(topic_id),
        )
        request = FetchRequest((asked,), max_wait_ms=MAX_WAIT_MS, max_bytes=FETCH_BYTES)

        def ask(
            connection: WireConnection, keys: list[TopicPartition]
        ) -> dict[TopicPartition, Answered]:
            version = connection.version(ApiKey.FETCH, wire_fetch.latest_version(request))
            message = wire_fetch.request_to(request, version)
            answer = connection.send(ApiKey.FETCH, message, version, MAX_WAIT_MS / 1000)
            self._throttled(answer.throttle_time_ms)
            response = wire_fetch.response_from(request, answer, version)
            code = int(response.error_code)
            return {
                part.tp: Answered(code or int(part.error_code), value=part)
                for part in response.partitions
            } or {tp: Answered(code or int(ErrorCode.UNKNOWN_SERVER_ERROR), "an empty answer")}

        def once(pending: list[TopicPartition]) -> Mapping[TopicPartition, Answered]:
            leader = self._leaders.get(tp, NO_LEADER)
            if leader == NO_LEADER:
                for answer in topic_statuses(self._client.metadata([tp.topic])).values():
                    self._note_leaders(answer.value)
                leader = self._leaders.get(tp, NO_LEADER)
            if leader == NO_LEADER:
                return {tp: Answered(ErrorCode.LEADER_NOT_AVAILABLE)}
            found = self._client.ask_brokers({leader: pending}, ask)
            if found[tp].code:
                self._leaders.pop(tp, None)
            return found

        answered = self._client.ask_until_settled([tp], once, _LATER)[tp]
        if answered.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OutOfRangeError
        if answered.code:
            raise SourceRefusalError(str(answered))
        part: FetchPartitionResponse = answered.value
        return part

    def _throttled(self, throttle_ms: int) -> None:
        """Wait as long as the broker asks for; it would not answer before anyway (KIP-219)."""
        if throttle_ms > 0:
            threading.Event().wait(min(throttle_ms / 1000, THROTTLE_MAX_S))


def _whole(data: Buffer, offset: int, end: int) -> SourceChunk:
    """The whole batches of an answer that lie inside ``[offset, end)``, and in order."""
    table = BatchTable(data, check_crc=True)
    following, count = offset, 0
    for base, last in zip(table.cells("base_offset"), table.cells("last_offset"), strict=True):
        # The first one may begin below what was asked for.
        if last < base or last < following or (count and base < following):
            problem = f"the source sends offsets {base}…{last} where {following} should follow"
            return SourceChunk(_first(data, table, count), count, following, problem)
        if last >= end:
            return SourceChunk(_first(data, table, count), count, end)
        following, count = last + 1, count + 1
    problem = ""
    if table.status in SCAN_REASONS:
        problem = f"the source sends a batch with {SCAN_REASONS[table.status]} after {following}"
    elif not count:
        problem = "the source sends what is no batch"
    return SourceChunk(_first(data, table, count), count, following, problem)


def _first(data: Buffer, table: BatchTable, count: int) -> Buffer:
    return memoryview(data)[table.span(0, count)] if count else b""
