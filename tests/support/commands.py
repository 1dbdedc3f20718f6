"""The command ``logstore`` in this process, with the commands that ``pyproject.toml`` names."""

from __future__ import annotations

import json
import sys
import tomllib
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner, Result

from logstore.cli import ENTRY_POINT_GROUP, main

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@cache
def _points() -> dict[str, EntryPoint]:
    found = tomllib.loads(PROJECT.read_text())["project"]["entry-points"][ENTRY_POINT_GROUP]
    return {name: EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in found.items()}


def logstore(*arguments: str, code: int | None = 0, given: str | None = None) -> Result:
    """
    Args:
        code: of the exit; None for any.
        given: on standard input.
    """
    with mock.patch("logstore.cli._points", _points):
        told = CliRunner().invoke(main, arguments, input=given)
    assert code in (None, told.exit_code), (told.output, told.exception)
    return told


def argv_of(*arguments: str) -> list[str]:
    """The same command as a process, which is to be started in the folder of the project."""
    return [sys.executable, "-c", "from tests.support.commands import run; run()", *arguments]


def run() -> None:
    with mock.patch("logstore.cli._points", _points):
        main(prog_name="logstore")


def logstore_json(*arguments: str, code: int | None = 0) -> Any:
    return json.loads(logstore(*arguments, "--json", code=code).stdout)
