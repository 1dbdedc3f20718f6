"""What is on the pages, as scripts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.clients.toolchain import SuiteUnavailable, java_classpath

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOR_WORK_ON_IT = re.compile(r"bench|build|dev|docs|test.*")
EXTRAS = {name for name in PROJECT["optional-dependencies"] if not FOR_WORK_ON_IT.fullmatch(name)}
PACKAGES = {"confluent-kafka", "pytest"}
PROGRAMS = {"kcat"}
JARS = {"spark-avro": "org.apache.spark:spark-avro_2.13:4.2.0"}
"""Of Maven. It is the newest that there is, and works with Spark 4.3."""
ABOVE = "above"
SHOWN = ("json", "sql", "{eval-rst}", "{toctree}")
"""Kinds of blocks that no one runs."""

_BLOCK = re.compile(
    r"""(?:^<!--\ (?P<word>given|not\ run):\ ?(?P<said>[^\n]*?)
            (?:\n(?P<before>(?:(?!-->).)*?))?\ ?-->\n)?
        ^```(?P<kind>[^`\n]*)\n(?P<text>.*?)^```\n
        (?:\nIt\ prints:\n\n```\n(?P<prints>.*?)^```\n)?""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


@cache
def own_network() -> tuple[str, ...]:
    """What begins a command with a network of its own, as pages name fixed ports.

    Nothing where that is not allowed, as in some containers.
    """
    words = ("unshare", "--net", *(["--map-root-user"] if os.geteuid() else []))
    allowed = shutil.which("unshare") and not subprocess.run([*words, "true"]).returncode
    return words if allowed else ()


@cache
def jar(name: str) -> str:
    """The path of a jar, or nothing."""
    try:
        path = java_classpath(JARS[name])
    except SuiteUnavailable:
        return ""
    return next(each for each in path.split(os.pathsep) if Path(each).name.startswith(name))


@dataclass
class Script:
    """One or more blocks of a page that follow each other.

    Attributes:
        line: of the page, where the first block begins.
        kind: ``python``, ``pytest`` or ``console``.
        parts: lines of the page that each part begins at, and its text.
        needs: extras, packages, programs and jars.
        why_not: why it is not run.
    """

    page: Path
    line: int
    kind: str
    needs: set[str]
    why_not: str = ""
    prints: str | None = None
    parts: list[tuple[int, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        page = self.page.relative_to(DOCS) if self.page.is_relative_to(DOCS) else self.page.name
        return f"{Path(page).with_suffix('').as_posix()}:{self.line}"

    @property
    def names(self) -> set[str]:
        """What it needs, without what stands in brackets: ``confluent-kafka[avro]``."""
        return set(map(_name, self.needs))

    @property
    def lacks(self) -> str:
        """A program or a jar that is not there, or nothing."""
        if self.kind == "console" and not own_network():
            return "unshare --net"
        if jars := [name for name in JARS if name in self.names and not jar(name)]:
            return f"{jars[0]} of Maven"
        return next((each for each in sorted(self.names & PROGRAMS) if not shutil.which(each)), "")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "page": str(self.page),
            "kind": self.kind,
            "parts": self.parts,
            "prints": self.prints,
        }


def scripts_of(page: Path) -> Iterator[Script]:
    text = page.read_text()
    script: Script | None = None
    for found in _BLOCK.finditer(text):
        kind = found["kind"]
        if not kind and re.search(r"^\$ ", found["text"], re.MULTILINE):
            kind = "console"
        if kind not in ("python", "console"):
            if kind not in ("", *SHOWN):
                raise ValueError(
                    f"{page}: {kind} is run by nobody: write python, or $ and commands"
                )
            if found["word"]:
                raise ValueError(f"{page}: a comment above what no one runs: {found[0]}")
            continue
        if kind == "python" and re.search(r"^def test_", found["text"], re.MULTILINE):
            kind = "pytest"
        words = set(found["said"].split(", ")) - {""} if found["word"] == "given" else set()
        known = EXTRAS | PACKAGES | PROGRAMS | JARS.keys() | {ABOVE}
        if unknown := {word for word in words if _name(word) not in known}:
            raise ValueError(f"{page}: {sorted(unknown)} in a comment are nothing that is known")
        if ABOVE not in words:
            if script is not None:
                yield script
            needs = {"pytest"} if kind == "pytest" else set()
            script = Script(page, _line(text, found.start("kind")), kind, needs)
        if script is None:
            raise ValueError(f"{page}: nothing is above the first block")
        script.needs |= words - {ABOVE}
        if found["word"] == "not run":
            script.why_not = found["said"]
        if found["before"]:
            script.parts.append((_line(text, found.start("before")), found["before"]))
        script.parts.append((_line(text, found.start("text")), found["text"]))
        if found["prints"] is not None:
            script.prints = (script.prints or "") + found["prints"]
    if script is not None:
        yield script


def _name(word: str) -> str:
    return word.partition("[")[0]


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


@cache
def scripts() -> tuple[Script, ...]:
    return tuple(script for page in PAGES for script in scripts_of(page))
