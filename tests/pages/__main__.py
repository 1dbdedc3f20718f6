"""Every snippet in the environment that its page asks for, and no more.

python -m tests.pages types                 mypy --strict over all of them
python -m tests.pages fresh WHEEL           each in a new environment: the wheel, and what is named
python -m tests.pages fresh WHEEL --only spark
python -m tests.pages here [PAGE:LINE]      in this environment
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.pages.running import check_types, run
from tests.pages.snippets import EXTRAS, JARS, PROGRAMS, ROOT, Script, scripts


def environments() -> dict[frozenset[str], list[Script]]:
    found: dict[frozenset[str], list[Script]] = defaultdict(list)
    for script in scripts():
        if not script.why_not:
            found[frozenset(script.needs - PROGRAMS - JARS.keys())].append(script)
    return dict(sorted(found.items(), key=lambda each: (len(each[0]), sorted(each[0]))))


def dead_links(pages: Path) -> list[str]:
    """Links from page to page that lead nowhere; those to code are for a checkout."""
    if not (pages / "README.md").exists():
        return [f"{pages} has no pages"]
    return [
        f"{page.relative_to(pages)}: {link}"
        for page in pages.rglob("*.md")
        for link in re.findall(r"\]\(([^)#:\s]+)[)#]", page.read_text())
        if link.endswith((".md", ".svg")) or page.parent == pages
        if not (page.parent / link).exists()
    ]


def fresh(wheel: Path, only: str | None) -> int:
    failed = 0
    for needs, listed in environments().items():
        if only is not None and only not in needs:
            continue
        runs = [script for script in listed if not script.lacks]
        if len(runs) < len(listed) and os.environ.get("CI"):
            failed += 1  # a skip proves nothing
            print(*{script.lacks for script in listed} - {""}, "is not there", sep=", ")
        with tempfile.TemporaryDirectory() as made:
            python = install(Path(made) / "venv", wheel, needs)
            if dead := dead_links(Path(made) / "venv" / "share" / "doc" / "pylogstore"):
                failed += 1
                print("\n".join(dead))
            try:
                run(runs, Path(made), python, path="")
            except AssertionError as error:
                failed += 1
                print(error)
        said = ", ".join(sorted(needs)) or "no extra"
        print(f"{said}: {len(runs)} snippets, {len(listed) - len(runs)} skipped", flush=True)
    return 1 if failed else 0


def install(place: Path, wheel: Path, needs: frozenset[str]) -> str:
    """An environment with the wheel and one word's worth of packages; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    extras = ",".join(sorted(needs & EXTRAS))
    packages = [f"{wheel}[{extras}]" if extras else str(wheel), *sorted(needs - EXTRAS)]
    python = str(place / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, *packages], check=True)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("types")
    in_fresh = commands.add_parser("fresh")
    in_fresh.add_argument("wheel", type=Path)
    in_fresh.add_argument("--only", metavar="WORD", help="the environments with this extra")
    commands.add_parser("here").add_argument("name", nargs="?", default="")
    options = parser.parse_args()
    if options.command == "types":
        return check_types(scripts(), ROOT / "build" / "pages")
    if options.command == "fresh":
        return fresh(options.wheel.resolve(), options.only)
    failed = 0
    for script in scripts():
        if options.name not in script.name or script.why_not or script.lacks:
            continue
        with tempfile.TemporaryDirectory() as made:
            try:
                run([script], Path(made))
                print(f"{script.name}: passed", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"{script.name}: {error}", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
