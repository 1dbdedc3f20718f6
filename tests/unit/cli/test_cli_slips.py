"""Slips of a newcomer: a name mistyped, nothing to do, a directory that is no log directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logstore.cli import main
from tests.support.cases import for_each


def run(*arguments: object, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)], input=stdin)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("written") / "data"
    assert run("append", directory, "orders", "--partitions", "2", stdin=b"a\nb\n").exit_code == 0
    return directory


@pytest.fixture
def crashed(written: Path, tmp_path: Path) -> Path:
    """As a crash leaves it: no marker of a clean stop, and a torn end."""
    data = Path(shutil.copytree(written, tmp_path / "data"))
    (data / ".kafka_cleanshutdown").unlink()
    for log in data.glob("*/*.log"):
        log.write_bytes(log.read_bytes()[:-3])
    return data


def content(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@for_each(
    "arguments, meant",
    [
        (["verfiy", "DIR"], "verify"),
        (["explain", "replica-differ"], "replicas-differ"),
        (["create", "DIR", "t", "--config", "retention.mss=1"], "retention.ms"),
        (["serve", "--dir", "NEW", "--config", "num.partitons=3"], "num.partitions"),
        (["delete", "DIR", "ordres"], "orders"),
        (["read", "DIR", "Order"], "orders"),
        (["export", "DIR", "order", "--to", "x.jsonl"], "orders"),
    ],
)
def test_a_mistyped_name_is_suggested(written: Path, arguments: list[str], meant: str) -> None:
    places = {"DIR": str(written), "NEW": str(written.with_name("new"))}
    result = run(*(places.get(each, each) for each in arguments))
    assert result.exit_code == 2
    assert f"Did you mean '{meant}'?" in result.stderr


def test_what_is_like_nothing_has_no_suggestion(written: Path) -> None:
    for arguments in (["xyzzy"], ["explain", "xyzzy"], ["delete", written, "xyzzy"], ["--xyzzy"]):
        assert "Did you mean" not in run(*arguments).stderr


@for_each("group", [[], ["topics"], ["groups"]])
def test_a_group_without_a_command_shows_its_help(group: list[str]) -> None:
    """Line by line, as ``--help`` does; it is a mistake all the same."""
    result = run(*group)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == run(*group, "--help").stdout


def test_rules_that_are_not_of_verify_are_elsewhere() -> None:
    assert "docs/rules has all others" in run("explain", "I-2").stderr


@for_each(
    "arguments, stdin, exit_code",
    [
        (["delete", "nope"], b"", 2),
        (["alter", "nope", "--partitions", "3"], b"", 2),
        (["append", "t"], b"", 0),
        (["append", "orders", "--format", "json"], b"\n \n", 0),
        (["append", "orders", "--format", "json"], b"{\n", 2),
        (["append", "no/topic"], b"a\n", 2),
        (["append", "orders", "--partitions", "3"], b"a\n", 2),
        (["append", "orders", "--partition", "7"], b"a\n", 2),
        (["append", "orders", "--config", "retention.ms=1"], b"a\n", 2),
    ],
)
def test_a_command_with_nothing_to_do_changes_nothing(
    crashed: Path, arguments: list[str], stdin: bytes, exit_code: int
) -> None:
    """To open a directory recovers it, and what a crash left behind is evidence."""
    before = content(crashed)
    command, *rest = arguments
    assert run(command, crashed, *rest, stdin=stdin).exit_code == exit_code
    assert content(crashed) == before


def test_an_import_into_a_missing_topic_changes_nothing(written: Path, crashed: Path) -> None:
    pytest.importorskip("pyarrow")
    file = crashed.with_name("orders.jsonl")
    assert run("export", written, "orders", "--to", file).exit_code == 0
    before = content(crashed)
    result = run("import", crashed, file, "--topic", "order", "--append")
    assert (result.exit_code, "Did you mean 'orders'?" in result.stderr) == (2, True)
    assert content(crashed) == before


def test_without_a_record_nothing_is_made(tmp_path: Path) -> None:
    result = run("append", tmp_path / "new", "t", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])
    assert result.stderr == "note: stdin holds no records\n"
    assert list(tmp_path.iterdir()) == []


def test_directories_that_hold_no_log_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "dbus-1" / "session.d").mkdir(parents=True)
    (tmp_path / "new-0").mkdir()
    result = run("ls", tmp_path)
    assert "dbus-1 is left out: nothing in it is of a log" in result.stderr
    assert result.stdout.splitlines()[-1] == "1 topic, 1 partition, 0 B"


@for_each("options", [[], ["--dry-run"]])
def test_a_recovery_that_read_nothing_says_so(written: Path, options: list[str]) -> None:
    result = run("recover", written, *options)
    assert result.exit_code == 0
    assert "note: 2 were closed cleanly, so their records were not read" in result.stderr
    assert "note:" not in run("recover", written, *options, "--scan-all").stderr


def test_a_rescue_of_several_brokers_asks_for_one(written: Path, tmp_path: Path) -> None:
    sources = [Path(shutil.copytree(written, tmp_path / str(node))) for node in (4, 7)]
    for source in sources:
        meta = source / "meta.properties"
        meta.write_text(meta.read_text().replace("node.id=0", f"node.id={source.name}"))
    result = run("rescue", *sources, "--to", tmp_path / "out")
    assert "the sources are of different brokers; give --broker ID, one of 4, 7" in result.stdout
