"""Real clients over TLS with each mechanism of login."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.network import Listener, SecurityProtocol, UserCredentials
from replication.server.kafka_server import Exposure
from replication.server.serving import ServedCluster, serve
from tests.support.certificates import make_certificates, needs_openssl

pytestmark = needs_openssl

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
VALUES = [b"%d" % n * 100 for n in range(300)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(certificates: Path) -> Iterator[ServedCluster]:
    with serve(
        listeners=[Listener("OUTSIDE", "127.0.0.1", 0, SecurityProtocol.SASL_SSL)],
        config={"ssl.keystore.location": str(certificates / "server.pem")},
        exposure=Exposure(credentials=UserCredentials({"alice": "secret"})),
    ) as kafka:
        yield kafka


def settings(kafka: ServedCluster, certificates: Path, mechanism: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": mechanism,
        "sasl.username": "alice",
        "sasl.password": "secret",
        "ssl.ca.location": str(certificates / "ca.pem"),
        "log_level": 0,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(kafka: ServedCluster, certificates: Path, mechanism: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    common = settings(kafka, certificates, mechanism)
    producer = confluent_kafka.Producer(common)
    topic = f"c-{mechanism}"
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**common, "group.id": "none"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    read: list[bytes] = []
    end = time.monotonic() + 30
    while len(read) < len(VALUES) and time.monotonic() < end:
        read += [message.value() for message in consumer.consume(len(VALUES), 1)]
    consumer.close()
    assert read == VALUES


def test_librdkafka_with_a_wrong_password(kafka: ServedCluster, certificates: Path) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    errors: list[Any] = []
    common = settings(kafka, certificates, "SCRAM-SHA-256")
    producer = confluent_kafka.Producer(
        {**common, "sasl.password": "wrong", "error_cb": errors.append}
    )
    end = time.monotonic() + 30
    while not errors and time.monotonic() < end:
        producer.poll(0.1)
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(kafka: ServedCluster, certificates: Path, mechanism: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    from aiokafka.helpers import create_ssl_context

    async def send() -> int:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers,
            security_protocol="SASL_SSL",
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="secret",
            ssl_context=create_ssl_context(cafile=str(certificates / "ca.pem")),
        ) as producer:
            sent = await producer.send_and_wait(f"a-{mechanism}", b"value")
            return int(sent.offset)

    assert asyncio.run(send()) == 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(kafka: ServedCluster, certificates: Path, mechanism: str) -> None:
    module = pytest.importorskip("kafka")
    producer = module.KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers,
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password="secret",
        ssl_cafile=str(certificates / "ca.pem"),
    )
    assert producer.send(f"k-{mechanism}", b"value").get(30).offset == 0
    producer.close()
