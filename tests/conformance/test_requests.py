"""Kafka's tests of single requests under their names, over sockets: ApiVersionsRequestTest,
EdgeCaseRequestTest, ProduceRequestTest, FetchRequestTest, ListOffsetsRequestTest,
MetadataRequestTest and OffsetsForLeaderEpochRequestTest. What each version of an API can
say is said here alone; what a broker decides, in the unit tests."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.clock import SystemClock
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.header import parse_header
from replication.apis.common.broker_requests import LAST_OF_CLIENTS
from replication.common.error_codes import ErrorCode
from replication.common.messages import FINAL_SESSION_EPOCH
from replication.protocol import ADVERTISED, SERVED, ApiKey, request_header
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.cases import for_each
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
from tests.support.until import until
from tests.support.wire_client import WireClient

HOUR_MS = 3_600_000
NOBODY = -1


def _served(key: ApiKey) -> tuple[int, int]:
    """For ``range``."""
    return SERVED[key].first, SERVED[key].last + 1


def _id_for(kafka: ServedCluster, tp: TopicPartition, version: int) -> uuid.UUID | None:
    """Of the topic, where a version of Produce names topics by id."""
    return kafka.broker(0).metadata.topic_id(tp.topic) if version >= 13 else None


def _other(topic_id: uuid.UUID) -> uuid.UUID:
    return uuid.UUID(int=topic_id.int ^ 1)


def _stamped(*timestamps: int) -> bytes:
    """One batch of a record for each timestamp."""
    records = [(b"k", b"v", timestamp) for timestamp in timestamps]
    return bytes(encode_batch(records, base_offset=0))


def _list(
    client: WireClient,
    *tps: TopicPartition,
    epoch: int = -1,
    timestamp: int = -1,
    version: int,
) -> list[wire.ListOffsetsResponse.ListOffsetsPartitionResponse]:
    """The answers for partitions of one topic."""
    kind = wire.ListOffsetsRequest
    epoch = epoch if version >= 4 else -1
    parts = tuple(kind.ListOffsetsPartition(tp.partition, epoch, timestamp) for tp in tps)
    request = kind(replica_id=-1, topics=(kind.ListOffsetsTopic(tps[0].topic, parts),))
    response = client.ask(ApiKey.LIST_OFFSETS, version, request)
    return [part for topic in response.topics for part in topic.partitions]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(3) as brokers:
        yield brokers


@pytest.fixture
def client(kafka: ServedCluster) -> Iterator[WireClient]:
    with connect(kafka) as connected:
        yield connected


def new_topic(
    kafka: ServedCluster, partitions: int = 1, factor: int = 1, **config: object
) -> list[TopicPartition]:
    keys = {key.replace("_", "."): value for key, value in config.items()}
    return kafka.create_topic(new_name(), partitions, factor, config=keys)


def with_assignment(kafka: ServedCluster, *replicas: int) -> TopicPartition:
    """One partition, led by the first of ``replicas``."""
    (tp,) = kafka.create_topic(new_name(), assignment=[replicas])
    return tp


class TestApiVersions:
    @for_each("version", range(4))
    def test_api_versions_request(self, client: WireClient, version: int) -> None:
        """testApiVersionsRequest: what is advertised is what is served, but for Produce, which
        librdkafka wants from 0 on."""
        request = wire.ApiVersionsRequest("test", "1.0")
        response = client.ask(ApiKey.API_VERSIONS, version, request)
        assert response.error_code == ErrorCode.NONE
        for each in response.api_keys:
            key = ApiKey(each.api_key)
            first, last = ADVERTISED[key]
            assert (each.min_version, each.max_version) == (first, LAST_OF_CLIENTS.get(key, last))
        keys = {ApiKey(each.api_key) for each in response.api_keys}
        assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS} <= keys
        assert not keys & {ApiKey.SASL_HANDSHAKE, ApiKey.LEADER_AND_ISR, ApiKey.ALTER_PARTITION}

    @for_each("tags", [b"", b"\0"])
    def test_api_versions_request_with_unsupported_version(
        self, client: WireClient, tags: bytes
    ) -> None:
        """testApiVersionsRequestWithUnsupportedVersion: answered in version 0, with the range of
        ApiVersions alone, whether the unknown header has tagged fields or not."""
        client.send_frame(struct.pack(">hhih4s", 18, 999, 77, 4, b"test") + tags)
        frame = client.receive_frame()
        assert frame == struct.pack(">ihihhh", 77, 35, 1, 18, 0, 4)
        request = wire.ApiVersionsRequest("test", "1.0")
        assert not client.ask(ApiKey.API_VERSIONS, 3, request).error_code

    def test_api_versions_request_validation_v0(self, client: WireClient) -> None:
        """testApiVersionsRequestValidationV0: no name is asked for."""
        response = client.ask(ApiKey.API_VERSIONS, 0, wire.ApiVersionsRequest())
        assert response.error_code == ErrorCode.NONE

    @for_each("name, version", [("*", "1"), ("", "1"), ("a", "!"), ("-a", "1"), ("a", "1.0.")])
    def test_api_versions_request_validation_v3(
        self, client: WireClient, name: str, version: str
    ) -> None:
        """testApiVersionsRequestValidationV3: names that could confuse metrics are refused."""
        request = wire.ApiVersionsRequest(name, version)
        response = client.ask(ApiKey.API_VERSIONS, 3, request)
        assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, ())


class TestEdgeCases:
    def test_produce_request_with_null_client_id(self, kafka: ServedCluster) -> None:
        """testProduceRequestWithNullClientId"""
        (tp,) = new_topic(kafka)
        leader = kafka.wait_for_leader(tp)
        with connect(kafka, leader, client_id=None) as client:
            part = produce(client, tp, batch(b"message"))
        assert (part.error_code, part.base_offset) == (0, 0)

    @pytest.mark.parametrize(
        "frame",
        [
            pytest.param(request_header(ApiKey.PRODUCE, 9, 1, "c"), id="testHeaderOnlyRequest"),
            pytest.param(struct.pack(">hhih", -1, 0, 1, 0), id="testInvalidApiKeyRequest"),
            pytest.param(struct.pack(">hhih", 0, 999, 1, 0), id="testInvalidApiVersionRequest"),
            pytest.param(struct.pack(">hhih", 0, 2, 1, 0), id="advertised only"),
            pytest.param(struct.pack(">hhihB", 0, 9, 1, 5, 97), id="testMalformedHeaderRequest"),
        ],
    )
    def test_the_connection_is_closed(self, client: WireClient, frame: bytes) -> None:
        client.send_frame(frame)
        assert client.is_closed()


class TestProduce:
    @for_each("version", range(*_served(ApiKey.PRODUCE)))
    def test_simple_produce_request(self, kafka: ServedCluster, version: int) -> None:
        """testSimpleProduceRequest"""
        (tp,) = new_topic(kafka)
        with leader_client(kafka, tp) as client:
            topic_id = _id_for(kafka, tp, version)
            plain = produce(client, tp, batch(b"a"), version, topic_id=topic_id)
            packed = batch(b"b", b"c", compression=Compression.GZIP)
            gzip = produce(client, tp, packed, version, topic_id=topic_id)
        for part, offset in ((plain, 0), (gzip, 1)):
            assert (part.error_code, part.base_offset) == (ErrorCode.NONE, offset)
            assert part.log_append_time_ms == -1
            assert part.log_start_offset == (0 if version >= 5 else -1)
            assert part.record_errors == ()
            assert part.error_message is None

    @for_each("by_ms", [-2 * HOUR_MS, 2 * HOUR_MS])
    def test_produce_with_invalid_timestamp(self, kafka: ServedCluster, by_ms: int) -> None:
        """testProduceWithInvalidTimestamp: each record that is at fault is named."""
        (tp,) = new_topic(kafka, message_timestamp_before_max_ms=HOUR_MS)
        now = SystemClock().wall_ms()
        with leader_client(kafka, tp) as client:
            part = produce(client, tp, _stamped(now, now + by_ms, now + by_ms))
        assert part.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [each.batch_index for each in part.record_errors] == [1, 2]
        assert all(each.batch_index_error_message for each in part.record_errors)
        assert part.error_message
        assert (part.base_offset, part.log_start_offset) == (-1, 0)

    @for_each("version", [9, 10, 11])
    def test_produce_to_non_replica(self, kafka: ServedCluster, version: int) -> None:
        """testProduceToNonReplica; newer clients hear who leads, and where."""
        tp = with_assignment(kafka, 1)
        with connect(kafka, 0) as client:
            request = produce_request(tp, batch(b"x"))
            response = client.ask(ApiKey.PRODUCE, version, request)
        ((part,),) = (topic.partition_responses for topic in response.responses)
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version < 10:
            assert (part.current_leader.leader_id, response.node_endpoints) == (NOBODY, ())
        else:
            assert part.current_leader == (1, 0)
            at = kafka.broker(1).endpoints[0]
            assert response.node_endpoints == ((1, at.host, at.port, None),)

    def test_corrupt_lz4_produce_request(self, kafka: ServedCluster) -> None:
        """testCorruptLz4ProduceRequest"""
        (tp,) = new_topic(kafka)
        records = bytearray(batch(b"value" * 100, compression=Compression.LZ4))
        records[-1] ^= 0xFF
        with leader_client(kafka, tp) as client:
            part = produce(client, tp, bytes(records))
            after = fetch(client, tp)
        assert (part.error_code, part.base_offset) == (ErrorCode.CORRUPT_MESSAGE, -1)
        assert (after.high_watermark, bytes(after.records)) == (0, b"")

    @for_each("version", range(3, 10))
    def test_zstd_produce_request(self, kafka: ServedCluster, version: int) -> None:
        """testZSTDProduceRequest: clients below version 7 cannot have meant it."""
        (tp,) = new_topic(kafka)
        with leader_client(kafka, tp) as client:
            part = produce(client, tp, batch(b"x", compression=Compression.ZSTD), version)
        expected = ErrorCode.NONE if version >= 7 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert part.error_code == expected


class TestFetch:
    def test_broker_respects_partitions_order_and_size_limits(self, kafka: ServedCluster) -> None:
        """testBrokerRespectsPartitionsOrderAndSizeLimits: in the order asked for, whole batches,
        and the first batch however large it is, but only the first of the answer."""
        name = new_name()
        tps = kafka.create_topic(name, assignment=[[0]] * 5)
        small, large = batch(b"s" * 100), batch(b"l" * 20_000)
        with connect(kafka) as client:
            for tp in tps:
                records = large if tp == tps[3] else small
                for _ in range(3):
                    assert not produce(client, tp, records).error_code
            order = [tps[2], tps[0], tps[4], tps[3], tps[1]]
            sizes = self._sizes(client, order, max_bytes=len(small) * 8)
            assert sizes == [(tp, 3 * len(small)) for tp in order[:2]] + [
                (order[2], 2 * len(small)),
                (order[3], 0),
                (order[4], 0),
            ]
            order = [tps[3], *order[:3], tps[1]]
            sizes = self._sizes(client, order, max_bytes=1)
            assert sizes == [(tps[3], len(large)), *((tp, 0) for tp in order[1:])]
            part = fetch(client, tps[3], partition_max_bytes=1)
            assert len(part.records) == len(large)
            middle = batch(b"1", b"2", b"3")
            offset = produce(client, tps[1], middle).base_offset
            part = fetch(client, tps[1], offset + 1)
            assert len(part.records) == len(middle), "the batch that contains the offset"

    @staticmethod
    def _sizes(
        client: WireClient, order: list[TopicPartition], max_bytes: int
    ) -> list[tuple[TopicPartition, int]]:
        request = fetch_request(*((tp, {"fetch_offset": 0}) for tp in order), max_bytes=max_bytes)
        response = client.ask(ApiKey.FETCH, 11, request)
        return [
            (TopicPartition(topic.topic, part.partition_index), len(part.records))
            for topic in response.responses
            for part in topic.partitions
        ]

    def test_fetch_request_v4_with_read_committed(self, kafka: ServedCluster) -> None:
        """testFetchRequestV4WithReadCommitted: a list of aborted transactions, empty or not, at
        isolation 1, and none at 0."""
        (tp,) = new_topic(kafka)
        with leader_client(kafka, tp) as client:
            produce(client, tp, batch(b"x"))
            for level, aborted in ((0, None), (1, ())):
                request = fetch_request((tp, {"fetch_offset": 0}), isolation_level=level)
                response = client.ask(ApiKey.FETCH, 4, request)
                ((part,),) = (topic.partitions for topic in response.responses)
                assert (part.error_code, part.last_stable_offset) == (ErrorCode.NONE, 1)
                assert part.aborted_transactions == aborted
                assert len(part.records) > 0

    @for_each("version", [4, 11, 12])
    def test_fetch_request_to_non_replica(self, kafka: ServedCluster, version: int) -> None:
        """testFetchRequestToNonReplica"""
        tp = with_assignment(kafka, 1)
        with connect(kafka, 2) as client:
            part = fetch(client, tp, version=version)
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (part.high_watermark, part.last_stable_offset) == (-1, -1)
        assert (part.log_start_offset, bytes(part.records)) == (-1, b"")
        assert part.current_leader == ((1, 0) if version >= 12 else (-1, -1))

    def test_last_fetched_epoch_validation(self, kafka: ServedCluster) -> None:
        """testLastFetchedEpochValidation: a reader whose epoch ended below its offset hears where
        the logs part, and gets no records."""
        tp = with_assignment(kafka, 0, 1)
        with connect(kafka, 0) as client:
            for _ in range(3):
                produce(client, tp, batch(b"first"))
        kafka.crash(0)
        leader = kafka.wait_for_leader(tp, not_broker=0)
        kafka.start(0)
        kafka.wait_for_isr(tp, [0, 1])
        with connect(kafka, leader) as client:
            for _ in range(3):
                produce(client, tp, batch(b"second"))
            epoch = kafka.replica(tp, leader).leader_epoch
            diverged = fetch(client, tp, 5, 12, last_fetched_epoch=epoch - 1)
            agreed = fetch(client, tp, 3, 12, last_fetched_epoch=epoch - 1)
        assert epoch > 0
        assert diverged.error_code == ErrorCode.NONE
        assert diverged.diverging_epoch == (0, 3)
        assert bytes(diverged.records) == b""
        assert agreed.diverging_epoch == (-1, -1)
        assert len(agreed.records) > 0

    @for_each("version", [9, 11, 12])
    def test_current_epoch_validation(self, kafka: ServedCluster, version: int) -> None:
        """testCurrentEpochValidation"""
        tp = with_assignment(kafka, 0)
        epoch = kafka.replica(tp, kafka.wait_for_leader(tp)).leader_epoch
        with connect(kafka, 0) as client:
            codes = [
                fetch(client, tp, version=version, current_leader_epoch=each).error_code
                for each in (-1, epoch, epoch + 1)
            ]
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH]

    def test_create_incremental_fetch_with_partitions_in_error(self, kafka: ServedCluster) -> None:
        """testCreateIncrementalFetchWithPartitionsInErrorV12: a partition that does not exist stays
        in the session, is answered each time, and is read once it is there."""
        name = new_name()
        there, missing = (TopicPartition(name, n) for n in range(2))
        kafka.create_topic(name, assignment=[[0]])
        with connect(kafka, 0) as client:
            both = [(tp, {"fetch_offset": 0}) for tp in (there, missing)]
            request = fetch_request(*both, session_epoch=0)
            first = client.ask(ApiKey.FETCH, 12, request)
            assert first.session_id != 0
            assert self._codes(first) == {0: 0, 1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            later = fetch_request(session_id=first.session_id, session_epoch=1)
            second = client.ask(ApiKey.FETCH, 12, later)
            assert second.session_id == first.session_id
            assert self._codes(second) == {1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            kafka.create_partitions(name, 2, assignment=[[0]])
            later = fetch_request(session_id=first.session_id, session_epoch=2)
            assert self._codes(client.ask(ApiKey.FETCH, 12, later)) == {1: ErrorCode.NONE}
            later = fetch_request(session_id=first.session_id, session_epoch=3)
            assert client.ask(ApiKey.FETCH, 12, later).responses == ()

    @staticmethod
    def _codes(response: Any) -> dict[int, int]:
        return {p.partition_index: p.error_code for t in response.responses for p in t.partitions}

    def test_fetch_sessions_end_as_they_should(self, kafka: ServedCluster) -> None:
        """Of a session that is not known, or at another epoch, nothing is answered."""
        tp = with_assignment(kafka, 0)
        with connect(kafka, 0) as client:
            opened = client.ask(
                ApiKey.FETCH, 11, fetch_request((tp, {"fetch_offset": 0}), session_epoch=0)
            )
            for session, epoch, code in (
                (opened.session_id, 7, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
                (opened.session_id ^ 1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            ):
                request = fetch_request(session_id=session, session_epoch=epoch)
                response = client.ask(ApiKey.FETCH, 11, request)
                assert (response.error_code, response.responses) == (code, ())
            request = fetch_request(
                (tp, {"fetch_offset": 0}),
                session_id=opened.session_id,
                session_epoch=FINAL_SESSION_EPOCH,
            )
            response = client.ask(ApiKey.FETCH, 11, request)
            assert (response.error_code, response.session_id) == (ErrorCode.NONE, 0)

    def test_zstd_compressed_records(self, kafka: ServedCluster) -> None:
        """testZStdCompressedRecords as Kafka 4 has it: batches leave as they are in every version
        (W-46). Old clients may know zstd."""
        for config in ({"compression_type": "zstd"}, {}):
            (tp,) = new_topic(kafka, **config)
            sent = batch(b"packed", compression=Compression.ZSTD)
            with leader_client(kafka, tp) as client:
                assert produce(client, tp, sent).error_code == ErrorCode.NONE
                for version in range(4, 13):  # later ones name topics by id
                    found = fetch(client, tp, version=version)
                    assert found.error_code == ErrorCode.NONE, version
                    assert parse_header(bytes(found.records)).compression is Compression.ZSTD

    def test_a_fetch_waits_for_records(self, kafka: ServedCluster) -> None:
        """A long poll is answered by what is produced meanwhile."""
        (tp,) = new_topic(kafka)
        with leader_client(kafka, tp) as reader, leader_client(kafka, tp) as writer:
            request = fetch_request((tp, {"fetch_offset": 0}), max_wait_ms=30_000)
            reader.send(ApiKey.FETCH, 11, request)
            records = batch(b"news")
            produce(writer, tp, records)
            response = reader.receive(ApiKey.FETCH, 11)
        ((part,),) = (topic.partitions for topic in response.responses)
        assert (part.high_watermark, len(part.records)) == (1, len(records))


class TestListOffsets:
    def test_list_offsets_error_codes(self, kafka: ServedCluster) -> None:
        """testListOffsetsErrorCodes: unknown, follower, no replica, unknown epoch."""
        tp = with_assignment(kafka, 0, 1)
        assert self._codes(kafka, 0, TopicPartition(new_name(), 0)) == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        for broker, code in (
            (0, ErrorCode.NONE),
            (1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (2, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ):
            assert self._codes(kafka, broker, tp) == [code]
        assert self._codes(kafka, 0, tp, epoch=7) == [ErrorCode.UNKNOWN_LEADER_EPOCH]

    def test_a_partition_that_stands_twice_is_refused(self, kafka: ServedCluster) -> None:
        tp = with_assignment(kafka, 0)
        assert self._codes(kafka, 0, tp, tp) == [ErrorCode.INVALID_REQUEST] * 2

    @staticmethod
    def _codes(
        kafka: ServedCluster,
        broker: int,
        *tps: TopicPartition,
        epoch: int = -1,
        timestamp: int = -1,
    ) -> list[ErrorCode]:
        with connect(kafka, broker) as client:
            return codes_of(_list(client, *tps, epoch=epoch, timestamp=timestamp, version=8))

    @for_each("version", range(*_served(ApiKey.LIST_OFFSETS)))
    def test_response_default_offset_and_leader_epoch_for_all_versions(
        self, kafka: ServedCluster, version: int
    ) -> None:
        """testResponseDefaultOffsetAndLeaderEpochForAllVersions; and each special timestamp from
        its version on."""
        tp = with_assignment(kafka, 0)
        now = SystemClock().wall_ms()
        with connect(kafka, 0) as client:

            def ask(timestamp: int) -> tuple[int, int, int, int]:
                (part,) = _list(client, tp, timestamp=timestamp, version=version)
                return part.error_code, part.timestamp, part.offset, part.leader_epoch

            epoch = 0 if version >= 4 else -1
            assert ask(now) == (0, -1, -1, -1)
            assert ask(-1) == (0, -1, 0, epoch)
            produce(client, tp, _stamped(now, now + 5, now + 2))
            assert ask(-1) == (0, -1, 3, epoch)
            assert ask(-2) == (0, -1, 0, epoch)
            assert ask(now + 1) == (0, now + 5, 1, epoch)
            assert ask(now + 6) == (0, -1, -1, -1)
            unsupported = (ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)
            assert ask(-3) == ((0, now + 5, 1, epoch) if version >= 7 else unsupported)
            assert ask(-4) == ((0, -1, 0, epoch) if version >= 8 else unsupported)
            assert ask(-5) == ((0, -1, -1, -1) if version >= 9 else unsupported)
            assert ask(-6) == ((0, -1, -1, -1) if version >= 11 else unsupported)
            assert ask(-9) == unsupported


class TestMetadata:
    def test_no_topics_request(self, kafka: ServedCluster, client: WireClient) -> None:
        """testNoTopicsRequest: brokers, and no topic."""
        new_topic(kafka)
        response = client.ask(ApiKey.METADATA, 1, wire.MetadataRequest(topics=()))
        assert response.topics == ()
        assert [each.node_id for each in response.brokers] == [0, 1, 2]
        for each in response.brokers:
            at = kafka.broker(each.node_id).endpoints[0]
            assert (each.host, each.port) == (at.host, at.port)

    def test_all_topics_request(self, kafka: ServedCluster, client: WireClient) -> None:
        """testAllTopicsRequest: null, or in version 0 an empty list."""
        tps = new_topic(kafka, 2)
        for version, topics in ((0, ()), (1, None), (12, None)):
            response = client.ask(ApiKey.METADATA, version, wire.MetadataRequest(topics))
            found = {topic.name: topic for topic in response.topics}
            assert len(found[tps[0].topic].partitions) == 2
            assert not any(codes_of(response.topics))

    @for_each("version", [0, 3, 4, 12])
    def test_auto_topic_creation(self, client: WireClient, version: int) -> None:
        """testAutoTopicCreation: unless the request forbids it, which it can from version 4 on."""
        kind = wire.MetadataRequest
        name, other = new_name(), new_name()
        response = client.ask(
            ApiKey.METADATA, version, kind((kind.MetadataRequestTopic(name=name),))
        )
        (topic,) = response.topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert topic.name == name
        request = kind((kind.MetadataRequestTopic(name=name),))

        def is_made() -> bool:
            (topic,) = client.ask(ApiKey.METADATA, version, request).topics
            return not any(codes_of((topic, *topic.partitions)))

        until(is_made, f"{name} is there")
        if version >= 4:
            request = kind(
                (kind.MetadataRequestTopic(name=other),), allow_auto_topic_creation=False
            )
            (topic,) = client.ask(ApiKey.METADATA, version, request).topics
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert topic.partitions == ()

    @for_each("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ü"])
    def test_auto_create_topic_with_invalid_name(self, client: WireClient, name: str) -> None:
        """testAutoCreateTopicWithInvalidReplicationFactor's neighbour: bad names are told apart."""
        kind = wire.MetadataRequest
        request = kind((kind.MetadataRequestTopic(name=name),))
        (topic,) = client.ask(ApiKey.METADATA, 4, request).topics
        assert (topic.error_code, topic.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)

    def test_topic_ids_in_response(self, kafka: ServedCluster, client: WireClient) -> None:
        """testTopicIdsInResponse: the real id from version 10 on."""
        (tp,) = new_topic(kafka)
        kind = wire.MetadataRequest
        for version in (9, 10, 12):
            request = kind((kind.MetadataRequestTopic(name=tp.topic),))
            (topic,) = client.ask(ApiKey.METADATA, version, request).topics
            known = kafka.broker(0).metadata.topic_id(tp.topic)
            assert known is not None
            assert topic.topic_id.int == (known.int if version >= 10 else 0)
        by_id = kind((kind.MetadataRequestTopic(known, None),))
        (topic,) = client.ask(ApiKey.METADATA, 12, by_id).topics
        assert (topic.error_code, topic.name) == (ErrorCode.NONE, tp.topic)
        unknown = kind((kind.MetadataRequestTopic(_other(known), None),))
        (topic,) = client.ask(ApiKey.METADATA, 12, unknown).topics
        assert topic == (ErrorCode.UNKNOWN_TOPIC_ID, None, _other(known), False, (), -(1 << 31))
        for each in (kind.MetadataRequestTopic(known, ""), kind.MetadataRequestTopic(known, "x")):
            (topic,) = client.ask(ApiKey.METADATA, 11, kind((each,))).topics
            assert topic.error_code == ErrorCode.INVALID_REQUEST

    def test_replica_down_response(self, kafka: ServedCluster) -> None:
        """testReplicaDownResponse: a dead replica is offline, and leaves the brokers and the
        ISR."""
        tp = with_assignment(kafka, 0, 1, 2)
        kafka.crash(2)
        try:
            kafka.wait_for_isr(tp, [0, 1])
            kind = wire.MetadataRequest
            request = kind((kind.MetadataRequestTopic(name=tp.topic),))
            with connect(kafka, 0) as client:
                kafka.wait_until(lambda: _isr(client, request) == (0, 1), "the ISR is known")
                response = client.ask(ApiKey.METADATA, 12, request)
            assert [each.node_id for each in response.brokers] == [0, 1]
            (part,) = response.topics[0].partitions
            assert part.error_code == ErrorCode.NONE
            assert (part.leader_id, part.replica_nodes, part.isr_nodes) == (0, (0, 1, 2), (0, 1))
            assert part.offline_replicas == (2,)
        finally:
            kafka.start(2)
            kafka.wait_for_isr(tp, [0, 1, 2])

    def test_a_partition_without_leader(self, kafka: ServedCluster) -> None:
        tp = with_assignment(kafka, 2)
        kafka.crash(2)
        try:
            kind = wire.MetadataRequest
            request = kind((kind.MetadataRequestTopic(name=tp.topic),))
            with connect(kafka, 0) as client:

                def part() -> Any:
                    (topic,) = client.ask(ApiKey.METADATA, 12, request).topics
                    return topic.partitions[0]

                kafka.wait_until(lambda: part().leader_id == -1, "nobody leads")
                assert part().error_code == ErrorCode.LEADER_NOT_AVAILABLE
                assert part().offline_replicas == (2,)
        finally:
            kafka.start(2)


