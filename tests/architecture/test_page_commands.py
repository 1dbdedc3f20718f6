"""The commands on the pages can be given: their files, modules, options and targets are there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from logstore.cli import main
from tests.support.lanes import lane_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for top in ("docs", "bench", "tests") for page in (ROOT / top).rglob("*.md")),
]
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:[A-Z_]+=\S* )*(?:\S*/)?(?:python3?|pytest|make|bash|\.ci/run)(?: .*|$)")
IN_ONE_INTERPRETER = """
import contextlib, io, json, pkgutil, runpy, sys
for module, argv in json.loads(sys.argv[1]):
    place = pkgutil.resolve_name(module).__file__.replace("__init__", "__main__")
    if "ArgumentParser" not in open(place).read():
        continue  # it would not stop at --help
    sys.argv = [module, *argv, "--help"]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            runpy.run_module(module, run_name="__main__")
        print(module, argv, "does not know --help")
    except SystemExit as done:
        if done.code not in (0, None):
            print(module, argv, said.getvalue())
"""


def commands() -> list[tuple[str, list[str]]]:
    """The page and the words of each command; a remark stands behind two spaces or a ``#``."""
    found = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            for line in block.splitlines():
                words = re.split(r"  +|\s#", line.strip().removeprefix("$ "))[0]
                if COMMAND.fullmatch(words) and not re.search(r"[<>|;…]", words):
                    words = re.sub(r"\[[^]]*\]", "", words)
                    given = [word for word in shlex.split(words) if not re.match(r"[A-Z_]+=", word)]
                    found.append((page.relative_to(ROOT).as_posix(), given))
    return found


COMMANDS = commands()


def ours() -> Iterator[tuple[str, str, list[str]]]:
    """The page, the name of a ``logstore`` command, and its options; two may stand in a line."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        code = [*BLOCK.findall(text), *re.findall(r"`(logstore [^`]*)`", text)]
        for line in "\n".join(code).splitlines():
            for name, words in re.findall(
                r"\blogstore +([a-z]+)(?= |$)((?:(?!logstore)[^|&])*)", line
            ):
                words = words.partition(" #")[0]
                options = re.findall(r"(?<![\w-])--[a-z][\w-]*", words)
                group = main.get_command(click.Context(main), name)
                if isinstance(group, click.Group):
                    # Its options may stand before its command, and some need none, or have one
                    # that is not named.
                    named = [word for word in words.split() if word in group.commands]
                    alone = any(each.hidden for each in group.commands.values())
                    spare = [] if alone or group.invoke_without_command else words.split()
                    name = " ".join([name, *(named or spare)[:1]])
                yield page.relative_to(ROOT).as_posix(), name, options


def options_of(command: click.Command) -> set[str]:
    """With those of its own commands."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    return own.union(*map(options_of, below))


@pytest.mark.slow
def test_the_commands_of_logstore_know_their_options() -> None:
    given = list(ours())
    assert len(given) > 60
    context = click.Context(main)
    known: dict[str, Any] = {
        name: main.get_command(context, name) for name in main.list_commands(context)
    }
    for group in [name for name, each in known.items() if isinstance(each, click.Group)]:
        known |= {f"{group} {name}": each for name, each in known[group].commands.items()}
    wrong = {
        (page, name, option)
        for page, name, options in given
        for option in ["", *options]
        if name not in known or (option and option not in options_of(known[name]))
    }
    assert wrong - {(page, name, "--help") for page, name, _ in given} == set()


def test_no_help_sends_its_reader_to_a_checkout() -> None:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        said = command.get_help(click.Context(command, info_name=name))
        assert not re.search(r"docs/|\b\w+\.md\b(?!`)", said), said


def test_they_are_found() -> None:
    assert len(COMMANDS) > 30


def test_their_files_are_there() -> None:
    """A word that names a place in the project."""
    places = re.compile(r"(?:tests|bench|docs|examples|\.ci)/[\w./-]+")
    named = {
        (page, word.partition("::")[0])
        for page, words in COMMANDS
        for word in words
        if places.match(word)
    }
    assert [(page, word) for page, word in sorted(named) if not (ROOT / word).exists()] == []


def test_the_targets_of_make_are_there() -> None:
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    given = {(page, words[1]) for page, words in COMMANDS if words[0] == "make" and words[1:]}
    assert len(given) > 5
    assert [each for each in sorted(given) if each[1] not in targets] == []


@pytest.mark.slow
def test_their_modules_know_their_options() -> None:
    given = [
        (words[2], words[3:])
        for _, words in COMMANDS
        if words[1:2] == ["-m"] and words[2].startswith("tests")
        # Those of another lane need its packages.
        if lane_of(ROOT.joinpath(*words[2].split("."), "it.py")) == "quick"
    ]
    assert len(given) > 10
    done = subprocess.run(
        [sys.executable, "-c", IN_ONE_INTERPRETER, json.dumps(given)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
