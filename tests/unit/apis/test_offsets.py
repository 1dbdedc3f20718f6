"""Reading by topic id, and where logs begin: over the wire."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.served import (
    batch,
    connect,
    fetch,
    leader_client,
    new_name,
    produce,
    served,
)
from tests.support.wire_client import WireClient

Fetch = wire.FetchRequest
Records = wire.DeleteRecordsRequest
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def by_id(topic_id: uuid.UUID, partition: int = 0, **fields: Any) -> wire.FetchRequest:
    part = Fetch.FetchPartition(partition, partition_max_bytes=1 << 20)
    topic = Fetch.FetchTopic("", topic_id, (part,))
    return Fetch(topics=(topic,), max_wait_ms=0, min_bytes=1, **fields)


def only(response: wire.FetchResponse) -> wire.FetchResponse.PartitionData:
    ((part,),) = (topic.partitions for topic in response.responses)
    return part


class TestFetchById:
    @pytest.mark.parametrize("version", range(13, 18))
    def test_a_topic_by_its_id(self, kafka: ServedCluster, version: int) -> None:
        (tp,) = kafka.create_topic(new_name())
        topic_id = kafka.broker(0).metadata.topic_id(tp.topic)
        assert topic_id is not None
        records = batch(b"x")
        with leader_client(kafka, tp) as client:
            produce(client, tp, records)
            response = client.ask(ApiKey.FETCH, version, by_id(topic_id))
            assert response.responses[0].topic_id == topic_id
            assert len(only(response).records) == len(records)
            other = uuid.UUID(int=topic_id.int ^ 1)
            response = client.ask(ApiKey.FETCH, version, by_id(other))
        assert response.responses[0].topic_id == other
        assert only(response).error_code == ErrorCode.UNKNOWN_TOPIC_ID

    def test_who_leads_instead(self, kafka: ServedCluster) -> None:
        (tp,) = kafka.create_topic(new_name(), assignment=[[1]])
        topic_id = kafka.broker(0).metadata.topic_id(tp.topic)
        assert topic_id is not None
        with connect(kafka, 0) as client:
            response = client.ask(ApiKey.FETCH, 16, by_id(topic_id))
        at = kafka.broker(1).endpoints[0]
        assert only(response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert only(response).current_leader == (1, 0)
        assert response.node_endpoints == ((1, at.host, at.port, None),)

    def test_an_id_that_nobody_knows_stays_in_the_session(self, kafka: ServedCluster) -> None:
        """And is answered each time; another topic of the session is read as ever. By its id it is
        forgotten, too (FetchSessionTest.testToForgetPartitions)."""
        unknown = uuid.UUID(int=77)
        (tp,) = kafka.create_topic(new_name())
        topic_id = kafka.broker(0).metadata.topic_id(tp.topic)
        assert topic_id is not None
        with leader_client(kafka, tp) as client:
            request = by_id(unknown, session_epoch=0)
            request = request._replace(topics=(*request.topics, *by_id(topic_id).topics))
            first = client.ask(ApiKey.FETCH, 13, request)
            assert self._codes(first) == {unknown: ErrorCode.UNKNOWN_TOPIC_ID, topic_id: 0}
            for epoch in (1, 2):
                later = Fetch(session_id=first.session_id, session_epoch=epoch)
                response = client.ask(ApiKey.FETCH, 13, later)
                assert self._codes(response) == {unknown: ErrorCode.UNKNOWN_TOPIC_ID}
            forgotten = Fetch(
                session_id=first.session_id,
                session_epoch=3,
                forgotten_topics_data=(Fetch.ForgottenTopic("", unknown, (0,)),),
            )
            assert self._codes(client.ask(ApiKey.FETCH, 13, forgotten)) == {}

    @staticmethod
    def _codes(response: wire.FetchResponse) -> dict[uuid.UUID, int]:
        return {topic.topic_id: topic.partitions[0].error_code for topic in response.responses}

    def test_an_id_is_read_once_its_topic_is_known(self, kafka: ServedCluster) -> None:
        """FetchSessionTest.testResolveUnknownPartitions and testMaybeResolveUnknownName: a consumer
        may hear of a topic before the broker that it asks does."""
        (tp,) = kafka.create_topic(new_name(), assignment=[[0]])
        metadata = kafka.broker(0).metadata
        topic_id = metadata.topic_id(tp.topic)
        assert topic_id is not None
        records = batch(b"x")
        with connect(kafka, 0) as client:
            produce(client, tp, records)
            metadata._names.pop(topic_id)
            first = client.ask(ApiKey.FETCH, 13, by_id(topic_id, session_epoch=0))
            assert self._codes(first) == {topic_id: ErrorCode.UNKNOWN_TOPIC_ID}
            metadata._names[topic_id] = tp.topic
            later = Fetch(session_id=first.session_id, session_epoch=1)
            part = only(client.ask(ApiKey.FETCH, 13, later))
            assert (part.error_code, len(part.records)) == (ErrorCode.NONE, len(records))
            # Named by the same id, it is the same partition of the session, and read from there on.
            part = Fetch.FetchPartition(0, fetch_offset=1, partition_max_bytes=1 << 20)
            topics = (Fetch.FetchTopic("", topic_id, (part,)),)
            on = Fetch(session_id=first.session_id, session_epoch=2, topics=topics)
            assert not only(client.ask(ApiKey.FETCH, 13, on)).records
            later = Fetch(session_id=first.session_id, session_epoch=3)
            assert client.ask(ApiKey.FETCH, 13, later).responses == ()

    def test_names_and_ids_do_not_mix_in_a_session(self, kafka: ServedCluster) -> None:
        (tp,) = kafka.create_topic(new_name())
        topic_id = kafka.broker(0).metadata.topic_id(tp.topic)
        assert topic_id is not None
        with leader_client(kafka, tp) as client:
            first = client.ask(ApiKey.FETCH, 13, by_id(topic_id, session_epoch=0))
            part = Fetch.FetchPartition(0, partition_max_bytes=1 << 20)
            request = Fetch(
                session_id=first.session_id,
                session_epoch=1,
                topics=(Fetch.FetchTopic(tp.topic, partitions=(part,)),),
            )
            response = client.ask(ApiKey.FETCH, 12, request)
        assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        assert response.responses == ()

    def test_a_topic_of_that_name_with_another_id(self, kafka: ServedCluster) -> None:
        """The old id is nobody's any more; the new one is that of an empty log."""
        name = new_name()
        kafka.create_topic(name)
        before = kafka.broker(0).metadata.topic_id(name)
        kafka.delete_topic(name)
        (tp,) = kafka.create_topic(name)
        after = kafka.broker(0).metadata.topic_id(name)
        assert before is not None
        assert after is not None
        with leader_client(kafka, tp) as client:
            old = only(client.ask(ApiKey.FETCH, 13, by_id(before)))
            new = only(client.ask(ApiKey.FETCH, 13, by_id(after)))
        assert (old.error_code, new.error_code) == (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE)


