"""The contract of every Coordinator, on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kazoo.exceptions import SystemZookeeperError
from kazoo.protocol.connection import _CONNECTION_DROP

from replication.coordination import Coordinator, EventKind, WatchEvent, open_coordinator
from tests.contract.test_coordinator import *  # noqa: F403  # the suite; `service` is ours
from tests.contract.test_coordinator import Events
from tests.support.until import patience
from tests.zookeeper.server import ZooKeeperServer

pytestmark = [pytest.mark.slow, pytest.mark.essential]  # a JVM starts


class InZooKeeper:
    def __init__(self, server: ZooKeeperServer, url: str) -> None:
        self.server = server
        self.sessions: list[Coordinator] = []
        milliseconds = int(patience() * 1000)
        self.service = open_coordinator(
            url, session_timeout_ms=milliseconds, request_timeout_ms=milliseconds
        )

    def connect(self) -> Coordinator:
        self.sessions.append(self.service.connect())
        return self.sessions[-1]

    def expire(self, session: Coordinator) -> None:
        self.server.expire(session.session_id, bytes(session._client._session_passwd))

    @contextmanager
    def unavailable(self, session: Coordinator) -> Iterator[None]:
        self.server.pause()
        usual, session._timeout_s = session._timeout_s, 0.05
        try:
            yield
        finally:
            session._timeout_s = usual
            self.server.resume()

    def close(self) -> None:
        for session in self.sessions:
            session.close()


@pytest.fixture
def service(shared_server: ZooKeeperServer, chroot: str) -> Iterator[InZooKeeper]:
    found = InZooKeeper(shared_server, chroot)
    yield found
    found.close()


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_watch_that_a_live_connection_refuses_is_asked_for_again(
    service: InZooKeeper, refusals: int
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
