"""What the Tab key offers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from logstore import LogManager
from logstore.cli import LazyGroup, main

ROOT = Path(__file__).resolve().parents[3]


def offered(*before: str, typed: str) -> set[tuple[str, str]]:
    completion = ShellComplete(main, {}, "logstore", "_LOGSTORE_COMPLETE")
    return {(item.type, item.value) for item in completion.get_completions(list(before), typed)}


def test_commands_and_options() -> None:
    begin_so = ("read", "reassign", "recover", "rescue", "restore")
    assert offered(typed="re") == {("plain", name) for name in begin_so}
    assert ("plain", "--fingerprint") in offered("verify", typed="--f")
    assert offered("export", "d", "t", "--format", typed="p") == {("plain", "parquet")}


@pytest.mark.parametrize("command", ["ls", "read", "append", "create", "alter", "delete", "export"])
def test_directories(command: str) -> None:
    assert offered(command, typed="/va") == {("dir", "/va")}


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_files(command: str) -> None:
    assert offered(command, typed="/va") == {("file", "/va")}


def test_sources_of_a_rescue() -> None:
    assert offered("rescue", "a", typed="b") == {("dir", "b")}
    assert offered("rescue", "a", "--to", typed="b") == {("dir", "b")}


def test_topics_of_the_directory(tmp_path: Path) -> None:
    with LogManager([tmp_path], background=False) as manager:
        for topic in ("orders", "other", "plain"):
            manager.create_topic(topic, 2)
    (tmp_path / "odd").mkdir()
    found = offered("read", str(tmp_path), typed="o")
    assert found == {("plain", "orders"), ("plain", "other")}
    assert offered("read", str(tmp_path / "none"), typed="o") == set()


def test_rules() -> None:
    assert ("plain", "log-checksum") in offered("explain", typed="log-ch")
    assert not offered("explain", typed="nothing")


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_lines_of_the_page(shell: str) -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    assert f"_LOGSTORE_COMPLETE={shell}_source logstore" in page
    source = subprocess.run(
        [sys.executable, "-c", "from logstore.__main__ import run; run()"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "_LOGSTORE_COMPLETE": f"{shell}_source"},
    )
    assert source.returncode == 0, source.stderr
    assert f"_LOGSTORE_COMPLETE={shell}_complete" in source.stdout


def test_the_page_has_every_command() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    table = page[: page.index("## Exit codes")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {word for row in rows for word in re.findall(r"[a-z]+", row)}
    known = LazyGroup.list_commands(main, click.Context(main))  # type: ignore[arg-type]
    assert {*known, "serve", "simulate"} <= {*named, "demo"}
