"""Kafka's own ``kafka-transactions.sh`` finds a transaction that nobody ends, and aborts it."""

from __future__ import annotations

import re

import kafka_jars
import pytest

from replication.common.error_codes import ErrorCode
from replication.server.serving import ServedCluster
from tests.support.served import connect, fetch, served
from tests.support.wire_producer import WireProducer

pytestmark = pytest.mark.slow

TOPIC = "orders"
OK = ErrorCode.NONE


def _run(served: ServedCluster, *words: str) -> str:
    return kafka_jars.run_java(
        "org.apache.kafka.tools.TransactionsCommand",
        *("--bootstrap-server", served.bootstrap_servers, *words),
    ).stdout


def _hanging(served: ServedCluster) -> list[list[str]]:
    """Topic, partition, producer id, producer epoch, coordinator epoch, start offset of each."""
    said = _run(served, "find-hanging", "--topic", TOPIC, "--max-transaction-timeout", "0")
    heading, *rows = said.splitlines()
    assert re.match(r"Topic\s+Partition\s+ProducerId", heading), said
    return [row.split()[:6] for row in rows]


def test_a_hanging_transaction_is_found_and_aborted(kafka: str) -> None:
    # As brokers without verification get one: a batch arrives after the end of its transaction.
    settings = {"transaction.partition.verification.enable": "false"}
    with served(1, settings) as brokers, connect(brokers) as client:
        (tp,) = brokers.create_topic(TOPIC)
        late = WireProducer(brokers, client, "late")
        assert late.init() == OK
        assert late.add(tp) == [OK]
        assert late.send(tp) == OK
        assert late.end() == OK
        brokers.wait_until(lambda: fetch(client, tp).high_watermark == 2, "the marker is there")
        assert late.send(tp, 1) == OK
        other = WireProducer(brokers, client, "other")
        assert other.init() == OK
        assert other.add(tp) == [OK]
        assert other.send(tp) == OK
        assert other.end() == OK
        brokers.wait_until(lambda: fetch(client, tp).high_watermark == 5, "both have ended")
        reader = brokers.consumer(tp, isolation="read_committed")
        assert [record.offset for _, record in reader.read_to_end()] == [0]
        assert fetch(client, tp).last_stable_offset == 2

        known = {
            entry.producer_id: entry.coordinator_epoch
            for entry in brokers.replica(tp, 0).local_log().producers.entries()
        }
        epoch = str(known[late.producer_id])
        assert _hanging(brokers) == [[TOPIC, "0", str(late.producer_id), "0", epoch, "2"]]
        _run(brokers, "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "2")

        assert fetch(client, tp).last_stable_offset == 6
        assert [record.offset for _, record in reader.read_to_end()] == [3]
