"""Quotas of a served broker: what a client learns of them, and when it is read again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from checkpoints.types import TopicPartition
from logstore.common.clock import SystemClock
from replication.protocol import ApiKey
from replication.server.serving import ServedCluster
from tests.support.served import batch, connect, fetch_request, produce_request, served

TP = TopicPartition("orders", 0)
RATE = 100_000  # with a window of 1 s


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    keys = {
        "quota.producer.default": RATE,
        "quota.consumer.default": RATE,
        "quota.window.num": 2,
    }
    with served(config=keys) as kafka:
        kafka.create_topic(TP.topic, 1)
        kafka.wait_for_leader(TP)
        yield kafka


def elapsed_ms(began_ns: int) -> float:
    return (SystemClock.monotonic_ns() - began_ns) / 1e6


def test_a_producer_is_answered_at_once_and_then_held_back(kafka: ServedCluster) -> None:
    """RequestQuotaTest.testResponseThrottleTime, as the tests of the other kinds here."""
    with connect(kafka, client_id="much") as client, connect(kafka, client_id="little") as other:
        large = produce_request(TP, batch(bytes(RATE + 10_000)), acks=1)
        began_ns = SystemClock.monotonic_ns()
        throttle_ms = client.ask(ApiKey.PRODUCE, 9, large).throttle_time_ms
        assert 50 <= throttle_ms <= 200
        small = produce_request(TP, batch(b"x"), acks=1)
        assert other.ask(ApiKey.PRODUCE, 9, small).throttle_time_ms == 0
        client.ask(ApiKey.PRODUCE, 9, small)
        assert elapsed_ms(began_ns) >= throttle_ms


def test_a_producer_that_wants_no_answer_is_held_back_too(kafka: ServedCluster) -> None:
    with connect(kafka, client_id="no acks") as client:
        began_ns = SystemClock.monotonic_ns()
        client.send(ApiKey.PRODUCE, 9, produce_request(TP, batch(bytes(RATE + 10_000)), acks=0))
        client.ask(ApiKey.PRODUCE, 9, produce_request(TP, batch(b"x"), acks=1))
        assert elapsed_ms(began_ns) >= 50


def test_a_consumer_pays_for_what_it_gets(kafka: ServedCluster) -> None:
    with connect(kafka, client_id="writer") as writer, connect(kafka, client_id="reader") as reader:
        writer.ask(ApiKey.PRODUCE, 9, produce_request(TP, batch(bytes(RATE + 20_000)), acks=1))
        assert reader.ask(ApiKey.FETCH, 11, fetch_request((TP, {}))).throttle_time_ms > 0
