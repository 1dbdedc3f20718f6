"""A client's connections: brokers that lie, hang, move or go away, and what a client says then."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, ForkedError
from logstore.testing import ManualClock
from replication import Consumer, Producer, connect
from replication.common.errors import (
    BrokerUnavailableError,
    ReplicationError,
    SaslAuthenticationError,
)
from replication.common.messages import (
    FetchPartition,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    ProducePartition,
    ProduceRequest,
    Request,
    Response,
)
from replication.network import Listener, SecurityProtocol
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.security.credentials import UserCredentials
from replication.server.kafka_server import Exposure
from replication.wire.access import ClusterAccess
from replication.wire.calls import MAX_FETCH_LANES, MAX_RESPONSE_BYTES
from replication.wire.transport import FIRST_BOOTSTRAP_ID, TcpTransport
from tests.support.cases import for_each
from tests.support.certificates import make_certificates, needs_openssl
from tests.support.forked import in_child
from tests.support.leftovers import nothing_left
from tests.support.peers import VERSIONS, Peer, Script, scripted
from tests.support.served import served
from tests.support.until import patience, until

TP = TopicPartition("orders", 0)
METADATA = wire.MetadataResponse
BOOTSTRAP = FIRST_BOOTSTRAP_ID
SETUP_TIMEOUT_MS, IDLE_MS = 10_000, 540_000
ASKED = MetadataRequest()


def described(*brokers: tuple[int, str, int]) -> wire.MetadataResponse:
    kind = METADATA.MetadataResponseBroker
    return METADATA(brokers=tuple(kind(*broker) for broker in brokers), controller_id=1)


class Asker:
    """A transport, and the answers that it brings."""

    def __init__(self, transport: TcpTransport) -> None:
        self.transport = transport

    def begin(
        self, request: Request, broker_id: int = BOOTSTRAP, timeout_ms: int = 10**7
    ) -> Callable[[], Response | None]:
        answers: SimpleQueue[Response | None] = SimpleQueue()
        self.transport.send(broker_id, request, answers.put, timeout_ms)
        return lambda: answers.get(timeout=patience())

    def ask(self, request: Request = ASKED, broker_id: int = BOOTSTRAP) -> Any:
        return self.begin(request, broker_id)()

    @property
    def reason(self) -> str:
        return "; ".join(map(str, self.transport.failures()))


@contextmanager
def asking(
    *servers: tuple[str, int], clock: ManualClock | None = None, **options: Any
) -> Iterator[Asker]:
    with nothing_left():
        transport = TcpTransport(ClusterAccess(servers, **options), clock)
        try:
            yield Asker(transport)
        finally:
            transport.close()


def answering(message: Any) -> Script:
    def script(peer: Peer, number: int) -> None:
        peer.greet()
        while True:
            header, _ = peer.receive()
            peer.answer(header, message)

    return script


def test_each_request_in_the_latest_version_of_both() -> None:
    seen = []

    def script(peer: Peer, number: int) -> None:
        peer.greet()
        header, request = peer.receive()
        seen.append((header.api_version, header.client_id, request.topics))
        peer.answer(header, described((1, "h", 1)))

    with scripted(script) as address, asking(address, client_id="me") as asker:
        answer = asker.ask()
        assert isinstance(answer, MetadataResponse)
        assert asker.transport.brokers() == [1]
    assert seen == [(9, "me", None)]


@pytest.mark.parametrize("says", [(), VERSIONS.api_keys[-1:]])
def test_an_old_broker_is_asked_once_more_for_its_versions(says: tuple[Any, ...]) -> None:
    """It does not know the version of the question. Before Kafka 2.4 it says no more than that,
    later which versions of ApiVersions there are."""

    def script(peer: Peer, number: int) -> None:
        header, _ = peer.receive()
        refused = wire.ApiVersionsResponse(error_code=35, api_keys=says)
        peer.answer(header, refused, version=0)
        header, _ = peer.receive()
        assert (header.api_key, header.api_version) == (18, 0)
        peer.answer(header, VERSIONS)
        header, _ = peer.receive()
        peer.answer(header, described((1, "h", 1)))

    with scripted(script) as address, asking(address) as asker:
        assert asker.ask() is not None


def hello(peer: Peer) -> None:
    peer.greet()
    peer.receive()


def wrong_id(peer: Peer) -> None:
    peer.greet()
    header, _ = peer.receive()
    peer.answer(header, described(), shift=1)


def unasked(peer: Peer) -> None:
    peer.greet()
    header, _ = peer.receive()
    peer.answer(header, described((1, "127.0.0.1", 1)))
    peer.answer(header, described((1, "127.0.0.1", 1)))
    peer.receive()


@for_each(
    "script, reason",
    [
        pytest.param(lambda p: None, "at once: it may expect TLS", id="goes away"),
        pytest.param(hello, "at the first request: it may expect a login", id="then goes away"),
        pytest.param(lambda p: p.socket.sendall(struct.pack(">i", -1)), "-1 bytes", id="negative"),
        pytest.param(
            lambda p: p.socket.sendall(struct.pack(">i", MAX_RESPONSE_BYTES + 1)),
            f"{MAX_RESPONSE_BYTES + 1} bytes",
            id="too large",
        ),
        pytest.param(lambda p: p.socket.sendall(b"HTTP/1.1 400"), "bytes", id="HTTP"),
        pytest.param(
            lambda p: p.socket.sendall(bytes([0x15, 3, 3, 0, 2, 2, 80])), "in TLS", id="an alert"
        ),
        pytest.param(wrong_id, "answers request", id="another's"),
        pytest.param(
            lambda p: (p.receive(), p.send(b"\0\0\0\0\0\0\xff\xff\xff\xff")),
            "ApiVersionsResponse",
            id="a count without elements",
        ),
        pytest.param(lambda p: p.send(b"\0\0\0\0"), "ApiVersionsResponse|before", id="early"),
        pytest.param(
            lambda p: p.answer(p.receive()[0], wire.ApiVersionsResponse(error_code=42)),
            "error 42",
            id="an error",
        ),
    ],
)
def test_what_is_no_answer_ends_the_connection(script: Callable[[Peer], Any], reason: str) -> None:
    with scripted(lambda peer, _: script(peer)) as address, asking(address) as asker:
        assert asker.ask() is None
        assert asker.reason.startswith(f"{address[0]}:{address[1]}: ")
        assert re.search(reason, asker.reason), asker.reason


def test_an_answer_to_nothing_ends_the_connection() -> None:
    """The next request goes over another one."""
    with scripted(lambda peer, _: unasked(peer)) as address, asking(address) as asker:
        assert asker.ask() is not None
        until(lambda: "was not asked" in asker.reason or asker.ask(), "the second answer came")


def test_nobody_is_there() -> None:
    with socket.socket() as deaf:  # it has the port, and does not listen
        deaf.bind(("127.0.0.1", 0))
        with asking(deaf.getsockname(), ("no.such.host.invalid", 9), ("a..b", 9)) as asker:
            for at in range(3):
                assert asker.ask(broker_id=BOOTSTRAP - at) is None
            refused, unknown, no_name = map(str, asker.transport.failures())
            assert "Connection refused" in refused
            assert unknown.startswith("no.such.host.invalid:9: the name cannot be found")
            assert no_name.startswith("a..b:9: the name cannot be found")


def test_what_clients_do_not_send() -> None:
    with asking(("127.0.0.1", 1)) as asker, pytest.raises(TypeError, match="str"):
        asker.begin("no request")  # type: ignore[arg-type]


def test_no_thread_is_left_to_look_a_name_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails on the way to a broker is an answer, and does not end the client."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with (
        scripted(answering(described((1, "h", 1)))) as address,
        asking(("some.host.invalid", 9), address) as asker,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            assert asker.ask() is None
        assert asker.ask(broker_id=BOOTSTRAP - 1) is not None


def test_unknown_brokers_are_not_asked() -> None:
    with asking(("127.0.0.1", 1)) as asker:
        assert asker.ask(broker_id=77) is None


def test_a_broker_that_stays_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """So a command that waits for a leader says why: brokers may name themselves wrongly."""
    clock = ManualClock()
    with asking(("127.0.0.1", 1), clock=clock) as asker:
        for _ in range(4):
            assert asker.ask() is None
            clock.advance(2000)
    assert caplog.messages == ["127.0.0.1:1: Connection refused; it is tried again"]


def test_a_broker_that_fails_is_left_alone_for_a_while() -> None:
    """Requests fail at once meanwhile. The pause ends; then it is asked anew."""
    connections = []
    clock = ManualClock()

    def script(peer: Peer, number: int) -> None:
        connections.append(number)
        if number:
            answering(described((1, "h", 1)))(peer, number)

    with scripted(script) as address, asking(address, clock=clock) as asker:
        assert asker.ask() is None
        assert asker.ask() is None
        assert connections == [0]
        clock.advance(1000)
        assert asker.ask() is not None
        assert connections == [0, 1]
        assert asker.reason == ""


@pytest.mark.parametrize("greets", [False, True])
def test_a_silent_broker_is_given_up(greets: bool) -> None:
    """What comes later is not taken for the answer to another request."""
    clock, silent, heard = ManualClock(), threading.Event(), threading.Event()

    def script(peer: Peer, number: int) -> None:
        if greets:
            peer.greet()
        peer.receive()
        heard.set()
        silent.wait(patience())

    with scripted(script) as address, asking(address, clock=clock) as asker:
        answer = asker.begin(MetadataRequest(), timeout_ms=50)
        assert heard.wait(patience())
        clock.advance(51)
        asker.transport.wake()
        assert answer() is None
        assert "in time" in asker.reason
        silent.set()


def test_a_connection_that_takes_too_long_is_given_up() -> None:
    clock, heard, silent = ManualClock(), threading.Event(), threading.Event()

    def script(peer: Peer, number: int) -> None:
        peer.receive()
        heard.set()
        silent.wait(patience())

    with scripted(script) as address, asking(address, clock=clock) as asker:
        answer = asker.begin(MetadataRequest())
        assert heard.wait(patience())
        clock.advance(SETUP_TIMEOUT_MS + 1)
        asker.transport.wake()
        assert answer() is None
        silent.set()


@contextmanager
def nobody_accepts() -> Iterator[tuple[str, int]]:
    """An address at which connections hang."""
    with socket.socket() as full, ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):  # so that the kernel takes no more
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield full.getsockname()


def test_a_request_is_answered_once_though_nobody_accepts() -> None:
    clock = ManualClock()
    answers: list[Response | None] = []
    with nobody_accepts() as full, asking(full, clock=clock) as asker:
        asker.transport.send(BOOTSTRAP, ASKED, answers.append, 50)
        until(lambda: asker.transport._channels, "it connects")
        clock.advance(51)
        asker.transport.wake()
        until(lambda: answers, "it gives up")
    assert answers == [None]


def test_an_address_that_is_silent_does_not_hide_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, heard = ManualClock(), SimpleQueue[ApiKey]()

    def script(peer: Peer, number: int) -> None:
        peer.greet()
        header, _ = peer.receive()
        heard.put(header.api_key)
        if header.api_key is ApiKey.METADATA:
            peer.answer(header, described((1, "h", 1)))
        peer.receive()

    with nobody_accepts() as full, scripted(script) as alive:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*kind, full), (*kind, alive)])
        with asking(("two.addresses", 1), clock=clock) as asker:
            answer = asker.begin(ASKED)
            until(lambda: asker.transport._channels, "it connects")
            clock.advance(SETUP_TIMEOUT_MS)
            asker.transport.wake()
            assert isinstance(answer(), MetadataResponse)
            # A second connection begins with the address that answered: no time passes.
            asker.begin(FetchRequest((FetchPartition(TP, 0, 1000),)))
            assert heard.get(timeout=patience()) is ApiKey.METADATA
            assert heard.get(timeout=patience()) is ApiKey.FETCH


@pytest.mark.parametrize("who", ["broker", "client"])
def test_idle_connections_end_quietly(who: str) -> None:
    clock, ended, closes = ManualClock(), [], threading.Event()

    def script(peer: Peer, number: int) -> None:
        peer.greet()
        header, _ = peer.receive()
        peer.answer(header, described((1, "127.0.0.1", 1)))
        if who == "client" or number:
            with pytest.raises(ConnectionError):
                peer.receive()
        else:
            closes.wait(patience())
        ended.append(number)

    with scripted(script) as address, asking(address, clock=clock) as asker:
        assert asker.ask() is not None
        closes.set()
        clock.advance(IDLE_MS + 1 if who == "client" else 1)
        asker.transport.wake()
        until(lambda: ended == [0], "the connection has ended")
        until(lambda: not asker.transport._channels, "the transport has seen that")
        until(lambda: asker.ask() is not None, "there is another one")
        assert asker.reason == ""


def test_brokers_move() -> None:
    """The address is that of the last metadata, and with no broker left, that of the beginning."""
    with (
        scripted(answering(wire.ListOffsetsResponse())) as old,
        scripted(answering(described((1, "127.0.0.1", 1)))) as first,
        asking(first) as asker,
    ):
        assert asker.ask() is not None
        assert asker.transport.brokers() == [1]
        assert asker.ask(broker_id=1) is None
        assert asker.transport.brokers()[-1] == BOOTSTRAP
        assert old != first


def test_each_waiting_fetch_has_a_connection() -> None:
    """Others share one. So many fetches wait at most; more of them queue behind these."""
    numbers, held = [], threading.Event()
    fetch = FetchRequest((FetchPartition(TP, 0),))
    question = ListOffsetsRequest((ListOffsetsPartition(TP, -1),))
    kind = wire.ListOffsetsResponse
    listed = kind(
        topics=(kind.ListOffsetsTopicResponse("orders", (kind.ListOffsetsPartitionResponse(0),)),)
    )

    def script(peer: Peer, number: int) -> None:
        peer.greet()
        while True:
            header, _ = peer.receive()
            if header.api_key == 1:
                numbers.append(number)
                held.wait(patience())
                peer.answer(header, wire.FetchResponse())
            else:
                peer.answer(header, listed)

    with scripted(script) as address, asking(address) as asker:
        waiting = [asker.begin(fetch) for _ in range(MAX_FETCH_LANES + 3)]
        until(lambda: len(numbers) == MAX_FETCH_LANES, "as many as may wait")
        assert all(asker.ask(question) is not None for _ in range(3))
        held.set()
        assert all(answer() is not None for answer in waiting)
        assert len(set(numbers)) == MAX_FETCH_LANES


def test_what_no_answer_is_meant_for_is_done_when_it_is_sent() -> None:
    received = threading.Event()

    def script(peer: Peer, number: int) -> None:
        peer.greet()
        _, request = peer.receive()
        assert request.acks == 0
        received.set()
        peer.receive()

    with scripted(script) as address, asking(address) as asker:
        answer = asker.ask(ProduceRequest(0, 1000, (ProducePartition(TP, b"x" * 10**6),)))
        (part,) = answer.partitions
        assert (part.tp, part.error_code, part.base_offset) == (TP, 0, -1)
        assert received.wait(patience())


def test_a_request_that_the_broker_does_not_serve_harms_no_other() -> None:
    with scripted(answering(described((1, "h", 1)))) as address, asking(address) as asker:
        assert asker.ask() is not None
        assert asker.ask(InitProducerIdRequest()) is None
        assert "INIT_PRODUCER_ID" in asker.reason
        assert asker.ask() is not None


def test_a_callback_that_fails_harms_no_other() -> None:
    def fail(response: Response | None) -> None:
        raise ValueError("of the caller")

    with scripted(answering(described((1, "h", 1)))) as address, asking(address) as asker:
        asker.transport.send(BOOTSTRAP, MetadataRequest(), fail)
        assert asker.ask() is not None


# -- connect ----------------------------------------------------------------------------------


def test_a_topic_that_is_not_for_this_client() -> None:
    """It is there: to say that it is not would send its owner the wrong way."""
    kind = METADATA.MetadataResponseBroker
    topics = (METADATA.MetadataResponseTopic(29, "secret"),)

    def script(peer: Peer, number: int) -> None:
        host, port = peer.socket.getsockname()
        answering(METADATA(brokers=(kind(1, host, port),), topics=topics))(peer, number)

    with scripted(script) as (host, port), connect(f"{host}:{port}") as client:
        with pytest.raises(ReplicationError, match="TOPIC_AUTHORIZATION_FAILED: secret"):
            client.partitions("secret")
        with pytest.raises(ReplicationError, match="TOPIC_AUTHORIZATION_FAILED: secret"):
            Producer(client).send("secret", b"value")


def test_the_first_address_that_answers() -> None:
    with (
        served(1) as kafka,
        nothing_left(),
        connect(f"127.0.0.1:1,no.such.host.invalid,{kafka.bootstrap_servers}") as client,
    ):
        kafka.create_topic("orders")
        assert [tp.partition for tp in client.partitions("orders")] == [0]
        assert client.topics() == ["orders"]


def test_what_is_wrong_with_each_address() -> None:
    with nothing_left(), pytest.raises(BrokerUnavailableError) as caught:
        connect("127.0.0.1:1,no.such.host.invalid:9")
    assert "127.0.0.1:1: Connection refused; no.such.host.invalid:9: the name" in str(caught.value)


@for_each(
    "servers, config",
    [
        ("", {}),
        ("host:port", {}),
        ("127.0.0.1:1", {"metadata.max.age.ms": "soon"}),
        ("127.0.0.1:1", {"security.protocol": "TELNET"}),
    ],
)
def test_a_configuration_that_is_none(servers: str, config: dict[str, str]) -> None:
    with nothing_left(), pytest.raises(ConfigError):
        connect(servers, config)


def test_a_child_leaves_the_connections_to_its_parent() -> None:
    with served(1) as kafka, connect(kafka.bootstrap_servers) as client:
        (tp,) = kafka.create_topic("orders")
        producer = Producer(client)
        producer.send("orders", b"before")

        def child() -> None:
            with pytest.raises(ForkedError):
                producer.send("orders", b"of the child")
            client.close()

        in_child(child).get()
        producer.send("orders", b"after")
        records = Consumer(client, [tp]).read_to_end(patience())
        assert [record.value for _, record in records] == [b"before", b"after"]


@needs_openssl
@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_tls_and_logins(tmp_path: Path, protocol: str, mechanism: str) -> None:
    folder = make_certificates(tmp_path)
    kind = SecurityProtocol[protocol]
    with served(
        1,
        {"ssl.keystore.location": str(folder / "server.pem")},
        listeners=[Listener("L", "127.0.0.1", 0, kind)],
        exposure=Exposure(credentials=UserCredentials({"me": "secret"})),
    ) as kafka:
        config = {
            "security.protocol": protocol,
            "ssl.truststore.location": str(folder / "ca.pem"),
            "sasl.mechanism": mechanism,
            "sasl.username": "me",
            "sasl.password": "secret",
        }
        with connect(kafka.bootstrap_servers, config) as client:
            (tp,) = kafka.create_topic("orders")
            Producer(client, idempotent=True).send("orders", b"x" * 200_000)
            records = Consumer(client, [tp]).read_to_end(patience())
            assert [record.value for _, record in records] == [b"x" * 200_000]
        if "SASL" in protocol:
            with pytest.raises(SaslAuthenticationError, match=r"127.0.0.1:.*'me' is refused"):
                connect(kafka.bootstrap_servers, config | {"sasl.password": "another"})
        other = {"SSL": "PLAINTEXT", "SASL_PLAINTEXT": "SSL", "SASL_SSL": "SASL_PLAINTEXT"}
        with pytest.raises(BrokerUnavailableError, match=r"TLS|security.protocol"):
            connect(kafka.bootstrap_servers, config | {"security.protocol": other[protocol]})
        if protocol != "SASL_PLAINTEXT":
            del config["ssl.truststore.location"]
            with pytest.raises(BrokerUnavailableError, match="certificate is not accepted"):
                connect(kafka.bootstrap_servers, config)
