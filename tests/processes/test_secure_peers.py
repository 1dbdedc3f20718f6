"""Brokers that log in at each other, or show certificates; and who comes instead of them."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from replication.common.error_codes import ErrorCode
from replication.common.errors import SaslAuthenticationError
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


class Trust(NamedTuple):
    """How brokers come to each other.

    Attributes:
        config: of each, beside its key store.
        password: of brokers, for a login; in the tree, or else in the file of users.
    """

    protocol: str
    config: Mapping[str, object] = {}
    password: str = ""
    is_in_tree: bool = False


CERTIFICATES = Trust("SSL", {"broker.identity": "certificate"})
SCRAM = Trust("SASL_SSL", {}, "let, me:in=ü", is_in_tree=True)
PLAIN = Trust("SASL_PLAINTEXT", {"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "let me in")
BROKER = "kafka, the broker"
ALICE = {"sasl.username": "alice", "sasl.password": "wonder"}


class Pair:
    """Two brokers, whose clients log in as alice by a listener of their own."""

    def __init__(self, directory: Path, way: Trust) -> None:
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
                    if answer.error_code:
                        client.close()
                        raise SaslAuthenticationError(answer.error_message)
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


CLAIMS: list[tuple[ApiKey, int, Any]] = [
    (ApiKey.LEADER_AND_ISR, 7, wire.LeaderAndIsrRequest(1, controller_epoch=1 << 30)),
    (ApiKey.UPDATE_METADATA, 8, wire.UpdateMetadataRequest(1, controller_epoch=1 << 30)),
    (ApiKey.STOP_REPLICA, 4, wire.StopReplicaRequest(1, controller_epoch=1 << 30)),
    (ApiKey.CONTROLLED_SHUTDOWN, 3, wire.ControlledShutdownRequest(1)),
    (ApiKey.ALTER_PARTITION, 3, wire.AlterPartitionRequest(1)),
    (ApiKey.ALLOCATE_PRODUCER_IDS, 0, wire.AllocateProducerIdsRequest(1)),
    (ApiKey.FETCH, 12, wire.FetchRequest(replica_id=1)),
]
"""In the name of broker 1."""
GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # how TLS begins
    b"\x00\x00\x00\x10\x00\x12\x00\x03" + bytes(12),  # a request of Kafka
    b"\x7f\xff\xff\xff" + bytes(100),
    bytes(50),
    b"",
)


def come_as_strangers(pair: Pair, stack: ExitStack) -> None:
    """Unknown programs: some end, some stay and are silent."""
    for node in pair.brokers.values():
        for said in GARBAGE:
            for _ in range(4):
                each = socket.create_connection(("127.0.0.1", node.inner_port))
                stack.callback(each.close)
                with suppress(ConnectionError):
                    each.sendall(said)


def claim(client: WireClient) -> None:
    """What only broker 1 may say is refused by its name."""
    for key, version, request in CLAIMS:
        answer = client.ask(key, version, request)
        assert (key, answer.error_code) == (key, REFUSED)


def until_as_before(pair: Pair, held: Mapping[int, tuple[int, int]]) -> None:
    for broker_id, node in pair.brokers.items():
        until(lambda n=node, b=broker_id: n.held()[0] <= held[b][0] + 4, "connections are closed")
        assert node.held()[1] <= held[broker_id][1] + 8  # handler threads are started as needed


@pytest.mark.parametrize("pair", [pytest.param(SCRAM, id="scram")], indirect=True)
def test_strangers_where_brokers_log_in(pair: Pair) -> None:
    """X-62: clients who log in there are no brokers, and nobody is disturbed by unknown ones."""
    pair.start()
    pair.create_topic()
    pair.produce()
    held = {broker_id: node.held() for broker_id, node in pair.brokers.items()}
    with ExitStack() as stack:
        come_as_strangers(pair, stack)
        with pair.connect(0, ("alice", "wonder")) as client:
            claim(client)
        for user in ((BROKER, "guess"), ("nobody", "wonder")):
            with pytest.raises(SaslAuthenticationError):
                pair.connect(0, user)
        with pair.connect(0) as client:
            client.send(*CLAIMS[-1])
            assert client.is_closed()
        pair.produce()
    until_as_before(pair, held)
    pair.produce()
    pair.wait_until_whole()


@pytest.mark.parametrize("pair", [pytest.param(CERTIFICATES, id="certificates")], indirect=True)
def test_strangers_where_brokers_show_certificates(pair: Pair, tmp_path: Path) -> None:
    """X-63: a broker is the one that its certificate names."""
    pair.start()
    pair.create_topic()
    pair.produce()
    held = {broker_id: node.held() for broker_id, node in pair.brokers.items()}
    sign(tmp_path, "client", "/CN=alice")
    (tmp_path / "other").mkdir()
    make_certificates(tmp_path / "other")
    with ExitStack() as stack:
        come_as_strangers(pair, stack)
        for store in ("broker-0", "client"):
            with pair.connect(0, store=store) as client:
                claim(client)
        for store in (None, "other/client"):
            with (
                pytest.raises((ssl.SSLError, ConnectionError)),
                pair.connect(0, store=store) as client,
            ):
                claim(client)
        with pair.connect(0, store="broker-1") as client:
            request = wire.AllocateProducerIdsRequest(1, -1)
            answer = client.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, request)
            assert answer.error_code != REFUSED
        pair.produce()
    until_as_before(pair, held)
    pair.produce()
    pair.wait_until_whole()


def lines_of(pair: Pair, *brokers: int) -> list[str]:
    each = brokers or pair.brokers
    return [line for b in each for line in pair.brokers[b].said(1 << 20).splitlines()]


@pytest.mark.parametrize(
    ("pair", "wrong", "by", "said"),
    [
        pytest.param(
            SCRAM, {"password": "guess"}, 1, "invalid user or password", id="another password"
        ),
        pytest.param(
            CERTIFICATES,
            {"store": "broker-0"},
            0,
            "broker 1: User:CN=broker-0 at 127.0.0.1 is not believed",
            id="another id",
        ),
        pytest.param(
            CERTIFICATES,
            {"store": "other/client"},
            0,
            "its certificate is not accepted",
            id="another authority",
        ),
    ],
    indirect=["pair"],
)
def test_a_broker_that_is_not_believed_until_it_is(
    pair: Pair, wrong: Mapping[str, str], by: int, said: str, tmp_path: Path
) -> None:
    """Somebody says why, once, and clients see nothing of it."""
    pair.start()
    pair.create_topic()
    pair.brokers[1].stop()
    pair.produce()
    right = pair.brokers[1]
    (tmp_path / "other").mkdir()
    make_certificates(tmp_path / "other")
    began = time.monotonic()
    stranger = pair.node(1, **wrong)
    stranger.launch()
    until(lambda: any(said in line for line in lines_of(pair)), "it is said why")
    pair.produce()
    assert stranger.runs
    stranger.kill()
    found = [line for line in lines_of(pair) if said in line]
    assert 1 <= len(found) <= 1 + (time.monotonic() - began) // 60
    assert found[0] in lines_of(pair, by)
    pair.node(1)  # its password, again
    right.start()
    pair.wait_until_whole()
    pair.produce()
    assert pair.consume() == set(range(pair.acknowledged))
