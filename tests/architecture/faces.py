"""The faces of rooms: which imports go around one.

A room is a package below one of the three at the top, and its face is ``__all__`` of its
``__init__``, or what its ``__init__.pyi`` imports. Files inside a room, also those of rooms within
it, see all of it. Everyone else imports only the names and modules of its face. ``docs/api`` says
what users may import, which is less. See docs/decisions/0012-private-without-underscores.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("checkpoints", "logstore", "replication")


def name_of(path: Path) -> str:
    """The dotted name of a module, or of a package if it is its ``__init__``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    """Every module of the product; for a native one its stub."""
    found = (p for top in TOPS for end in ("*.pyi", "*.py") for p in (ROOT / top).rglob(end))
    return {name_of(path): path for path in sorted(found)}


@cache
def rooms() -> dict[str, Path]:
    packages = {name: path for name, path in modules().items() if path.stem == "__init__"}
    return {name: path for name, path in packages.items() if name not in TOPS}


def face_of(tree: ast.Module) -> set[str] | None:
    """What ``__all__`` names, or a stub imports; None if there is neither."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    is_stub = len(froms) == len(tree.body)
    return {alias.name for node in froms for alias in node.names} if is_stub else None


@cache
def faces() -> dict[str, set[str]]:
    return {name: face_of(ast.parse(path.read_text())) or set() for name, path in rooms().items()}


@cache
def imports() -> dict[str, tuple[str, ...]]:
    """What each module imports, anywhere in its file."""
    return {name: (*imported(path.read_text()),) for name, path in modules().items()}


def imported(source: str) -> Iterator[str]:
    """The dotted names that a file imports, anywhere in it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def entered(importer: str, name: str, known: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """The rooms that an import enters from outside, each with what it takes from there."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        room = ".".join(parts[:end])
        if room in known and not f"{importer}.".startswith(f"{room}."):
            yield room, parts[end]


def passed_by(importer: str, names: Iterable[str], known: dict[str, set[str]]) -> list[str]:
    """Imports of a module that go around the face of a room."""
    return [
        f"{importer} imports {name}: {taken} is not in the face of {room}"
        for name in names
        for room, taken in entered(importer, name, known)
        if taken not in known[room]
    ]


def ways_around() -> list[str]:
    """All imports of the product that go around a face."""
    found = []
    for name, targets in imports().items():
        found += passed_by(name, targets, faces())
    return found
