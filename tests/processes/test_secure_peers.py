"""Brokers that log in at each other, or show certificates; and who comes instead of them."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.security.sasl import client_exchange
from tests.processes.nodes import CONFIG, ROOT, SERVE, Node
from tests.support.certificates import make_certificates, needs_openssl, sign
from tests.support.served_tree import CoordinatorProcess
from tests.support.until import patience, until
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.slow, needs_openssl]
TOPIC = "orders"
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
OURS: Mapping[str, object] = {
    **CONFIG,
    "min.insync.replicas": 1,
    "default.replication.factor": 2,
    "offsets.topic.replication.factor": 2,
    "reconnect.backoff.max.ms": 500,
}


class Way(NamedTuple):
    """How brokers come to each other.

    Attributes:
        config: of each, beside its key store.
        password: of brokers, for a login; in the tree, or else in the file of users.
    """

    protocol: str
    config: Mapping[str, object] = {}
    password: str = ""
    is_in_tree: bool = False


CERTIFICATES = Way("SSL", {"broker.identity": "certificate"})
SCRAM = Way("SASL_SSL", {}, "let, me:in=ü", is_in_tree=True)
PLAIN = Way("SASL_PLAINTEXT", {"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "let me in")
BROKER = "kafka, the broker"
ALICE = {"sasl.username": "alice", "sasl.password": "wonder"}


class Pair:
    """Two brokers, whose clients log in as alice by a listener of their own."""

    def __init__(self, directory: Path, way: Way) -> None:
        self.directory, self.way = directory, way
        self._opened = ExitStack()
        self.engine = self._opened.enter_context(CoordinatorProcess(directory / "tree", 500))
        self.url = f"zookeeper://{self.engine.hosts}/logstore"
        make_certificates(directory)
        users = "alice:wonder\n"
        if way.is_in_tree:
            command = (sys.executable, "-c", "from replication.cli.users import users; users()")
            subprocess.run(
                [*command, "add", BROKER, f"--coordinator={self.url}"],
                input=f"{way.password}\n".encode(),
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                check=True,
                timeout=patience(),
            )
        elif way.password:
            users += f"{BROKER}:{way.password}\n"
        (directory / "users").write_text(users)
        self.brokers = {broker_id: self.node(broker_id) for broker_id in range(2)}
        self.acknowledged = 0

    def node(self, broker_id: int, password: str | None = None, store: str = "") -> Node:
        """
        Args:
            password: another one than that of brokers.
            store: another one than its own.
        """
        way, directory = self.way, self.directory
        if not store:
            store = f"broker-{broker_id}"
            sign(directory, store, f"/CN={store}", f"URI:kafka:broker:{broker_id}")
        command = [*SERVE, f"--users={directory / 'users'}"]
        if way.password:
            file = directory / f"password-{broker_id}"
            file.write_text(f"{BROKER}:{password or way.password}\n")
            command.append(f"--inter-broker-password-file={file}")
        protocols = f"PLAINTEXT:SASL_PLAINTEXT,INTERNAL:{way.protocol}"
        config = {
            **OURS,
            **way.config,
            "listener.security.protocol.map": protocols,
            "ssl.keystore.location": directory / f"{store}.pem",
            "ssl.truststore.location": directory / "ca.pem",
        }
        found = Node(broker_id, directory / f"{broker_id}", self.url, config, command)
        self._opened.callback(lambda: found.kill() if found.runs else None)
        return found

    def start(self) -> None:
        for node in self.brokers.values():
            node.launch()
        for node in self.brokers.values():
            node.wait_for(lambda n=node: bool(n.ready), "it is in the cluster")

    def close(self) -> None:
        self._opened.close()

    # -- clients -----------------------------------------------------------------------------------

    @property
    def client_config(self) -> dict[str, Any]:
        servers = ",".join(node.address for node in self.brokers.values())
        return {
            "bootstrap.servers": servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "log_level": 0,
            **ALICE,
        }

    def create_topic(self) -> None:
        new = NewTopic(TOPIC, num_partitions=4, replication_factor=2)
        admin = AdminClient(self.client_config)
        admin.create_topics([new])[TOPIC].result(patience())
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        admin = AdminClient(self.client_config)

        def whole() -> bool:
            with suppress(ck.KafkaException):
                found = admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions.values()
                return len(found) == 4 and all(
                    len(each.isrs) == 2 and each.leader >= 0 for each in found
                )
            return False

        until(whole, "both have everything")

    def produce(self, count: int = 20) -> None:
        """With acks=all, to all partitions."""
        failed: list[Any] = []
        producer = ck.Producer({**self.client_config, "acks": "all", "message.timeout.ms": 60_000})
        for number in range(count):
            producer.produce(
                TOPIC,
                b"%d" % (self.acknowledged + number),
                partition=number % 4,
                on_delivery=lambda error, message: failed.append(error) if error else None,
            )
        assert producer.flush(patience()) == 0
        assert not failed
        self.acknowledged += count

    def consume(self) -> set[int]:
        consumer = ck.Consumer({**self.client_config, "group.id": "all"})
        consumer.assign([ck.TopicPartition(TOPIC, number, 0) for number in range(4)])
        found: set[int] = set()

        def done() -> bool:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.add(int(message.value()))
            return len(found) == self.acknowledged

        until(done, "all records are there")
        consumer.close()
        return found

    # -- strangers ---------------------------------------------------------------------------------

    def connect(
        self, broker_id: int, user: tuple[str, str] | None = None, store: str | None = None
    ) -> WireClient:
        """A client at the listener of brokers.

        Args:
            user: name and password of a login, which succeeds.
            store: the certificate that it shows.
        """
        client = WireClient("127.0.0.1", self.brokers[broker_id].inner_port)
        if self.way.protocol.endswith("SSL"):
            context = ssl.create_default_context(cafile=self.directory / "ca.pem")
            if store is not None:
                context.load_cert_chain(self.directory / f"{store}.pem")
            client._socket = context.wrap_socket(client._socket, server_hostname="localhost")
        if user is not None:
            client.ask(ApiKey.SASL_HANDSHAKE, 1, wire.SaslHandshakeRequest("SCRAM-SHA-512"))
            exchange = client_exchange("SCRAM-SHA-512", *user)
            with suppress(StopIteration):
                message = next(exchange)
                while True:
                    request = wire.SaslAuthenticateRequest(message)
                    answer = client.ask(ApiKey.SASL_AUTHENTICATE, 2, request)
                    message = exchange.send(bytes(answer.auth_bytes))
        return client


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    found = Pair(tmp_path, request.param)
    try:
        yield found
    finally:
        found.close()


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(CERTIFICATES, id="certificates"),
        pytest.param(SCRAM, id="scram"),
        pytest.param(PLAIN, id="plain"),
    ],
    indirect=True,
)
def test_records_survive_a_kill(pair: Pair) -> None:
    """Clients come by another listener, with their own logins."""
    pair.start()
    pair.create_topic()
    pair.produce()
    pair.brokers[1].kill()
    pair.produce()
    pair.brokers[1].start()
    pair.wait_until_whole()
    pair.brokers[0].kill()
    pair.produce()
    pair.brokers[0].start()
    pair.wait_until_whole()
    assert pair.consume() == set(range(pair.acknowledged))
    for node in pair.brokers.values():
        node.stop()
