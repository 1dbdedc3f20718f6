"""All that clients can see of a broker, as plain values that can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from replication.protocol import SERVED, ApiKey
from replication.protocol import messages as wire
from tests.support.until import until
from tests.support.wire_client import WireClient

Picture: TypeAlias = dict[str, Any]
"""Paths such as ``topic/plain/id`` to values."""

EARLIEST, LATEST, LARGEST = -2, -1, -3
LOOKED_UP = 1_700_000_500_000  # a time among those of the records
TOPIC_CONFIG, BROKER_CONFIG, CLUSTER_CONFIG = 1, 2, 3  # sources of a setting that somebody set
TOPIC, BROKER = 2, 4
WHILE_COPIED = "while-copied-"  # topics that were made while the directory was copied
INTERNAL = "__"  # a broker writes into these topics as it starts
LOADING = {14, 15, 16}
AT_REST = ("Empty", "CompleteAbort", "CompleteCommit", "Dead")
BECOMING_LEADER = {3, 5, 6, 78}


class _Asker:
    """One connection; asks in the newest version that the broker and this library have."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(",")[0].rsplit(":", 1)
        self.client = WireClient(host, int(port))
        answer = self.client.ask(ApiKey.API_VERSIONS, 0, wire.ApiVersionsRequest())
        self._newest = {each.api_key: each.max_version for each in answer.api_keys}

    def has(self, key: ApiKey) -> bool:
        return int(key) in self._newest

    def version(self, key: ApiKey, most: int = 99) -> int:
        return min(self._newest[int(key)], SERVED[key].last, most)

    def __call__(self, key: ApiKey, request: Any, most: int = 99) -> Any:
        return self.client.ask(key, self.version(key, most), request)


def picture(bootstrap: str) -> Picture:
    """Everything at once. Topics of the coordinators are looked at from outside only."""
    asker = _Asker(bootstrap)
    try:
        return dict(_look(asker, bootstrap))
    finally:
        asker.client.close()


def _look(asker: _Asker, bootstrap: str) -> Iterator[tuple[str, Any]]:
    topics = _metadata(asker)
    places = [(t.name, p.partition_index) for t in topics for p in t.partitions if _is_led(p)]
    readable = [place for place in places if not place[0].startswith(INTERNAL)]
    until(lambda: not _codes(asker, readable) & BECOMING_LEADER, "its partitions are led")
    for topic in topics:
        yield f"topic/{topic.name}/id", topic.topic_id
        yield f"topic/{topic.name}/internal", topic.is_internal
        for part in topic.partitions:
            place = f"partition/{topic.name}/{part.partition_index}"
            yield f"{place}/error", part.error_code
            yield f"{place}/replicas", part.replica_nodes
            yield f"{place}/leader epoch", part.leader_epoch
    yield from _configs(asker, [topic.name for topic in topics])
    yield from _offsets(asker, readable)
    for place in readable:
        yield f"bytes/{place[0]}/{place[1]}", _bytes(asker, place)
    newest: dict[tuple[str, int], int] = {}
    for isolation in ("read_uncommitted", "read_committed"):
        for place, records in consume(bootstrap, readable, isolation).items():
            yield f"records/{place[0]}/{place[1]}/{isolation}", records
            newest[place] = max([newest.get(place, -1), *(r[-1] or -1 for r in records)])
    yield from _epochs(asker, newest)
    yield from _groups(asker)
    yield from _transactions(asker, readable)


def _metadata(asker: _Asker) -> Any:
    request = wire.MetadataRequest(topics=None, allow_auto_topic_creation=False)

    def found() -> Any:
        answer = asker(ApiKey.METADATA, request)
        lost = {t.name for t in answer.topics for p in t.partitions if not _is_led(p)}
        ready = all(name.startswith(WHILE_COPIED) for name in lost)
        return answer.topics if answer.topics and ready else None

    return until(found, "every partition has a leader")


def _is_led(part: Any) -> bool:
    return bool(part.leader_id >= 0)


def _configs(asker: _Asker, topics: list[str]) -> Iterator[tuple[str, Any]]:
    resource = wire.DescribeConfigsRequest.DescribeConfigsResource
    wanted = tuple(resource(TOPIC, topic, None) for topic in topics)
    answer = asker(ApiKey.DESCRIBE_CONFIGS, wire.DescribeConfigsRequest(wanted))
    for each in answer.results:
        yield f"configs/{each.resource_name}/error", each.error_code
        for config in each.configs:
            if config.config_source == TOPIC_CONFIG:
                yield f"configs/{each.resource_name}/{config.name}", config.value
            elif config.config_source == CLUSTER_CONFIG:
                yield f"defaults/{each.resource_name}/{config.name}", config.value


