"""What a producer may send, and how it hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.served import (
    batch,
    codes_of,
    connect,
    fetch,
    fetch_request,
    leader_client,
    new_name,
    produce,
    produce_request,
    served,
)

GOOD = batch(b"good")


def magic(records: bytes, number: int) -> bytes:
    return records[:16] + bytes([number]) + records[17:]


class TestRecords:
    @pytest.mark.parametrize(
        ("records", "code"),
        [
            (None, ErrorCode.INVALID_RECORD),
            (b"", ErrorCode.INVALID_RECORD),
            (GOOD + GOOD, ErrorCode.INVALID_RECORD),
            (magic(GOOD, 1), ErrorCode.INVALID_RECORD),
            (magic(GOOD, 0), ErrorCode.INVALID_RECORD),
            (magic(GOOD, 3), ErrorCode.CORRUPT_MESSAGE),
            (GOOD[:-1], ErrorCode.INVALID_RECORD),
            (GOOD[:20], ErrorCode.INVALID_RECORD),
            (GOOD + b"x", ErrorCode.INVALID_RECORD),
            (bytes(len(GOOD)), ErrorCode.CORRUPT_MESSAGE),
        ],
        ids=[
            "null",
            "empty",
            "two batches",
            "format 1",
            "format 0",
            "format 3",
            "cut short",
            "no header",
            "a byte too many",
            "zeros",
        ],
    )
    def test_exactly_one_batch(
        self, kafka: ServedCluster, records: bytes | None, code: ErrorCode
    ) -> None:
        """And what is refused leaves nothing behind."""
        (tp,) = kafka.create_topic(new_name())
        with leader_client(kafka, tp) as client:
            part = produce(client, tp, records)
            after = fetch(client, tp)
        assert (part.error_code, part.base_offset, part.log_start_offset) == (code, -1, -1)
        assert part.error_message
        assert after.high_watermark == 0

    def test_that_there_is_no_such_partition_comes_first(self, kafka: ServedCluster) -> None:
        with connect(kafka) as client:
            part = produce(client, TopicPartition(new_name(), 0), b"rubbish")
        assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_a_bad_partition_does_not_hold_up_the_others(self, kafka: ServedCluster) -> None:
        """Answers are in the order of the request."""
        name = new_name()
        tps = kafka.create_topic(name, assignment=[[0]] * 3)
        kind = wire.ProduceRequest
        parts = [(2, GOOD), (0, GOOD + GOOD), (7, GOOD), (1, GOOD)]
        topic = kind.TopicProduceData(
            name, partition_data=tuple(kind.PartitionProduceData(*each) for each in parts)
        )
        other = kind.TopicProduceData(new_name(), partition_data=topic.partition_data[:1])
        request = kind(acks=-1, timeout_ms=10_000, topic_data=(topic, other))
        with connect(kafka, 0) as client:
            first, second = client.ask(ApiKey.PRODUCE, 9, request).responses
            ends = [fetch(client, tp).high_watermark for tp in tps]
        assert [part.index for part in first.partition_responses] == [2, 0, 7, 1]
        assert codes_of(first.partition_responses) == [
            ErrorCode.NONE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NONE,
        ]
        assert codes_of(second.partition_responses) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert ends == [0, 1, 1]

    def test_a_record_without_key_in_a_compacted_topic_is_named(self, kafka: ServedCluster) -> None:
        (tp,) = kafka.create_topic(new_name(), config={"cleanup.policy": "compact"})
        with leader_client(kafka, tp) as client:
            part = produce(client, tp, batch(b"a", b"b", key=None))
        assert part.error_code == ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in part.record_errors] == [0, 1]

    def test_the_leader_stamps_records_where_the_topic_says_so(self, kafka: ServedCluster) -> None:
        (tp,) = kafka.create_topic(new_name(), config={"message.timestamp.type": "LogAppendTime"})
        with leader_client(kafka, tp) as client:
            part = produce(client, tp, GOOD)
        assert part.log_append_time_ms > 0


class TestAcks:
    def test_without_acks_nothing_is_answered(self, kafka: ServedCluster) -> None:
        (tp,) = kafka.create_topic(new_name())
        with leader_client(kafka, tp) as client:
            client.send(ApiKey.PRODUCE, 9, produce_request(tp, GOOD, acks=0))
            part = produce(client, tp, GOOD, acks=1)
        assert (part.error_code, part.base_offset) == (ErrorCode.NONE, 1)

    @pytest.mark.parametrize(
        "records", [GOOD + GOOD, bytes(reversed(GOOD))], ids=["two batches", "reversed"]
    )
    def test_an_error_without_acks_closes_the_connection(
        self, kafka: ServedCluster, records: bytes
    ) -> None:
        (tp,) = kafka.create_topic(new_name())
        with leader_client(kafka, tp) as client:
            client.send(ApiKey.PRODUCE, 9, produce_request(tp, records, acks=0))
            assert client.is_closed()

    def test_also_where_another_broker_leads(self, kafka: ServedCluster) -> None:
        (tp,) = kafka.create_topic(new_name(), assignment=[[1]])
        with connect(kafka, 0) as client:
            client.send(ApiKey.PRODUCE, 9, produce_request(tp, GOOD, acks=0))
            assert client.is_closed()

    def test_all_waits_for_the_followers(self, kafka: ServedCluster) -> None:
        (tp,) = kafka.create_topic(new_name(), assignment=[[0, 1, 2]])
        with connect(kafka, 0) as client:
            part = produce(client, tp, GOOD)
            ends = [kafka.replica(tp, n).local_log().log_end_offset for n in range(3)]
        assert part.error_code == ErrorCode.NONE
        assert ends == [1, 1, 1]


class TestFetchLimits:
    def test_an_answer_is_no_larger_than_the_broker_allows(self) -> None:
        """``fetch.max.bytes``, whatever a client asks for. Its last batch may be cut short, as
        in Kafka: a client asks for it again."""
        records = batch(b"x" * 300)
        with served(1, {"fetch.max.bytes": 1024}) as kafka, connect(kafka) as client:
            (tp,) = kafka.create_topic("t")
            for _ in range(6):
                produce(client, tp, records)
            part = fetch(client, tp)
        assert 2 * len(records) <= len(part.records) <= 1024

    def test_min_bytes_are_waited_for(self, kafka: ServedCluster) -> None:
        """But not longer than the request says."""
        (tp,) = kafka.create_topic(new_name())
        with leader_client(kafka, tp) as client:
            produce(client, tp, GOOD)
            request = fetch_request(
                (tp, {"fetch_offset": 0}), max_wait_ms=50, min_bytes=10 * len(GOOD)
            )
            response = client.ask(ApiKey.FETCH, 11, request)
        ((part,),) = (topic.partitions for topic in response.responses)
        assert len(part.records) == len(GOOD)


class TestMetadata:
    @pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
    def test_internal_topics_are_not_made_on_the_way(self, name: str) -> None:
        """Their coordinators make them, with a configuration of their own."""
        with served(1) as kafka, connect(kafka) as client:
            kind = wire.MetadataRequest
            request = kind((kind.MetadataRequestTopic(name=name),), True)
            (topic,) = client.ask(ApiKey.METADATA, 12, request).topics
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert topic.is_internal
            assert kafka.broker(0).metadata.topic_id(name) is None

    def test_no_topic_is_made_where_that_is_not_allowed(self) -> None:
        config: dict[str, Any] = {"auto.create.topics.enable": "false"}
        with served(1, config) as kafka, connect(kafka) as client:
            kind = wire.MetadataRequest
            request = kind((kind.MetadataRequestTopic(name="t"),), True)
            (topic,) = client.ask(ApiKey.METADATA, 12, request).topics
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert kafka.broker(0).metadata.topics == []
