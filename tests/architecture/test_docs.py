"""What the pages that follow the code name is in the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["a-leader-dies.md", "a-record-travels.md", "architecture.md"]
# Packages and modules, settings, files of a cluster.
ELSEWHERE = {
    "__all__",
    "__init__",
    "checkpoints",
    "deep",
    "election",
    "isr",
    "logstore",
    "messages",
    "ms",
    "replication",
    "truncation",
    "validation",
}
WHOLE = re.compile(r"`((?:\w+\.)*\w+)`")
MEMBER = re.compile(r"\b([A-Z]\w+)\.(_?[a-z]\w+)(?![\w.])")  # in diagrams, too


@cache
def _sources() -> tuple[Path, ...]:
    tops = ("replication", "logstore", "checkpoints")
    return tuple(p for top in tops for p in (ROOT / top).rglob("*.py"))


@cache
def _nodes() -> tuple[ast.AST, ...]:
    stubs = ROOT.glob("*/kernels/*.pyi")
    trees = [ast.parse(path.read_text()) for path in (*_sources(), *stubs)]
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Assign)
    return tuple(n for tree in trees for n in ast.walk(tree) if isinstance(n, kinds))


@cache
def _defined() -> frozenset[str]:
    tables = (n.targets[0] for n in _nodes() if isinstance(n, ast.Assign))
    return frozenset(n.name for n in _nodes() if not isinstance(n, ast.Assign)) | {
        n.id for n in tables if isinstance(n, ast.Name) and n.id.isupper()
    }


@cache
def _members(owner: str) -> frozenset[str]:
    """The functions of a class, with those that it inherits."""
    found = frozenset[str]()
    for node in _nodes():
        if isinstance(node, ast.ClassDef) and node.name == owner:
            found |= {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            bases = [base for base in node.bases if isinstance(base, ast.Name)]
            found = found.union(*(_members(base.id) for base in bases if base.id != owner))
    return found


@pytest.mark.slow
@for_each("page", PAGES)
def test_the_functions_of_a_page_are_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    names = {name.split(".")[-1] for name in WHOLE.findall(text) if not name.endswith(".py")}
    members = set(MEMBER.findall(text))
    assert len(names) > 20
    assert len(members) > 10
    assert names - _defined() - ELSEWHERE == set()
    assert {f"{a}.{b}" for a, b in members if b not in _members(a)} == set()


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
