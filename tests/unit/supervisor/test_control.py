"""Another shell asks a running supervisor over its socket."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logstore.common.errors import ConfigError
from replication.supervisor import control, supervisor
from replication.supervisor.cluster_file import read_cluster
from replication.supervisor.control import SOCKET, ControlClient, ControlError
from replication.supervisor.planning import further_broker
from replication.supervisor.processes import RestartRule
from tests.support.until import patience, until
from tests.unit.supervisor.clusters import plan_in, running


def test_what_runs(tmp_path: Path) -> None:
    with running(tmp_path, plan_in(tmp_path)) as cluster:
        cluster.until_said("ready")
        assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600
        with ControlClient(str(tmp_path)) as client:
            answer = client.ask("status")
        assert answer["pid"] == os.getpid()
        assert [(each["name"], each["state"], each["pid"]) for each in answer["processes"]] == [
            ("broker 0", "ready", cluster.pid(0)),
            ("broker 1", "ready", cluster.pid(1)),
        ]
    assert not (tmp_path / SOCKET).exists()
    with pytest.raises(ConfigError, match="no cluster runs there"):
        ControlClient(str(tmp_path))


def test_a_restart_is_answered_when_the_broker_is_ready(tmp_path: Path) -> None:
    with running(tmp_path, plan_in(tmp_path)) as cluster:
        cluster.until_said("ready")
        before = cluster.pid(0)
        with ControlClient(str(tmp_path)) as client:
            answer = client.ask("restart", broker=0)
            assert answer["pid"] == cluster.pid(0) != before
            client.ask("restart", broker=1)
    assert cluster.events[2:6] == ["ended 0", "began 0", "ended 1", "began 1"]


def test_one_that_was_given_up_is_started_anew(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    broken = replace(plan.brokers[0], config={"stub.exit": "2"})
    rule = RestartRule(0.001, 0.001, deaths=1)
    with running(tmp_path, plan.with_broker(broken), rule=rule) as cluster:
        cluster.until_said("failed", "broker 0")
        with (
            ControlClient(str(tmp_path)) as client,
            pytest.raises(ControlError, match="broker 0: exit code 2: the stub ends with 2"),
        ):
            client.ask("restart", broker=0)
        assert cluster.events.count("began 0") == 2
        assert cluster.stop() == 1


def test_a_broker_comes_and_goes(tmp_path: Path) -> None:
    with running(tmp_path, plan_in(tmp_path, 1)) as cluster:
        cluster.until_said("ready")
        with ControlClient(str(tmp_path)) as client:
            client.add(further_broker(cluster.supervisor.cluster, 7))
            found = read_cluster(str(tmp_path))
            assert found is not None
            assert [each.broker_id for each in found.brokers] == [0, 7]
            with pytest.raises(ControlError, match="there is a broker 7"):
                client.add(found.brokers[1])
            client.ask("remove", broker=0)
            with pytest.raises(ControlError, match="broker 7 is the last one"):
                client.ask("remove", broker=7)
            with pytest.raises(ControlError, match="there is no broker 0"):
                client.ask("remove", broker=0)
        found = read_cluster(str(tmp_path))
        assert found is not None
        assert [each.broker_id for each in found.brokers] == [7]
        assert cluster.stop() == 0
    assert cluster.events == ["began 0", "began 7", "ended 0", "ended 7"]


def test_one_command_at_a_time_changes_something(tmp_path: Path) -> None:
    with running(tmp_path, plan_in(tmp_path)) as cluster:
        cluster.until_said("ready")
        with ControlClient(str(tmp_path)) as first, ControlClient(str(tmp_path)) as second:
            first.ask("begin")
            with pytest.raises(ControlError, match="another command is changing this cluster"):
                second.ask("restart", broker=0)
            assert second.ask("status")
            first.ask("restart", broker=0)
        with ControlClient(str(tmp_path)) as third:
            until(lambda: _may_begin(third))  # the first one's end has been seen


def _may_begin(client: ControlClient) -> bool:
    try:
        client.ask("begin")
    except ControlError:
        return False
    return True


def test_a_stop(tmp_path: Path) -> None:
    with running(tmp_path, plan_in(tmp_path, stub_deaf="1")) as cluster:
        cluster.until_said("ready")
        with ControlClient(str(tmp_path)) as client:
            client.ask("stop")
            client.ask("stop")  # no second signal: nothing is killed
            until(
                lambda: (
                    {each["state"] for each in client.ask("status")["processes"]}
                    == {"ready", "stopping"}
                )
            )
            with pytest.raises(ControlError, match="is being stopped"):
                client.ask("begin")
            cluster.supervisor.stop()  # the stubs do not hear
            client.wait_for_end()
            with pytest.raises(ControlError, match="the supervisor has ended"):
                client.ask("status")
        assert cluster.wait() == 130


def asking(directory: Path, line: str) -> socket.socket:
    """A connection that has asked, and has read no answer."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(patience())
    peer.connect(str(directory / SOCKET))
    peer.sendall(line.encode() + b"\n")
    return peer


