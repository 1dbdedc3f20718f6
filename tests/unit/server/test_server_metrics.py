"""What ``/metrics`` says after clients have worked."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication import ErrorCode
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import HttpListener, ServedCluster
from tests.support.served import connect, fetch, served
from tests.support.until import until
from tests.support.wire_producer import WireProducer

parser = pytest.importorskip("prometheus_client.parser")
TP = TopicPartition("orders", 0)
RECORDS = 20
SOCKETS = "kafka_server_socket_server_metrics_"
REQUESTS = "kafka_network_requestmetrics_"
GROUPS = "kafka_coordinator_group_groupmetadatamanager_"


class Scrape:
    """The samples of one scrape."""

    def __init__(self, kafka: ServedCluster) -> None:
        assert kafka.http is not None
        host, port = kafka.http.address
        with urllib.request.urlopen(f"http://{host}:{port}/metrics") as answer:
            text = answer.read().decode()
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in parser.text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self._samples
                self._samples[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self._samples[name, frozenset({"broker": "0", **labels}.items())]

    def total(self, name: str, **labels: str) -> float:
        """Over all labels that are not given."""
        wanted = labels.items()
        return sum(
            value for (each, has), value in self._samples.items() if each == name and wanted <= has
        )


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(config={"group.initial.rebalance.delay.ms": 0}, http=HttpListener()) as kafka:
        work(kafka)
        gauge = f"{SOCKETS}connection_count"
        until(lambda: Scrape(kafka)(gauge, listener="PLAINTEXT") == 0)  # nothing is under way
        yield kafka


def work(kafka: ServedCluster) -> None:
    """A transaction of some records, which a member of a group reads and commits."""
    kafka.create_topic(TP.topic, 1)
    kafka.wait_for_leader(TP)
    with connect(kafka) as client:
        producer = WireProducer(kafka, client, "shop")
        assert producer.init() == 0
        assert producer.add(TP) == [0]
        for number in range(RECORDS):
            assert producer.send(TP, number) == 0
        assert producer.end() == 0
        assert fetch(client, TP).records
        join = wire.JoinGroupRequest(
            "billing",
            60_000,
            60_000,
            protocol_type="consumer",
            protocols=(wire.JoinGroupRequest.JoinGroupRequestProtocol("range", b""),),
        )
        asked = wire.FindCoordinatorRequest("billing", 0)
        until(lambda: client.ask(ApiKey.FIND_COORDINATOR, 3, asked).error_code == 0)
        found = until(lambda: loaded(client.ask(ApiKey.JOIN_GROUP, 5, join)))
        joined = client.ask(ApiKey.JOIN_GROUP, 5, join._replace(member_id=found.member_id))
        member = "billing", joined.generation_id, joined.member_id
        share = wire.SyncGroupRequest.SyncGroupRequestAssignment(joined.member_id, b"")
        sync = wire.SyncGroupRequest(*member, assignments=(share,))
        assert client.ask(ApiKey.SYNC_GROUP, 3, sync).error_code == 0
        kind = wire.OffsetCommitRequest
        part = kind.OffsetCommitRequestPartition(0, RECORDS)
        topic = kind.OffsetCommitRequestTopic(TP.topic, partitions=(part,))
        committed = client.ask(ApiKey.OFFSET_COMMIT, 7, kind(*member, topics=(topic,)))
        assert committed.topics[0].partitions[0].error_code == 0
        client.ask(ApiKey.LEAVE_GROUP, 2, wire.LeaveGroupRequest("billing", joined.member_id))


def loaded(answer: Any) -> Any:
    """None while the coordinator is not there yet."""
    return answer if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED else None


def test_requests_by_version_and_time(kafka: ServedCluster) -> None:
    scrape = Scrape(kafka)
    for request in ("Produce", "Fetch", "JoinGroup", "SyncGroup", "EndTxn", "OffsetCommit"):
        count = scrape.total(f"{REQUESTS}requests_total", request=request)
        assert count > 0
        for phase in ("total", "local", "remote", "requestqueue", "responsequeue", "throttle"):
            name = f"{REQUESTS}{phase}timems"
            assert scrape(f"{name}_count", request=request) == count
            assert scrape(f"{name}_bucket", request=request, le="+Inf") == count
        assert scrape(f"{REQUESTS}localtimems_sum", request=request) > 0
        parts = ("requestqueue", "local", "remote", "responsequeue", "responsesend")
        spent = sum(scrape(f"{REQUESTS}{part}timems_sum", request=request) for part in parts)
        assert spent == pytest.approx(scrape(f"{REQUESTS}totaltimems_sum", request=request))


def test_errors_by_code(kafka: ServedCluster) -> None:
    """A new member is first given its id, by an error (KIP-394)."""
    scrape = Scrape(kafka)
    errors = f"{REQUESTS}errors_total"
    assert scrape(errors, request="JoinGroup", error="MEMBER_ID_REQUIRED") >= 1
    kafka.faults.fail(ApiKey.METADATA, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with connect(kafka) as client:
        client.ask(ApiKey.METADATA, 9, metadata_of("orders"))
    found = {"request": "Metadata", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    until(lambda: Scrape(kafka).total(errors, **found) >= 1)


def metadata_of(topic: str) -> Any:
    return wire.MetadataRequest(topics=(wire.MetadataRequest.MetadataRequestTopic(name=topic),))


def test_connections(kafka: ServedCluster) -> None:
    before = Scrape(kafka)
    of = {"listener": "PLAINTEXT"}
    assert before(f"{SOCKETS}incoming_byte_total", **of) > RECORDS
    assert before(f"{SOCKETS}outgoing_byte_total", **of) > RECORDS
    with connect(kafka):
        until(
            lambda: (
                Scrape(kafka)(f"{SOCKETS}connection_creation_total", **of)
                > before(f"{SOCKETS}connection_creation_total", **of)
            )
        )
    until(lambda: Scrape(kafka)(f"{SOCKETS}connection_close_total", reason="client", **of) > 0)
    after = Scrape(kafka)
    closed = after.total(f"{SOCKETS}connection_close_total")
    opened = after(f"{SOCKETS}connection_creation_total", **of)
    assert after(f"{SOCKETS}connection_count", **of) == opened - closed
    assert after.total(f"{SOCKETS}connection_refused_total") == 0
    assert after("kafka_network_requestchannel_requestqueuesize") == 0
    assert after("kafka_network_socketserver_memorypoolused") == 0


def test_groups(kafka: ServedCluster) -> None:
    until(lambda: Scrape(kafka)(f"{GROUPS}numgroupsempty") == 1)
    scrape = Scrape(kafka)
    assert scrape(f"{GROUPS}numgroups") == 1
    assert scrape(f"{GROUPS}numgroupsstable") == 0
    prefix = "kafka_server_group_coordinator_metrics_"
    assert scrape(f"{prefix}group_completed_rebalance_total") >= 1
    assert scrape(f"{prefix}offset_commit_total") >= 1
    assert scrape(f"{prefix}waiting_requests") == 0
    until(lambda: Scrape(kafka)(f"{prefix}num_partitions", state="active") == 4)
    assert Scrape(kafka)(f"{prefix}partition_load_total") >= 4


def test_transactions(kafka: ServedCluster) -> None:
    prefix = "kafka_server_transaction_coordinator_metrics_"
    count = f"{prefix}transactional_id_count"
    until(lambda: Scrape(kafka)(count, state="CompleteCommit") == 1)
    assert Scrape(kafka).total(count) == 1
    until(lambda: Scrape(kafka)(f"{prefix}num_partitions", state="active") == 50)
    assert Scrape(kafka)(f"{prefix}partition_load_total") >= 50
