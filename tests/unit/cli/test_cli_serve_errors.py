"""``logstore serve`` says in one line what is wrong, and leaves nothing behind."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from logstore.manager import LogManager, ManagerOwner
from replication.cli.serve import serve
from tests.support.cases import for_each


def refused(tmp_path: Path, *arguments: str) -> str:
    told = CliRunner().invoke(serve, ["--dir", str(tmp_path / "data"), *arguments])
    assert told.exit_code == 2, told.output
    assert told.stderr.startswith("error: ")
    assert told.stderr.count("\n") == 1
    return told.stderr


@pytest.mark.parametrize("option", ["--listen", "--http"])
def test_a_taken_address_is_named(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        rest = [] if option == "--listen" else ["--listen", "127.0.0.1:0"]
        told = refused(tmp_path, option, address, *rest)
    assert f"{address}: Address already in use" in told


def test_a_directory_that_cannot_be_made_is_named() -> None:
    told = CliRunner().invoke(serve, ["--dir", "/proc/none", "--listen", "127.0.0.1:0"])
    assert told.exit_code == 2
    assert told.stderr.startswith("error: /proc/none")


def test_the_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    """Its replicas would pass for those of this broker."""
    with LogManager(
        [tmp_path / "data" / "broker-0"], background=False, owner=ManagerOwner(node_id=7)
    ):
        pass
    told = refused(tmp_path, "--listen", "127.0.0.1:0")
    assert "different clusters or nodes" in told
    assert "broker-0 is of node 7" in told


@for_each(
    "arguments, reason",
    [
        ([], "Missing option '--dir'"),
        (["--read-only"], "read-only brokers need directories to adopt"),
        (["--adopt", "/nowhere", "--read-only"], "/nowhere: no such directory"),
        (["--adopt", "/nowhere"], "Missing option '--dir'"),
    ],
)
def test_what_cannot_be_adopted_is_named(arguments: list[str], reason: str) -> None:
    told = CliRunner().invoke(serve, [*arguments, "--listen", "127.0.0.1:0"])
    assert told.exit_code == 2
    assert reason in told.stderr


def test_a_directory_without_its_coordinator_is_refused(tmp_path: Path) -> None:
    """Its logs would seem to be left over from topics that are gone."""
    home = tmp_path / "data" / "broker-0"
    with LogManager([home], background=False, owner=ManagerOwner(node_id=0)) as manager:
        manager.create_topic("orders", 1)
    before = sorted(path.name for path in home.iterdir())
    told = refused(tmp_path, "--listen", "127.0.0.1:0")
    assert "knows none of the topics whose logs are there (orders-0)" in told
    assert sorted(path.name for path in home.iterdir()) == before


@for_each(
    "arguments, reason",
    [
        (["--listen", "0.0.0.0:0"], "--advertise"),
        (["--listen", "somewhere"], "give HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "a port from 0 to 65535"),
        (["--listen", "127.0.0.1:65535", "--brokers", "2"], "there are not 2 ports"),
        (["--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"], "no login"),
        (["--listen", "127.0.0.1:0", "--http", "x"], "--http x: give HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--registry", "x"], "--registry x: give HOST:PORT"),
        (["--listen", "NOPE://127.0.0.1:0"], "not one of the security protocols"),
        (["--listen", "SSL://127.0.0.1:65535", "--brokers", "2"], "there are not 2 ports"),
        (["--listen", "127.0.0.1:0,127.0.0.1:0"], "one listener for each protocol"),
        (["--listen", "SASL_PLAINTEXT://127.0.0.1:0"], "takes credentials"),
        (["--config", "nope=1"], "unknown configuration key 'nope'"),
        (["--config", "num.partitions=x"], "is not a whole number"),
        (["--config", "num.partitions"], "give KEY=VALUE"),
        (["--config", "num.partitions=1", "--config", "num.partitions=2"], "given twice"),
    ],
)
def test_bad_options(tmp_path: Path, arguments: list[str], reason: str) -> None:
    assert reason in refused(tmp_path, *arguments)


@pytest.mark.parametrize("text", ["alice", ":secret", "alice:", "alice:a\nalice:b"])
def test_bad_users(tmp_path: Path, text: str) -> None:
    users = tmp_path / "users.txt"
    users.write_text(f"# who may log in\n\n{text}\n")
    listener = "SASL_PLAINTEXT://127.0.0.1:0"
    told = refused(tmp_path, "--listen", listener, "--users", str(users))
    assert f"users.txt:{text.count(chr(10)) + 3}: give NAME:PASSWORD" in told