def _by_topic(places: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return found


def _offsets(asker: _Asker, places: list[tuple[str, int]]) -> Iterator[tuple[str, Any]]:
    questions = {
        "earliest": (0, EARLIEST),
        "latest": (0, LATEST),
        "last stable": (1, LATEST),
        "largest timestamp": (0, LARGEST),
        "at": (0, LOOKED_UP),
        "committed at": (1, LOOKED_UP),
    }
    kind = wire.ListOffsetsRequest
    for name, (isolation, timestamp) in questions.items():
        if timestamp == LARGEST and asker.version(ApiKey.LIST_OFFSETS) < 7:
            continue
        topics = tuple(
            kind.ListOffsetsTopic(
                topic, tuple(kind.ListOffsetsPartition(p, -1, timestamp) for p in partitions)
            )
            for topic, partitions in _by_topic(places).items()
        )
        answer = asker(ApiKey.LIST_OFFSETS, kind(-1, isolation, topics))
        for each in answer.topics:
            for part in each.partitions:
                place = f"offset/{each.name}/{part.partition_index}/{name}"
                yield place, (part.error_code, part.offset, part.timestamp)
                yield f"{place}, leader epoch", part.leader_epoch


def _codes(asker: _Asker, places: list[tuple[str, int]]) -> set[int]:
    return {value[0] for path, value in _offsets(asker, places) if not path.endswith("epoch")}


def _bytes(asker: _Asker, place: tuple[str, int]) -> Any:
    """Digest and length of all batches, those with markers too, as a consumer gets them."""
    kind = wire.FetchRequest
    digest, offset, size = hashlib.sha256(), _start(asker, place), 0
    while True:
        part = kind.FetchPartition(
            partition=place[1], fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = kind(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=8 << 20,
            topics=(kind.FetchTopic(topic=place[0], partitions=(part,)),),
        )
        answer = asker(ApiKey.FETCH, request, most=11)
        ((found,),) = (topic.partitions for topic in answer.responses)
        if found.error_code:
            return f"error {found.error_code} at {offset}"
        data = bytes(found.records or b"")
        whole, end = _whole(data)
        if not whole:
            return size, digest.hexdigest(), found.high_watermark, found.last_stable_offset
        digest.update(data[:whole])
        size, offset = size + whole, end


def _whole(data: bytes) -> tuple[int, int]:
    """The bytes of the whole batches, and the offset after them."""
    position, end = 0, 0
    while position + 61 <= len(data):
        length = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if position + length > len(data):
            break
        base = int.from_bytes(data[position : position + 8], "big")
        end = base + int.from_bytes(data[position + 23 : position + 27], "big") + 1
        position += length
    return position, end


def _start(asker: _Asker, place: tuple[str, int]) -> int:
    ((_, value),) = (each for each in _offsets(asker, [place]) if each[0].endswith("/earliest"))
    offset: int = value[1]
    return offset


def consume(
    bootstrap: str, places: list[tuple[str, int]], isolation: str
) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """What a real consumer reads from the start to the end of each partition: ``(offset,
    kind of timestamp, timestamp, key, value, headers, leader epoch)`` of each record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    found: dict[tuple[str, int], list[tuple[Any, ...]]] = {place: [] for place in places}
    left = set(places)
    consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])

    def is_done() -> bool:
        for message in consumer.consume(5000, 1.0):
            place = message.topic(), message.partition()
            error = message.error()
            if error is None:
                kind, timestamp = message.timestamp()
                found[place].append(
                    (
                        message.offset(),
                        kind,
                        timestamp,
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),
                        message.leader_epoch(),
                    )
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(place)
            else:
                raise AssertionError(f"{place}: {error}")
        return not left

    try:
        until(is_done, f"{bootstrap} is read with {isolation}")
    finally:
        consumer.close()
    return found


def _epochs(asker: _Asker, newest: dict[tuple[str, int], int]) -> Iterator[tuple[str, Any]]:
    """Where each leader's records end, up to the newest that wrote any."""
    kind = wire.OffsetForLeaderEpochRequest
    for epoch in range(max(newest.values(), default=-1) + 1):
        topics = tuple(
            kind.OffsetForLeaderTopic(
                topic, tuple(kind.OffsetForLeaderPartition(p, -1, epoch) for p in partitions)
            )
            for topic, partitions in _by_topic(
                place for place, last in newest.items() if last >= epoch
            ).items()
        )
        answer = asker(ApiKey.OFFSET_FOR_LEADER_EPOCH, kind(-1, topics))
        for each in answer.topics:
            for part in each.partitions:
                place = f"epoch/{each.topic}/{part.partition}/{epoch}"
                yield place, (part.error_code, part.leader_epoch, part.end_offset)


def _groups(asker: _Asker) -> Iterator[tuple[str, Any]]:
    def listed() -> Any:
        answer = asker(ApiKey.LIST_GROUPS, wire.ListGroupsRequest())
        return None if answer.error_code in LOADING else answer

    for group in until(listed, "the groups are loaded").groups:
        name = f"group/{group.group_id}"
        yield f"{name}/protocol type", group.protocol_type
        yield f"{name}/type", group.group_type
        for is_stable in (False, True):
            answer = until(lambda g=group, s=is_stable: _committed(asker, g.group_id, s), name)
            yield f"{name}/error", answer.error_code
            for topic in answer.topics:
                for part in topic.partitions:
                    place = f"{name}/{topic.name}/{part.partition_index}"
                    yield (
                        f"{place}/{'stable' if is_stable else 'committed'}",
                        (
                            part.error_code,
                            part.committed_offset,
                            part.committed_leader_epoch,
                            part.metadata,
                        ),
                    )


def _committed(asker: _Asker, group: str, is_stable: bool) -> Any:
    request = wire.OffsetFetchRequest(group, None, require_stable=is_stable)
    answer = asker(ApiKey.OFFSET_FETCH, request, most=7)
    return None if answer.error_code in LOADING else answer


def ongoing(bootstrap: str) -> list[str]:
    """The transactional ids whose transactions have not ended."""
    asker = _Asker(bootstrap)
    try:
        answer = asker(ApiKey.LIST_TRANSACTIONS, wire.ListTransactionsRequest())
        states = {t.transactional_id: t.transaction_state for t in answer.transaction_states}
        is_loading = answer.error_code in LOADING
        return ["loading"] if is_loading else [t for t, s in states.items() if s not in AT_REST]
    finally:
        asker.client.close()


def in_sync(bootstrap: str) -> int:
    """The smallest number of replicas in sync that a partition has."""
    asker = _Asker(bootstrap)
    try:
        topics = _metadata(asker)
    finally:
        asker.client.close()
    return min(len(part.isr_nodes) for topic in topics for part in topic.partitions)


def _transactions(asker: _Asker, places: list[tuple[str, int]]) -> Iterator[tuple[str, Any]]:
    if asker.has(ApiKey.LIST_TRANSACTIONS):

        def listed() -> Any:
            answer = asker(ApiKey.LIST_TRANSACTIONS, wire.ListTransactionsRequest())
            return None if answer.error_code in LOADING else answer

        ids = [t.transactional_id for t in until(listed, "loaded").transaction_states]
        answer = asker(ApiKey.DESCRIBE_TRANSACTIONS, wire.DescribeTransactionsRequest(tuple(ids)))
        for each in answer.transaction_states:
            name = f"transaction/{each.transactional_id}"
            yield f"{name}/state", (each.error_code, each.transaction_state)
            yield f"{name}/producer", (each.producer_id, each.producer_epoch)
            yield f"{name}/timeout", each.transaction_timeout_ms
            partitions = {(t.topic, p) for t in each.topics for p in t.partitions}
            yield f"{name}/partitions", sorted(partitions)
            yield f"{name}/start", each.transaction_start_time_ms
    if asker.has(ApiKey.DESCRIBE_PRODUCERS):
        kind = wire.DescribeProducersRequest
        topics = tuple(kind.TopicRequest(t, tuple(p)) for t, p in _by_topic(places).items())
        answer = asker(ApiKey.DESCRIBE_PRODUCERS, kind(topics))
        for topic in answer.topics:
            for part in topic.partitions:
                place = f"producers/{topic.name}/{part.partition_index}"
                yield f"{place}/error", part.error_code
                for one in part.active_producers:
                    yield f"{place}/{one.producer_id}", tuple(one)[1:]
