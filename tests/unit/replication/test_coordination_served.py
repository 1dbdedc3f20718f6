"""The served tree: sessions, the disk, strangers.

``tests/zookeeper`` compares its answers with those of a real ZooKeeper.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from logstore.common.errors import ConfigError, LogDirLockedError
from logstore.storage.local import LocalStorage
from logstore.testing import FaultyStorage, ManualClock
from replication.coordination import (
    Coordinator,
    CoordinatorUnavailableError,
    CorruptStoreError,
    Create,
    Delete,
    Node,
    Op,
    Set,
    journal,
)
from replication.coordination.base import OpResult
from replication.coordination.embedded import CoordinatorStore
from replication.coordination.served import Limits, TreeServer
from replication.coordination.served import connection as connections
from replication.coordination.served.connection import MAX_FRAME_BYTES
from replication.coordination.served.sessions import Sessions
from replication.coordination.tree import SessionChange
from tests.support import zookeeper_client as zk
from tests.support.leftovers import nothing_left
from tests.support.until import patience, until
from tests.support.waiting import race
from tests.support.zookeeper_client import Expired, ZooKeeperClient

DIRECTORY = "/coordinator"
TICK_MS = 20  # sessions of 40 to 400 ms
LONG_MS = 60_000  # a tick with which none ends


class Disk(FaultyStorage):
    """A disk whose syncs wait while it is ``stuck``."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = threading.Event()
        self.moves.set()
        self.waiting = threading.Semaphore(0)
        self.syncs = 0

    def on_sync(self, file: object) -> None:
        self.syncs += 1
        self.waiting.release()
        assert self.moves.wait(patience())
        super().on_sync(file)  # type: ignore[arg-type]

    @contextmanager
    def stuck(self) -> Iterator[None]:
        self.moves.clear()
        self.waiting = threading.Semaphore(0)
        try:
            yield
        finally:
            self.moves.set()


@contextmanager
def serving(disk: FaultyStorage | None = None, **options: object) -> Iterator[TreeServer]:
    options = {"tick_ms": LONG_MS, **options}
    with nothing_left():
        server = TreeServer(DIRECTORY, storage=disk or FaultyStorage(), **options)
        try:
            yield server
        finally:
            server.close()
            server.close()


@pytest.fixture
def server() -> Iterator[TreeServer]:
    with serving() as found:
        yield found


@pytest.fixture
def client(server: TreeServer) -> Iterator[ZooKeeperClient]:
    with ZooKeeperClient(server.address) as found:
        yield found


def is_closed(client: ZooKeeperClient) -> bool:
    """Whether the server has closed the connection, without one more answer."""
    with suppress(EOFError):
        client.receive_frame()
        return False
    client.close()
    return True


# --- sessions


def test_a_session_outlives_its_connection_and_its_server() -> None:
    """X-38, X-39: also one that is silent for long, as nobody could hear it meanwhile."""
    disk, clock = FaultyStorage(), ManualClock()
    with serving(disk, clock=clock) as server, ZooKeeperClient(server.address) as client:
        epoch = client.create("/id", b"1", zk.EPHEMERAL)
    for hours in (1, 1000):
        clock.advance(hours * 3_600_000)
        with (
            serving(disk, clock=clock, tick_ms=TICK_MS) as server,
            ZooKeeperClient(server.address, session=client.session) as again,
        ):
            assert again.session_id == client.session_id
            stat = again.stat("/id")
            assert (stat.owner, stat.czxid) == (client.session_id, epoch)


