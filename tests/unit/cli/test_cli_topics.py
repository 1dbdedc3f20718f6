"""``logstore create``, ``alter`` and ``delete``, and the rest of ``append``."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logstore import LogManager
from logstore.cli import main
from logstore.format.filenames import CLUSTER_METADATA_DIR
from tests.support.cases import for_each
from tests.support.until import patience

GOLDEN = Path(__file__).parents[2] / "golden" / "data"


def run(*arguments: object, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)], input=stdin)


def good(*arguments: object, stdin: bytes = b"") -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(message: str, *arguments: object, stdin: bytes = b"") -> None:
    result = run(*arguments, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr.rstrip("\n").isprintable()


def topic_in(directory: Path, topic: str) -> tuple[list[int], dict[str, str]]:
    with LogManager([directory], background=False) as manager:
        config, default = manager.topic_config(topic), manager.config.to_properties()
        differs = {k: v for k, v in config.to_properties().items() if v != default[k]}
        return manager.topics()[topic], differs


def test_the_life_of_a_topic(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    assert good("create", logs, "t", "--partitions", "2", "--config", "retention.ms=-1") == (
        "created t with 2 partitions\n"
    )
    assert topic_in(logs, "t") == ([0, 1], {"retention.ms": "-1"})
    good("append", logs, "t", "--partition", "1", stdin=b"kept\n")
    told = json.loads(
        good("alter", logs, "t", "--partitions", "3", "--config", "segment.ms=5", "--json")
    )
    assert told == {
        "topic": "t",
        "partitions": [0, 1, 2],
        "config": {"retention.ms": "-1", "segment.ms": "5"},
    }
    assert topic_in(logs, "t") == ([0, 1, 2], {"retention.ms": "-1", "segment.ms": "5"})
    good("alter", logs, "t", "--delete-config", "retention.ms", "--config", "segment.ms=6")
    assert topic_in(logs, "t") == ([0, 1, 2], {"segment.ms": "6"})
    assert good("read", logs, "t") == "kept\n"
    assert good("verify", logs).rstrip().endswith("clean")
    assert good("delete", logs, "t") == "deleted t, 3 partitions\n"
    assert not [path for path in logs.iterdir() if path.is_dir()]
    assert "t " not in (logs / "recovery-point-offset-checkpoint").read_text()
    good("create", logs, "t")
    assert topic_in(logs, "t") == ([0], {})


def test_what_is_refused(tmp_path: Path) -> None:
    good("create", tmp_path, "t", "--partitions", "2")
    good("create", tmp_path, "with.dot")
    refused("topic 't' is there already", "create", tmp_path, "t")
    refused("topic 'with_dot' collides with 'with.dot'", "create", tmp_path, "with_dot")
    refused("has characters outside", "create", tmp_path, "\x1b[2J")
    refused("topic name '..' is not allowed", "create", tmp_path, "..")
    refused("give a number from 1 to 10000", "create", tmp_path, "u", "--partitions", "0")
    refused("give a number from 1", "create", tmp_path, "u", "--partitions", "9" * 40)
    refused("not a whole number", "create", tmp_path, "u", "--partitions", "9" * 4400)
    refused("unknown configuration key", "create", tmp_path, "u", "--config", "\x1b=1")
    refused("give KEY=VALUE", "create", tmp_path, "u", "--config", "=1")
    refused("there is no topic 'u' in it", "delete", tmp_path, "u")
    refused("there is no topic", "delete", tmp_path, "../t")
    refused("there is no topic 'u' in it", "alter", tmp_path, "u", "--partitions", "3")
    refused("has 2 partitions, and keeps them", "alter", tmp_path, "t", "--partitions", "1")
    refused("does not set it", "alter", tmp_path, "t", "--delete-config", "segment.ms")
    refused(
        "both set and deleted",
        "alter",
        tmp_path,
        "t",
        "--config",
        "segment.ms=1",
        "--delete-config",
        "segment.ms",
    )
    refused("give --partitions", "alter", tmp_path, "t")
    for command in ("alter", "delete"):
        options = ["--partitions", "3"] if command == "alter" else []
        refused("no such directory", command, tmp_path / "none", "t", *options)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    refused("no such directory", "create", tmp_path / "file", "t")
    assert topic_in(tmp_path, "t") == ([0, 1], {})


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    with LogManager([tmp_path], background=False) as manager:
        manager.create_topic("t", 1)
        before = sorted(path.name for path in tmp_path.rglob("*"))
        refused("is locked by", "create", tmp_path, "u")
        refused("is locked by", "alter", tmp_path, "t", "--partitions", "2")
        refused("is locked by", "delete", tmp_path, "t")
        assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_topic_too_damaged_to_be_opened_can_be_deleted(tmp_path: Path) -> None:
    good("create", tmp_path, "t", "--partitions", "2")
    log = tmp_path / "t-1" / f"{0:020}.log"
    log.unlink()
    log.mkdir()
    good("delete", tmp_path, "t")
    assert not (tmp_path / "t-0").exists()
    assert not (tmp_path / "t-1").exists()


def test_the_metadata_log_of_kraft_is_left_alone(tmp_path: Path) -> None:
    """A KRaft broker's directory: its own log is no topic to be changed."""
    shutil.copytree(GOLDEN / "v2-kraft-control", tmp_path / CLUSTER_METADATA_DIR)
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=abc\n")
    before = {p.name: p.read_bytes() for p in (tmp_path / CLUSTER_METADATA_DIR).iterdir()}
    good("create", tmp_path, "t")
    topic = "__cluster_metadata"
    refused("there is no topic", "delete", tmp_path, topic)
    refused("there is no topic", "alter", tmp_path, topic, "--partitions", "2")
    for command in (["create", tmp_path, topic], ["append", tmp_path, topic]):
        assert run(*command, stdin=b"a\n").exit_code == 2
    assert run("append", tmp_path, topic, "--partition", "0", stdin=b"a\n").exit_code == 2
    good("export", tmp_path, topic, "--to", tmp_path / "m.arrow")
    after = {p.name: p.read_bytes() for p in (tmp_path / CLUSTER_METADATA_DIR).iterdir()}
    assert after == before
    assert json.loads(good("ls", tmp_path, "--json"))["partitions"][0]["topic"] == topic


