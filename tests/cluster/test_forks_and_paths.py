"""Brokers in a process that forks, or goes to another directory."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest

from checkpoints.types import TopicPartition
from logstore.common.clock import SystemClock
from logstore.common.errors import ForkedError
from logstore.storage.local import LocalStorage
from logstore.verify import verify
from replication import Cluster, serve
from replication.common.runtime import ThreadRuntime
from replication.coordination import journal, open_coordinator
from replication.coordination.base import ANY_VERSION
from replication.coordination.embedded import CoordinatorStore
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import HttpListener
from tests.support.certificates import make_certificates, needs_openssl
from tests.support.forked import Child, ended_children, held_by_another_thread, in_child
from tests.support.served import connect

TP = TopicPartition("orders", 0)


def refused(*calls: Callable[[], object]) -> None:
    for number, call in enumerate(calls):
        try:
            call()
        except ForkedError:
            continue
        raise AssertionError(f"call {number} was not refused")


@pytest.mark.slow
def test_a_cluster_is_the_parents(tmp_path: Path) -> None:
    def work() -> int | None:
        refused(
            lambda: cluster.produce("orders", b"?"),
            lambda: producer.send("orders", b"?", partition=0),
            lambda: consumer.poll(),
            lambda: cluster.end_offset(TP),
            lambda: cluster.read_all("orders"),
            lambda: cluster.client.leader(TP),
            lambda: cluster.create_topic("others"),
            lambda: cluster.delete_topic("orders"),
            lambda: cluster.start(0),
            lambda: cluster.stop(0),
            lambda: cluster.restart(0),
            lambda: cluster.crash(0),
            lambda: cluster.cut_off(0),
            lambda: cluster.heal(),
            lambda: cluster.session(0),
            lambda: cluster.replica(TP, 0),
            lambda: cluster.wait_until(lambda: False),
        )
        leader = cluster.leader(TP)
        cluster.close()
        cluster.close()
        return leader

    with Cluster(2, tmp_path) as cluster:
        cluster.create_topic("orders")
        producer, consumer = cluster.producer(), cluster.consumer(TP)
        producer.send("orders", b"0")
        with (
            consumer._lock,
            cluster._starting,
            cluster.client.runtime._lock,
            held_by_another_thread(cluster._runtime._changed),
            cluster.coordinator._lock,  # type: ignore[attr-defined]
        ):
            child = Child(work)
        assert child.outcome().get() == cluster.leader(TP)
        assert cluster.produce("orders", b"1").base_offset == 1
        assert [r.value for r in cluster.read_all("orders")[0]] == [b"0", b"1"]
    assert verify([tmp_path / "broker-0", tmp_path / "broker-1"]).findings == []
    with Cluster(2, tmp_path) as cluster:
        assert [r.value for r in cluster.read_all("orders")[0]] == [b"0", b"1"]


@pytest.mark.slow
def test_a_child_that_unwinds_leaves_the_cluster_to_its_parent() -> None:
    with ended_children(), Cluster(1) as cluster:
        cluster.create_topic("orders")
        child = os.fork()
        if not child:
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert Path(cluster.directory).is_dir()
        assert cluster.produce("orders", b"0").base_offset == 0


@pytest.mark.slow
def test_a_child_neither_serves_nor_keeps_an_address(tmp_path: Path) -> None:
    def wait() -> None:
        os.close(writing)  # so that the end of the parent ends the child, too
        kafka.close()
        os.write(closing, b"?")
        assert os.read(reading, 1) == b"!"

    asked = wire.ApiVersionsRequest(client_software_name="test", client_software_version="1")
    reading, writing = os.pipe()
    closed, closing = os.pipe()
    with serve(tmp_path, http=HttpListener()) as kafka:
        assert kafka.http is not None
        kafka.create_topic("orders")
        host, _, port = kafka.bootstrap_servers.partition(":")
        addresses = [(host, int(port)), kafka.http.address]
        client, page = connect(kafka), HTTPConnection(*kafka.http.address)

        def ask() -> None:
            assert client.ask(ApiKey.API_VERSIONS, 3, asked).error_code == 0
            page.request("GET", "/health")
            assert page.getresponse().read()

        ask()
        child = Child(wait)
        assert os.read(closed, 1) == b"?"
        for address in addresses:
            socket.create_connection(address).close()
        ask()  # the client over the same connection
        assert kafka.produce("orders", b"0").base_offset == 0
    assert client.is_closed()
    client.close()
    page.close()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
    os.write(writing, b"!")
    assert child.outcome().error is None
    os.close(reading)
    os.close(writing)


def test_an_embedded_coordinator_is_the_parents(tmp_path: Path) -> None:
    def work() -> object:
        refused(
            lambda: store.connect(),
            lambda: session.create("/more"),
            lambda: session.set("/node", b"other", ANY_VERSION),
            lambda: session.suspend(),
            lambda: store.expire_sessions(2**40),
        )
        found = session.get("/node")
        session.close()
        store.close()
        return None if found is None else found.data

    store = CoordinatorStore(str(tmp_path), LocalStorage(), SystemClock())
    session = store.connect()
    session.create("/node", b"data")
    before = (tmp_path / "coordinator.journal").read_bytes()
    with store._lock:
        child = Child(work)
    assert child.outcome().get() == b"data"
    assert (tmp_path / "coordinator.journal").read_bytes() == before
    session.create("/after")
    store.close()
    store = CoordinatorStore(str(tmp_path), LocalStorage(), SystemClock())
    assert store.connect().children("/") == ["after", "node"]
    store.close()


def test_threads_that_a_fork_loses_are_not_waited_for() -> None:
    runtime = ThreadRuntime()
    runtime.actor("one").post(lambda: None)
    with held_by_another_thread(runtime._changed):
        child = Child(runtime.close)
    assert child.outcome().error is None
    runtime.close()


# -- paths -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cluster_stays_where_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    with Cluster(1, "data") as cluster:
        monkeypatch.chdir(there)
        cluster.create_topic("orders")
        cluster.produce("orders", b"0")
        cluster.restart(0)
        cluster.produce("orders", b"1")
    assert list(there.iterdir()) == []
    with Cluster(1, here / "data") as cluster:
        assert [r.value for r in cluster.read_all("orders")[0]] == [b"0", b"1"]


@pytest.mark.slow
@needs_openssl
def test_keys_of_tls_are_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from replication.network import Listener, SecurityProtocol

    make_certificates(tmp_path)
    monkeypatch.chdir(tmp_path)
    listener = Listener("SSL", "127.0.0.1", 0, SecurityProtocol.SSL)
    config = {
        "ssl.keystore.location": "server.pem",
        "ssl.truststore.location": "ca.pem",
    }
    with serve("data", listeners=[listener], config=config) as kafka:
        monkeypatch.chdir("/")
        kafka.restart(0)
        assert kafka.live_brokers == [0]


def test_an_embedded_coordinator_stays_where_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_coordinator("embedded:tree")
    assert isinstance(store, CoordinatorStore)
    monkeypatch.chdir(tmp_path / "there")
    session = store.connect()
    monkeypatch.setattr(journal, "COMPACT_BYTES", 0)
    session.create("/node", bytes(1000))  # the journal is replaced
    assert store._journal._snapshot_end > 1000
    store.close()
    assert list((tmp_path / "there").iterdir()) == []
    assert in_child(lambda: sorted(os.listdir(tmp_path / "tree"))).get() == [
        ".lock",
        "coordinator.journal",
    ]
