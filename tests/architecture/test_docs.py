"""What the pages that follow the code name is in the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"flush.messages"}
PAGES = ["a-record-travels.md"]
# Packages and modules, a setting.
ELSEWHERE = {
    "__all__",
    "checkpoints",
    "deep",
    "election",
    "isr",
    "logstore",
    "replication",
    "truncation",
    "validation",
}
DIAGRAM_NAME = re.compile(r"\b[A-Z]\w+\.(_?[a-z]\w+)(?![\w.])")


@cache
def _sources() -> tuple[Path, ...]:
    tops = ("replication", "logstore", "checkpoints")
    return tuple(p for top in tops for p in (ROOT / top).rglob("*.py"))


@cache
def _defined() -> frozenset[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    stubs = ROOT.glob("*/kernels/*.pyi")
    trees = [ast.parse(path.read_text()) for path in (*_sources(), *stubs)]
    return frozenset(n.name for tree in trees for n in ast.walk(tree) if isinstance(n, kinds))


@pytest.mark.slow
@for_each("page", PAGES)
def test_the_functions_of_a_page_are_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    names = set(re.findall(r"`((?:\w+\.)*\w+)`", text)) - SETTINGS
    functions = {name for name in names if not name.endswith(".py")}
    assert len(functions) > 20
    assert {n for n in functions if not set(n.split(".")[-1:]) <= _defined()} == set()


@for_each("page", PAGES)
def test_the_files_of_a_page_are_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    files = set(re.findall(r"`([\w/]+\.py)`", text))
    assert len(files) > 10
    known = [str(path) for path in _sources()]
    assert {f for f in files if not any(path.endswith("/" + f) for path in known)} == set()


def test_the_map_has_every_room() -> None:
    """But for small things that need no explanation, and the rooms of the command line."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {
        p.parent.name
        for top in ("logstore", "replication")
        for p in (ROOT / top).glob("*/__init__.py")
    }
    assert len(rooms) > 25
    assert {room for room in rooms if f"{room}/ " not in text} == {"common"}


def test_the_files_on_the_map_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    files = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text)
    assert len(files) > 10
    tops = [ROOT, ROOT / "logstore", ROOT / "replication"]
    assert [f for f in files if not any((top / f).exists() for top in tops)] == []


def test_what_a_contributor_is_told_to_run_is_there() -> None:
    named = set(
        re.findall(r"\b(?:tests|bench|docs)/[\w/.-]*\w", (ROOT / "CONTRIBUTING.md").read_text())
    )
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_the_names_on_the_map_are_there() -> None:
    """Its diagrams name functions as ``Class.method``, its table as code."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    names = set(DIAGRAM_NAME.findall(text))
    names |= {name.split(".")[-1] for name in re.findall(r"`((?:\w+\.)*\w+)`", text)}
    assert len(names) > 40
    assert names - _defined() - ELSEWHERE == set()
