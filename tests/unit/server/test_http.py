"""Health, metrics, state and page of running brokers, asked for over a real socket."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.embedded.cluster import Cluster
from replication.server.http import GroupSnapshot, cluster_state
from replication.server.http import http_server as module
from replication.server.http.http_server import HttpServer
from replication.server.http.state import TRUNCATIONS_MAX, Selection, select
from tests.support.until import patience, until

TP = TopicPartition("orders", 0)


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HAS_IPV6 = _has_ipv6()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, tmp_path) as cluster:
        cluster.create_topic("orders", 1)
        yield cluster


def brokers_of(cluster: Cluster) -> Callable[[], list[Any]]:
    return lambda: [cluster.broker(broker_id) for broker_id in cluster.live_brokers]


def ask(
    server: HttpServer, path: str, headers: dict[str, str] | None = None
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*server.address, timeout=patience())
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    answer.body = answer.read()  # type: ignore[attr-defined]
    connection.close()
    return answer


def state_of(server: HttpServer, query: str = "") -> dict[str, Any]:
    answer = ask(server, f"/state{query}")
    assert answer.status == 200
    found: dict[str, Any] = json.loads(answer.body)  # type: ignore[attr-defined]
    return found


def test_state_shows_leader_isr_and_offsets(cluster: Cluster) -> None:
    for number in range(5):
        cluster.produce("orders", b"%d" % number)
    groups = [GroupSnapshot("billing", "Stable", "consumer", 2, {TP: 3})]
    with HttpServer(brokers_of(cluster), lambda: groups) as server:
        state = state_of(server)
    (partition,) = state["partitions"]
    assert partition["leader"] == cluster.leader(TP)
    assert partition["isr"] == [0, 1, 2]
    assert partition["high_watermark"] == 5
    ends = {replica["broker"]: replica["log_end_offset"] for replica in partition["replicas"]}
    assert ends == {0: 5, 1: 5, 2: 5}
    assert sum(broker["is_controller"] for broker in state["brokers"]) == 1
    (group,) = state["groups"]
    assert group["offsets"] == [
        {"topic": "orders", "partition": 0, "committed": 3, "high_watermark": 5, "lag": 2}
    ]


@pytest.mark.skipif(not HAS_IPV6, reason="the machine has no ::1")
def test_an_address_of_ipv6(cluster: Cluster) -> None:
    with HttpServer(brokers_of(cluster), host="::1") as server:
        assert server.address[0] == "::1"
        assert ask(server, "/health").status == 200


def test_lag_is_unknown_for_a_partition_that_is_not_here(cluster: Cluster) -> None:
    elsewhere = GroupSnapshot("g", "Empty", "consumer", 0, {TopicPartition("gone", 0): 7})
    (group,) = cluster_state(brokers_of(cluster)(), [elsewhere])["groups"]
    assert group["offsets"][0]["lag"] is None


def test_lag_is_below_zero_where_the_partition_has_lost_what_was_committed(
    cluster: Cluster,
) -> None:
    cluster.produce("orders", b"0")
    ahead = GroupSnapshot("g", "Empty", "consumer", 0, {TP: 7})
    (group,) = cluster_state(brokers_of(cluster)(), [ahead])["groups"]
    assert group["offsets"][0]["lag"] == -6


def test_a_truncation_is_shown_with_what_was_given_up(cluster: Cluster) -> None:
    leader = cluster.leader(TP)
    assert leader is not None
    cluster.produce("orders", b"all have it")
    producer = cluster.producer(acks=1)
    others = [broker for broker in cluster.broker_ids if broker != leader]
    for other in others:
        cluster.network.cut(other, leader)
    for number in range(3):
        producer.send("orders", b"only the leader has it %d" % number)
    cluster.crash(leader)
    cluster.heal()
    new = cluster.wait_for_leader(TP, not_broker=leader)
    cluster.produce("orders", b"of the next leader")
    cluster.start(leader)
    cluster.wait_for_isr(TP, cluster.broker_ids)
    with HttpServer(brokers_of(cluster)) as server:
        (cut,) = [t for t in state_of(server)["truncations"] if t["broker"] == leader]
    assert (cut["topic"], cut["partition"]) == ("orders", 0)
    assert (cut["from_offset"], cut["to_offset"]) == (4, 1)
    assert cut["leader_epoch"] == cluster.replica(TP, new).leader_epoch
    assert cut["ago_ms"] >= 0


def partition(topic: str, number: int, leader: int = 0, isr: str = "012") -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": number,
        "leader": leader,
        "isr": [int(broker) for broker in isr],
        "replicas": [{"broker": broker} for broker in range(3)],
    }


def group(name: str, *lags: int | None, topic: str = "orders") -> dict[str, Any]:
    offsets = [{"topic": topic, "partition": n, "lag": lag} for n, lag in enumerate(lags)]
    return {"group": name, "offsets": offsets}


PICTURE = {
    "counts": {},
    "partitions": [
        partition("__consumer_offsets", 0),
        *(partition("orders", n) for n in range(4)),
        partition("orders", 4, isr="01"),
        partition("payments", 0, leader=-1, isr=""),
    ],
    "groups": [group("audit"), group("billing", 0, 3, None), group("mail", 0, topic="payments")],
    "truncations": [{"topic": "orders"}] * 30,
}


def rows(state: dict[str, Any]) -> list[str]:
    return [f"{p['topic']}-{p['partition']}" for p in state["partitions"]]


def lines(state: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(g["group"], [o["partition"] for o in g["offsets"]]) for g in state["groups"]]


def test_a_selection_begins_with_what_is_not_well() -> None:
    found = select(PICTURE, Selection(limit=3))
    assert rows(found) == ["orders-4", "payments-0", "orders-0"]
    assert lines(found) == [("billing", [1, 2]), ("audit", [])]
    assert found["counts"] == {"selected_partitions": 6, "selected_offsets": 5}
    assert len(found["truncations"]) == TRUNCATIONS_MAX
    later = select(PICTURE, Selection(start=3, group_start=3, limit=3))
    assert rows(later) == ["orders-1", "orders-2", "orders-3"]
    assert lines(later) == [("billing", [0]), ("mail", [0])]


def test_a_selection_of_what_is_not_well() -> None:
    found = select(PICTURE, Selection(unwell=True))
    assert rows(found) == ["orders-4", "payments-0"]
    assert lines(found) == [("billing", [1, 2])]
    assert found["counts"] == {"selected_partitions": 2, "selected_offsets": 2}


def test_a_selection_by_a_part_of_a_name() -> None:
    found = select(PICTURE, Selection("PAY"))
    assert (rows(found), lines(found)) == (["payments-0"], [("mail", [0])])
    found = select(PICTURE, Selection("bill"))
    assert (rows(found), lines(found)) == ([], [("billing", [1, 2, 0])])
    assert rows(select(PICTURE, Selection("__", internal=True))) == ["__consumer_offsets-0"]


def test_what_a_selection_may_ask_for(cluster: Cluster) -> None:
    with HttpServer(brokers_of(cluster)) as server:
        well = ask(server, "/state?text=ORD&limit=1&unwell=0")
        assert well.status == 200
        assert rows(json.loads(well.body)) == ["orders-0"]  # type: ignore[attr-defined]
        assert "selected_partitions" not in state_of(server, "?_=17&colour=red")["counts"]
        for query in ("start=-1", "limit=501", "limit=1_0", "start=+3", "start=", "a&" * 99):
            assert ask(server, f"/state?{query}").status == 400, query


def test_selections_share_a_picture_for_a_moment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pages ask, and whatever it costs. Without a selection the state is of now."""
    asked: list[None] = []

    def brokers() -> list[Any]:
        asked.append(None)
        return brokers_of(cluster)()

    monkeypatch.setattr(module, "PICTURE_S", 1e6)
    with HttpServer(brokers) as server:
        for _ in range(5):
            assert ask(server, "/state?start=0").status == 200
        assert len(asked) == 1
        state_of(server)
        assert len(asked) == 2
    monkeypatch.setattr(module, "PICTURE_S", 0.0)
    monkeypatch.setattr(module, "PICTURE_SHARE", 0)
    with HttpServer(brokers) as server:
        for _ in range(5):
            ask(server, "/state?start=0")
    assert len(asked) == 7


