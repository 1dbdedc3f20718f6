"""Which rule of docs/rules is cited where: ``python -m tests.architecture.rules`` writes the table.

A citation is an id such as ``F-146`` in code, tests or docs, a range ``F-29 … F-33``, or a name of
a test that begins with ids (``test_s12_s25_…``). A range cites every rule of docs/rules inside it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "rules"
TABLE = RULES / "index.md"
PAGES = ("format", "replication", "wire", "processes", "invariants", "scenarios")
CODE, TESTS, DOCS = ("checkpoints", "logstore", "replication"), ("tests",), ("docs", "bench")
BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples")
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".h", ".md"}
HERE = Path(__file__).parent  # ids in this folder are about ids

_ID = r"(?:[FRWSILX]-\d{1,3}[a-d]?|T-[A-F]\d)"
_CITED = re.compile(rf"(?<![\w./-])({_ID})(?:\s*(?:…|to)\s*({_ID}))?(?!\w)")
_NAMED = re.compile(r"\bdef test_((?:[firswx]\d+_)+)")
_ROW = re.compile(rf'^- <a id="([\w-]+)"></a>\*\*({_ID})\*\* (.*)', re.MULTILINE)
_BARE = re.compile(rf'(?:"""|# |// |/\* )(?:[Rr]ules? )?{_ID}(?!\w)')


@cache
def defined() -> dict[str, str]:
    """Each rule of docs/rules, in the order of the pages, and the page that has it.

    Raises:
        ValueError: a rule that is there twice, or whose anchor is not its id.
    """
    found: dict[str, str] = {}
    for page in PAGES:
        for anchor, rule, _ in _ROW.findall((RULES / f"{page}.md").read_text()):
            if rule in found or anchor != rule.lower():
                raise ValueError(f"{page}.md: {rule} is there twice, or its anchor is {anchor}")
            found[rule] = page
    return found


@cache
def files(folders: tuple[str, ...]) -> tuple[Path, ...]:
    """The files in which ids are cited, in order."""
    found = []
    for top in map(ROOT.joinpath, folders):
        for path in sorted(top.rglob("*.*")) if top.is_dir() else [top]:
            beside = RULES in path.parents or HERE in path.parents
            if path.suffix in SUFFIXES and not beside and path.is_file():
                found.append(path)
    return tuple(found)


@cache
def _cited_in(path: Path) -> frozenset[str]:
    return frozenset(cited(path.read_text(), defined()))


def cited(text: str, known: dict[str, str]) -> set[str]:
    """The ids that a text cites. Of a range its ends, and what is ``known`` between them."""
    found = set()
    for match in _CITED.finditer(text):
        first, last = match[1], match[2] or match[1]
        found |= {first, last}
        if first[0] == last[0] != "T":
            low, high = (int(re.sub(r"\D", "", end)) for end in (first, last))
            found.update(r for n in range(low, high) if (r := f"{first[0]}-{n}") in known)
    for match in _NAMED.finditer(text):
        ids = (f"{part[0].upper()}-{int(part[1:])}" for part in match[1].split("_") if part)
        found.update(rule for rule in ids if rule in known)
    return found


def citations(folders: tuple[str, ...]) -> dict[str, list[str]]:
    """For each id the files of ``folders`` that cite it, as paths from the root."""
    found = defaultdict(list)
    for path in files(folders):
        for rule in _cited_in(path):
            found[rule].append(path.relative_to(ROOT).as_posix())
    return found


def table() -> str:
    """The page docs/rules/index.md."""
    code, tests = citations(CODE), citations(TESTS)
    lines = [
        "# The rules, and who holds them",
        "",
        "Code and tests cite what they follow by an id: `F-…` is a rule of the",
        "[format](format.md), `R-…` one of [replication](replication.md), `W-…` one of the",
        "[wire](wire.md), `X-…` one of [processes](processes.md), `I-…` an",
        "[invariant](invariants.md), `S-…` and `T-…` are [failure scenarios](scenarios.md). `L-…`",
        "is a rule for files that only this library",
        "[has](format.md#files-of-this-library-alone).",
        "",
        "This table is written by `python -m tests.architecture.rules`, and a test says when it is",
        "old. To add a rule, write it on its page under the next free number, cite it where it is",
        "followed and where it is tested, and write the table again.",
        "",
        "| rule | code | tests |",
        "| --- | --- | --- |",
    ]
    for rule, page in defined().items():
        cells = (f"[{rule}]({page}.md#{rule.lower()})", _links(code[rule]), _links(tests[rule]))
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def _links(paths: list[str]) -> str:
    return ", ".join(f"[{path.split('/', 1)[1]}](../../{path})" for path in paths)


def bare(path: Path) -> Iterator[str]:
    """Docstrings and comments of a file that begin with an id: where, and how."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if _BARE.search(line):
            yield f"{path.relative_to(ROOT).as_posix()}:{number}: {line.strip()}"


if __name__ == "__main__":
    TABLE.write_text(table())
