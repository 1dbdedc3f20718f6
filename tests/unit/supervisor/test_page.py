"""The page of a cluster: what it makes of its brokers' answers, and of those that give none."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.embedded.cluster import Cluster
from replication.server.http import cluster_state
from replication.server.http.http_server import HttpServer
from replication.supervisor import page as module
from replication.supervisor.cluster_file import BrokerEntry
from replication.supervisor.page import ClusterPage
from tests.support.until import patience, until

NO_ANSWER = "no answer"
TP = TopicPartition("orders", 0)


def entry(broker_id: int, address: tuple[str, int]) -> BrokerEntry:
    return BrokerEntry(broker_id, "X://127.0.0.1:1", f"{address[0]}:{address[1]}", "")


def ask(page: ClusterPage, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*page.address, timeout=patience())
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, json.loads(body) if body.startswith(b"{") else body


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, tmp_path) as cluster:
        cluster.create_topic("orders", 2)
        cluster.produce("orders", b"0", partition=0)
        yield cluster


@pytest.fixture
def brokers(cluster: Cluster) -> Iterator[list[BrokerEntry]]:
    """Each with a page of its own, as in its own process."""

    def own(broker_id: int) -> Callable[[], list[Any]]:
        return lambda: [cluster.broker(broker_id)] if broker_id in cluster.live_brokers else []

    with ExitStack() as opened:
        servers = [opened.enter_context(HttpServer(own(n))) for n in cluster.broker_ids]
        yield [
            entry(n, server.address) for n, server in zip(cluster.broker_ids, servers, strict=True)
        ]


def test_it_shows_all_brokers(cluster: Cluster, brokers: list[BrokerEntry]) -> None:
    with ClusterPage(lambda: brokers) as page:

        def are_equal() -> bool:
            together = cluster_state(map(cluster.broker, cluster.live_brokers))
            return ask(page, "/state") == (200, json.loads(json.dumps(together)))

        until(are_equal, "what one process would show")
        status, html = ask(page, "/")
        assert (status, html[:15]) == (200, b"<!doctype html>")
        status, chosen = ask(page, "/state?text=ord&limit=1")
        assert len(chosen["partitions"]) == 1
        assert chosen["counts"]["selected_partitions"] == 2
        assert chosen["made_ms"] > 0
        assert ask(page, "/state?limit=x")[0] == 400
        until(lambda: ask(page, "/ready")[0] == 200, "all are in sync")
        everywhere = {str(n): "running" for n in range(3)}
        assert ask(page, "/health") == (200, {"healthy": True, "brokers": everywhere})


def test_a_dead_broker_and_one_that_starts(cluster: Cluster, brokers: list[BrokerEntry]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with ClusterPage(lambda: [*brokers, entry(7, address)]) as page:
        cluster.crash(1)
        cluster.wait_for_isr(TP, [0, 2])
        status, found = ask(page, "/health")
        assert (status, found["healthy"]) == (503, False)
        assert found["brokers"] == {
            "0": "running",
            "1": "starting",
            "2": "running",
            "7": NO_ANSWER,
        }
        status, found = ask(page, "/ready")
        assert (status, found["brokers"]["7"], found["outOfSync"]) == (503, NO_ANSWER, {})
        status, found = ask(page, "/state")
        states = [each["state"] for each in found["brokers"]]
        assert (status, states) == (200, ["running", "starting", "running", NO_ANSWER])
        assert found["partitions"][0]["replicas"][1]["state"] == "unknown"
        cluster.start(1)
        until(lambda: ask(page, "/ready")[1]["brokers"]["1"] == "in sync")


def test_brokers_come_and_go(brokers: list[BrokerEntry]) -> None:
    shown = brokers[:2]
    with ClusterPage(lambda: tuple(shown)) as page:
        assert [each["id"] for each in ask(page, "/state")[1]["brokers"]] == [0, 1]
        shown.append(brokers[2])
        assert [each["id"] for each in ask(page, "/state")[1]["brokers"]] == [0, 1, 2]
        shown[:] = brokers[2:]
        assert ask(page, "/health") == (200, {"healthy": True, "brokers": {"2": "running"}})
        shown.clear()
        assert ask(page, "/health") == (503, {"healthy": False, "brokers": {}})
        assert ask(page, "/state")[1]["brokers"] == []


def test_metrics_stay_with_the_brokers(brokers: list[BrokerEntry]) -> None:
    with ClusterPage(lambda: brokers) as page:
        status, found = ask(page, "/metrics")
        assert (status, found["error"]) == (404, "each broker has its own metrics")
        assert found["pages"] == [f"http://{each.http}/metrics" for each in brokers]
        status, found = ask(page, "/nothing")
        assert (status, found["pages"]) == (404, ["/", "/state", "/health", "/ready"])


# -- those that do not answer ----------------------------------------------------------------------


@contextmanager
def stranger(
    said: bytes,
    *,
    again: bool = False,
    hangs_up: bool = True,
    meeting: threading.Barrier | None = None,
) -> Iterator[BrokerEntry]:
    """Answers each request so, again and again if it goes on; at the meeting if there is one."""
    over = threading.Event()

    def converse(peer: socket.socket) -> None:
        with peer:
            try:
                peer.recv(4096)
                if meeting is not None:
                    meeting.wait(patience())
                peer.sendall(said)
                while again and not over.wait(0.01 if len(said) < 99 else 0):
                    peer.sendall(said[-65536:])
                if not hangs_up:
                    over.wait()
            except (OSError, threading.BrokenBarrierError):
                return

    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=converse, args=(peer,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield entry(5, server.getsockname())
        over.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
STRANGE = [
    b"",
    b"garbage\r\n\r\n",
    HEAD,
    HEAD + b"no json",
    HEAD + b"[]",
    HEAD + b"[" * 50_000,
    HEAD + b'{"brokers": 7, "version": 2}',
    HEAD + b'{"brokers": {"6": "running"}, "healthy": true, "ready": true}',
    HEAD + b'{"brokers": {"5": "running"}, "outOfSync": 4}'[:-1],
    b"HTTP/1.1 500 X\r\n\r\n{}",
]


def test_an_answer_that_is_none(brokers: list[BrokerEntry]) -> None:
    with ExitStack() as opened:
        strangers = [opened.enter_context(stranger(said)) for said in STRANGE]
        entries = [entry(n, each.addresses[-1]) for n, each in enumerate(strangers, 5)]
        page = opened.enter_context(ClusterPage(lambda: [brokers[0], *entries]))
        status, found = ask(page, "/state")
        assert status == 200
        assert [each["state"] for each in found["brokers"]] == ["running"] + [NO_ANSWER] * 10
        for path in ("/health", "/ready"):
            status, found = ask(page, path)
            assert (status, [*found["brokers"].values()][1:]) == (503, [NO_ANSWER] * 10)


@pytest.mark.parametrize("path", ["/state", "/state?limit=5", "/health", "/ready"])
def test_a_broker_has_a_time_in_all(
    brokers: list[BrokerEntry], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However lively it is meanwhile, and whatever it has said."""
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    with (
        stranger(b"", hangs_up=False) as silent,
        stranger(b"x", again=True) as dripping,
        stranger(HEAD, hangs_up=False) as half,
        ClusterPage(lambda: [brokers[0], *rest]) as page,
    ):
        others = enumerate((silent, dripping, half), 5)
        rest = [entry(n, each.addresses[-1]) for n, each in others]
        _, found = ask(page, path)
        assert str(found["brokers"]).count(NO_ANSWER) == 3
        assert str(found["brokers"]).count("running") + str(found["brokers"]).count("in sync") == 1


