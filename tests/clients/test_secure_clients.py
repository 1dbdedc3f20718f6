"""Real clients over TLS with each mechanism of login."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest
from aiokafka.helpers import create_ssl_context

from replication.network import Listener, SecurityProtocol, UserCredentials
from replication.server.kafka_server import Exposure
from replication.server.serving import ServedCluster, serve
from tests.support.certificates import make_certificates, needs_openssl
from tests.support.until import patience, until

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
    common = settings(kafka, certificates, mechanism)
    producer = confluent_kafka.Producer(common)
    topic = f"c-{mechanism}"
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(patience()) == 0
    consumer = confluent_kafka.Consumer({**common, "group.id": "none"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    read: list[bytes] = []

    def read_all() -> bool:
        read.extend(message.value() for message in consumer.consume(len(VALUES), 0.05))
        return len(read) >= len(VALUES)

    until(read_all)
    consumer.close()
    assert read == VALUES


def test_librdkafka_with_a_wrong_password(kafka: ServedCluster, certificates: Path) -> None:
    errors: list[Any] = []
    common = settings(kafka, certificates, "SCRAM-SHA-256")
    producer = confluent_kafka.Producer(
        {**common, "sasl.password": "wrong", "error_cb": errors.append}
    )
    until(lambda: producer.poll(0.05) or errors, "it is refused")
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(kafka: ServedCluster, certificates: Path, mechanism: str) -> None:
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
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers,
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password="secret",
        ssl_cafile=str(certificates / "ca.pem"),
    )
    assert producer.send(f"k-{mechanism}", b"value").get(patience()).offset == 0
    producer.close()


@pytest.mark.slow
def test_a_client_logs_in_to_the_command(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    (tmp_path / "users").write_text("alice:secret:with:colons\n\nbob:x\n")
    server = subprocess.Popen(
        [
            *(sys.executable, "-c", "from replication.cli.serve import serve; serve()"),
            *("--dir", str(tmp_path / "kafka")),
            *("--listen", "SASL_SSL://127.0.0.1:0", "--users", str(tmp_path / "users")),
            *("--config", f"ssl.keystore.location={certificates / 'server.pem'}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        address = server.stdout.readline().removeprefix("ready:").strip()
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "security.protocol": "SASL_SSL",
                "sasl.mechanisms": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": "secret:with:colons",
                "ssl.ca.location": str(certificates / "ca.pem"),
            }
        )
        producer.produce("orders", b"value")
        assert producer.flush(patience()) == 0
    finally:
        server.terminate()
        server.wait(patience())
        server.stdout.close()
    assert server.returncode == 0