@pytest.mark.parametrize("then", ["restart", "remove"])
def test_after_a_restart_whose_caller_has_gone(tmp_path: Path, then: str) -> None:
    """A second SIGTERM would end the broker without order, and a removed one stays away."""
    with running(tmp_path, plan_in(tmp_path, stub_deaf="1")) as cluster:
        cluster.until_said("ready")
        asking(tmp_path, '{"do": "restart", "broker": 0}').close()
        until(lambda: cluster.events.count("asked 0") == 1)
        with ControlClient(str(tmp_path)) as client:
            until(lambda: _may_begin(client))
        with asking(tmp_path, json.dumps({"do": then, "broker": 0})) as second:
            until(lambda: _is_changing(tmp_path))
            os.kill(cluster.pid(0), signal.SIGKILL)
            found: dict[str, Any] = json.loads(second.recv(1 << 16))
        assert cluster.events.count("asked 0") == 1
        assert cluster.events.count("began 0") == (2 if then == "restart" else 1)
        assert found == ({"pid": cluster.pid(0)} if then == "restart" else {})


def _is_changing(directory: Path) -> bool:
    with ControlClient(str(directory)) as client:
        return not _may_begin(client)


def test_a_full_disk_ends_a_removal_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(directory: str, plan: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with running(tmp_path, plan_in(tmp_path)) as cluster:
        cluster.until_said("ready")
        with ControlClient(str(tmp_path)) as client:
            with monkeypatch.context() as patched:
                patched.setattr(supervisor, "write_cluster", full)
                with pytest.raises(ControlError, match="No space left"):
                    client.ask("remove", broker=0)
                with pytest.raises(ControlError, match="No space left"):
                    client.add(further_broker(cluster.supervisor.cluster, 7))
            assert [each["name"] for each in client.ask("status")["processes"]] == [
                "broker 0",
                "broker 1",
            ]
            client.ask("remove", broker=0)
        found = read_cluster(str(tmp_path))
        assert found is not None
        assert [each.broker_id for each in found.brokers] == [1]
        assert cluster.stop() == 0


@pytest.mark.parametrize("waiting", [1, 9])
def test_a_supervisor_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    monkeypatch.setattr(control, "ANSWER_S", 0.01)
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as opened:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen(waiting - 1)

        def ask() -> None:
            for _ in range(waiting + 1):
                client = opened.enter_context(ControlClient(str(tmp_path)))
            client.ask("status")

        with pytest.raises(ControlError, match="the supervisor does not answer"):
            ask()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"[]\n", "no object"),
        (b"\xff\n", "utf-8"),
        (b"{}\n", "no such request: None"),
        (b'{"do": "restart"}\n', "broker"),
        (b'{"do": "restart", "broker": [1]}\n', "int"),
        (b'{"do": "add", "entry": {}}\n', "config_files"),
        (b'{"do": "add", "entry": {"config_files": [], "x": 1}}\n', "unexpected keyword"),
        (b"[" * 10_000 + b"\n", "recursion"),
        (b"x" * (1 << 17), None),
        (b'{"do": "status"}\n{"do": "status"}\n', None),
        (b'{"do": "restart", "broker": 0}\n{', None),
    ],
)
def test_strange_requests_change_nothing(tmp_path: Path, line: bytes, answer: str | None) -> None:
    """None: the connection is closed."""
    with running(tmp_path, plan_in(tmp_path, 1)) as cluster:
        cluster.until_said("ready")
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(tmp_path / SOCKET))
            try:
                stranger.sendall(line)
                got = stranger.recv(1 << 16)
            except ConnectionError:
                got = b""
        if answer is None:
            assert got == b""
        else:
            found: dict[str, Any] = json.loads(got)
            assert answer in found["error"]
        with ControlClient(str(tmp_path)) as client:
            assert client.ask("status")["processes"][0]["deaths"] == 0


def test_many_connections(tmp_path: Path) -> None:
    with running(tmp_path, plan_in(tmp_path, 1)) as cluster:
        cluster.until_said("ready")
        clients = [ControlClient(str(tmp_path)) for _ in range(control.CONNECTIONS_MAX)]
        for each in clients:
            each.ask("status")
        with ControlClient(str(tmp_path)) as late, pytest.raises(ControlError, match="has ended"):
            late.ask("status")
        for each in clients:
            each.__exit__()

        def next_one_may_begin() -> bool:
            """A new one each time: one that comes before the ends of the others is shut."""
            with ControlClient(str(tmp_path)) as client:
                return _may_begin(client)

        until(next_one_may_begin)


def test_a_directory_with_a_long_name(tmp_path: Path) -> None:
    """The address of a Unix socket has a hundred bytes."""
    place = tmp_path / ("x" * 120)
    place.mkdir()
    here = os.getcwd()
    with running(place, plan_in(place, 1)) as cluster:
        cluster.until_said("ready")
        with ControlClient(str(place)) as client:
            assert client.ask("status")
    assert os.getcwd() == here
