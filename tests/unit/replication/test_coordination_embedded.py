"""Sessions of the embedded coordinator: their time, their links and their notifications."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.common.errors import ConfigError
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from replication.coordination import (
    CoordinatorUnavailableError,
    EventKind,
    SessionExpiredError,
    SessionState,
    WatchEvent,
    open_coordinator,
)
from replication.coordination.embedded import CoordinatorStore, EmbeddedCoordinator

TIMEOUT_MS = 6_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> CoordinatorStore:
    return CoordinatorStore("/c", MemoryStorage(), clock, TIMEOUT_MS)


def pass_time(store: CoordinatorStore, clock: ManualClock, ms: int) -> None:
    clock.advance(ms)
    store.expire_sessions(clock.monotonic_ns() // 1_000_000)


def heard_by(session: EmbeddedCoordinator) -> list[SessionState]:
    states: list[SessionState] = []
    session.on_state(states.append)
    return states


# --- time


@pytest.mark.parametrize(
    "sign_of_life",
    [
        lambda s: s.heartbeat(),
        lambda s: s.get("/"),
        lambda s: s.children("/"),
        lambda s: s.create("/n", sequential=True),
        lambda s: s.watch("/", print),
    ],
)
def test_every_call_keeps_a_session_alive(
    store: CoordinatorStore,
    clock: ManualClock,
    sign_of_life: Callable[[EmbeddedCoordinator], object],
) -> None:
    session, silent = store.connect(), store.connect()
    for each, path in ((session, "/id"), (silent, "/silent")):
        each.create(path, ephemeral=True)
    states, of_silent = heard_by(session), heard_by(silent)
    for _ in range(3):
        pass_time(store, clock, TIMEOUT_MS // 2)
        sign_of_life(session)
    pass_time(store, clock, TIMEOUT_MS)  # exactly: not yet
    assert session.get("/silent") is None
    assert session.get("/id") is not None
    assert of_silent == [SessionState.EXPIRED]
    pass_time(store, clock, TIMEOUT_MS + 1)
    assert states == [SessionState.EXPIRED]
    with pytest.raises(SessionExpiredError):
        session.heartbeat()


def test_expiring_twice_does_nothing(store: CoordinatorStore) -> None:
    session = store.connect()
    states = heard_by(session)
    store.expire(session)
    store.expire(session)
    session.close()
    assert states == [SessionState.EXPIRED]


# --- a link that is cut


def test_a_suspended_session_misses_events_and_is_told_so(store: CoordinatorStore) -> None:
    session, other = store.connect(), store.connect()
    states, events = heard_by(session), []
    other.create("/a")
    session.watch("/a", events.append)
    session.watch("/b", events.append)
    session.suspend()
    session.suspend()
    assert session.state is SessionState.SUSPENDED
    other.set("/a", b"1")
    with pytest.raises(CoordinatorUnavailableError):
        session.heartbeat()
    assert events == []
    session.resume()
    session.resume()
    assert events == [WatchEvent(EventKind.MISSED, "/a"), WatchEvent(EventKind.MISSED, "/b")]
    other.set("/a", b"2")
    assert events[2:] == [WatchEvent(EventKind.CHANGED, "/a")]
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]


def test_a_session_that_expires_while_cut_off_learns_it_when_it_is_back(
    store: CoordinatorStore, clock: ManualClock
) -> None:
    """The others see its nodes go before it knows, as in ZooKeeper: hence epochs (R-52)."""
    session, other = store.connect(), store.connect()
    states = heard_by(session)
    session.create("/controller", ephemeral=True)
    session.suspend()
    clock.advance(TIMEOUT_MS)
    other.heartbeat()
    pass_time(store, clock, 1)
    other.create("/controller", ephemeral=True)
    assert session.state is SessionState.SUSPENDED
    with pytest.raises(CoordinatorUnavailableError):
        session.get("/controller")
    session.resume()
    assert states == [SessionState.SUSPENDED, SessionState.EXPIRED]
    with pytest.raises(SessionExpiredError):
        session.get("/controller")
    session.close()
    assert other.get("/controller").ephemeral_owner == other.session_id


def test_a_session_closed_while_cut_off_ends_by_its_timeout(
    store: CoordinatorStore, clock: ManualClock
) -> None:
    session, other = store.connect(), store.connect()
    states = heard_by(session)
    session.create("/a", ephemeral=True)
    session.suspend()
    session.close()
    session.resume()
    assert session.state is SessionState.EXPIRED
    assert other.get("/a") is not None
    clock.advance(TIMEOUT_MS)
    other.heartbeat()
    pass_time(store, clock, 1)
    assert other.get("/a") is None
    assert states == [SessionState.SUSPENDED]


# --- the store goes


def test_a_closed_store_suspends_its_sessions(store: CoordinatorStore) -> None:
    session, closed = store.connect(), store.connect()
    states, of_closed = heard_by(session), heard_by(closed)
    closed.close()
    store.close()
    store.close()
    assert states == [SessionState.SUSPENDED]
    assert of_closed == []
    for call in (session.heartbeat, store.connect, lambda: store.expire_sessions(0)):
        with pytest.raises(CoordinatorUnavailableError, match="was closed"):
            call()
    session.resume()
    session.close()
    assert session.state is SessionState.EXPIRED


def test_a_crash_tells_nobody(store: CoordinatorStore) -> None:
    session = store.connect()
    states = heard_by(session)
    store.crash()
    assert states == []
    assert session.state is SessionState.SUSPENDED


# --- notifications


def test_notifications_are_given_to_whoever_delivers_them(clock: ManualClock) -> None:
    later: list[Callable[[], None]] = []
    store = CoordinatorStore("/c", MemoryStorage(), clock, deliver=later.append)
    session = store.connect()
    states, events = heard_by(session), []
    session.watch("/a", events.append)
    session.create("/a")
    session.set("/a", b"")
    session.suspend()
    assert (states, events) == ([], [])
    for task in later:
        task()
    assert states == [SessionState.SUSPENDED]
    assert [event.kind for event in events] == [EventKind.CREATED, EventKind.CHANGED]


def test_changes_made_by_a_listener_are_told_after_it_and_in_order(store: CoordinatorStore) -> None:
    session = store.connect()
    order: list[str] = []

    def first(event: WatchEvent) -> None:
        order.append(f"first {event.path}")
        if event.path == "/a":
            session.create("/b")
        order.append(f"first {event.path} done")

    session.watch("/", first)
    session.watch("/", lambda event: order.append(f"second {event.path}"))
    session.create("/a")
    assert order == [
        "first /a",
        "first /a done",
        "second /a",
        "first /b",
        "first /b done",
        "second /b",
    ]


def test_a_failing_listener_is_logged_and_stops_nobody(
    store: CoordinatorStore, caplog: pytest.LogCaptureFixture
) -> None:
    session, events = store.connect(), []

    def broken(event: WatchEvent) -> None:
        raise RuntimeError("its own fault")

    session.watch("/", broken)
    session.watch("/", events.append)
    session.create("/a")
    assert events == [WatchEvent(EventKind.CREATED, "/a")]
    assert "its own fault" in caplog.text


def test_ended_sessions_leave_nothing_behind(store: CoordinatorStore) -> None:
    for _ in range(3):
        session = store.connect()
        session.watch("/a", print)
        session.create("/e", ephemeral=True)
        session.close()
    assert store._sessions == {}
    assert len(store._watches) == 0
    assert store._tree.ephemerals() == []
    assert store._tree._children == {}


# --- finding one by its URL


def test_open_embedded(tmp_path: Path) -> None:
    service = open_coordinator(f"embedded:{tmp_path}/c", session_timeout_ms=500)
    session = service.connect()
    session.create("/a", b"1")
    session.close()
    service.close()
    service = open_coordinator(f"embedded:{tmp_path}/c")
    assert service.connect().get("/a").data == b"1"
    service.close()


@pytest.mark.parametrize("url", ["", "embedded", "embedded:", "etcd://h"])
def test_a_url_that_names_no_coordinator(url: str) -> None:
    with pytest.raises(ConfigError):
        open_coordinator(url)


def test_unknown_schemes_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="known are: embedded, zookeeper"):
        open_coordinator("etcd://127.0.0.1")