def test_a_long_answer_is_compressed_for_those_who_take_it(cluster: Cluster) -> None:
    cluster.create_topic("payments", 20)
    with HttpServer(brokers_of(cluster)) as server:
        plain = ask(server, "/state")
        assert plain.headers["Content-Encoding"] is None
        packed = ask(server, "/state", {"Accept-Encoding": "gzip, br"})
        assert packed.headers["Content-Encoding"] == "gzip"
        assert len(packed.body) < len(plain.body) / 5  # type: ignore[attr-defined]
        assert json.loads(gzip.decompress(packed.body))["version"] == 2  # type: ignore[attr-defined]
        short = ask(server, "/health", {"Accept-Encoding": "gzip"})
        assert short.headers["Content-Encoding"] is None


class WithoutPartitions:
    """A broker that the controller has not told of any partition yet."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        stats = broker.replica_manager.stats
        self.replica_manager = SimpleNamespace(partitions={}, stats=stats, truncations=())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


def test_a_replica_that_is_not_online_says_why(cluster: Cluster) -> None:
    """Its broker does not have it yet, or is not among those that are shown."""
    leader = cluster.leader(TP)
    away, new = (broker for broker in cluster.broker_ids if broker != leader)
    here = [broker for broker in brokers_of(cluster)() if broker.broker_id != away]
    here = [WithoutPartitions(b) if b.broker_id == new else b for b in here]
    state = cluster_state(here)
    states = {each["broker"]: each["state"] for each in state["partitions"][0]["replicas"]}
    assert states == {leader: "online", away: "unknown", new: "absent"}
    assert state["counts"] == {"partitions": 1, "leaderless": 0, "under_replicated": 0}


def test_a_partition_that_is_being_made_has_no_leader_and_is_not_short_of_replicas(
    cluster: Cluster,
) -> None:
    leader = cluster.leader(TP)
    here = brokers_of(cluster)()
    state = cluster_state(WithoutPartitions(b) if b.broker_id == leader else b for b in here)
    assert state["counts"] == {"partitions": 1, "leaderless": 1, "under_replicated": 0}
    states = {each["state"] for each in state["partitions"][0]["replicas"]}
    assert states == {"online", "absent"}


def test_a_leader_in_another_process_is_known_from_the_controller(cluster: Cluster) -> None:
    leader = cluster.leader(TP)
    followers = [broker for broker in brokers_of(cluster)() if broker.broker_id != leader]
    until(lambda: all(broker.metadata.registration(TP) for broker in followers), "the metadata")
    state = cluster_state(followers)
    assert state["partitions"][0]["leader"] == leader
    assert state["partitions"][0]["isr"] == [0, 1, 2]
    assert state["counts"] == {"partitions": 1, "leaderless": 0, "under_replicated": 0}


def test_health_follows_the_brokers(cluster: Cluster) -> None:
    brokers = brokers_of(cluster)()
    with HttpServer(lambda: brokers) as server:
        well = ask(server, "/health")
        assert well.status == 200
        cluster.stop(2)
        ill = ask(server, "/health")
    assert ill.status == 503
    told = json.loads(ill.body)  # type: ignore[attr-defined]
    assert told == {
        "healthy": False,
        "brokers": {"0": "running", "1": "running", "2": "stopped"},
    }


def test_without_any_broker_nothing_is_healthy() -> None:
    with HttpServer(list) as server:
        assert ask(server, "/health").status == 503
        assert state_of(server)["partitions"] == []


def test_metrics_are_prometheus_text(cluster: Cluster) -> None:
    pytest.importorskip("prometheus_client")
    with HttpServer(brokers_of(cluster)) as server:
        answer = ask(server, "/metrics")
    assert answer.status == 200
    body = answer.body.decode()  # type: ignore[attr-defined]
    assert 'kafka_server_replicamanager_partitioncount{broker="0"} 1.0' in body


def test_the_page_may_load_nothing_else() -> None:
    with HttpServer(list) as server:
        answer = ask(server, "/")
    policy = answer.getheader("Content-Security-Policy") or ""
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy


def test_other_paths_and_methods_are_refused() -> None:
    with HttpServer(list) as server:
        assert ask(server, "/../../etc/passwd").status == 404
        assert ask(server, "/state?x=1").status == 200
        connection = http.client.HTTPConnection(*server.address, timeout=patience())
        connection.request("POST", "/state", b"{}")
        assert connection.getresponse().status == 501
        connection.close()


def test_another_sites_name_is_not_served_on_loopback() -> None:
    with HttpServer(list) as server:
        assert ask(server, "/state", {"Host": "evil.example:80"}).status == 421
        assert ask(server, "/state", {"Host": "localhost:1"}).status == 200
        assert ask(server, "/state", {"Host": "[::1]:1"}).status == 200


def test_it_does_not_listen_to_the_world_unless_asked() -> None:
    with pytest.raises(ConfigError, match="no login"):
        HttpServer(list, host="0.0.0.0")
    with HttpServer(list, host="0.0.0.0", allow_remote=True) as server:
        assert server.address[0] == "0.0.0.0"


def test_a_failure_inside_is_an_answer() -> None:
    def fail() -> list[Any]:
        raise RuntimeError("inside")

    with HttpServer(fail) as server:
        answer = ask(server, "/state")
    assert answer.status == 500
    assert b"inside" not in answer.body  # type: ignore[attr-defined]


def test_silent_connections_cost_no_more_than_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One too many ends the one that has been silent for longest."""
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 4)
    with HttpServer(list) as server:
        before = threading.active_count()
        silent = [socket.create_connection(server.address, patience()) for _ in range(12)]
        for connection in silent[:8]:
            assert connection.recv(1) == b""
        assert ask(server, "/health").status == 503  # as there are no brokers
        assert threading.active_count() == before
        for connection in silent:
            connection.close()