class TestProduceById:
    def test_an_id_that_nobody_knows(self, kafka: ServedCluster) -> None:
        tp = TopicPartition(new_name(), 0)
        with connect(kafka) as client:
            part = produce(client, tp, batch(b"x"), 13, topic_id=uuid.UUID(int=77))
        assert (part.error_code, part.base_offset) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)


class TestDeleteRecords:
    @pytest.mark.parametrize("version", range(3))
    def test_answers_when_all_replicas_did_so(self, kafka: ServedCluster, version: int) -> None:
        (tp,) = kafka.create_topic(new_name(), 1, 2)
        with leader_client(kafka, tp) as client:
            produce(client, tp, batch(b"1", b"2", b"3"))
            assert self._delete(client, tp, 2, version) == (ErrorCode.NONE, 2)
            assert fetch(client, tp, 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert self._delete(client, tp, -1, version) == (ErrorCode.NONE, 3)
            assert self._delete(client, tp, 9, version) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        log = kafka.replica(tp, kafka.wait_for_leader(tp)).local_log()
        assert log.log_start_offset == 3

    def test_elsewhere(self, kafka: ServedCluster) -> None:
        (tp,) = kafka.create_topic(new_name(), assignment=[[1]])
        with connect(kafka, 0) as client:
            code, low = self._delete(client, tp, 0, 2)
            missing, _ = self._delete(client, TopicPartition(new_name(), 0), 0, 2)
        assert (code, low) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert missing == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_a_partition_that_stands_twice(self, kafka: ServedCluster) -> None:
        """Kafka takes the last offset, and has one result for it; a topic without partitions has
        none."""
        (tp,) = kafka.create_topic(new_name(), 1, 2)
        parts = tuple(Records.DeleteRecordsPartition(tp.partition, offset) for offset in (3, 1))
        topics = (Records.DeleteRecordsTopic(tp.topic, parts), Records.DeleteRecordsTopic("none"))
        with leader_client(kafka, tp) as client:
            produce(client, tp, batch(b"1", b"2", b"3"))
            response = client.ask(ApiKey.DELETE_RECORDS, 2, Records(topics, 30_000))
            kind = wire.DeleteRecordsResponse
            result = kind.DeleteRecordsPartitionResult(tp.partition, 1, ErrorCode.NONE)
            assert response.topics == (kind.DeleteRecordsTopicResult(tp.topic, (result,)),)
            assert fetch(client, tp, 1).error_code == ErrorCode.NONE

    @staticmethod
    def _delete(
        client: WireClient, tp: TopicPartition, offset: int, version: int
    ) -> tuple[int, int]:
        part = Records.DeleteRecordsPartition(tp.partition, offset)
        request = Records((Records.DeleteRecordsTopic(tp.topic, (part,)),), 30_000)
        response = client.ask(ApiKey.DELETE_RECORDS, version, request)
        ((found,),) = (topic.partitions for topic in response.topics)
        return found.error_code, found.low_watermark


@pytest.mark.parametrize(
    ("version", "code"),
    [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)],
)
def test_a_watermark_that_is_not_settled(version: int, code: ErrorCode) -> None:
    """Clients before version 5 know no word for it."""

    def answer(request: ListOffsetsRequest, reply: Any) -> None:
        parts = tuple(
            ListOffsetsPartitionResponse(part.tp, ErrorCode.OFFSET_NOT_AVAILABLE)
            for part in request.partitions
        )
        reply(ListOffsetsResponse(parts))

    with served(1) as kafka, connect(kafka) as client:
        kafka.broker(0).serve(ListOffsetsRequest, answer)
        kind = wire.ListOffsetsRequest
        topic = kind.ListOffsetsTopic("t", (kind.ListOffsetsPartition(0, -1, -1),))
        response = client.ask(ApiKey.LIST_OFFSETS, version, kind(-1, topics=(topic,)))
    (part,) = response.topics[0].partitions
    assert (part.error_code, part.offset) == (code, -1)


