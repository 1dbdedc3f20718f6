"""What users may import is what the reference shows, under the paths that a page calls public.

`make docs` builds these pages, and a page outside the table of contents is a warning there, which
it takes for an error. This check needs no Sphinx.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path

from tests.architecture.faces import TOPS
from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
WHOLE = set(re.findall(r"^\.\. automodule:: ([\w.]+)", REFERENCE, re.M))
ALONE = set(re.findall(r"^\.\. (?:auto(?:class|function)|py:data):: ([\w.]+)", REFERENCE, re.M))
# Fixtures, which pytest finds; a class for each message of Kafka, which docs/protocol.md tells.
WITHOUT_LIST = {"logstore.pytest_plugin", "replication.protocol.messages"}
SHOWN = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "examples/*.py")
    for page in ROOT.glob(pattern)
    if page.parent.name != "decisions"  # they name what was decided against, too
)
OURS = "|".join(TOPS)
IMPORT = re.compile(
    rf"^ *(?:from (?:{OURS})\b[\w.]* import (?:\([^)]*\)|.*)|import (?:{OURS})\b[\w., ]*$)", re.M
)
CODE = re.compile(r"`([\w.]+)`")
CALL = re.compile(rf"`((?:{OURS})\.[\w.]+)\(")


def public_paths() -> set[str]:
    page = (DOCS / "compatibility.md").read_text()
    table = page[page.index("| path |") : page.index("Every other path")]
    return {path for cell in re.findall(r"^\|([^|]+)", table, re.M) for path in CODE.findall(cell)}


PUBLIC = public_paths()


def is_module(package: str, name: str) -> bool:
    """Modules in a package's face are for other packages of this project, not for users."""
    folder = ROOT.joinpath(*package.split("."))
    return (folder / name).is_dir() or (folder / f"{name}.py").is_file()


def names_of(path: str) -> set[str]:
    return set(importlib.import_module(path).__all__)


def shown(path: str, name: str) -> bool:
    if path in WHOLE or f"{path}.{name}" in ALONE:
        return True
    return any(name in vars(importlib.import_module(module)) for module in WHOLE)


def mentioned(text: str) -> Iterator[str]:
    """The dotted names of ours that a page or an example imports, or calls by their whole name."""
    for found in IMPORT.finditer(text):
        for node in ast.parse(found[0].strip()).body:
            if isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
    yield from CALL.findall(text)


def is_public(name: str) -> bool:
    path, _, last = name.rpartition(".")
    if is_module(path, last) or path not in PUBLIC:
        return name in PUBLIC
    return last in names_of(path)


def test_the_page_names_the_public_paths() -> None:
    assert {"checkpoints", "logstore", "logstore.errors", "replication.errors"} <= PUBLIC
    assert WHOLE <= PUBLIC


@for_each("path", sorted(PUBLIC - WITHOUT_LIST))
def test_every_public_name_is_on_a_page(path: str) -> None:
    names = names_of(path) - {"__version__"}
    assert names
    hidden = {name for name in names if not shown(path, name)}
    assert {name for name in hidden if not is_module(path, name)} == set()


@for_each("name", sorted(ALONE))
def test_a_page_shows_a_name_under_its_public_path(name: str) -> None:
    assert is_public(name)


def test_values_that_a_public_class_is_made_of_are_public() -> None:
    """One that takes its options as a frozen value can only be made by who may import that."""
    taken = set()
    for path, _, last in (name.rpartition(".") for name in ALONE):
        owner = getattr(importlib.import_module(path), last)
        if isinstance(owner, type) and not is_dataclass(owner):
            known = vars(importlib.import_module(owner.__module__))
            hidden = f" {path}.{last}()\n" in REFERENCE
            for how in (None if hidden else owner.__init__, getattr(owner, "open", None)):
                types = getattr(how, "__annotations__", {}).values()
                words = re.findall(r"\b[A-Z]\w+", " ".join(types))
                taken |= {word for word in words if is_dataclass(known.get(word))}
    assert len(taken) > 5
    assert taken - {name.rpartition(".")[2] for name in ALONE} == set()


@for_each("page", SHOWN)
def test_pages_and_examples_import_public_names_only(page: str) -> None:
    assert [name for name in mentioned((ROOT / page).read_text()) if not is_public(name)] == []


def test_a_private_import_on_a_page_is_found() -> None:
    page = (
        "    from logstore import (\n        PartitionLog,\n    )\n"
        "from replication.server.serving import serve\nimport logstore.log\n"
        "from logstore.verify import plan\n"
        "Call `logstore.manager.compact_directory(path)` or `replication.serve()`.\n"
    )
    assert [name for name in mentioned(page) if not is_public(name)] == [
        "replication.server.serving.serve",
        "logstore.log",
        "logstore.verify.plan",
        "logstore.manager.compact_directory",
    ]
