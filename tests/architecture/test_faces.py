"""A room is entered through its face, and a face is no wider than it has to be."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from tests.architecture.faces import (
    ROOT,
    TOPS,
    entered,
    face_of,
    faces,
    imported,
    imports,
    modules,
    passed_by,
    rooms,
    ways_around,
)

ROOMS_MIN, MODULES_MIN = 50, 500  # fewer than that, and they were not found
_SHOWN = re.compile(r"^\.\. automodule:: ([\w.]+)", re.MULTILINE)


def bound(room: str, path: Path) -> set[str]:
    """What can be imported from a room: its modules, and the names of its ``__init__``."""
    names = {name.removeprefix(f"{room}.") for name in modules() if name.startswith(f"{room}.")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_every_room_says_what_it_is_for_and_what_others_may_import() -> None:
    trees = {name: ast.parse(path.read_text()) for name, path in rooms().items()}
    assert len(trees) > ROOMS_MIN
    sources = {name: path.with_suffix(".py").read_text() for name, path in rooms().items()}
    assert [n for n, source in sources.items() if not ast.get_docstring(ast.parse(source))] == []
    assert [name for name, tree in trees.items() if face_of(tree) is None] == []


@pytest.mark.slow
def test_rooms_are_entered_through_their_faces() -> None:
    """import-linter checks it too, by ``FaceContract``."""
    assert len(imports()) > MODULES_MIN
    assert ways_around() == []


def test_a_face_names_only_what_is_there() -> None:
    missing = {name: faces()[name] - bound(name, path) for name, path in rooms().items()}
    assert {name: names for name, names in missing.items() if names} == {}


def test_a_face_names_no_module_that_only_its_room_imports() -> None:
    """So a face stays as small as it can be. A page of the API may show more to users."""
    used = defaultdict(set)
    for name, targets in imports().items():
        for target in targets:
            for room, taken in entered(name, target, faces()):
                used[room].add(taken)
    pages = (ROOT / "docs" / "api").glob("*.md")
    shown = {module for page in pages for module in _SHOWN.findall(page.read_text())}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = (entry for group in project["entry-points"].values() for entry in group.values())
    shown |= {entry.partition(":")[0] for entry in entries}
    idle = {
        f"{room}.{name}"
        for room, face in faces().items()
        for name in face - used[room]
        if f"{room}.{name}" in modules() and f"{room}.{name}" not in shown
    }
    assert idle == set()


def test_no_file_imports_a_private_name_of_another() -> None:
    """A native module is private to its package of kernels, and so are their constants."""
    private = [
        f"{name} imports {target}"
        for name, targets in imports().items()
        for target in targets
        if target.split(".")[0] in TOPS and re.search(r"\._(?!_)", target)
        if not re.match(r"logstore\.kernels(?:\._\w+)?$", name)
    ]
    assert private == []


def test_examples_import_only_the_packages_of_the_api() -> None:
    shown = " ".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    files = sorted((ROOT / "examples").glob("*.py"))
    assert files
    for path in files:
        for name in imported(path.read_text()):
            if name.split(".")[0] in TOPS:
                assert f":: {name}" in shown, f"{path.name} imports {name}"


def test_a_way_around_a_face_is_found() -> None:
    known = {
        "logstore.log": {"PartitionLog", "reading"},
        "logstore.log.reading": {"snapshot_reader"},
    }
    source = (
        "from logstore.log import PartitionLog\n"
        "from logstore.log.reading.snapshot_reader import LogReader\n"
        "def later():\n"
        "    from logstore.log.core import LogCore\n"
        "    import logstore.log.reading.iteration\n"
    )
    names = [*imported(source)]
    assert passed_by("replication.partition.leader", names, known) == [
        "replication.partition.leader imports logstore.log.core.LogCore: "
        "core is not in the face of logstore.log",
        "replication.partition.leader imports logstore.log.reading.iteration: "
        "iteration is not in the face of logstore.log.reading",
    ]
    assert len(passed_by("logstore.log.partition_log", names, known)) == 1  # it is inside ``log``
    assert passed_by("logstore.log.reading.cursors", names, known) == []
    assert len(passed_by("logstore.logs", names, known)) == 2  # a name that only begins alike
