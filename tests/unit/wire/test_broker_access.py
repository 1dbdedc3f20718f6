"""A broker's way to the others: its certificate, its login, and whose brokers it meets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.common.config import ReplicationConfig
from replication.common.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    MetadataRequest,
    Request,
    Response,
)
from replication.common.runtime import ThreadRuntime
from replication.network import Listener, NetworkConfig, SecurityProtocol
from replication.security.credentials import UserCredentials
from replication.server.kafka_server import Exposure
from replication.server.serving import ServedCluster
from replication.wire.access import ClusterAccess, Peers
from replication.wire.transport import TcpTransport
from tests.support.certificates import make_certificates, needs_openssl
from tests.support.leftovers import nothing_left
from tests.support.served import served
from tests.support.until import patience

OWN, OTHER = 7, 0
USER = ("broker", "secret")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def access(
    kafka: ServedCluster | str, protocol: SecurityProtocol, *, user: Any = USER, **keys: Any
) -> ClusterAccess:
    cluster_id = kafka if isinstance(kafka, str) else kafka.broker(OTHER).log_manager.cluster_id
    assert cluster_id is not None
    network = NetworkConfig.from_properties(keys)
    return ClusterAccess.of_broker(
        OWN, cluster_id, network, ReplicationConfig(), protocol, user=user
    )


def ask(kafka: ServedCluster, to: ClusterAccess, request: Request) -> Response | str:
    """The answer, or why there is none."""
    (endpoint,) = kafka.broker(OTHER).endpoints
    with nothing_left():
        runtime = ThreadRuntime("test")
        place = endpoint.host, endpoint.port
        peers = Peers.of(OWN, runtime, lambda _: place, lambda request, reply: None)
        transport = TcpTransport(to, peers=peers)
        try:
            answers: SimpleQueue[Response | None] = SimpleQueue()
            transport.send(OTHER, request, answers.put)
            answer = answers.get(timeout=patience())
            return "; ".join(map(str, transport.failures())) if answer is None else answer
        finally:
            transport.close()
            runtime.close()


@contextmanager
def serving(protocol: SecurityProtocol, config: Mapping[str, Any] = {}) -> Iterator[ServedCluster]:
    with served(
        1,
        config,
        listeners=[Listener("L", "127.0.0.1", 0, protocol)],
        exposure=Exposure(credentials=UserCredentials(dict([USER]))),
    ) as kafka:
        yield kafka


def test_a_broker_of_another_cluster() -> None:
    """Ports are used again: a broker of another cluster is neither ordered nor believed."""
    with serving(SecurityProtocol.PLAINTEXT) as kafka:
        own = kafka.broker(OTHER).log_manager.cluster_id
        found = ask(kafka, access("another", SecurityProtocol.PLAINTEXT), MetadataRequest())
        assert isinstance(found, str)
        assert f": it belongs to the cluster {own}, not to another" in found
        right = ask(kafka, access(kafka, SecurityProtocol.PLAINTEXT), MetadataRequest())
        assert not isinstance(right, str)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_logins_of_brokers(mechanism: str) -> None:
    protocol = SecurityProtocol.SASL_PLAINTEXT
    with serving(protocol) as kafka:
        (tp,) = kafka.create_topic("orders")
        question = ListOffsetsRequest((ListOffsetsPartition(tp, -1),))
        key = {"sasl.mechanism.inter.broker.protocol": mechanism}
        answer = ask(kafka, access(kafka, protocol, **key), question)
        assert not isinstance(answer, str), answer
        wrong = access(kafka, protocol, user=("broker", "guess"), **key)
        assert "the login of 'broker' is refused" in str(ask(kafka, wrong, question))


def test_a_login_takes_a_password() -> None:
    with pytest.raises(ConfigError, match="--inter-broker-password-file"):
        access("c", SecurityProtocol.SASL_PLAINTEXT, user=None)


@needs_openssl
@pytest.mark.slow
@pytest.mark.parametrize("protocol", [SecurityProtocol.SSL, SecurityProtocol.SASL_SSL])
def test_certificates_of_brokers(tmp_path: Path, protocol: SecurityProtocol) -> None:
    """The keys of a broker are those of both sides."""
    folder = make_certificates(tmp_path)
    keys = {
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.location": str(folder / "ca.pem"),
        "ssl.client.auth": "required",
    }
    question = ListOffsetsRequest((ListOffsetsPartition(TopicPartition("orders", 0), -1),))
    with serving(protocol, keys) as kafka:
        kafka.create_topic("orders")
        assert not isinstance(ask(kafka, access(kafka, protocol, **keys), question), str)
        del keys["ssl.keystore.location"]
        nameless = ask(kafka, access(kafka, protocol, **keys), question)
        assert isinstance(nameless, str)
        assert "TLS" in nameless or "closed the connection" in nameless
        del keys["ssl.truststore.location"]
        untrusted = ask(kafka, access(kafka, protocol, **keys), question)
        assert "certificate is not accepted" in str(untrusted)


def test_the_limits_of_a_broker() -> None:
    keys = {
        "socket.connection.setup.timeout.ms": 70,
        "socket.connection.setup.timeout.max.ms": 50,  # Kafka takes the larger one
        "reconnect.backoff.ms": 0,
        "reconnect.backoff.max.ms": 0,
        "connections.max.idle.ms": -1,
        "socket.request.max.bytes": 1000,
    }
    found = access("c", SecurityProtocol.PLAINTEXT, **keys)
    assert (found.setup_timeout.initial_ms, found.setup_timeout.max_ms) == (70, 70)
    assert (found.reconnect.initial_ms, found.reconnect.max_ms) == (1, 1)
    assert (found.idle_ms, found.silence_ms) == (-1, 30_000)
    assert found.max_fetch_bytes == (10 << 20) + 1000 + (64 << 10)
    assert (found.client_id, found.servers, found.context) == ("broker-7", (), None)