DRIP = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "


@pytest.mark.parametrize("path", ["/health", "/state"])
def test_peers_that_drip_keep_nobody_out(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)
    with HttpServer(list) as server:
        slow = [socket.create_connection(server.address, patience()) for _ in range(3)]
        for _ in range(5):
            for connection in slow:
                with suppress(OSError):
                    connection.sendall(DRIP)
            assert ask(server, path).status in (200, 503)
        for connection in slow:
            connection.close()


def test_a_request_has_a_time_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the peer sends a byte."""
    monkeypatch.setattr(module, "REQUEST_S", 0.1)
    with HttpServer(list) as server:
        connection = socket.create_connection(server.address, patience())
        connection.sendall(DRIP)
        connection.settimeout(0.01)

        def ended() -> bool:
            try:
                connection.sendall(b"a")
                return connection.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(ended)
        connection.close()


def test_an_answer_has_a_time_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly the peer reads it."""
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    size = 16 << 20  # more than the buffers between them take
    with HttpServer(list) as server:
        server._page = bytes(size)
        connection = socket.create_connection(server.address, patience())
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        got = len(connection.recv(1))
        until(lambda: not server._open)
        with suppress(OSError):
            while more := connection.recv(1 << 20):
                got += len(more)
        assert got < size
        connection.close()


