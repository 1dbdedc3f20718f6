"""Every public name is on a page of the API reference.

`make docs` builds these pages, and a page outside the table of contents is a warning there, which
it takes for an error. This check needs no Sphinx.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs" / "api").glob("*.md")
TEXT = "\n".join(page.read_text() for page in PAGES)
WHOLE = set(re.findall(r"^\.\. automodule:: ([\w.]+)", TEXT, re.M))
ALONE = set(re.findall(r"^\.\. (?:auto(?:class|function)|py:data):: ([\w.]+)", TEXT, re.M))
PACKAGES = [
    "checkpoints",
    "logstore",
    "logstore.rescue",
    "logstore.spark",
    "logstore.storage",
    "logstore.testing",
    "logstore.verify",
    "replication",
]


def is_module(package: str, name: str) -> bool:
    """Modules in a package's face are for other packages of this project, not for users."""
    folder = ROOT.joinpath(*package.split("."))
    return (folder / name).is_dir() or (folder / f"{name}.py").is_file()


def shown(package: str, name: str) -> bool:
    if package in WHOLE or f"{package}.{name}" in ALONE:
        return True
    return any(name in vars(importlib.import_module(module)) for module in WHOLE)


@for_each("package", PACKAGES)
def test_every_public_name_is_on_a_page(package: str) -> None:
    names = set(importlib.import_module(package).__all__) - {"__version__"}
    assert names
    hidden = {name for name in names if not shown(package, name)}
    assert {name for name in hidden if not is_module(package, name)} == set()


@for_each("name", sorted(ALONE))
def test_a_page_shows_public_names_only(name: str) -> None:
    package, _, last = name.rpartition(".")
    assert last in importlib.import_module(package).__all__