def test_a_silent_session_ends_and_its_nodes_with_it() -> None:
    """R-63. In the order of the tree, as one transaction."""
    clock = ManualClock()
    with serving(tick_ms=TICK_MS, clock=clock) as server:
        watching = ZooKeeperClient(server.address, 400)
        watching.call(zk.ADD_WATCH, zk.versioned("/", 1))
        silent = ZooKeeperClient(server.address, 1)
        assert (silent.timeout_ms, watching.timeout_ms) == (2 * TICK_MS, 400)
        watching.create("/p")
        for path in ("/b", "/p/x", "/a", "/p/a"):
            silent.call(zk.CREATE, zk.creation(path, b"", zk.EPHEMERAL))
        watching.heard()
        heard: list[tuple[int, str]] = []

        def a_while_later() -> bool:
            clock.advance(TICK_MS // 4)
            heard.extend(watching.heard())
            return len(heard) == 4

        until(a_while_later)
        assert heard == [(zk.DELETED, path) for path in ("/a", "/b", "/p/a", "/p/x")]
        stats = watching.stat("/"), watching.stat("/p")
        assert stats[0].pzxid == stats[1].pzxid > stats[1].czxid
        assert is_closed(silent)
        with pytest.raises(Expired):
            ZooKeeperClient(server.address, session=silent.session)
        watching.close()


def test_a_ping_keeps_a_session_alive() -> None:
    clock = ManualClock()
    with serving(tick_ms=TICK_MS, clock=clock) as server:
        client, silent, watching = (ZooKeeperClient(server.address, 60) for _ in range(3))
        client.create("/id", b"", zk.EPHEMERAL)
        silent.create("/silent", b"", zk.EPHEMERAL)

        def a_while_later() -> bool:
            clock.advance(TICK_MS // 4)
            client.call(zk.PING, xid=zk.PING_XID)
            return watching.get("/silent") is None

        until(a_while_later)
        assert client.get("/id") == b""
        for each in (client, silent, watching):
            each.close()


def test_who_stood_still_ends_nobody() -> None:
    """A process that was stopped has heard no one: not those that are silent, nor the others."""
    begun = [SessionChange(1, 400, b""), SessionChange(2, 4000, b"")]
    sessions = Sessions(begun, tick_ms=100, now_ms=0)
    assert sessions.take_silent(50) == []
    assert sessions.take_silent(10_000) == []
    for now_ms in range(10_050, 10_300, 50):
        assert sessions.take_silent(now_ms) == []
    assert [each.session_id for each in sessions.take_silent(10_400)] == [1]
    assert len(sessions) == 1


def test_a_session_moves_to_a_new_connection(server: TreeServer) -> None:
    first = ZooKeeperClient(server.address)
    first.create("/mine", b"", zk.EPHEMERAL)
    first.call(zk.ADD_WATCH, zk.versioned("/", 1))
    with pytest.raises(Expired):
        ZooKeeperClient(server.address, session=(first.session_id, bytes(16)))
    assert first.heard() == []  # a stranger takes nothing away
    second = ZooKeeperClient(server.address, session=first.session)
    assert is_closed(first)
    second.create("/a")
    assert second.heard() == []  # watches are of connections
    assert second.stat("/mine").owner == first.session_id
    second.close_session()
    with ZooKeeperClient(server.address) as other:
        assert other.children("/") == ["a"]


def test_who_has_seen_more_than_there_is_gets_no_session(client: ZooKeeperClient) -> None:
    """As with a restored backup: the client looks elsewhere, and finds out by itself."""
    address = client.socket.getpeername()
    zxid = client.create("/a")
    with ZooKeeperClient(address, session=client.session, seen_zxid=zxid) as same:
        assert same.get("/a") == b""
    with pytest.raises(EOFError):
        ZooKeeperClient(address, session=client.session, seen_zxid=zxid + 1)


def test_epochs_are_monotonic_over_restarts() -> None:
    disk, epochs = FaultyStorage(), []
    for _ in range(4):
        with serving(disk) as server:
            for _ in range(2):
                client = ZooKeeperClient(server.address)
                epochs += [client.session_id, client.create("/id", b"", zk.EPHEMERAL)]
                client.close_session()
    assert epochs == sorted(set(epochs))


# --- one directory, inside a process and served


def content(directory: str) -> dict[str, tuple[bytes, int, int, int]]:
    """Every node, read from the disk without opening it for good."""
    tree = journal.read_tree(LocalStorage(), directory)
    return {path: entry.node[:4] for path, entry in tree}


def test_one_directory_is_served_and_opened_inside_in_turn(tmp_path: Path) -> None:
    """The tree goes on; sessions of the other kind end."""
    directory, storage = str(tmp_path / "coordinator"), LocalStorage()
    kept: dict[str, tuple[bytes, int, int, int]] = {"/": (b"", 0, 0, 0)}
    session: tuple[int, bytes] | None = None
    for turn in range(3):
        store = CoordinatorStore(directory, storage, ManualClock())
        inside = store.connect()
        assert {path: node[:4] for path, node in nodes_of(inside).items()} == kept
        inside.create(f"/inside-{turn}", b"1")
        inside.set(f"/inside-{turn}", b"2")
        inside.create("/ephemeral", ephemeral=True)
        store.crash()
        kept = {path: node for path, node in content(directory).items() if not node[3]}
        server = TreeServer(directory, tick_ms=LONG_MS)
        if session is not None:
            with pytest.raises(Expired):
                ZooKeeperClient(server.address, session=session)
        with ZooKeeperClient(server.address) as client:
            for path, (data, version, czxid, _) in kept.items():
                stat = client.stat(path)
                assert (client.get(path), stat.version, stat.czxid) == (data, version, czxid)
            assert client.get("/ephemeral") is None
            client.create(f"/served-{turn}", b"3")
            client.create("/ephemeral", b"", zk.EPHEMERAL)
            session = client.session
        with pytest.raises(LogDirLockedError):
            CoordinatorStore(directory, storage, ManualClock())
        server.close()
        kept = {path: node for path, node in content(directory).items() if not node[3]}
    assert len(kept) == 7


def nodes_of(session: Coordinator, path: str = "/") -> dict[str, Node]:
    node = session.get(path)
    assert node is not None
    found = {path: node}
    for name in session.children(path):
        found.update(nodes_of(session, f"{path.rstrip('/')}/{name}"))
    return found


def test_a_journal_of_an_earlier_version_is_read() -> None:
    """Written before there were times and sessions in it: a snapshot and four transactions."""
    disk = FaultyStorage()
    disk.make_dir(DIRECTORY)
    disk.write_file(f"{DIRECTORY}/{journal.FILE_NAME}", bytes.fromhex(EARLIER))
    with serving(disk) as server, ZooKeeperClient(server.address) as client:
        assert client.children("/") == ["a"]  # and /e of a session that is over
        assert (client.get("/a"), client.stat("/a")[:2]) == (b"two", (2, 6))
        assert client.children("/a") == ["s-0000000001"]
        assert client.stat("/a/s-0000000001").czxid == 7
        assert client.create("/b") > 8


EARLIER = (
    "4c5363310000005200000000000000000000000000000004b14a3d6d0afa893900000000000000000000000000"
    "000000000000000000000000000000000000010001000000002f00000000000000000000000000000002000000"
    "000000000000000000000000010002000000032f616f6e654c5374310000000000000000000000720000000000"
    "000005000000009228edf14c5374310000001400000000000000920000000000000006c9b9aa6d997ee60f0100"
    "000000000000000002000000032f6174776f4c5374310000001f00000000000000c60000000000000007e13cfe"
    "70a2d68288000000000000000000000f000000012f612f732d30303030303030303031784c5374310000001100"
    "000000000001050000000000000008ecdf8083248b087a0000000000000000050002000000002f65"
)


def test_sessions_that_a_journal_cannot_have_are_damage() -> None:
    for change in (SessionChange(1), SessionChange(7, 100), SessionChange(1, -1)):
        disk = FaultyStorage()
        store = CoordinatorStore(DIRECTORY, disk, ManualClock())
        store._tree.zxid = 1
        store._log([change])  # type: ignore[list-item]
        store.crash()
        with pytest.raises(CorruptStoreError, match="session"):
            TreeServer(DIRECTORY, storage=disk)


# --- the disk


def test_no_answer_before_what_it_saw_is_on_the_disk() -> None:
    """Not even that of a reader; and those who ask nothing of the tree wait for nothing."""
    disk = Disk()
    with serving(disk) as server:
        writer, reader = (ZooKeeperClient(server.address) for _ in range(2))
        reader.call(zk.EXISTS, zk.watched("/a"))
        with disk.stuck():
            writer.send(zk.CREATE, zk.creation("/a", b"1"))
            assert disk.waiting.acquire(timeout=patience())
            reader.send(zk.GET_DATA, zk.watched("/a", False))
            assert word(server, b"ruok") == b"imok"
            until(lambda: len(server._held) == 3)  # both answers, and the event
            for each in (writer, reader):
                each.socket.settimeout(0.01)
                with pytest.raises(TimeoutError):
                    each.socket.recv(1)
                each.socket.settimeout(patience())
        assert writer.receive().error == 0
        assert zk.data_of(reader.receive().body) == b"1"
        assert reader.events == [(zk.CREATED, "/a")]
        writer.close()
        reader.close()


def word(server: TreeServer, text: bytes) -> bytes:
    with socket.create_connection(server.address, timeout=patience()) as plain:
        plain.sendall(text)
        return b"".join(iter(lambda: plain.recv(65536), b""))


def test_writers_share_a_sync() -> None:
    disk = Disk()
    with serving(disk) as server:
        clients = [ZooKeeperClient(server.address) for _ in range(20)]
        before = disk.syncs
        with disk.stuck():
            for number, client in enumerate(clients):
                client.send(zk.CREATE, zk.creation(f"/{number}"))
                client.send(zk.SET_DATA, zk.setting(f"/{number}", b"x"))
                if not number:
                    assert disk.waiting.acquire(timeout=patience())
            until(lambda: len(server._held) == 2 * len(clients))
        for client in clients:
            assert client.receive().error == client.receive().error == 0
            client.close()
        assert disk.syncs - before <= 3
        disk.crash(mode="all_lost")
    with serving(disk) as server, ZooKeeperClient(server.address) as client:
        assert client.children("/") == sorted(str(number) for number in range(20))


def test_a_torn_batch_is_cut_as_a_whole() -> None:
    """Its transactions are one frame: none of them was answered, and their pages may reach the
    disk in any order."""
    disk = Disk()
    with serving(disk) as server, ZooKeeperClient(server.address) as client:
        client.create("/a")
        with disk.stuck():
            client.send(zk.CREATE, zk.creation("/first"))
            assert disk.waiting.acquire(timeout=patience())
            for number in range(3):
                client.send(zk.CREATE, zk.creation(f"/{number}", b"x" * 600))
            until(lambda: len(server._held) == 4)
        for _ in range(4):
            client.receive()
    data = disk.read_file(f"{DIRECTORY}/{journal.FILE_NAME}")
    frame = data.rindex(b"LSt2")
    assert data.count(b"x" * 600, frame) == 3
    for hole in range(frame, len(data), 97):
        torn = FaultyStorage()
        torn.make_dir(DIRECTORY)
        broken = data[:hole] + bytes(len(data[hole : hole + 50])) + data[hole + 50 :]
        torn.write_file(f"{DIRECTORY}/{journal.FILE_NAME}", broken)
        assert journal.read_tree(torn, DIRECTORY).children("/") in (
            ["a", "first"],
            ["0", "1", "2", "a", "first"],
        )


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_disk_ends_the_server(operation: str) -> None:
    """F-224: what reached the disk is unknown, so nothing is answered any more."""
    disk = Disk()
    with serving(disk) as server:
        client = ZooKeeperClient(server.address)
        client.create("/a")
        disk.fail(operation, f"{DIRECTORY}*")
        client.send(zk.CREATE, zk.creation("/b"))
        assert is_closed(client)
        with pytest.raises(CoordinatorUnavailableError, match=DIRECTORY):
            server.wait(patience())
        with pytest.raises(OSError):
            ZooKeeperClient(server.address)
    with serving(disk) as server, ZooKeeperClient(server.address) as client:
        assert client.children("/") in (["a"], ["a", "b"])


def test_the_journal_is_replaced_while_writers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMPACT_BYTES", 2000)
    disk = FaultyStorage()
    with serving(disk) as server:
        clients = [ZooKeeperClient(server.address) for _ in range(3)]
        ended = ZooKeeperClient(server.address)
        ended.close_session()

        def write(number: int) -> None:
            for count in range(60):
                clients[number].create(f"/{number}-{count:02}", b"x" * 40)
                clients[number].call(zk.SET_DATA, zk.setting("/0-00", b"y" * 40))

        clients[0].create("/0-00")
        clients[0].call(zk.DELETE, zk.versioned("/0-00"))
        race(*(partial(write, number) for number in range(3)))
        expected = {
            path: clients[0].stat(path) for path in map("/{}".format, clients[0].children("/"))
        }
        session = clients[1].session
        data = disk.read_file(f"{DIRECTORY}/{journal.FILE_NAME}")
        assert data.count(b"y" * 40) < 180  # those of the latest snapshot alone
        disk.crash(mode="all_lost")
        for client in clients:
            client.close()
    with serving(disk) as server, ZooKeeperClient(server.address, session=session) as client:
        assert len(expected) == 180
        assert {path: client.stat(path) for path in expected} == expected
        assert client.stat("/").children == 180
        with pytest.raises(Expired):
            ZooKeeperClient(server.address, session=ended.session)


# --- several clients at once


@pytest.mark.parametrize("seed", range(3))
def test_concurrent_histories_have_one_order(seed: int) -> None:
    """What several clients did at once is what the tree inside a process does one by one, in the
    order of the transactions that they were told."""
    done: list[tuple[int, Op, OpResult]] = []

    def work(server: TreeServer, number: int) -> None:
        rng = random.Random(f"{seed}-{number}")
        with ZooKeeperClient(server.address) as client:
            for _ in range(60):
                path = "/" + "/".join(rng.choices("xyz", k=rng.choice((1, 1, 2))))
                version = rng.choice((-1, -1, 0, 1, 2))
                created = Create(path, b"1", False, rng.random() < 0.3)
                op = rng.choice((created, Set(path, b"22", version), Delete(path, version)))
                answer = client.call(*request_of(op))
                result: OpResult = None
                if isinstance(op, Create) and not answer.error:
                    result = zk.data_of(answer.body).decode()
                elif isinstance(op, Set) and not answer.error:
                    result = zk.stat_of(answer.body).version
                if not answer.error:
                    done.append((answer.zxid, op, result))

    with serving() as server:
        race(*(partial(work, server, number) for number in range(4)))
        with ZooKeeperClient(server.address) as client:
            served = {path: (client.get(path), client.stat(path)) for path in all_paths(client)}
    assert len({zxid for zxid, *_ in done}) == len(done)
    inside = CoordinatorStore(DIRECTORY, FaultyStorage(), ManualClock()).connect()
    for _, op, result in sorted(done, key=lambda each: each[0]):
        assert inside.transact([op]) == [result]
    expected = {
        path: (node.data, node.version, 2 * node.removed_children + len(inside.children(path)))
        for path, node in nodes_of(inside).items()
    }
    assert {
        p: (data, stat.version, stat.cversion) for p, (data, stat) in served.items()
    } == expected


def request_of(op: Op) -> tuple[int, bytes]:
    if isinstance(op, Create):
        return zk.CREATE, zk.creation(op.path, op.data, zk.SEQUENTIAL * op.sequential)
    if isinstance(op, Set):
        return zk.SET_DATA, zk.setting(op.path, op.data, op.version)
    return zk.DELETE, zk.versioned(op.path, op.version)


def all_paths(client: ZooKeeperClient, path: str = "/") -> list[str]:
    below = [f"{path.rstrip('/')}/{name}" for name in client.children(path)]
    return [path, *(found for each in below for found in all_paths(client, each))]


def test_each_watch_hears_what_it_asked_for(server: TreeServer, client: ZooKeeperClient) -> None:
    with ZooKeeperClient(server.address) as watching:
        watching.call(zk.GET_CHILDREN_2, zk.watched("/"))
        client.create("/a")
        watching.call(zk.GET_CHILDREN_2, zk.watched("/a"))
        client.create("/a/b")
        assert watching.heard() == [(zk.CHILDREN, "/"), (zk.CHILDREN, "/a")]
        client.call(zk.DELETE, zk.versioned("/a/b"))
        assert watching.heard() == []  # once
        watching.call(zk.GET_CHILDREN_2, zk.watched("/a"))
        watching.call(zk.ADD_WATCH, zk.versioned("/", 0))
        client.call(zk.DELETE, zk.versioned("/a"))
        assert watching.heard() == [(zk.DELETED, "/a"), (zk.CHILDREN, "/")]
        watching.call(zk.EXISTS, zk.watched("/a"))
    until(lambda: b"zk_watch_count\t0\n" in word(server, b"mntr"))


def test_answers_come_in_the_order_of_the_requests(client: ZooKeeperClient) -> None:
    xids = []
    for number in range(300):
        xids.append(client.send(zk.CREATE, zk.creation(f"/{number}")))
        xids.append(client.send(zk.EXISTS, zk.watched(f"/{number}", False)))
        xids.append(client.send(zk.PING))
    answers = [client.receive() for _ in xids]
    assert [answer.xid for answer in answers] == xids
    assert {answer.error for answer in answers} == {0}
    zxids = [answer.zxid for answer in answers]
    assert zxids == sorted(zxids)


# --- strangers


def test_other_machines_are_kept_out() -> None:
    for host in ("0.0.0.0", "", "192.0.2.1"):
        with pytest.raises(ConfigError, match="no login"):
            TreeServer(DIRECTORY, host, storage=FaultyStorage())
    with serving(host="0.0.0.0", allow_remote=True) as server:
        assert word(server, b"ruok") == b"imok"


def test_an_address_that_is_taken_leaves_the_directory_free(server: TreeServer) -> None:
    disk = FaultyStorage()
    with pytest.raises(OSError) as error:
        TreeServer(DIRECTORY, *server.address, storage=disk)
    assert error.value.filename == "{}:{}".format(*server.address)
    with serving(disk):
        pass


def test_four_letter_words(server: TreeServer, client: ZooKeeperClient) -> None:
    client.create("/a", b"", zk.EPHEMERAL)
    assert word(server, b"ruok") == b"imok"
    assert b"Mode: standalone\nNode count: 2\n" in word(server, b"srvr")
    facts = dict(line.split("\t") for line in word(server, b"mntr").decode().splitlines())
    assert facts["zk_server_state"] == "standalone"
    assert facts["zk_ephemerals_count"] == facts["zk_global_sessions"] == "1"
    assert b"whitelist" in word(server, b"kill")


HOSTILE: list[bytes] = [
    b"\xff" * 64,
    zk.number(MAX_FRAME_BYTES + 1),
    zk.number(-1),
    zk.number(0),
    zk.number(3) + b"abc",
    zk.number(4) + zk.number(1),
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


@pytest.mark.parametrize("data", HOSTILE)
@pytest.mark.parametrize("with_session", [False, True])
def test_bytes_that_are_no_request_close_their_connection_alone(
    server: TreeServer, client: ZooKeeperClient, data: bytes, with_session: bool
) -> None:
    if with_session:
        with ZooKeeperClient(server.address) as stranger:
            stranger.socket.sendall(data)
            stranger.socket.shutdown(socket.SHUT_WR)
            assert is_closed(stranger)
    else:
        word(server, data)
    assert client.create("/a") > 0


@pytest.mark.parametrize("seed", range(5))
def test_random_bodies_are_refused_or_answered(client: ZooKeeperClient, seed: int) -> None:
    """Each by a code, and the connection goes on."""
    rng = random.Random(seed)
    opcodes = [*range(1, 23), 101, 103, 104, 105, 106, 107]
    opcodes.remove(zk.PING)
    parts: list[Callable[[], bytes]] = [
        lambda: rng.randbytes(rng.randrange(20)),
        lambda: zk.number(rng.choice((-1, 0, 1, 2**31 - 1, -(2**31)))),
        lambda: zk.string("/" + "x" * rng.randrange(4)),
        lambda: zk.ACLS,
        lambda: b"\0" * rng.randrange(12),
    ]
    for opcode in opcodes * 8:
        if opcode == 10:  # none of ZooKeeper's
            continue
        body = b"".join(rng.choice(parts)() for _ in range(rng.randrange(6)))
        assert client.call(opcode, body).error in {
            0,
            -5,
            -6,
            -8,
            -101,
            -110,
            -111,
            -103,
            -121,
            -114,
        }
    assert client.call(zk.PING, xid=zk.PING_XID).error == 0


def test_what_is_not_served_is_refused_by_name(server: TreeServer) -> None:
    with ZooKeeperClient(server.address) as client:
        for flags in (4, 5, 6):
            assert client.call(zk.CREATE, zk.creation("/a", b"", flags)).error == -6
        for opcode in (zk.CREATE_CONTAINER, zk.SET_ACL, zk.CHECK_WATCHES):
            assert client.call(opcode, zk.creation("/a")).error == -6
        assert client.call(4711).error == -6
        assert is_closed(client)
    for opcode in (zk.AUTH, 102):
        with ZooKeeperClient(server.address) as client:
            body = zk.number(0) + zk.string("digest") + zk.buffer(b"me:secret")
            assert client.call(opcode, body, zk.AUTH_XID).error == -115
            assert is_closed(client)


def test_nothing_is_taken_from_a_connection_after_its_last_request(server: TreeServer) -> None:
    client = ZooKeeperClient(server.address)
    client.send(zk.CLOSE)
    client.send(zk.CREATE, zk.creation("/late"))
    assert client.receive().error == 0
    assert is_closed(client)
    with ZooKeeperClient(server.address) as other:
        assert other.children("/") == []


def test_limits_of_connections_sessions_and_watches() -> None:
    limits = Limits(connections=3, sessions=4, watch_bytes=1000)
    with serving(limits=limits) as server:
        clients = [ZooKeeperClient(server.address) for _ in range(3)]
        with pytest.raises(EOFError):
            ZooKeeperClient(server.address)
        clients.pop().close()
        until(lambda: len(server._connections) == 2)
        clients.append(ZooKeeperClient(server.address))
        clients.pop().close()
        until(lambda: len(server._connections) == 2)
        with pytest.raises(EOFError):  # those without connections live on
            ZooKeeperClient(server.address)
        errors = [
            clients[0].call(zk.ADD_WATCH, zk.versioned(f"/{number}", 1)).error
            for number in range(20)
        ]
        assert errors == sorted(errors, reverse=True)
        assert set(errors) == {0, -125}
        for number in range(5):
            assert clients[0].call(zk.REMOVE_WATCHES, zk.versioned(f"/{number}", 3)).error == 0
        assert clients[0].call(zk.ADD_WATCH, zk.versioned("/a", 0)).error == 0
        assert clients[1].call(zk.ADD_WATCH, zk.versioned("/a", 0)).error == 0
        for client in clients:
            client.close()


def test_one_who_reads_no_answers_waits_with_its_requests(server: TreeServer) -> None:
    """The server holds a little, whatever is asked."""
    with ZooKeeperClient(server.address) as client, ZooKeeperClient(server.address) as other:
        other.create("/large", bytes(500_000))
        client.socket.settimeout(0.05)
        request = zk.number(1) + zk.number(zk.GET_DATA) + zk.watched("/large", False)
        frames = (zk.number(len(request)) + request) * 2000
        with suppress(TimeoutError):
            for _ in range(100):
                client.socket.sendall(frames)
        other.create("/others-go-on")
        (busy,) = (c for c in server._connections if c.session_id == client.session_id)
        assert busy._unread() < 4 << 20
        assert len(busy._received) < 2 << 20


def test_one_who_reads_no_events_is_closed(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNREAD_BYTES", 100_000)
    deaf = ZooKeeperClient(server.address)
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.call(zk.ADD_WATCH, zk.versioned("/", 1))
    with ZooKeeperClient(server.address) as client:
        path = "/" + "x" * 3000
        client.create(path)

        def write_much() -> bool:
            for _ in range(100):
                client.send(zk.SET_DATA, zk.setting(path, b""))
            for _ in range(100):
                client.receive()
            return len(server._connections) == 1

        until(write_much)
        with ZooKeeperClient(server.address, session=deaf.session) as again:  # only its connection
            assert again.get(path) == b""
    deaf.close()
