"""The contract of every Coordinator, on a real ZooKeeper and on the served tree."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from kazoo.exceptions import SystemZookeeperError
from kazoo.protocol.connection import _CONNECTION_DROP

from replication.coordination import Coordinator, EventKind, WatchEvent, open_coordinator
from replication.coordination.served import TreeServer
from tests.contract.test_coordinator import *  # noqa: F403  # the suite; `service` is ours
from tests.contract.test_coordinator import Events
from tests.support.until import patience
from tests.zookeeper.conftest import CHROOTS
from tests.zookeeper.server import TICK_MS, expire

pytestmark = [pytest.mark.slow, pytest.mark.essential]  # a JVM starts


class Site(Protocol):
    """A server of ZooKeeper's protocol."""

    def expire(self, session_id: int, password: bytes) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class ServedTree:
    """Ours, in this process."""

    def __init__(self, directory: Path) -> None:
        self.server = TreeServer(str(directory), tick_ms=TICK_MS * 30)  # sessions of a minute
        self.hosts = "{}:{}".format(*self.server.address)
        self._resumed = threading.Event()

    def expire(self, session_id: int, password: bytes) -> None:
        expire(self.hosts, session_id, password)

    def pause(self) -> None:
        self._resumed.clear()
        self.server._loop.call_soon_threadsafe(self._resumed.wait)

    def resume(self) -> None:
        self._resumed.set()


class OverKazoo:
    def __init__(self, site: Site, url: str) -> None:
        self.site = site
        self.sessions: list[Coordinator] = []
        milliseconds = int(patience() * 1000)
        self.service = open_coordinator(
            url, session_timeout_ms=milliseconds, request_timeout_ms=milliseconds
        )

    def connect(self) -> Coordinator:
        self.sessions.append(self.service.connect())
        return self.sessions[-1]

    def expire(self, session: Coordinator) -> None:
        self.site.expire(session.session_id, bytes(session._client._session_passwd))

    @contextmanager
    def unavailable(self, session: Coordinator) -> Iterator[None]:
        self.site.pause()
        usual, session._timeout_s = session._timeout_s, 0.05
        try:
            yield
        finally:
            session._timeout_s = usual
            self.site.resume()

    def close(self) -> None:
        for session in self.sessions:
            session.close()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedTree]:
    served = ServedTree(tmp_path_factory.mktemp("tree"))
    yield served
    served.server.close()


@pytest.fixture(params=["real", "served"])
def service(request: pytest.FixtureRequest) -> Iterator[OverKazoo]:
    if request.param == "real":
        site, url = request.getfixturevalue("shared_server"), request.getfixturevalue("chroot")
    else:
        site = request.getfixturevalue("tree")
        url = f"zookeeper://{site.hosts}/test/{next(CHROOTS)}"
    found = OverKazoo(site, url)
    yield found
    found.close()


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_watch_that_a_live_connection_refuses_is_asked_for_again(
    service: OverKazoo, refusals: int
) -> None:
    """After a reconnect nobody else would bring it back."""
    watching, working = service.connect(), service.connect()
    events = Events()
    watching.watch("/a", events.add)
    client = watching._client  # type: ignore[attr-defined]
    add_watch, left = client.add_watch_async, [refusals]

    def refuse(path: str) -> object:
        if not left[0]:
            return add_watch(path)
        left[0] -= 1
        result = client.handler.async_result()
        result.set_exception(SystemZookeeperError())
        return result

    client.add_watch_async = refuse
    client._queue.append((_CONNECTION_DROP, None))
    client._connection._write_sock.send(b"\0")
    assert events.until(WatchEvent(EventKind.MISSED, "/a")) == []
    working.create("/a", b"1")
    assert events.until(WatchEvent(EventKind.CREATED, "/a")) == []
    assert left == [0]