def test_no_answer_waits_for_another_one() -> None:
    """Of one who watches a large cluster, or whose answer is stuck."""
    asked, may_go_on = threading.Event(), threading.Event()

    def slowly() -> list[GroupSnapshot]:
        asked.set()
        may_go_on.wait(patience())
        return []

    with HttpServer(list, slowly) as server:
        watcher = socket.create_connection(server.address, patience())
        watcher.sendall(b"GET /state HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert asked.wait(patience())
        assert ask(server, "/health").status == 503
        may_go_on.set()
        assert watcher.recv(12) == b"HTTP/1.1 200"
        watcher.close()


@pytest.mark.parametrize("dripping", [0, 2])
def test_health_is_reachable_at_the_limit_of_descriptors(dripping: int) -> None:
    """Each of several probes, one after the other."""
    with HttpServer(list) as server:
        slow = [socket.create_connection(server.address, patience()) for _ in range(dripping)]
        for connection in slow:
            connection.sendall(DRIP)
        probes = [socket.socket() for _ in range(3)]
        with no_descriptor_left():
            for probe in probes:
                probe.settimeout(patience())
                probe.connect(server.address)
                probe.sendall(DRIP + b"a\r\n\r\n")
                assert probe.recv(12) == b"HTTP/1.1 503"
                probe.close()
        assert ask(server, "/state").status == 200
        for connection in slow:
            connection.close()


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, limits[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.parametrize("text", ["\r\n\r\n", "\0" * 70_000, "GET\r\n\r\n", "GET / X\r\n\r\n"])
def test_what_is_no_request_ends_its_connection(text: str) -> None:
    with HttpServer(list) as server:
        connection = socket.create_connection(server.address, patience())
        with suppress(OSError):
            connection.sendall(text.encode())
            while connection.recv(1 << 16):
                pass
        connection.close()
        assert ask(server, "/health").status == 503


def test_close_ends_open_connections_and_its_threads() -> None:
    server = HttpServer(list)
    connection = socket.create_connection(server.address, patience())
    connection.sendall(b"GET /state HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 200"
    server.close()
    while connection.recv(1 << 16):
        pass
    connection.close()
    server.close()
    names = [thread.name for thread in threading.enumerate()]
    assert "http-server" not in names
