"""What only brokers may ask (W-212): refused by listeners of clients, served by that of brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.common.error_codes import ErrorCode
from replication.network import Listener, with_inter_broker
from replication.protocol import SERVED, ApiKey, error_codes
from replication.protocol import messages as wire
from replication.server.serving import LOOPBACK, ServedCluster
from tests.support.cases import for_each
from tests.support.served import (
    BROKERS,
    WITH_BROKERS,
    batch,
    connect,
    fetch_request,
    find_coordinator,
    new_name,
    produce,
    produce_request,
    served,
)
from tests.support.wire_client import WireClient
from tests.support.wire_producer import WireProducer

E = ErrorCode
REFUSED = E.CLUSTER_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(2, **WITH_BROKERS) as brokers:
        yield brokers


@pytest.fixture
def tp(kafka: ServedCluster) -> TopicPartition:
    (made,) = kafka.create_topic(new_name(), assignment=[(0, 1)])
    kafka.wait_for_isr(made, (0, 1))
    return made


class Case(NamedTuple):
    key: ApiKey
    version: int
    replica_id: int

    def request(self, tp: TopicPartition) -> Any:
        """Of the first record of a partition."""
        own: dict[str, Any] = {"replica_id": self.replica_id}
        match self.key:
            case ApiKey.FETCH:
                if self.version >= 15:
                    state = wire.FetchRequest.ReplicaState(self.replica_id, 1)
                    own = {"replica_state": state, "replica_id": -1}
                return fetch_request((tp, {}), **own)
            case ApiKey.LIST_OFFSETS:
                lists = wire.ListOffsetsRequest
                part = lists.ListOffsetsPartition(tp.partition, timestamp=-1)
                return lists(topics=(lists.ListOffsetsTopic(tp.topic, (part,)),), **own)
            case _:
                ends = wire.OffsetForLeaderEpochRequest
                epoch = ends.OffsetForLeaderPartition(tp.partition, -1, 0)
                return ends(topics=(ends.OffsetForLeaderTopic(tp.topic, (epoch,)),), **own)


REPLICA_APIS = (ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH)


def cases(*replica_ids: int) -> list[Case]:
    """In each version whose schema has a replica id (and names: from Fetch 13 on there are ids)."""
    return [
        Case(key, version, replica_id)
        for key in REPLICA_APIS
        for version in SERVED[key].each()
        for replica_id in replica_ids
        if not (key is ApiKey.OFFSET_FOR_LEADER_EPOCH and version < 3)
    ]


@for_each("case", cases(0, 1, 7, 2**31 - 1))
def test_a_client_is_no_replica(kafka: ServedCluster, tp: TopicPartition, case: Case) -> None:
    """W-212. Neither as the follower, nor as the leader, nor as a broker that is not there."""
    with connect(kafka) as client:
        response = client.ask(case.key, case.version, case.request(tp))
    assert set(error_codes(response)) == {REFUSED}


@for_each("case", cases(-1, -2, -3, -(2**31)))
def test_consumers_have_negative_ids(kafka: ServedCluster, tp: TopicPartition, case: Case) -> None:
    """−2 is that of Kafka's tools."""
    with connect(kafka) as client:
        response = client.ask(case.key, case.version, case.request(tp))
    allowed = {E.UNKNOWN_TOPIC_ID} if case.key is ApiKey.FETCH and case.version >= 13 else set()
    assert set(error_codes(response)) <= allowed


def test_a_forged_fetch_acknowledges_nothing(kafka: ServedCluster) -> None:
    """W-212. The record is on the leader alone, so it is not committed, whatever a client says. By
    the listener of brokers the same fetch is believed."""
    (tp,) = kafka.create_topic(new_name(), assignment=[(0, 1)], config={"min.insync.replicas": 2})
    kafka.wait_for_isr(tp, (0, 1))
    kafka.cut_off(0, coordinator=False)
    try:
        forged = Case(ApiKey.FETCH, 12, 1)
        request = fetch_request((tp, {"fetch_offset": 1}), replica_id=1)
        with connect(kafka) as producer, connect(kafka) as client:
            producer.send(ApiKey.PRODUCE, 9, produce_request(tp, batch(b"x")))
            log = kafka.replica(tp, 0)
            kafka.wait_until(lambda: log.log_end_offset == 1, "it is appended")
            response = client.ask(forged.key, forged.version, request)
            assert set(error_codes(response)) == {REFUSED}
            assert log.high_watermark == 0
            with connect(kafka, listener=BROKERS) as broker:
                response = broker.ask(forged.key, forged.version, request)
                assert not error_codes(response)
            answer = producer.receive(ApiKey.PRODUCE, 9)
            assert not error_codes(answer)
            assert log.high_watermark == 1
    finally:
        kafka.heal()


def test_later_versions_of_add_partitions(kafka: ServedCluster, tp: TopicPartition) -> None:
    """W-212. A client would add partitions to the transactions of others without their epoch."""
    name = new_name()
    with connect(kafka) as client:
        coordinator = find_coordinator(client, name, 1)
    with connect(kafka, coordinator) as client:
        producer = WireProducer(kafka, client, name)
        assert producer.init() == E.NONE
        for version in (4, 5):
            request = producer.asked_to_add(tp, version=version)
            response = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
            assert (response.error_code, response.results_by_transaction) == (REFUSED, ())
        assert producer.end(True) == E.INVALID_TXN_STATE  # nothing was added


