"""``logstore serve --broker-id``: what it refuses, what it tells, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from logstore.cli import main
from replication.coordination.served import TreeServer
from tests.support.cases import for_each
from tests.support.until import patience, until

ROOT = Path(__file__).resolve().parents[3]
SERVE = (sys.executable, "-m", "logstore", "serve")
pytestmark = pytest.mark.slow  # processes start
NOWHERE = "--coordinator=zookeeper://127.0.0.1:1"


@for_each(
    "arguments, said",
    [
        ([NOWHERE], "--coordinator takes --broker-id, or broker.id"),
        ([NOWHERE, "--config=broker.id=1", "--broker-id=2"], "--broker-id 2, and broker.id = 1"),
        ([NOWHERE, "--config=broker.id=1", "--config=node.id=2"], "node.id = 2, and broker.id = 1"),
        (["--broker-id=1"], "takes --coordinator URL, or zookeeper.connect"),
        (["--broker-id=1", "--coordinator=embedded:/x"], "an embedded tree is for"),
        (["--broker-id=1", NOWHERE, "--config=log.dir=/a", "--config=log.dirs=/b"], "give one of"),
        (["--broker-id=1", NOWHERE, "--dir=/a", "--config=log.dirs=/b,/c"], "--dir, and log.dirs:"),
        (["--broker-id=1", NOWHERE, "--config=num.partitionz=1"], "'num.partitionz'"),
        (["--broker-id=1", NOWHERE, "--brokers=2"], "for brokers of one process"),
        (["--broker-id=1", NOWHERE, "--listen=127.0.0.1"], "is not NAME://host:port"),
        (
            ["--broker-id=1", NOWHERE, "--config=inter.broker.listener.name=IN"],
            "'IN' is none of the listeners",
        ),
        (
            ["--broker-id=1", "--config=zookeeper.connect=h:99999/k"],
            "zookeeper://h:99999/k is not zookeeper://host:port/chroot",
        ),
    ],
)
def test_one_line_says_what_is_wrong(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = [] if "log.dir" in " ".join(arguments) else ["--dir=d"]
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        told = CliRunner().invoke(main, ["serve", *arguments, *directory])
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), handlers, strict=True):
            signal.signal(number, handler)
    assert told.exit_code == 2
    *states, error = told.stderr.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert set(states) <= {"state: starting"}
    assert not [*tmp_path.iterdir()]


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*SERVE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with closing(TreeServer(str(tmp_path / "tree"))) as tree:
        yield tree.url


def until_said(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"it ended without {text!r}")


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=patience())
    return process.returncode, errors


def status_of(address: tuple[str, int], path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=patience())
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_coordinator_that_is_silent(tmp_path: Path) -> None:
    """It is not healthy meanwhile, makes nothing, and the second signal ends it at once."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        page = free.getsockname()
        free.close()
        with started(
            "--broker-id=1",
            f"--coordinator=zookeeper://127.0.0.1:{silent.getsockname()[1]}",
            f"--dir={tmp_path / 'd'}",
            f"--http=127.0.0.1:{page[1]}",
        ) as process:
            until_said(process, "state: starting")
            for path in ("/health", "/ready"):
                assert status_of(page, path)[0] == 503
            process.send_signal(signal.SIGTERM)
            until(lambda: process.poll() is not None or process.send_signal(signal.SIGTERM))
            assert process.returncode in (0, -signal.SIGTERM)
            assert not (tmp_path / "d").exists()


def test_an_id_that_another_process_has(tmp_path: Path, url: str) -> None:
    """A signal ends the wait for the other's session; nothing was made."""
    options = ("--broker-id=1", f"--coordinator={url}", "--listen=127.0.0.1:0")
    with started(*options, f"--dir={tmp_path / 'a'}") as first:
        until_said(first, "state: in sync")
        with started(*options, f"--dir={tmp_path / 'b'}") as second:
            until_said(second, "a process has the id 1; the end of its session is awaited for 60 s")
            second.send_signal(signal.SIGTERM)
            assert ended(second)[0] == 0
        short = "--config=initial.broker.registration.timeout.ms=100"
        with started(*options, f"--dir={tmp_path / 'b'}", short) as second:
            code, errors = ended(second)
            assert code == 2
            assert errors.splitlines()[-1].startswith("error: ")
            assert "1" in errors.splitlines()[-1]
        assert not (tmp_path / "b").exists()
        with started(*options, f"--dir={tmp_path / 'a'}") as second:
            code, errors = ended(second)
            assert code == 2
            assert "locked by process" in errors
        first.send_signal(signal.SIGTERM)
        assert ended(first)[0] == 0


def test_what_a_service_manager_is_told(tmp_path: Path, url: str) -> None:
    """Of systemd's protocol: ready once, alive in half of its time, stopping before the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(patience())
        with started(
            "--broker-id=1",
            f"--coordinator={url}",
            f"--dir={tmp_path / 'd'}",
            "--listen=127.0.0.1:0",
            "--http=127.0.0.1:0",
            "--json",
            NOTIFY_SOCKET=str(tmp_path / "notify"),
            WATCHDOG_USEC="400000",
        ) as process:
            told: list[str] = []

            def until_told(text: str) -> None:
                while told.count(text) == 0:
                    told.append(manager.recv(4096).decode())

            until_told("READY=1")
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            told.clear()
            until_told("WATCHDOG=1")
            told.clear()
            until_told("WATCHDOG=1")
            host, port = ready["http"].removeprefix("http://").rstrip("/").split(":")
            until(lambda: status_of((host, int(port)), "/ready")[0] == 200)
            assert status_of((host, int(port)), "/health")[0] == 200
            process.send_signal(signal.SIGTERM)
            until_told("STOPPING=1")
            assert "READY=1" not in told
            code, errors = ended(process)
            assert code == 0
            assert errors.splitlines()[-1] == "state: stopping"
