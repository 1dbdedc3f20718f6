"""Brokers' sessions in processes of their own, with a served tree that dies and clients that stand
still.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.support.served_tree import ROOT, CoordinatorProcess
from tests.support.until import patience, until

pytestmark = pytest.mark.slow

CHILD = """
import sys
from replication.coordination import CoordinationError, open_coordinator

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # one line, whichever thread
    sys.stdout.flush()

timeout_ms = int(sys.argv[2])
service = open_coordinator(sys.argv[1], session_timeout_ms=timeout_ms)
session = service.connect()
session.on_state(lambda state: say(state.value))
_, epoch = session.create("/id", ephemeral=True)
session.watch("/", lambda event: say(event.kind.value, event.path))
say(session.session_id, epoch)
for order in sys.stdin:
    try:
        if order == "again\\n":
            session.close()
            session = service.connect()
            say(session.session_id, session.create("/id", ephemeral=True)[1])
        else:
            node = session.get("/id")
            say("none" if node is None else node.ephemeral_owner)
    except CoordinationError as error:
        say(type(error).__name__)
session.close()
"""


class ClientProcess:
    """A session with an ephemeral node ``/id``, which says what it hears."""

    def __init__(self, server: CoordinatorProcess, timeout_ms: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, f"zookeeper://{server.hosts}", str(timeout_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.session_id, self.epoch = map(int, self.next().split())

    def next(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=patience())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(tmp_path / "tree", 500) as process:  # sessions of 1 to 10 s
        yield process


def test_a_session_goes_on_when_the_tree_is_back(server: CoordinatorProcess) -> None:
    with ClientProcess(server, 10_000) as client:
        for kill in (True, False):
            server.kill() if kill else server.stop()
            assert client.next() == "suspended"
            client.ask("look")
            assert client.next() == "CoordinatorUnavailableError"
            server.start()
            assert [client.next(), client.next()] == ["connected", "missed /"]
            client.ask("look")
            assert client.next() == str(client.session_id)
            with server.client() as onlooker:
                stat = onlooker.stat("/id")
                assert (stat.owner, stat.czxid) == (client.session_id, client.epoch)
                path = f"/after-{'a kill' if kill else 'a stop'}"
                onlooker.create(path)
            assert client.next() == f"created {path}"


def test_a_client_that_stood_still_for_too_long_finds_itself_expired(
    server: CoordinatorProcess,
) -> None:
    """T-A1, R-63: it does not go on as if it were still a broker, and comes back with a greater
    epoch."""
    with ClientProcess(server, 1_000) as client, server.client() as onlooker:
        client.pause()
        until(lambda: onlooker.get("/id") is None, "the session ends")
        client.ask("look")  # the first thing that it does when it wakes
        client.resume()
        said = []
        while "expired" not in said:
            said.append(client.next())
        # It may hear first that its node is gone, and not be cut off before it asks.
        gone = {"suspended", "CoordinatorUnavailableError", "expired", "deleted /id", "none"}
        assert set(said) <= gone
        client.ask("look")
        while (answer := client.next()) != "SessionExpiredError":
            assert answer == "CoordinatorUnavailableError"  # of what it asked before
        client.ask("again")
        session_id, epoch = map(int, client.next().split())
        assert session_id != client.session_id
        assert epoch > client.epoch
        assert onlooker.stat("/id").owner == session_id


def test_a_tree_that_stood_still_ends_no_session(server: CoordinatorProcess) -> None:
    """Its clients waited, and it could hear none of them."""
    with ClientProcess(server, 1_000) as client:
        server.pause()
        assert client.next() == "suspended"
        server.resume()
        assert [client.next(), client.next()] == ["connected", "missed /"]
        client.ask("look")
        assert client.next() == str(client.session_id)
