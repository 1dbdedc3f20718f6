"""Brokers behind sockets, in memory, and what tests ask of them over the wire."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from checkpoints.types import TopicPartition
from logstore.common.clock import SystemClock
from logstore.format.batch import BatchFields, encode_batch
from logstore.storage.memory import MemoryStorage
from replication.common.error_codes import ErrorCode
from replication.network import Listener
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import LOOPBACK, ServedCluster, serve
from tests.support.until import until
from tests.support.wire_client import WireClient

_names = itertools.count()

BROKERS = "BROKERS"
WITH_BROKERS: Mapping[str, Any] = {
    "listeners": (LOOPBACK, Listener(BROKERS, "127.0.0.1", 0)),
    "config": {"inter.broker.listener.name": BROKERS},
}
"""Options of brokers that have a listener of their own beside that of clients."""


def served(brokers: int = 1, config: Mapping[str, object] = {}, **options: Any) -> ServedCluster:
    """Brokers that keep their files in memory."""
    return serve(
        "/served",
        brokers=brokers,
        config=config,
        storage=MemoryStorage(),
        **options,
    )


def new_name(prefix: str = "topic") -> str:
    """Of a topic that no other test has."""
    return f"{prefix}-{next(_names)}"


def connect(
    kafka: ServedCluster, broker_id: int = 0, *, listener: str | None = None, **options: Any
) -> WireClient:
    """To a listener of that name, or to the first one."""
    endpoints = kafka.broker(broker_id).endpoints
    found = next(each for each in endpoints if listener in (None, each.listener))
    return WireClient(found.host, found.port, **options)


def batch(*values: bytes | None, key: bytes | None = b"k", **fields: Any) -> bytes:
    """One batch, as a producer sends it."""
    header: BatchFields = {"base_offset": 0, **fields}  # type: ignore[typeddict-item]
    now = SystemClock().wall_ms()
    return bytes(encode_batch([(key, value, now) for value in values], **header))


def produce_request(
    tp: TopicPartition,
    records: bytes | None,
    *,
    acks: int = -1,
    timeout_ms: int = 10_000,
    topic_id: Any = None,
    **fields: Any,
) -> wire.ProduceRequest:
    kind = wire.ProduceRequest
    part = kind.PartitionProduceData(tp.partition, records)
    topic = kind.TopicProduceData(tp.topic, partition_data=(part,))
    if topic_id is not None:
        topic = topic._replace(name="", topic_id=topic_id)
    return kind(acks=acks, timeout_ms=timeout_ms, topic_data=(topic,), **fields)


def produce(
    client: WireClient, tp: TopicPartition, records: bytes | None, version: int = 9, **fields: Any
) -> wire.ProduceResponse.PartitionProduceResponse:
    """The answer of the one partition."""
    response = client.ask(ApiKey.PRODUCE, version, produce_request(tp, records, **fields))
    part: wire.ProduceResponse.PartitionProduceResponse
    ((part,),) = (topic.partition_responses for topic in response.responses)
    return part


def fetch_request(
    *parts: tuple[TopicPartition, Mapping[str, Any]], **fields: Any
) -> wire.FetchRequest:
    """Partitions in their order, those of one topic together where they follow each other."""
    kind = wire.FetchRequest
    topics: list[wire.FetchRequest.FetchTopic] = []
    for tp, own in parts:
        options = {"partition_max_bytes": 1 << 20, **own}
        part = kind.FetchPartition(partition=tp.partition, **options)
        if topics and topics[-1].topic == tp.topic:
            topics[-1] = topics[-1]._replace(partitions=(*topics[-1].partitions, part))
        else:
            topics.append(kind.FetchTopic(tp.topic, partitions=(part,)))
    defaults = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 << 20}
    return kind(topics=tuple(topics), **{**defaults, **fields})


def fetch(
    client: WireClient, tp: TopicPartition, offset: int = 0, version: int = 11, **fields: Any
) -> wire.FetchResponse.PartitionData:
    """The answer of the one partition; ``fields`` are those of the partition."""
    request = fetch_request((tp, {"fetch_offset": offset, **fields}))
    response = client.ask(ApiKey.FETCH, version, request)
    assert response.error_code == ErrorCode.NONE
    part: wire.FetchResponse.PartitionData
    ((part,),) = (topic.partitions for topic in response.responses)
    return part


def leader_client(kafka: ServedCluster, tp: TopicPartition) -> WireClient:
    return connect(kafka, kafka.wait_for_leader(tp))


def find_coordinator(client: WireClient, key: str, key_type: int = 0) -> int:
    """Of a group, or of a transactional id (1). The first who asks has the topic made."""
    request = wire.FindCoordinatorRequest(key, key_type)

    def found() -> Any:
        answer = client.ask(ApiKey.FIND_COORDINATOR, 3, request)
        return None if answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE else answer

    answer = until(found, f"{key} has a coordinator")
    assert answer.error_code == ErrorCode.NONE
    return int(answer.node_id)


def codes_of(partitions: Sequence[Any]) -> list[ErrorCode]:
    return [ErrorCode(part.error_code) for part in partitions]
