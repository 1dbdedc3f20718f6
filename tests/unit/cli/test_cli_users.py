"""``logstore users``: keys in a tree that no broker uses yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from checkpoints.loggers import get_logger
from replication import coordination
from replication.cli.users import users
from replication.coordination import CoordinatorUnavailableError, nodes, open_coordinator
from replication.coordination.served import TreeServer
from replication.security.stored import StoredCredentials

NAME = "kafka, the broker"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with closing(TreeServer(str(tmp_path_factory.mktemp("tree")))) as tree:
        yield f"{tree.url}/chroot"


def run(*arguments: str, password: str | None = None) -> Result:
    return CliRunner().invoke(users, arguments, input=password)


def test_a_user_comes_and_goes(url: str, tmp_path: Path) -> None:
    at = ("--coordinator", url)
    assert run("add", NAME, *at, password="se:cret ü\n").output == f"{NAME}: SCRAM-SHA-512 added\n"
    with (
        closing(open_coordinator(url)) as service,
        closing(service.connect()) as session,
    ):
        credentials = StoredCredentials(session.get)
        assert credentials.check_password(NAME, "se:cret ü")
        (tmp_path / "password").write_text("other\r\nmore\n")
        told = run("add", NAME, *at, "--password-file", str(tmp_path / "password"))
        assert told.output == f"{NAME}: SCRAM-SHA-512 changed\n"
        assert credentials.check_password(NAME, "other")
        assert not credentials.check_password(NAME, "se:cret ü")
        assert run("add", NAME, *at, "--mechanism", "SCRAM-SHA-256", password="x").exit_code == 0
        told = run("remove", NAME, *at)
        assert told.output == f"{NAME}: SCRAM-SHA-512 removed\n"
        node = session.get(nodes.user_config_path(NAME))
        assert node is not None
        assert [*json.loads(node.data)["config"]] == ["SCRAM-SHA-256"]
    told = run("remove", NAME, *at)
    assert (told.exit_code, told.stderr) == (2, f"error: {NAME} has no SCRAM-SHA-512\n")


@pytest.mark.parametrize(
    ("arguments", "password", "said"),
    [
        (["add", "ann"], "", "give a name, and a password"),
        (["add", "ann"], "\n", "give a name, and a password"),
        (["add", "ann"], "x" * 4097, "up to 4096 bytes"),
        (["add", ""], "x", "give a name"),
        (["add", ".."], "x", "is not a path"),
        (["add", "ann", "--coordinator=embedded:/x"], "x", "an embedded tree has no users"),
        (["add", "ann", "--coordinator=etcd:/x"], "x", "unknown coordinator"),
        (["add", "ann", "--coordinator=zookeeper://h:x"], "x", "is not zookeeper://host:port"),
        (["remove", "bob"], None, "bob has no SCRAM-SHA-512"),
    ],
)
def test_what_is_refused(url: str, arguments: list[str], password: str | None, said: str) -> None:
    told = run(arguments[0], f"--coordinator={url}", *arguments[1:], password=password)
    assert told.exit_code == 2
    assert told.stderr.startswith("error: ")
    assert said in told.stderr
    assert told.stderr.count("\n") == 1


def test_one_line_for_a_coordinator_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = get_logger("replication.coordination.zookeeper")

    def tries(url: str) -> None:
        logger.warning("Connection dropped")
        raise CoordinatorUnavailableError(f"{url} does not answer")

    monkeypatch.setattr(coordination, "open_coordinator", tries)
    told = run("add", "ann", "--coordinator=zookeeper://h:1", password="x")
    assert told.stderr == "error: zookeeper://h:1 does not answer\n"
    assert not caplog.records
    logger.warning("a later command says it")
    assert caplog.records


def test_a_password_that_is_no_text(url: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"\xff\xfe")
    told = run("add", "ann", f"--coordinator={url}", f"--password-file={tmp_path / 'password'}")
    assert told.exit_code == 2
    assert "the password cannot be read" in told.stderr