class TestOffsetsForLeaderEpoch:
    def test_offsets_for_leader_epoch_error_codes(self, kafka: ServedCluster) -> None:
        """testOffsetsForLeaderEpochErrorCodes"""
        tp = with_assignment(kafka, 0, 1)
        unknown = TopicPartition(new_name(), 0)
        assert self._ask(kafka, 0, unknown)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self._ask(kafka, 1, tp)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert self._ask(kafka, 2, tp)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_current_epoch_validation(self, kafka: ServedCluster) -> None:
        """testCurrentEpochValidation; an epoch that nobody knows is no error."""
        tp = with_assignment(kafka, 0, 1)
        with connect(kafka, 0) as client:
            produce(client, tp, batch(b"x"))
        assert self._ask(kafka, 0, tp, epoch=0) == (ErrorCode.NONE, 0, 1)
        assert self._ask(kafka, 0, tp, epoch=0, current=0) == (ErrorCode.NONE, 0, 1)
        assert self._ask(kafka, 0, tp, epoch=9) == (ErrorCode.NONE, -1, -1)
        code, _, _ = self._ask(kafka, 0, tp, epoch=0, current=1)
        assert code == ErrorCode.UNKNOWN_LEADER_EPOCH

    @staticmethod
    def _ask(
        kafka: ServedCluster, broker: int, tp: TopicPartition, epoch: int = 0, current: int = -1
    ) -> tuple[int, int, int]:
        kind = wire.OffsetForLeaderEpochRequest
        part = kind.OffsetForLeaderPartition(tp.partition, current, epoch)
        request = kind(topics=(kind.OffsetForLeaderTopic(tp.topic, (part,)),))
        with connect(kafka, broker) as client:
            response = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
        ((found,),) = (topic.partitions for topic in response.topics)
        assert found.partition == tp.partition
        return found.error_code, found.leader_epoch, found.end_offset


def _isr(client: WireClient, request: wire.MetadataRequest) -> tuple[int, ...]:
    (topic,) = client.ask(ApiKey.METADATA, 12, request).topics
    return tuple(topic.partitions[0].isr_nodes)