def test_a_consumer_is_sent_to_the_replica_in_its_rack() -> None:
    config = {"replica.selector.class": RACK_AWARE}
    with served(2, config, racks={0: "a", 1: "b"}) as kafka:
        (tp,) = kafka.create_topic("t", assignment=[[0, 1]])
        topic_id = kafka.broker(0).metadata.topic_id("t")
        assert topic_id is not None
        with connect(kafka, 0) as client:
            produce(client, tp, batch(b"x"))
            kafka.wait_until(lambda: kafka.replica(tp, 1).high_watermark == 1, "it is committed")
            sent_on = only(client.ask(ApiKey.FETCH, 13, by_id(topic_id, rack_id="b")))
            stays = only(client.ask(ApiKey.FETCH, 13, by_id(topic_id, rack_id="a")))
        with connect(kafka, 1) as client:
            there = only(client.ask(ApiKey.FETCH, 13, by_id(topic_id, rack_id="b")))
            response = client.ask(ApiKey.METADATA, 12, wire.MetadataRequest(topics=()))
    assert (sent_on.preferred_read_replica, len(sent_on.records)) == (1, 0)
    assert stays.preferred_read_replica == -1
    assert len(stays.records) == len(there.records) > 0
    assert [each.rack for each in response.brokers] == ["a", "b"]


def test_what_is_kept_elsewhere_is_asked_of_the_leader_of_the_epoch(kafka: ServedCluster) -> None:
    """There is nothing, and yet only the leader says so, to who knows its epoch."""
    (tp,) = kafka.create_topic(new_name())
    kind = wire.ListOffsetsRequest
    with leader_client(kafka, tp) as client:
        for epoch, code in ((-1, 0), (0, 0), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            for timestamp in (-5, -6):
                part = kind.ListOffsetsPartition(tp.partition, epoch, timestamp)
                request = kind(-1, 0, (kind.ListOffsetsTopic(tp.topic, (part,)),))
                answer = client.ask(ApiKey.LIST_OFFSETS, 11, request)
                ((found,),) = (topic.partitions for topic in answer.topics)
                assert (found.error_code, found.offset) == (code, -1)
