"""``logstore cluster``: processes that are stubs, started and asked as a person does it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from replication.cli.cluster import _teller, _wanted
from replication.supervisor import control
from replication.supervisor.cluster_file import file_in, read_cluster
from tests.support.commands import logstore, logstore_json
from tests.support.until import patience, until
from tests.unit.supervisor.clusters import STUB, plan_in, running, shows
from tests.unit.supervisor.test_children import have_ended

ROOT = Path(__file__).resolve().parents[3]
# The command has our packages, and its children the stub.
RUN = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from logstore.cli import main;"
    "from replication.cli.cluster import cluster; main.add_command(cluster);"
    "main(['cluster', *sys.argv[1:]])"
)
ELSEWHERE = ("--engine", "zookeeper://nowhere:1", "--listen", "127.0.0.1:0")


@contextmanager
def cluster(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "--dir", str(directory), "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(STUB)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until_ready(process: subprocess.Popen[str]) -> Any:
    """What is said of all brokers."""
    assert process.stdout is not None
    for line in process.stdout:
        said = json.loads(line)
        if "bootstrapServers" in said and "coordinator" in said:
            return said
    raise AssertionError(process.communicate())


def test_files_are_found_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = ("ssl.keystore.location=a.pem", "ssl.truststore.location=/b.pem", "num.partitions=2")
    rest = dict.fromkeys(("brokers", "listen", "engine", "servers", "jars", "http"))
    wanted = _wanted(given=pairs, users="users", password_file="password", **rest)
    assert wanted.config == {
        "ssl.keystore.location": f"{tmp_path}/a.pem",
        "ssl.truststore.location": "/b.pem",
        "num.partitions": "2",
    }
    assert (wanted.users, wanted.password_file) == (f"{tmp_path}/users", f"{tmp_path}/password")


@pytest.mark.slow
def test_a_first_start_and_a_second(tmp_path: Path) -> None:
    with cluster(tmp_path, *ELSEWHERE, "--brokers", "2", "--config", "num.partitions=4") as process:
        first = until_ready(process)
        assert first["coordinator"] == "zookeeper://nowhere:1"
        told = logstore_json("cluster", "status", "--dir", str(tmp_path), code=None)
        assert told["supervised"]
        children = psutil.Process(process.pid).children()
        with cluster(tmp_path) as second:  # one process a directory
            _, errors = second.communicate(timeout=patience())
            assert second.returncode == 2
            assert errors == f"error: {tmp_path}: its cluster is run by process {process.pid}\n"
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does, to the group of the terminal
        assert process.wait(patience()) == 0
        assert have_ended(children)
    events = (tmp_path / "events").read_text().splitlines()
    assert events[2:] == ["ended 0", "ended 1"]
    with cluster(tmp_path) as process:
        assert until_ready(process) == first
        logstore("cluster", "stop", "--dir", str(tmp_path))
        assert process.wait(patience()) == 0


@pytest.mark.slow
def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    plan_in(tmp_path, stub_deaf="1")
    with cluster(tmp_path) as process:
        until_ready(process)
        children = psutil.Process(process.pid).children()
        process.terminate()
        until(lambda: _processes(tmp_path)[0]["state"] == "stopping")
        process.terminate()
        assert process.wait(patience()) == 130
        assert have_ended(children)


def _processes(directory: Path) -> list[dict[str, Any]]:
    told = logstore_json("cluster", "status", "--dir", str(directory), code=None)
    found: list[dict[str, Any]] = told["processes"]
    return found


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, *ELSEWHERE, "--brokers", "1") as process:
        until_ready(process)
        assert process.stdout is not None
        process.stdout.close()
        (child,) = psutil.Process(process.pid).children()
        child.kill()
        until(lambda: _processes(tmp_path)[0]["deaths"] == 1)
        process.terminate()
        process.stdout = None
        assert process.wait(patience()) == 0


# -- errors of a start -----------------------------------------------------------------------------


def refused(directory: Path, *options: str) -> str:
    """The one line on stderr."""
    told = logstore("cluster", "--dir", str(directory), *options, code=2)
    (line,) = told.stderr.splitlines()
    return str(line)


def test_what_a_start_refuses(tmp_path: Path) -> None:
    plan_in(tmp_path)
    text = refused(tmp_path, "--brokers", "5")
    assert text.startswith(f"error: --brokers 5 contradicts {file_in(str(tmp_path))}, which has 2;")
    assert "--config x: give KEY=VALUE, or a file" in refused(tmp_path, "--config", "x")
    plan = read_cluster(str(tmp_path))
    assert plan is not None
    with socket.create_server(plan.brokers[1].addresses[0]):
        expected = f"error: {plan.brokers[1].bootstrap}, of broker 1: Address already in use"
        assert refused(tmp_path) == expected
    Path(file_in(str(tmp_path))).write_text("x")
    assert refused(tmp_path).startswith(f"error: {file_in(str(tmp_path))}: Expected")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--engine", "nonsense"), "give zookeeper, tree or a URL"),
        (("--engine", "nonsense://x"), "unknown coordinator 'nonsense://x'"),
        (("--engine", "zookeeper://a:b"), "is not zookeeper://host:port/chroot"),
        (("--engine", "embedded://x"), "is for the brokers of one process"),
        (("--config", "unknown=1"), "unknown configuration key 'unknown'"),
        (("--config", "num.partitions=x"), "num.partitions = 'x' is not a whole number"),
        (("--config", "broker.id=7"), "--broker-id 0, and broker.id = 7"),
        (("--listen", "FTP://127.0.0.1:0"), "'FTP' is not one of the security protocols"),
    ],
)
def test_a_refused_first_start_writes_nothing(
    tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    """Otherwise a later one with better options would contradict it."""
    assert reason in refused(tmp_path / "new", *ELSEWHERE, *options)
    assert read_cluster(str(tmp_path / "new")) is None


@pytest.mark.parametrize("is_first", [True, False])
def test_a_missing_library_is_named_at_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    options = ELSEWHERE if is_first else ()
    if not is_first:
        plan_in(tmp_path)
    for name in ("kazoo", "kazoo.client"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "replication.coordination.zookeeper", raising=False)
    assert "the package kazoo: pip install" in refused(tmp_path, *options)


def test_a_full_disk_below_its_output_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115  # its end fails
    monkeypatch.setattr(sys, "stdout", full)
    for as_json in (False, True):
        _teller(as_json)("broker 0 died", {"state": "paused"})
    with suppress(OSError):
        full.close()


def test_options_have_their_place(tmp_path: Path) -> None:
    directory = str(tmp_path)
    told = logstore("cluster", "--brokers", "3", "status", "--dir", directory, code=2)
    assert "give options behind status" in told.stderr
    assert "Missing option '--dir'" in logstore("cluster", code=2).stderr
    told = logstore("cluster", "status", code=2)
    assert "Missing option '--dir'" in told.stderr
    told = logstore("cluster", "--dir", directory, "status", code=2)  # the option's other place
    assert "there is no cluster.toml" in told.stderr
    for command in (["status"], ["restart", "--rolling"], ["add", "1"], ["logs", "0"]):
        told = logstore("cluster", *command, "--dir", directory, code=2)
        assert "there is no cluster.toml" in told.stderr
    told = logstore("cluster", "stop", "--dir", directory, code=2)
    assert "no cluster runs there" in told.stderr
    for command in (["restart"], ["restart", "0", "--rolling"]):
        told = logstore("cluster", *command, "--dir", directory, code=2)
        assert "give a broker N, or --rolling" in told.stderr


# -- from another shell ----------------------------------------------------------------------------


def row(number: int, isr: tuple[int, ...] = (0, 1), min_isr: int = 1) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": number,
        "leader": isr[0],
        "leader_epoch": 1,
        "isr": list(isr),
        "min_isr": min_isr,
        "replicas": [{"broker": 0}, {"broker": 1}],
    }


def state(broker_id: int, *rows: dict[str, Any], controller: int = 0) -> dict[str, Any]:
    own = {
        "id": broker_id,
        "state": "in sync",
        "epoch": 70 + broker_id,
        "is_controller": broker_id == controller,
        "partitions": 2,
        "leaders": 1,
    }
    return {"brokers": [own], "partitions": list(rows)}


def test_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_in(tmp_path)
    directory = str(tmp_path)
    for each in plan.brokers:
        shows(tmp_path, each, state=state(each.broker_id, row(0), row(1)))
    with running(tmp_path, plan) as kafka:
        kafka.until_said("ready")
        told = logstore("cluster", "status", "--dir", directory, code=1)  # the engine is nowhere
        assert told.stdout.splitlines() == [
            "engine      zookeeper://nowhere:1  no answer   1 server: no redundancy",
            "controller  broker 0",
            f"broker 0    ready      pid {kafka.pid(0)}   epoch 70   leads 1, follows 1   in sync",
            f"broker 1    ready      pid {kafka.pid(1)}   epoch 71   leads 1, follows 1   in sync",
            "under-replicated 0   without leader 0   restart now: 0, 1",
        ]
        assert (
            "may be restarted"
            in logstore("cluster", "status", "--can-restart", "0", "--dir", directory).stdout
        )
        behind = {"ready": False, "brokers": {"1": "caught up"}, "outOfSync": {"1": ["orders-1"]}}
        shows(tmp_path, plan.brokers[0], state=state(0, row(0), row(1, isr=(0,), min_isr=2)))
        shows(tmp_path, plan.brokers[1], state=state(1), ready=behind)
        told = logstore("cluster", "status", "--dir", directory, code=1)
        assert told.stdout.splitlines()[3:] == [
            f"broker 1    ready      pid {kafka.pid(1)}   epoch 71   leads 1, follows 1   "
            "orders-1 is not in sync",
            "under-replicated 1   without leader 0   restart now: none can",
        ]
        found = logstore_json("cluster", "status", "--can-restart", "0", "--dir", directory, code=1)
        assert not found["canRestart"]
        assert found["reasons"] == [
            "broker 1 is not ready: orders-1 is not in sync",
            "orders-1: 0 in sync would be left, and min.insync.replicas is 2 with 2 replicas",
        ]
    told = logstore("cluster", "status", "--dir", directory, code=1)
    lines = told.stdout.splitlines()
    assert lines[1:3] == ["supervisor  does not run", "controller  none answers"]
    assert lines[3].startswith("broker 0    no answer  127.0.0.1:")
    monkeypatch.setattr(control, "ANSWER_S", 0.01)
    with socket.socket(socket.AF_UNIX) as still:
        still.bind(str(tmp_path / control.SOCKET))
        still.listen()
        told = logstore("cluster", "status", "--dir", directory, code=1)
        assert told.stdout.splitlines()[1] == "supervisor  does not answer"


def test_a_rolling_restart_ends_with_the_controller(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, 3)
    for each in plan.brokers:
        shows(tmp_path, each, state=state(each.broker_id, controller=1))
    with running(tmp_path, plan) as kafka:
        kafka.until_said("ready")
        told = logstore("cluster", "restart", "--rolling", "--dir", str(tmp_path))
        assert told.stdout.splitlines()[::2] == [f"broker {n} is restarted" for n in (0, 2, 1)]
    assert [each for each in kafka.events[3:9] if each.startswith("ended")] == [
        "ended 0",
        "ended 2",
        "ended 1",
    ]


def test_a_restart_that_would_hurt_is_refused(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    for each in plan.brokers:
        shows(tmp_path, each, state=state(each.broker_id, row(0, min_isr=2)))
    restart = ("cluster", "restart", "0", "--dir", str(tmp_path))
    with running(tmp_path, plan) as kafka:
        kafka.until_said("ready")
        before = kafka.pid(0)
        assert "orders-0: 1 in sync would be left" in logstore(*restart, code=1).stdout
        assert kafka.pid(0) == before
        told = logstore(*restart, "--allow-unavailable")
        assert told.stdout == "broker 0 is restarted\nbroker 0 is ready\n"
        assert kafka.pid(0) != before


def test_a_further_broker(tmp_path: Path) -> None:
    directory = str(tmp_path)
    with running(tmp_path, plan_in(tmp_path)) as kafka:
        kafka.until_said("ready")
        told = logstore("cluster", "add", "2", "--dir", directory)
        found = read_cluster(directory)
        assert found is not None
        assert told.stdout == f"broker 2 is ready at {found.brokers[2].bootstrap}\n"
        told = logstore("cluster", "add", "2", "--dir", directory, code=2)
        assert told.stderr == "error: there is a broker 2\n"
        assert kafka.stop() == 0


def test_logs(tmp_path: Path) -> None:
    directory = str(tmp_path)
    plan_in(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "broker-0.log.1").write_text("one\ntwo\n")
    (tmp_path / "logs" / "broker-0.log").write_bytes(b"three\n\x1b[1mfour\xff\nfive\n")
    told = logstore("cluster", "logs", "0", "--lines", "4", "--dir", directory)
    assert told.stdout == "two\nthree\n\\x1b[1mfour�\nfive\n"
    told = logstore("cluster", "logs", "zookeeper-1", "--dir", directory, code=2)
    assert "zookeeper-1: there is no such log; there are broker-0" in told.stderr
