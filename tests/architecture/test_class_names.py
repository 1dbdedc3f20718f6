"""A class's name says which class it is: no other class of the project has it.

Names with an underscore do not count: only one file sees them, and another check says so.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("checkpoints", "logstore", "replication")
PATHS = [path for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py"))]
CLASSES_MIN = 600  # fewer classes than that, and they were not found
# The network has one meaning for these words, the coordinators another.
BOTH = {"Answer", "Event", "Reply"}


@cache
def body(source: str) -> list[ast.stmt]:
    """The statements at the top level: what is inside them counts for nothing here."""
    found = ast.parse(source).body
    for node in found:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.body = []
    return found


def classes(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """For each name of a class the files that define it at their top level."""
    found = defaultdict(list)
    for name, source in sources:
        for node in body(source):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return found


def twice(found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: files for name, files in found.items() if len(files) > 1}


@pytest.mark.slow
def test_no_two_classes_have_one_name() -> None:
    found = classes((path.relative_to(ROOT).as_posix(), path.read_text()) for path in PATHS)
    assert len(found) > CLASSES_MIN
    assert twice(found) == {}


def aliases(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """For each other name that a file gives to a value or a type at its top level the files."""
    found = defaultdict(list)
    for name, source in sources:
        for node in body(source):
            if isinstance(node, ast.AnnAssign | ast.Assign):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                text = target.id if isinstance(target, ast.Name) else ast.unparse(target)
                found[text].append(name)
    return found


@pytest.mark.slow
def test_no_alias_has_the_name_of_a_class() -> None:
    sources = [(path.relative_to(ROOT).as_posix(), path.read_text()) for path in PATHS]
    named, others = classes(sources), aliases(sources)
    assert len(others) > CLASSES_MIN
    assert {name: others[name] for name in others.keys() & named.keys()}.keys() == BOTH


def test_a_second_class_of_a_name_is_found() -> None:
    sources = [
        ("a.py", "class Member: ...\nclass _A: ..."),
        ("b.py", "class Member: ...\nclass _A: ..."),
    ]
    assert twice(classes(sources)) == {"Member": ["a.py", "b.py"]}
    more = [("c.py", "Member: TypeAlias = int\nTHERE = 1\nElse = str")]
    assert aliases(more).keys() == {"Member", "THERE", "Else"}


def test_a_file_of_tests_has_a_name_of_its_own() -> None:
    """pytest imports those outside of packages by their names alone. A worker that sees two of one
    name runs the first."""
    found = defaultdict(list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        if not (path.parent / "__init__.py").exists():
            found[path.name].append(path.parent.name)
    assert len(found) > 100
    assert {name: homes for name, homes in found.items() if len(homes) > 1} == {}
