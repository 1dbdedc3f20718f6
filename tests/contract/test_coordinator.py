"""One suite for every Coordinator: the contract in ``replication/coordination/base.py``.

``tests/zookeeper`` runs it on a real ZooKeeper.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from replication.coordination import (
    BadVersionError,
    Check,
    CoordinationError,
    Coordinator,
    CoordinatorUnavailableError,
    Create,
    Delete,
    EventKind,
    NoChildrenForEphemeralsError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    SessionState,
    Set,
    WatchEvent,
)
from replication.coordination.base import MAX_DATA_BYTES
from replication.coordination.embedded import CoordinatorStore
from tests.support.until import patience
from tests.support.waiting import race

CREATED, CHANGED, DELETED = EventKind.CREATED, EventKind.CHANGED, EventKind.DELETED


class Embedded:
    def __init__(self, store: CoordinatorStore) -> None:
        self.store = store
        self.connect = store.connect

    def expire(self, session: Coordinator) -> None:
        self.store.expire(session)

    @contextmanager
    def unavailable(self, session: Coordinator) -> Iterator[None]:
        session.suspend()
        yield
        session.resume()

    def close(self) -> None:
        self.store.close()


@pytest.fixture(params=[MemoryStorage, LocalStorage], ids=["memory", "local"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Embedded]:
    found = Embedded(CoordinatorStore(str(tmp_path / "store"), request.param(), ManualClock()))
    yield found
    found.close()


@pytest.fixture
def session(service) -> Coordinator:
    return service.connect()


class Events:
    """Collects what listeners hear, in whatever thread."""

    def __init__(self) -> None:
        self._queue: queue.Queue = queue.Queue()
        self.add = self._queue.put

    def next(self) -> object:
        return self._queue.get(timeout=patience())

    def until(self, last: object) -> list[object]:
        """All events up to ``last``, which is left out."""
        return list(iter(self.next, last))

    def none_left(self) -> bool:
        return self._queue.empty()


# --- nodes


def test_create_get_set_delete(session: Coordinator) -> None:
    assert session.get("/a") is None
    path, czxid = session.create("/a", b"one")
    assert path == "/a"
    assert session.get("/a") == Node(b"one", 0, czxid, 0)
    assert session.set("/a", b"two") == 1
    assert session.set("/a", b"three", 1) == 2
    assert session.get("/a") == Node(b"three", 2, czxid, 0)
    session.delete("/a", 2)
    assert session.get("/a") is None
    _, later = session.create("/a")
    assert session.get("/a") == Node(b"", 0, later, 0)
    assert later > czxid


def test_every_session_sees_the_same(service) -> None:
    first, second = service.connect(), service.connect()
    assert first.session_id != second.session_id
    assert 0 not in (first.session_id, second.session_id)
    first.create("/a", b"1")
    assert second.set("/a", b"2", 0) == 1
    assert first.get("/a").data == b"2"
    assert first.state is second.state is SessionState.CONNECTED


def test_children_are_sorted_and_empty_when_there_is_no_node(session: Coordinator) -> None:
    assert session.children("/") in ([], ["zookeeper"])
    assert session.children("/none") == []
    session.create("/a")
    assert session.children("/a") == []
    for name in ("b", "a-", "a", "10", "9", "é"):
        session.create(f"/a/{name}")
    session.create("/a/a/deeper")
    assert session.children("/a") == sorted(("b", "a-", "a", "10", "9", "é"))


def test_refused_creations(session: Coordinator) -> None:
    session.create("/a")
    with pytest.raises(NodeExistsError) as exists:
        session.create("/a")
    assert exists.value.path == "/a"
    with pytest.raises(NodeExistsError):
        session.create("/")
    with pytest.raises(NoNodeError) as missing:
        session.create("/none/b")
    assert missing.value.path == "/none"
    session.create("/a/ephemeral", ephemeral=True)
    with pytest.raises(NoChildrenForEphemeralsError):
        session.create("/a/ephemeral/below")
    assert session.children("/a") == ["ephemeral"]


def test_parents_are_created_and_persist(service) -> None:
    first, second = service.connect(), service.connect()
    assert first.create("/a/b/c", b"x", ephemeral=True, parents=True)[0] == "/a/b/c"
    first.create("/a/b/d", parents=True)
    with pytest.raises(NodeExistsError):
        first.create("/a/b/d", parents=True)
    first.close()
    assert second.children("/a/b") == ["d"]
    assert second.get("/a") == second.get("/a")._replace(data=b"", version=0, ephemeral_owner=0)


def test_refused_changes(session: Coordinator) -> None:
    for change in (lambda: session.set("/a", b""), lambda: session.delete("/a")):
        with pytest.raises(NoNodeError) as missing:
            change()
        assert missing.value.path == "/a"
    session.create("/a", b"0")
    session.set("/a", b"1")
    for version in (0, 2, 2**31 - 1):
        with pytest.raises(BadVersionError):
            session.set("/a", b"x", version)
        with pytest.raises(BadVersionError):
            session.delete("/a", version)
    session.create("/a/b")
    with pytest.raises(NotEmptyError):
        session.delete("/a")
    assert session.get("/a").data == b"1"
    assert session.get("/a").version == 1


@pytest.mark.parametrize("size", [0, 1, MAX_DATA_BYTES])
def test_data_may_be_any_bytes(session: Coordinator, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    session.create("/a", data)
    assert session.get("/a").data == data
    session.set("/a", data[::-1])
    assert session.get("/a").data == data[::-1]


def test_too_much_data_is_refused_by_all_alike(session: Coordinator) -> None:
    data = bytes(MAX_DATA_BYTES + 1)
    session.create("/a")
    for change in (
        lambda: session.create("/b", data),
        lambda: session.set("/a", data),
        lambda: session.transact([Set("/a", data)]),
    ):
        with pytest.raises(ValueError, match="1000001 bytes"):
            change()
    assert session.get("/a").version == 0


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        "a/b",
        "//",
        "/a/",
        "/a//b",
        "/.",
        "/a/..",
        "/a/./b",
        "/\0",
        "/a\n",
        "/\ud800",
        "/\ufff0",
        "/" + "x" * 5000,
    ],
)
def test_what_is_no_path(session: Coordinator, path: str) -> None:
    for call in (
        session.create,
        session.get,
        session.children,
        session.delete,
        lambda path: session.set(path, b""),
        lambda path: session.watch(path, print),
        lambda path: session.transact([Check(path, 0)]),
    ):
        with pytest.raises(ValueError):
            call(path)


# --- who is first


def test_compare_and_set_loses_no_change(service) -> None:
    """R-50: the version of the node is the partition epoch, and nobody overwrites unseen."""
    sessions = [service.connect() for _ in range(2)]
    sessions[0].create("/counter", b"0")
    refused = []

    def count(session: Coordinator) -> None:
        for _ in range(25):
            while True:
                node = session.get("/counter")
                try:
                    session.set("/counter", b"%d" % (int(node.data) + 1), node.version)
                    break
                except BadVersionError as error:
                    refused.append(error)

    race(*(partial(count, session) for session in sessions * 2))
    assert sessions[0].get("/counter")[:2] == (b"100", 100)


def test_one_of_many_creates_the_controller(service) -> None:
    sessions = [service.connect() for _ in range(4)]
    won: list[int] = []

    def elect(session: Coordinator) -> None:
        try:
            session.create("/controller", ephemeral=True)
            won.append(session.session_id)
        except NodeExistsError:
            pass

    race(*(partial(elect, session) for session in sessions))
    assert won == [sessions[0].get("/controller").ephemeral_owner]


# --- transactions


def test_a_transaction_sees_its_own_steps(session: Coordinator) -> None:
    session.create("/a", b"0")
    results = session.transact(
        [
            Check("/a", 0),
            Set("/a", b"1", 0),
            Set("/a", b"2", 1),
            Create("/a/b", b"x"),
            Create("/a/b/c"),
            Delete("/a/b/c", 0),
            Create("/a/s-", sequential=True),
        ]
    )
    *first, sequential = results
    assert first == [None, 1, 2, "/a/b", "/a/b/c", None]
    assert session.get(sequential) is not None
    assert session.get("/a")[:2] == (b"2", 2)
    assert session.children("/a/b") == []
    assert session.get("/a/b").czxid == session.get(sequential).czxid
    assert session.transact([]) == []


IMPOSSIBLE = (
    (Create("/a"), NodeExistsError, "/a"),
    (Create("/none/x"), NoNodeError, "/none"),
    (Set("/a", b"x", 7), BadVersionError, "/a"),
    (Set("/none", b"x"), NoNodeError, "/none"),
    (Delete("/a", 7), BadVersionError, "/a"),
    (Delete("/a"), NotEmptyError, "/a"),
    (Delete("/none"), NoNodeError, "/none"),
    (Check("/a", 7), BadVersionError, "/a"),
    (Check("/none", -1), NoNodeError, "/none"),
)


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_transaction_is_carried_out_or_not(session: Coordinator, place: int) -> None:
    session.create("/a", b"0")
    session.create("/a/b", b"1")
    before = {path: session.get(path) for path in ("/a", "/a/b")}
    possible = [Create("/a/new"), Set("/a", b"9", 0), Delete("/a/b"), Create("/a/eph", b"", True)]
    for op, kind, path in IMPOSSIBLE:
        ops = [*possible[:place], op, *possible[place:]]
        with pytest.raises(CoordinationError) as refusal:
            session.transact(ops)
        # After the step that sets /a its version is 1; a refusal of it names the same node.
        assert (type(refusal.value), refusal.value.path) == (kind, path)
        assert {path: session.get(path) for path in before} == before
        assert session.children("/a") == ["b"]
    assert session.transact(possible) == ["/a/new", 1, None, "/a/eph"]


# --- sessions


def test_ephemeral_nodes_end_with_their_session(service) -> None:
    first, second = service.connect(), service.connect()
    first.create("/ids")
    _, czxid = first.create("/ids/1", b"one", ephemeral=True)
    second.create("/ids/2", b"two", ephemeral=True)
    assert second.get("/ids/1") == Node(b"one", 0, czxid, first.session_id)
    assert first.get("/ids/2").ephemeral_owner == second.session_id
    first.close()
    first.close()
    assert second.children("/ids") == ["2"]
    assert second.get("/ids").ephemeral_owner == 0


def test_an_ephemeral_node_may_be_changed_and_deleted_by_anyone(service) -> None:
    first, second = service.connect(), service.connect()
    first.create("/a", ephemeral=True)
    first.create("/b", ephemeral=True)
    assert second.set("/a", b"x", 0) == 1
    second.delete("/b")
    second.create("/b", b"of another")
    first.close()
    assert second.get("/a") is None
    assert second.get("/b").data == b"of another"


def test_a_closed_session_refuses_everything(service) -> None:
    session, other = service.connect(), service.connect()
    states = Events()
    session.on_state(states.add)
    session.close()
    _check_is_over(session)
    assert other.state is SessionState.CONNECTED
    assert states.none_left()  # whoever closes knows


def test_an_expired_session_is_told_and_over(service) -> None:
    """R-63: a broker whose session expires registers again with a new, greater epoch."""
    session, other = service.connect(), service.connect()
    states, seen = Events(), Events()
    session.on_state(states.add)
    _, czxid = session.create("/id", ephemeral=True)
    other.watch("/id", seen.add)
    service.expire(session)
    assert seen.next() == WatchEvent(DELETED, "/id")
    assert SessionState.CONNECTED not in states.until(SessionState.EXPIRED)
    _check_is_over(session)
    assert other.get("/id") is None
    again = service.connect()
    assert again.session_id != session.session_id
    assert again.create("/id", ephemeral=True)[1] > czxid
    session.close()
    assert other.get("/id").ephemeral_owner == again.session_id
    assert states.none_left()


def _check_is_over(session: Coordinator) -> None:
    assert session.state is SessionState.EXPIRED
    for call in (
        lambda: session.create("/x"),
        lambda: session.get("/x"),
        lambda: session.set("/x", b""),
        lambda: session.delete("/x"),
        lambda: session.children("/"),
        lambda: session.transact([Create("/x")]),
        lambda: session.watch("/", print),
    ):
        with pytest.raises(SessionExpiredError):
            call()


def test_no_answer_is_an_error_within_bounds_and_no_end(service) -> None:
    session = service.connect()
    session.create("/a", b"0")
    session.create("/mine", ephemeral=True)
    with service.unavailable(session):
        for call in (
            lambda: session.get("/a"),
            lambda: session.set("/a", b"1", 0),
            lambda: session.watch("/", print),
        ):
            with pytest.raises(CoordinatorUnavailableError):
                call()
    node = session.get("/a")
    assert node[:2] in ((b"0", 0), (b"1", 1))  # of a write without an answer nobody knows
    assert session.set("/a", b"2", node.version) == node.version + 1
    assert session.get("/mine").ephemeral_owner == session.session_id


def test_a_node_counts_the_children_that_it_lost(session: Coordinator) -> None:
    """One without children that lost none never had any."""

    def removed() -> int:
        node = session.get("/a")
        assert node is not None
        return node.removed_children

    session.create("/a")
    assert removed() == 0
    for name in ("x", "y", "z"):
        session.create(f"/a/{name}/below", parents=True)
    session.set("/a", b"data")
    session.set("/a/x", b"data")
    session.delete("/a/x/below")
    assert removed() == 0
    session.delete("/a/x")
    session.transact([Delete("/a/y/below"), Delete("/a/y"), Create("/a/x")])
    assert removed() == 2
    assert session.children("/a") == ["x", "z"]


# --- order


def test_sequential_names_grow_for_ever(service) -> None:
    first, second = service.connect(), service.connect()
    first.create("/q")
    names = []
    for session in (first, second) * 6:
        names.append(session.create("/q/isr_change_", b"x", sequential=True)[0])
        if len(names) % 3 == 0:
            session.delete(names[-1])
    assert names == sorted(set(names))
    assert all(len(name) == len("/q/isr_change_") + 10 for name in names)
    bare, _ = first.create("/q/", ephemeral=True, sequential=True)
    assert bare[3:].isdigit()
    assert bare[3:] > names[-1][-10:]
    with pytest.raises(NoNodeError):
        first.create("/none/x-", sequential=True)


def test_czxid_is_strictly_monotonic(service) -> None:
    """Broker epochs come from it."""
    sessions = [service.connect() for _ in range(3)]
    sessions[0].create("/ids")
    epochs = []
    for round_, session in itertools.product(range(4), sessions):
        path = f"/ids/{sessions.index(session)}"
        if round_:
            session.delete(path)
        epochs.append(session.create(path, ephemeral=True)[1])
        session.set(path, b"x")
        assert session.get(path).czxid == epochs[-1]
    assert epochs == sorted(set(epochs))
    assert epochs[0] > 0


# --- watches


def test_a_watch_tells_every_change_at_and_below_once(service) -> None:
    watching, working = service.connect(), service.connect()
    events = Events()
    watching.watch("/a", events.add)
    working.create("/ab")
    working.create("/a")
    working.create("/a/b", b"", ephemeral=True)
    working.create("/a/c/d", parents=True)
    working.set("/a/c/d", b"1")
    working.set("/a", b"1")
    watching.set("/a", b"2")
    working.delete("/ab")
    working.close()
    watching.delete("/a/c/d")
    watching.delete("/a/c")
    watching.delete("/a")
    watching.create("/a", b"last")
    assert events.until(WatchEvent(CREATED, "/a")) == []
    expected = [
        WatchEvent(CREATED, "/a/b"),
        WatchEvent(CREATED, "/a/c"),
        WatchEvent(CREATED, "/a/c/d"),
        WatchEvent(CHANGED, "/a/c/d"),
        WatchEvent(CHANGED, "/a"),
        WatchEvent(CHANGED, "/a"),
        WatchEvent(DELETED, "/a/b"),
        WatchEvent(DELETED, "/a/c/d"),
        WatchEvent(DELETED, "/a/c"),
        WatchEvent(DELETED, "/a"),
    ]
    assert events.until(WatchEvent(CREATED, "/a")) == expected
    assert events.none_left()


def test_a_watch_survives_many_changes(service) -> None:
    watching, working = service.connect(), service.connect()
    events = Events()
    working.create("/a")
    watching.watch("/a", events.add)
    for _ in range(100):
        working.set("/a", b"x")
    working.create("/a/last")
    assert events.until(WatchEvent(CREATED, "/a/last")) == [WatchEvent(CHANGED, "/a")] * 100


def test_a_transaction_tells_all_of_its_changes_and_a_refused_one_none(service) -> None:
    watching, working = service.connect(), service.connect()
    events = Events()
    watching.watch("/", events.add)
    with pytest.raises(NoNodeError):
        working.transact([Create("/a"), Create("/a/b"), Check("/none", 0)])
    working.transact([Create("/a"), Create("/a/b"), Set("/a", b"1"), Delete("/a/b")])
    working.create("/last")
    assert events.until(WatchEvent(CREATED, "/last")) == [
        WatchEvent(CREATED, "/a"),
        WatchEvent(CREATED, "/a/b"),
        WatchEvent(CHANGED, "/a"),
        WatchEvent(DELETED, "/a/b"),
    ]


def test_listeners_of_one_session_are_independent(service) -> None:
    watching, working = service.connect(), service.connect()
    outer, inner, twice = Events(), Events(), Events()
    working.create("/a")
    watching.watch("/a", outer.add)
    watching.watch("/a/b", inner.add)
    watching.watch("/a", twice.add)

    def broken(event: WatchEvent) -> None:
        raise RuntimeError("a listener's own fault")

    watching.watch("/a", broken)
    working.create("/a/b")
    working.create("/a/c")
    working.set("/a/b", b"")
    expected = [WatchEvent(CREATED, "/a/b"), WatchEvent(CREATED, "/a/c")]
    assert outer.until(WatchEvent(CHANGED, "/a/b")) == expected
    assert twice.until(WatchEvent(CHANGED, "/a/b")) == expected
    assert inner.until(WatchEvent(CHANGED, "/a/b")) == expected[:1]


def test_a_listener_may_read_and_write(service) -> None:
    """What follows from an event must not wait for the thread that brought it."""
    session = service.connect()
    events = Events()
    session.create("/a", b"0")

    def again(event: WatchEvent) -> None:
        node = session.get("/a")
        if int(node.data) < 10:
            session.set("/a", b"%d" % (int(node.data) + 1), node.version)
        else:
            events.add(node.version)

    session.watch("/a", again)
    session.set("/a", b"1")
    assert events.next() == 10


def test_a_session_hears_nothing_after_its_end(service) -> None:
    watching, working = service.connect(), service.connect()
    ended, heard = Events(), Events()
    watching.watch("/", ended.add)
    working.watch("/", heard.add)
    watching.close()
    working.create("/a")
    assert heard.next() == WatchEvent(CREATED, "/a")
    assert ended.none_left()