class TestMarkers:
    def test_a_client_does_not_commit(self, kafka: ServedCluster, tp: TopicPartition) -> None:
        """W-212. One commit among aborts refuses all of them."""
        assert self._write(kafka, tp, (False, 0), (True, 0)) == [REFUSED, REFUSED]
        assert kafka.replica(tp, 0).log_end_offset == 0

    def test_an_operator_aborts(self, kafka: ServedCluster, tp: TopicPartition) -> None:
        assert self._write(kafka, tp, (False, 0)) == [E.NONE]

    def test_a_client_does_not_fence_the_coordinator(
        self, kafka: ServedCluster, tp: TopicPartition
    ) -> None:
        """W-212. A marker of a high epoch would have all later ones refused, so that no transaction
        of that producer ended any more."""
        assert self._write(kafka, tp, (False, 1)) == [REFUSED]
        assert self._write(kafka, tp, (False, 2**31 - 1), (False, 0)) == [REFUSED, E.NONE]
        assert self._write(kafka, tp, (True, 5), listener=BROKERS) == [E.NONE]
        assert self._write(kafka, tp, (False, 5)) == [E.NONE]
        assert self._write(kafka, tp, (False, 6)) == [REFUSED]

    def test_a_client_does_not_fence_a_producer_to_come(
        self, kafka: ServedCluster, tp: TopicPartition
    ) -> None:
        """W-212. Ids are given in turn, so the next ones are known."""
        for epoch in (1, 2**15 - 1):
            assert self._write(kafka, tp, (False, 0), producer=(5, epoch)) == [REFUSED]
        assert kafka.replica(tp, 0).log_end_offset == 0
        with connect(kafka) as client:
            records = batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0)
            assert produce(client, tp, records).error_code == E.NONE

    def test_a_client_does_not_fence_a_transaction(
        self, kafka: ServedCluster, tp: TopicPartition
    ) -> None:
        """W-212. Its coordinator could not write its own marker, and the transactional id would
        wait for it for ever."""
        name = new_name()
        with connect(kafka) as client:
            coordinator = find_coordinator(client, name, 1)
        with connect(kafka, coordinator) as client, connect(kafka) as leader:
            producer = WireProducer(kafka, client, name)
            producer.init()
            assert producer.add(tp) == [E.NONE]
            records = producer.records()
            assert produce(leader, tp, records, transactional_id=name).error_code == E.NONE
            for version in (0, 2):
                forged = producer.producer_id, producer.epoch + 1
                written = self._write(
                    kafka, tp, (False, 0), producer=forged, transaction_version=version
                )
                assert written == [REFUSED]
            assert producer.end() == E.NONE
            assert producer.init() == E.NONE  # the markers are there
        assert len(kafka.consumer(tp, isolation="read_committed").read_to_end()) == 1

    @staticmethod
    def _write(
        kafka: ServedCluster,
        tp: TopicPartition,
        *markers: tuple[bool, int],
        producer: tuple[int, int] = (5, 0),
        transaction_version: int = 0,
        listener: str | None = None,
    ) -> list[int]:
        """Of one producer, committed or not, with a coordinator epoch."""
        kind = wire.WriteTxnMarkersRequest
        topics = (kind.WritableTxnMarkerTopic(tp.topic, (tp.partition,)),)
        request = kind(
            tuple(
                kind.WritableTxnMarker(*producer, committed, topics, epoch, transaction_version)
                for committed, epoch in markers
            )
        )
        with connect(kafka, listener=listener) as client:
            response = client.ask(ApiKey.WRITE_TXN_MARKERS, 2, request)
        return [
            part.error_code
            for marker in response.markers
            for topic in marker.topics
            for part in topic.partitions
        ]


def test_clients_are_not_offered_what_is_refused(kafka: ServedCluster) -> None:
    """W-212, in ApiVersions."""

    def offered(client: WireClient) -> int:
        response = client.ask(ApiKey.API_VERSIONS, 3, wire.ApiVersionsRequest("test", "1"))
        found = {each.api_key: each.max_version for each in response.api_keys}
        return int(found[ApiKey.ADD_PARTITIONS_TO_TXN])

    with connect(kafka) as client, connect(kafka, listener=BROKERS) as broker:
        assert (offered(client), offered(broker)) == (3, SERVED[ApiKey.ADD_PARTITIONS_TO_TXN].last)


def test_no_listener_is_one_of_brokers_by_itself() -> None:
    internal = Listener("INTERNAL", "127.0.0.1", 0)
    both = [LOOPBACK, internal]
    assert [each.is_inter_broker for each in with_inter_broker(both, "")] == [False, False]
    assert [each.is_inter_broker for each in with_inter_broker(both, "INTERNAL")] == [False, True]
    with pytest.raises(ConfigError, match=r"inter\.broker\.listener\.name"):
        with_inter_broker(both, "OTHER")


def test_a_name_without_a_listener_ends_the_start() -> None:
    with pytest.raises(ConfigError, match=r"inter\.broker\.listener\.name = 'OTHER'"):
        served(1, {"inter.broker.listener.name": "OTHER"})


def test_records_reach_consumers_as_before(kafka: ServedCluster, tp: TopicPartition) -> None:
    with connect(kafka) as client:
        assert produce(client, tp, batch(b"x")).error_code == E.NONE
