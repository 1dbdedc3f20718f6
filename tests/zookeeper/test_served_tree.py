"""The served tree beside a real ZooKeeper: the same requests on plain sockets, the same answers."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Callable, Iterator

import pytest

from replication.coordination.served import TreeServer
from tests.support import zookeeper_client as zk
from tests.support.until import patience
from tests.support.zookeeper_client import ZooKeeperClient
from tests.zookeeper.server import ZooKeeperServer, jars

pytestmark = [pytest.mark.slow, pytest.mark.essential]  # a JVM starts

NAMES = itertools.count()
WITH_STAT = {zk.EXISTS, zk.GET_DATA, zk.SET_DATA, zk.GET_ACL, zk.GET_CHILDREN_2, zk.CREATE_2}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TreeServer]:
    server = TreeServer(str(tmp_path_factory.mktemp("tree")), tick_ms=100)
    yield server
    server.close()


class Pair:
    """The same clients of both servers, and what each of the servers answers."""

    def __init__(self, real: tuple[str, int], served: tuple[str, int]) -> None:
        self.addresses = (real, served)
        self.root = f"/oracle-{next(NAMES)}"
        self._clients: dict[tuple[int, str], ZooKeeperClient] = {}
        self._zxids: tuple[list[int], list[int]] = ([], [])
        self._stats: tuple[list[zk.Stat], list[zk.Stat]] = ([], [])
        self.ask("a", zk.CREATE, zk.creation(self.root))

    def client(self, side: int, name: str) -> ZooKeeperClient:
        found = self._clients.get((side, name))
        if found is None:
            found = self._clients[side, name] = ZooKeeperClient(self.addresses[side], 5_000)
        return found

    def ask(self, name: str, opcode: int, body: bytes = b"", xid: int | None = None) -> int:
        """Compare the answers, and the events that came before them. Returns the error."""
        found = []
        for side in range(2):
            client = self.client(side, name)
            if opcode != zk.CLOSE:
                for other in [c for (at, _), c in self._clients.items() if at == side]:
                    other.call(zk.PING, xid=zk.PING_XID)
            answer = client.call(opcode, body, xid)
            found.append((answer.error, self._plain(side, opcode, answer), client.events[:]))
            client.events.clear()
        assert found[1] == found[0], (opcode, body)
        return found[0][0]

    def events(self, name: str) -> list[tuple[int, str]]:
        real, served = (self.client(side, name).heard() for side in range(2))
        assert served == real
        return real

    def _plain(self, side: int, opcode: int, answer: zk.Answer) -> object:
        """The body without times and transaction ids."""
        body = answer.body
        if not answer.error and opcode in WITH_STAT:
            stat = zk.stat_of(body)
            self._stats[side].append(stat)
            owner = bool(stat.owner)
            kept = (stat.version, stat.cversion, stat.aversion, owner, stat.length, stat.children)
            if opcode == zk.GET_CHILDREN_2:
                return sorted(zk.strings_of(body)), kept
            return body[:-68], kept
        if not answer.error and opcode == zk.GET_CHILDREN:
            return sorted(zk.strings_of(body))
        if opcode == zk.MULTI and not answer.error:
            return results_of(body)
        return body

    def finish(self) -> None:
        """The transactions of all nodes lie in the same order."""
        ranks = []
        for stats in self._stats:
            zxids = sorted({zxid for s in stats for zxid in (s.czxid, s.mzxid, s.pzxid)})
            rank = {zxid: number for number, zxid in enumerate(zxids)}
            ranks.append([(rank[s.czxid], rank[s.mzxid], rank[s.pzxid]) for s in stats])
            for stat in stats:
                assert stat.ctime <= stat.mtime
        assert ranks[1] == ranks[0]
        for client in self._clients.values():
            client.close_session()


def results_of(body: bytes) -> list[tuple[int, int, object]]:
    """Type, error and result of each operation of a transaction, without times and ids."""
    found: list[tuple[int, int, object]] = []
    position = 0
    while True:
        opcode, is_end, error = zk.struct.unpack_from(">i?i", body, position)
        position += 9
        if is_end:
            assert position == len(body)
            return found
        result: object = None
        if opcode == -1:
            result = zk.struct.unpack_from(">i", body, position)
            position += 4
        if opcode in (zk.CREATE, zk.CREATE_2):
            result = zk.data_of(body[position:])
            position += 4 + len(result)
        if opcode in (zk.SET_DATA, zk.CREATE_2):
            stat = zk.stat_of(body[position : position + 68])
            result = result, stat.version, stat.cversion, stat.length, stat.children
            position += 68
        found.append((opcode, error, result))


@pytest.fixture
def pair(shared_server: ZooKeeperServer, served: TreeServer) -> Iterator[Pair]:
    found = Pair(("127.0.0.1", shared_server.port), served.address)
    yield found
    found.finish()


def test_a_session_begins_alike(shared_server: ZooKeeperServer, served: TreeServer) -> None:
    addresses = ("127.0.0.1", shared_server.port), served.address
    for timeout_ms, tail in itertools.product((0, 1, 300, 10_000, 2**31 - 1), (b"", b"\0", b"\1")):
        sizes, timeouts = set(), set()
        for address in addresses:
            with ZooKeeperClient(address, min(timeout_ms, 59_000), tail=tail) as client:
                sizes.add(len(client.welcome))
                timeouts.add(min(client.timeout_ms, 2_000))  # 20 ticks; the real one is told more
                client.close_session()
        assert len(sizes) == len(timeouts) == 1, (timeout_ms, tail, sizes, timeouts)
    for address in addresses:
        client = ZooKeeperClient(address)
        for session in ((client.session_id, bytes(16)), (4711, client.password)):
            with pytest.raises(zk.Expired):
                ZooKeeperClient(address, session=session)
        again = ZooKeeperClient(address, session=client.session)
        with pytest.raises(EOFError):
            client.receive_frame()
        client.close()
        with pytest.raises(EOFError):
            ZooKeeperClient(address, session=again.session, seen_zxid=2**62)
        again.close_session()
        with pytest.raises(zk.Expired):
            ZooKeeperClient(address, session=again.session)


REQUESTS: list[tuple[int, Callable[[str], bytes]]] = [
    (zk.CREATE, lambda r: zk.creation(f"{r}/a", b"1")),
    (zk.CREATE, lambda r: zk.creation(f"{r}/a")),
    (zk.CREATE, lambda r: zk.creation(f"{r}/none/a")),
    (zk.CREATE, lambda r: zk.creation("/")),
    (zk.CREATE, lambda r: zk.creation("")),
    (zk.CREATE, lambda r: zk.creation("a")),
    (zk.CREATE, lambda r: zk.creation(f"{r}/")),
    (zk.CREATE, lambda r: zk.creation(f"{r}/a/.")),
    (zk.CREATE, lambda r: zk.creation(f"{r}/\0")),
    (zk.CREATE, lambda r: zk.creation(f"{r}/b", acls=zk.number(0))),
    (zk.CREATE, lambda r: zk.creation(f"{r}/b", acls=zk.number(-1))),
    (zk.CREATE, lambda r: zk.creation(f"{r}/b", flags=99)),
    (zk.CREATE, lambda r: zk.creation(f"{r}/e", b"", zk.EPHEMERAL)),
    (zk.CREATE, lambda r: zk.creation(f"{r}/e/below")),
    (zk.CREATE, lambda r: zk.creation(f"{r}/s-", b"", zk.SEQUENTIAL)),
    (zk.CREATE, lambda r: zk.creation(f"{r}/", b"", zk.SEQUENTIAL)),
    (zk.CREATE, lambda r: zk.creation(f"{r}/s-", b"", zk.SEQUENTIAL | zk.EPHEMERAL)),
    (zk.CREATE_2, lambda r: zk.creation(f"{r}/two", b"22")),
    (zk.CREATE_2, lambda r: zk.creation(f"{r}/two", b"22")),
    (zk.EXISTS, lambda r: zk.watched(f"{r}/a", False)),
    (zk.EXISTS, lambda r: zk.watched(f"{r}/none", False)),
    (zk.EXISTS, lambda r: zk.watched("none", False)),
    (zk.GET_DATA, lambda r: zk.watched(f"{r}/a", False)),
    (zk.GET_DATA, lambda r: zk.watched(f"{r}/e", False)),
    (zk.GET_DATA, lambda r: zk.watched(f"{r}/none", False)),
    (zk.GET_ACL, lambda r: zk.string(f"{r}/a")),
    (zk.GET_ACL, lambda r: zk.string(f"{r}/none")),
    (zk.GET_CHILDREN, lambda r: zk.watched(r, False)),
    (zk.GET_CHILDREN, lambda r: zk.watched(f"{r}/none", False)),
    (zk.GET_CHILDREN_2, lambda r: zk.watched(r, False)),
    (zk.GET_CHILDREN_2, lambda r: zk.watched(f"{r}/a", False)),
    (zk.SET_DATA, lambda r: zk.setting(f"{r}/a", b"two")),
    (zk.SET_DATA, lambda r: zk.setting(f"{r}/a", b"three", 1)),
    (zk.SET_DATA, lambda r: zk.setting(f"{r}/a", b"x", 0)),
    (zk.SET_DATA, lambda r: zk.setting(f"{r}/a", b"x", -2)),
    (zk.SET_DATA, lambda r: zk.setting(f"{r}/none", b"x")),
    (zk.DELETE, lambda r: zk.versioned(r)),
    (zk.DELETE, lambda r: zk.versioned("/")),
    (zk.DELETE, lambda r: zk.versioned(f"{r}/none")),
    (zk.DELETE, lambda r: zk.versioned(f"{r}/a", 7)),
    (zk.DELETE, lambda r: zk.versioned(f"{r}/a", 2)),
    (zk.GET_CHILDREN_2, lambda r: zk.watched(r, False)),
    (zk.SYNC, lambda r: zk.string(r)),
    (zk.SYNC, lambda r: zk.string("/none")),
    (zk.PING, lambda r: b""),
    (zk.REMOVE_WATCHES, lambda r: zk.versioned(r, 3)),
    (zk.MULTI, lambda r: zk.multi()),
    (zk.MULTI, lambda r: zk.multi((zk.CHECK, zk.versioned(r, 0)), (zk.CHECK, zk.versioned(r, -1)))),
    (
        zk.MULTI,
        lambda r: zk.multi(
            (zk.CREATE, zk.creation(f"{r}/m", b"1")),
            (zk.CREATE_2, zk.creation(f"{r}/m/n", b"1")),
            (zk.CREATE, zk.creation(f"{r}/m/s-", b"1", zk.SEQUENTIAL)),
            (zk.SET_DATA, zk.setting(f"{r}/m", b"22", 0)),
            (zk.SET_DATA, zk.setting(f"{r}/m", b"333", 1)),
            (zk.CHECK, zk.versioned(f"{r}/m", 2)),
            (zk.DELETE, zk.versioned(f"{r}/m/n", 0)),
        ),
    ),
    *(
        (
            zk.MULTI,
            lambda r, bad=bad: zk.multi(
                (zk.SET_DATA, zk.setting(f"{r}/m", b"4")),
                bad(r),
                (zk.CREATE, zk.creation(f"{r}/after")),
                (zk.CHECK, zk.versioned(f"{r}/none")),
            ),
        )
        for bad in (
            lambda r: (zk.CREATE, zk.creation(f"{r}/m")),
            lambda r: (zk.CREATE, zk.creation("bad")),
            lambda r: (zk.CREATE, zk.creation(f"{r}/b", acls=zk.number(0))),
            lambda r: (zk.DELETE, zk.versioned(f"{r}/m", 9)),
            lambda r: (zk.DELETE, zk.versioned(r)),
            lambda r: (zk.DELETE, zk.versioned("/")),
            lambda r: (zk.CHECK, zk.versioned(f"{r}/m", 9)),
            lambda r: (zk.SET_DATA, zk.setting(f"{r}/none", b"")),
        )
    ),
    (zk.GET_DATA, lambda r: zk.watched(f"{r}/m", False)),
    # What is no request at all, or lies about its lengths.
    (zk.CREATE, lambda r: b""),
    (zk.GET_DATA, lambda r: zk.number(2**31 - 1)),
    (zk.GET_DATA, lambda r: zk.string(r)),
    (zk.MULTI, lambda r: b"\0" * 20),
    (zk.MULTI, lambda r: zk.multi((zk.MULTI, zk.multi()))),
    (zk.SET_WATCHES, lambda r: zk.number(0, "q") + zk.number(2**30)),
]


def test_every_request_is_answered_alike(pair: Pair) -> None:
    different = []
    for number, (opcode, body) in enumerate(REQUESTS):
        xid = zk.PING_XID if opcode == zk.PING else None
        try:
            pair.ask("a", opcode, body(pair.root), xid)
        except (AssertionError, EOFError) as error:
            different.append(f"{number}: {error}")
    assert not different, "\n".join(different)


def test_watches_tell_the_same(pair: Pair) -> None:
    root = pair.root
    for kind, mode in ((zk.ADD_WATCH, 0), (zk.ADD_WATCH, 1), (zk.ADD_WATCH, 2)):
        pair.ask(f"persistent-{mode}", kind, zk.versioned(root, mode))
        pair.ask(f"persistent-{mode}", kind, zk.versioned(f"{root}/x", mode))
    everybody = ["once", "all", *(f"persistent-{mode}" for mode in range(3))]
    changes = [
        (zk.CREATE, zk.creation(f"{root}/x")),
        (zk.SET_DATA, zk.setting(f"{root}/x", b"1")),
        (zk.CREATE, zk.creation(f"{root}/x/y")),
        (zk.SET_DATA, zk.setting(f"{root}/x/y", b"1")),
        (
            zk.MULTI,
            zk.multi(
                (zk.CREATE, zk.creation(f"{root}/x/z")), (zk.DELETE, zk.versioned(f"{root}/x/y"))
            ),
        ),
        (zk.DELETE, zk.versioned(f"{root}/x/z")),
        (zk.DELETE, zk.versioned(f"{root}/x")),
        (zk.SET_DATA, zk.setting(root, b"2")),
    ]
    for opcode, body in changes:
        for path in (root, f"{root}/x", f"{root}/x/y"):
            pair.ask("once", zk.EXISTS, zk.watched(path))
            pair.ask("all", zk.GET_DATA, zk.watched(path))
            pair.ask("all", zk.GET_CHILDREN_2, zk.watched(path))
            pair.ask("all", zk.EXISTS, zk.watched(path))
        pair.ask("a", opcode, body)
        for name in everybody:
            pair.events(name)
    for kind in (0, 1, 2, 3, 3):
        pair.ask("persistent-0", zk.REMOVE_WATCHES, zk.versioned(root, kind))
        pair.ask("all", zk.REMOVE_WATCHES, zk.versioned(root, kind))
    pair.ask("a", zk.SET_DATA, zk.setting(root, b"3"))
    for name in everybody:
        pair.events(name)


def test_watches_of_an_earlier_connection_come_back(pair: Pair) -> None:
    """What changed since the last transaction that it saw is told at once."""
    root = pair.root
    names = ("same", "changed", "gone", "parent", "watched")
    for name in names:
        pair.ask("a", zk.CREATE, zk.creation(f"{root}/{name}"))
    seen = [pair.client(side, "a").call(zk.PING, xid=zk.PING_XID).zxid for side in range(2)]
    pair.ask("a", zk.SET_DATA, zk.setting(f"{root}/changed", b"1"))
    pair.ask("a", zk.DELETE, zk.versioned(f"{root}/gone"))
    pair.ask("a", zk.CREATE, zk.creation(f"{root}/parent/child"))
    pair.ask("a", zk.CREATE, zk.creation(f"{root}/new"))
    data = zk.strings(*(f"{root}/{name}" for name in ("same", "changed", "gone")))
    exist = zk.strings(f"{root}/new", f"{root}/none")
    children = zk.strings(*(f"{root}/{name}" for name in ("same", "parent", "gone")))
    later = zk.strings(f"{root}/watched")
    for opcode, tail in ((zk.SET_WATCHES, b""), (zk.SET_WATCHES_2, later + zk.strings(root))):
        name = f"back-{opcode}"
        for side in range(2):
            body = zk.number(seen[side], "q") + data + exist + children + tail
            answer = pair.client(side, name).call(opcode, body, zk.SET_WATCHES_XID)
            assert (answer.error, answer.body) == (0, b"")
        # Which node comes first is nobody's promise.
        real, served = (sorted(pair.client(side, name).heard()) for side in range(2))
        assert served == real
        assert len(real) == 5
    for path in ("same", "none", "same/child", "watched/child", "changed"):
        pair.ask("a", zk.CREATE, zk.creation(f"{root}/{path}"))
        pair.ask("a", zk.SET_DATA, zk.setting(f"{root}/{path}", b"2"))
        for opcode in (zk.SET_WATCHES, zk.SET_WATCHES_2):
            pair.events(f"back-{opcode}")


@pytest.mark.parametrize("seed", range(4))
def test_random_requests_are_answered_alike(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    names = ("a", "b", "c")
    # Servers before 3.9 forget that a watch persists when its client reads the same node.
    for name, mode in ((rng.choice("xy"), 0), (rng.choice("xy"), 1)):
        pair.ask(f"persistent-{mode}", zk.ADD_WATCH, zk.versioned(f"{pair.root}/{name}", mode))

    def path() -> str:
        return pair.root + "".join(
            f"/{rng.choice('xy')}" for _ in range(rng.choice((1, 1, 2, 2, 3)))
        )

    def write() -> tuple[int, bytes]:
        version = rng.choice((-1, -1, 0, 1, 2))
        return rng.choice(
            (
                (
                    zk.CREATE,
                    zk.creation(path(), b"d" * rng.randrange(3), rng.choice((0, 0, 0, 1, 2, 3))),
                ),
                (zk.CREATE_2, zk.creation(path())),
                (zk.SET_DATA, zk.setting(path(), b"d" * rng.randrange(4), version)),
                (zk.DELETE, zk.versioned(path(), version)),
            )
        )

    def watch() -> tuple[int, bytes]:
        found = zk.watched(path(), rng.random() < 0.5)
        reads = (zk.EXISTS, zk.GET_DATA, zk.GET_CHILDREN, zk.GET_CHILDREN_2)
        return rng.choice(reads), found

    for _ in range(150):
        kind = rng.random()
        if kind < 0.45:
            opcode, body = write()
        elif kind < 0.6:
            ops = [
                write()
                if rng.random() < 0.8
                else (zk.CHECK, zk.versioned(path(), rng.randrange(-1, 2)))
                for _ in range(3)
            ]
            opcode, body = zk.MULTI, zk.multi(*ops)
        else:
            opcode, body = watch()
        pair.ask(rng.choice(names), opcode, body)
        for name in (*names, "persistent-0", "persistent-1"):
            pair.events(name)


def test_zookeepers_own_command_line_reads_it(served: TreeServer) -> None:
    with ZooKeeperClient(served.address) as client:
        client.create("/seen", b"by its own tools")
        client.create("/seen/below")
        host, port = served.address
        main = ["java", "-cp", jars().classpath, "org.apache.zookeeper.ZooKeeperMain"]
        for command, text in (
            ("get -s /seen", "by its own tools"),
            ("ls /seen", "[below]"),
            ("getAcl /seen", "'world,'anyone"),
        ):
            done = subprocess.run(
                [*main, "-server", f"{host}:{port}", *command.split()],
                capture_output=True,
                text=True,
                timeout=patience(),
                check=False,
            )
            assert text in done.stdout, done.stdout + done.stderr
        client.close_session()