# -- append ----------------------------------------------------------------------------------------


def test_a_new_topic_of_append_has_a_configuration(tmp_path: Path) -> None:
    good("append", tmp_path, "t", "--config", "retention.ms=-1", stdin=b"a\n")
    good("append", tmp_path, "u", "--config", "retention.ms=9", "--partition", "0", stdin=b"a\n")
    assert topic_in(tmp_path, "t") == ([0], {"retention.ms": "-1"})
    assert topic_in(tmp_path, "u") == ([0], {"retention.ms": "9"})


def test_headers_of_every_record(tmp_path: Path) -> None:
    own = b'{"value": "YQ==", "headers": [["h", "eA=="]]}\n'
    options = ["--header", "source=shell", "--header", "null", "--header", "empty="]
    good("append", tmp_path, "t", "--format", "json", *options, stdin=own)
    record = json.loads(good("read", tmp_path, "t", "--json", "--encoding", "utf-8"))
    assert record["headers"] == [["source", "shell"], ["null", None], ["empty", ""], ["h", "x"]]


@pytest.mark.slow
def test_an_interrupt_sums_up(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "logstore", "append", str(tmp_path), "t"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntwo\nthr")
        process.stdin.flush()
        follow = [sys.executable, "-m", "logstore", "read", str(tmp_path), "t", "--follow"]
        while not (tmp_path / "t-0").is_dir():
            assert process.poll() is None
        with subprocess.Popen(follow, stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            assert [reader.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
            reader.send_signal(signal.SIGINT)
            reader.communicate(timeout=patience())
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b"t-0: 2 records, offsets 0 to 1\n"
        assert process.wait(patience()) != 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert good("read", tmp_path, "t") == "one\ntwo\n"


@pytest.mark.slow
def test_an_interrupt_at_full_speed_leaves_whole_batches_and_the_right_sum(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "logstore", "append", str(tmp_path), "t", "--json"]
    line = b"x" * 99 + b"\n"
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        for _ in range(200):
            process.stdin.write(line * 1000)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(BrokenPipeError):
            while True:
                process.stdin.write(line * 1000)
        assert process.stdout is not None
        (told,) = json.loads(process.stdout.read())
        assert process.wait(patience()) != 0
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    held = good("read", tmp_path, "t", "--format", "%S\\n").splitlines()
    assert set(held) == {"99"}
    assert told["records"] == len(held)
    assert good("verify", tmp_path).rstrip().endswith("clean")


# -- all commands ----------------------------------------------------------------------------------


def commands() -> list[str]:
    import click

    return sorted(main.list_commands(click.Context(main)))


@for_each("name", ["alter", "append", "create", "delete", "export", "import", "ls", "read"])
def test_help_has_an_example(name: str) -> None:
    assert name in commands()
    text = good(name, "--help")
    assert f"logstore {name} " in text.partition("Example:")[2]
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["ls"], ["read", "t"], ["read", "t", "--format", "%s\\n"]])
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, arguments: list[str]) -> None:
    with LogManager([tmp_path], background=False) as manager:
        manager.create_topic("a" * 200, 300)
        log = manager.create_topic("t", 1)[0]
        for _ in range(50):
            log.append([(None, bytes(1000))] * 100)
    name, *rest = arguments
    command: list[Any] = [sys.executable, "-m", "logstore", name, tmp_path, *rest]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(patience()) != 2
