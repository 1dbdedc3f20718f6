"""Others who talk to brokers, or answer in a broker's place: nobody is harmed."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from tests.processes.nodes import Node, Nodes
from tests.processes.records import Records
from tests.support.served import fetch_request
from tests.support.until import patience, until
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow
CONNECTIONS = 10_000
NOT_A_BROKER = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _ports(nodes: Nodes, broker_id: int) -> tuple[int, int]:
    node = nodes.brokers[broker_id]
    return node.client_port, node.inner_port


def _await_descriptors(node: Node, before: tuple[int, int]) -> None:
    """Until no more are open than before; peers and clients may have a few others."""
    until(lambda: node.held()[0] <= before[0] + 4, "connections are closed")


def test_random_bytes_and_frames_that_lie(shared: Nodes) -> None:
    """At both listeners, and at their lengths, headers and bodies; an honest client is served."""
    records = Records(shared)
    rng = random.Random(7)
    records.append()
    records.check()  # the first look has the topic of committed offsets made, which has files, too
    shared.wait_until_whole()
    held = {broker_id: node.held() for broker_id, node in shared.brokers.items()}
    for broker_id in shared.brokers:
        for port in _ports(shared, broker_id):
            for _ in range(40):
                with socket.create_connection(("127.0.0.1", port)) as stranger:
                    body = rng.randbytes(rng.randrange(0, 200))
                    key, version = rng.randrange(0, 80), rng.randrange(0, 20)
                    head = struct.pack(">hhi", key, version, 1) if rng.random() < 0.7 else b""
                    size = len(head + body) if rng.random() < 0.7 else rng.randrange(-9, 1 << 31)
                    with suppress(ConnectionError):
                        stranger.sendall(struct.pack(">i", size) + head + body)
                        if rng.random() < 0.3:
                            stranger.shutdown(socket.SHUT_WR)
    records.append()
    records.check()
    for broker_id, node in shared.brokers.items():
        _await_descriptors(node, held[broker_id])


def test_a_client_claims_to_be_a_follower(shared: Nodes) -> None:
    """X-62: at the listener of clients, it moves no high watermark and reads nothing."""
    records = Records(shared, 1)
    records.append()
    (tp,) = records.tps
    leader = shared.leader(tp)
    follower = next(b for b in shared.brokers if b != leader)
    with WireClient("127.0.0.1", shared.brokers[leader].client_port) as stranger:
        request = fetch_request((tp, {"fetch_offset": 10**6}), replica_id=follower)
        answer = stranger.ask(ApiKey.FETCH, 11, request)
        ((part,),) = (topic.partitions for topic in answer.responses)
        assert part.error_code in NOT_A_BROKER
        assert not part.records
    records.append()
    records.check()


@contextmanager
def _in_the_place_of(nodes: Nodes, broker_id: int, say: bytes) -> Iterator[list[int]]:
    """Whoever connects to where that broker was for its peers gets these bytes for each piece that
    it sends; yields one number for each connection."""
    met: list[int] = []
    with ExitStack() as stack:
        listening = socket.create_server(("127.0.0.1", nodes.brokers[broker_id].inner_port))
        stack.callback(listening.close)
        stack.callback(listening.shutdown, socket.SHUT_RDWR)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    end, _ = listening.accept()
                    met.append(1)
                    with end, suppress(OSError):
                        end.settimeout(patience())
                        while end.recv(1 << 16):
                            end.sendall(say)

        for _ in range(4):
            threading.Thread(target=serve, daemon=True).start()
        yield met


@pytest.mark.parametrize(
    "say",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="another protocol"),
        pytest.param(struct.pack(">ii", 4, 77), id="the answer of another request"),
        *(
            pytest.param(struct.pack(">i", size), id=what, marks=pytest.mark.long)
            for size, what in ((0x7FFFFFFF, "a length of two gigabytes"), (-1, "a negative length"))
        ),
    ],
)
def test_somebody_else_answers_at_a_brokers_address(shared: Nodes, say: bytes) -> None:
    """The others go on without it, say whom they met, and take the broker back."""
    records = Records(shared)
    gone = next(b for b in shared.brokers if b != shared.controller)
    shared.brokers[gone].kill()
    with _in_the_place_of(shared, gone, say) as met:
        until(lambda: len(met) >= 2, "the others ask again")
        records.append()
        for broker_id, node in shared.brokers.items():
            if broker_id != gone:
                assert node.runs
                assert node.rss_mib() < 500
    shared.brokers[gone].start()
    shared.wait_until_whole()
    records.append()
    records.check()


def test_a_peer_of_another_cluster(shared: Nodes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its address is where one of ours was, and its topic has the same name: nobody follows it."""
    records = Records(shared)
    records.append()
    gone = next(b for b in shared.brokers if b != shared.controller)
    ours = shared.brokers[gone]
    ours.kill()
    directory = tmp_path_factory.mktemp("another")
    with Nodes(directory, brokers=gone + 1, start=False) as another:
        stranger = another.brokers[gone]
        stranger.inner_port = ours.inner_port
        stranger.advertised_port = None
        stranger.config |= {"min.insync.replicas": 1, "default.replication.factor": 1}
        stranger.start()
        records.append()
    ours.start()
    shared.wait_until_whole()
    records.append()
    records.check()


@pytest.mark.long
def test_ten_thousand_connections(shared: Nodes) -> None:
    """They wait at a broker's listener for its peers; replication goes on, and they are closed."""
    records = Records(shared)
    node = shared.brokers[shared.leader(records.tps[0])]
    before = node.held()
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            with suppress(ConnectionError):
                stack.enter_context(socket.create_connection(("127.0.0.1", node.inner_port)))
        records.append()
    _await_descriptors(node, before)
    records.append()
    records.check()
