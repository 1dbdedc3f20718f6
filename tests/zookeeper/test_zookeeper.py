"""What only a server shows, ZooKeeper's or ours: it restarts, hangs and is not there."""

from __future__ import annotations

import contextlib
import queue
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.common.state import PartitionRegistration
from replication.coordination import (
    Coordinator,
    CoordinatorUnavailableError,
    CoordinatorWentBackError,
    EventKind,
    Node,
    SessionExpiredError,
    SessionState,
    WatchEvent,
    nodes,
    open_coordinator,
)
from replication.coordination.zookeeper import ZooKeeper
from tests.support.leftovers import nothing_left
from tests.support.served_tree import CoordinatorProcess
from tests.support.until import patience
from tests.zookeeper import server as zookeeper

pytestmark = pytest.mark.slow  # a JVM starts

Server = zookeeper.ZooKeeperServer | CoordinatorProcess


def connected(server: Server, session_timeout_ms: int = 10_000, **options: object) -> Coordinator:
    url = f"zookeeper://{server.hosts}"
    return open_coordinator(url, session_timeout_ms=session_timeout_ms, **options).connect()


def heard(session: Coordinator) -> queue.Queue:
    """What the session tells from now on, of its state and of the whole tree."""
    events: queue.Queue = queue.Queue()
    session.on_state(events.put)
    session.watch("/", events.put)
    return events


@pytest.mark.essential
def test_a_session_survives_the_restart_of_its_server(server: Server) -> None:
    session, other = connected(server), connected(server)
    events = heard(session)
    _, epoch = session.create("/ids", ephemeral=True)
    assert events.get(timeout=patience()) == WatchEvent(EventKind.CREATED, "/ids")
    for kill in (True, False):
        server.kill() if kill else server.stop()
        assert events.get(timeout=patience()) is SessionState.SUSPENDED
        with pytest.raises(CoordinatorUnavailableError):
            session.create("/late")
        server.start()
        assert events.get(timeout=patience()) is SessionState.CONNECTED
        assert events.get(timeout=patience()) == WatchEvent(EventKind.MISSED, "/")
        assert session.get("/ids") == Node(b"", 0, epoch, session.session_id)
        assert session.get("/late") is None  # a refused write is not carried out later
        # The watch is back, and tells everything once.
        path, later = session.create("/n-", sequential=True)
        session.set(path, b"x")
        assert events.get(timeout=patience()) == WatchEvent(EventKind.CREATED, path)
        assert events.get(timeout=patience()) == WatchEvent(EventKind.CHANGED, path)
        assert later > epoch
        epoch_before, epoch = epoch, session.get("/ids").czxid
        assert epoch == epoch_before
    assert events.empty()
    session.close()
    other.close()


def test_a_session_expires_while_its_server_is_away(server: Server) -> None:
    """A real timeout: the server counts from its start, and the session is dead before the client
    finds the server again, because its address leads nowhere meanwhile."""
    with _Relay(server.port) as relay:
        service = open_coordinator(f"zookeeper://127.0.0.1:{relay.port}", session_timeout_ms=400)
        session = service.connect()
        events, other = heard(session), connected(server)
        seen = heard(other)
        _, epoch = session.create("/ids", ephemeral=True)
        assert events.get(timeout=patience()) == WatchEvent(EventKind.CREATED, "/ids")
        assert seen.get(timeout=patience()) == WatchEvent(EventKind.CREATED, "/ids")
        relay.cut()
        assert events.get(timeout=patience()) is SessionState.SUSPENDED
        assert seen.get(timeout=patience()) == WatchEvent(EventKind.DELETED, "/ids")
        assert session.state is SessionState.SUSPENDED  # it cannot know yet
        relay.heal()
        assert events.get(timeout=patience()) is SessionState.EXPIRED
        with pytest.raises(SessionExpiredError):
            session.create("/ids", ephemeral=True)
        # It ends by itself, where kazoo would begin a session that nobody asked for.
        assert session._client._connection.connection_stopped.wait(patience())
        session.close()
        again = service.connect()
        assert again.create("/ids", ephemeral=True)[1] > epoch
        again.close()
        other.close()
    assert events.empty()


def test_a_server_at_an_older_state_is_noticed(server: Server, tmp_path: Path) -> None:
    """It refuses sessions that have seen more, without a word. So they end here, and no other one
    begins in this process."""
    service = open_coordinator(
        f"zookeeper://{server.hosts}", session_timeout_ms=10_000, request_timeout_ms=1500
    )
    service.connect().close()
    server.stop()
    shutil.copytree(server.data, tmp_path / "older")
    server.start()
    session = service.connect()
    for number in range(50):  # more than the attempts to connect make
        session.create(f"/later-{number}")
    events = heard(session)
    server.put_back(tmp_path / "older")
    states = [SessionState.SUSPENDED, SessionState.EXPIRED]
    assert [events.get(timeout=patience()) for _ in states] == states
    for _ in range(3):  # each attempt has transactions of its own
        with nothing_left(), pytest.raises(CoordinatorWentBackError, match="put back to an older"):
            service.connect()
    session.close()
    other = connected(server)  # another process, which has seen nothing
    assert other.get("/later-0") is None
    other.close()


