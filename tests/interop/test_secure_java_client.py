"""Kafka's own client over TLS and a login, against a broker of ours."""

from __future__ import annotations

import shutil
from pathlib import Path

import kafka_jars
import pytest

from replication.network import Listener, SecurityProtocol, UserCredentials
from replication.server.kafka_server import Exposure
from replication.server.serving import serve
from tests.support.certificates import make_certificates

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]

RECORDS = 5000
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@pytest.mark.parametrize("mechanism", MODULES)
def test_a_producer_logs_in(kafka: str, tmp_path: Path, mechanism: str) -> None:
    certificates = make_certificates(tmp_path)
    with serve(
        tmp_path / "kafka",
        listeners=[Listener("OUTSIDE", "127.0.0.1", 0, SecurityProtocol.SASL_SSL)],
        config={"ssl.keystore.location": str(certificates / "server.pem")},
        exposure=Exposure(credentials=UserCredentials({"alice": "secret"})),
    ) as served:
        properties = tmp_path / "client.properties"
        properties.write_text(
            f"bootstrap.servers={served.bootstrap_servers}\n"
            "security.protocol=SASL_SSL\n"
            f"sasl.mechanism={mechanism}\n"
            f"sasl.jaas.config={MODULES[mechanism]} required "
            'username="alice" password="secret";\n'
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={certificates / 'ca.pem'}\n"
        )
        told = kafka_jars.run_java(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "orders", "--num-records", str(RECORDS), "--record-size", "500"),
            *("--throughput", "-1", "--command-config", str(properties)),
        )
        assert f"{RECORDS} records sent" in told.stdout
        partitions = served.client.partitions("orders")
        consumer = served.consumer(*partitions)
        assert len(consumer.read_to_end()) == RECORDS