def test_all_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", patience())
    meeting = threading.Barrier(3)
    with (
        stranger(b"", meeting=meeting) as one,
        stranger(b"", meeting=meeting) as two,
        stranger(b"", meeting=meeting) as three,
        ClusterPage(lambda: entries) as page,
    ):
        entries = [entry(n, each.addresses[-1]) for n, each in enumerate((one, two, three))]
        assert ask(page, "/health")[0] == 503
        assert not meeting.broken


def test_an_endless_answer_is_cut_off(
    brokers: list[BrokerEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STATE_MAX", 1 << 20)
    monkeypatch.setattr(module, "ANSWER_S", patience())  # so that its size ends it
    with (
        stranger(HEAD + b" " * (1 << 16), again=True) as endless,
        ClusterPage(lambda: [brokers[0], endless]) as page,
    ):
        states = [each["state"] for each in ask(page, "/state")[1]["brokers"]]
        assert states == ["running", NO_ANSWER]


def test_pages_share_a_picture_and_waiting_makes_it_no_older(
    brokers: list[BrokerEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that takes its second counts for no work: the next picture comes soon."""
    worked: list[bool] = []
    real, real_ask = ClusterPage.state, ClusterPage._ask
    answered: list[float] = []

    def timed(page: ClusterPage, *arguments: Any) -> Any:
        found = real_ask(page, *arguments)
        answered.append(page._loop.time())
        return found

    def counted(page: ClusterPage) -> Any:
        found, took_s = real(page)
        worked.append(took_s <= page._loop.time() - answered[-1])
        return found, took_s

    monkeypatch.setattr(module, "ANSWER_S", 0.3)
    monkeypatch.setattr(ClusterPage, "_ask", timed)
    monkeypatch.setattr(ClusterPage, "state", counted)
    monkeypatch.setattr("replication.server.http.http_server.PICTURE_S", 3600.0)
    with (
        stranger(b"", hangs_up=False) as silent,
        ClusterPage(lambda: [brokers[0], silent]) as page,
    ):
        threads = [threading.Thread(target=ask, args=(page, "/state?limit=5")) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert worked == [True]


def test_closing_ends_what_waits(brokers: list[BrokerEntry]) -> None:
    with stranger(b"", hangs_up=False) as silent:
        page = ClusterPage(lambda: [silent])
        with socket.create_connection(page.address) as peer:
            peer.sendall(b"GET /state HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: len(page._open) == 1)
            page.close()
            assert peer.recv(10) == b""


def test_a_broker_that_is_not_in_sync() -> None:
    behind = {"5": ["orders-0"]}
    body = json.dumps({"brokers": {"5": "caught up"}, "outOfSync": behind}).encode()
    said = b"HTTP/1.1 503 X\r\n\r\n" + body
    with stranger(said) as broker, ClusterPage(lambda: [broker]) as page:
        expected = {"ready": False, "brokers": {"5": "caught up"}, "outOfSync": behind}
        assert ask(page, "/ready") == (503, expected)
        assert ask(page, "/health")[0] == 503