def test_what_another_session_sees_meanwhile_is_no_older_state() -> None:
    """Brokers connect at once: each asks where the servers are, and others write meanwhile."""
    service = ZooKeeper("127.0.0.1:1")

    class Client:
        def latest_zxid(self, timeout_s: float) -> int:
            service.saw(12)
            return 11

    service.check_history(Client())
    with pytest.raises(CoordinatorWentBackError):
        service.check_history(Client())


@pytest.mark.essential
def test_no_server_is_an_error_in_time() -> None:
    # One that takes connections and answers nothing.
    with nothing_left(), socket.create_server(("127.0.0.1", 0)) as silent:
        service = open_coordinator(
            f"zookeeper://127.0.0.1:{silent.getsockname()[1]}",
            connect_timeout_ms=200,
            session_timeout_ms=300,
        )
        with pytest.raises(CoordinatorUnavailableError):
            service.connect()


def test_closing_without_a_server_ends_in_time_and_leaves_no_thread(
    server: Server,
) -> None:
    with nothing_left():
        session = connected(server)
        events = heard(session)
        server.kill()
        assert events.get(timeout=patience()) is SessionState.SUSPENDED
        session.close()
        assert session.state is SessionState.EXPIRED
    assert events.empty()


def test_an_ensemble_of_several_addresses_and_a_chroot(server: Server) -> None:
    service = open_coordinator(f"zookeeper://127.0.0.1:1,{server.hosts}/clusters/a")
    session = service.connect()
    session.create("/x/y", b"1", parents=True)
    whole = connected(server)
    assert whole.get("/clusters/a/x/y").data == b"1"
    whole.create("/other")
    assert session.children("/") == ["x"]
    session.close()
    whole.close()


@pytest.mark.parametrize("rest", ["h:2181", "//", "///c", "//h:1/a/../b"])
def test_a_url_that_names_no_server(rest: str) -> None:
    with pytest.raises(ConfigError, match="is not zookeeper://host:port/chroot"):
        open_coordinator(f"zookeeper:{rest}")


def test_notifications_leave_kazoos_threads(server: Server) -> None:
    tasks: queue.Queue = queue.Queue()
    session = connected(server, deliver=tasks.put)
    names = []
    session.watch("/", lambda event: names.append(threading.current_thread()))
    session.create("/a")
    tasks.get(timeout=patience())()
    assert names == [threading.current_thread()]
    session.close()


def test_nodes_of_other_clients(server: Server) -> None:
    """A node without data, as Kafka makes ``/brokers/ids``, and our state in plain JSON."""
    partition = TopicPartition("t", 0)
    path = nodes.partition_state_path(partition)
    state = PartitionRegistration((1, 2), (1,), 1, 0, 0, elr=(2,))
    session = connected(server)
    client = KazooClient(server.hosts)
    client.start()
    client.create("/brokers", None)
    assert session.get("/brokers").data == b""
    session.create(path, nodes.encode_partition(state), parents=True)
    data, stat = client.get(path)
    assert nodes.decode_partition(partition, data, stat.version, (1, 2)) == state
    client.stop()
    client.close()
    session.close()


# --- the harness itself


def test_a_machine_without_java_cannot_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper.shutil, "which", lambda name: None)
    zookeeper.jars.cache_clear()
    with pytest.raises(zookeeper.ZooKeeperUnavailable, match="java is not on PATH"):
        zookeeper.jars()
    monkeypatch.setattr(zookeeper.shutil, "which", lambda name: "/x" if name == "java" else None)
    monkeypatch.setattr(zookeeper, "find_jars", lambda given, environment: None)
    monkeypatch.setattr(zookeeper, "CACHE", Path("/none"))
    with pytest.raises(zookeeper.ZooKeeperUnavailable, match="mvn is not on PATH"):
        zookeeper.jars()
    zookeeper.jars.cache_clear()


def test_a_server_that_cannot_start_shows_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "server_command", lambda *_: ["java", "no.such.Main"])
    with pytest.raises(zookeeper.ZooKeeperFailed, match=r"no\.such\.Main"):
        zookeeper.ZooKeeperServer(tmp_path).start()


def test_kazoo_is_loaded_only_for_zookeeper() -> None:
    code = (
        "import sys, replication.coordination.embedded, replication.coordination.nodes\n"
        "assert not [m for m in sys.modules if m.startswith('kazoo')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class _Relay:
    """A TCP relay to a port of this machine, whose link can be cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._whole = True
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        self._whole = False
        for each in self._sockets:
            _shut(each)

    def heal(self) -> None:
        self._whole = True

    def __enter__(self) -> _Relay:
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(patience())
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            if not self._whole:
                _shut(client)
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets.append(server)
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(source, sink))
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        _shut(sink)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
