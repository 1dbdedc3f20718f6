"""The weight of the house: lines, files, functions, classes, folders, circles.

    python -m tests.architecture.measure              the table
    python -m tests.architecture.measure rooms        the lines of each room
    python -m tests.architecture.measure lower        write what has fallen into room_lines.toml
    python -m tests.architecture.measure raise ROOM   let a room grow; the commit's body says why

Product is what git tracks below ``checkpoints``, ``logstore`` and ``replication``. The simulator is
measured beside it: no service imports it. A class counts with all that it inherits from classes of
the product, an argument without ``self``, and commands not as functions.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("checkpoints", "logstore", "replication")
ENDS = frozenset({".py", ".pyx", ".pyi", ".pxd", ".c", ".h", ".java"})
SIMULATOR = "replication/simulator"
RATCHET = Path(__file__).with_name("room_lines.toml")
_DEF = ast.FunctionDef | ast.AsyncFunctionDef


class FunctionSize(NamedTuple):
    place: str
    lines: int
    arguments: int


class ClassSize(NamedTuple):
    """``total_lines`` and ``methods`` with all that is inherited, once for each name."""

    name: str
    own_lines: int
    total_lines: int
    methods: int
    files: int


@cache
def product() -> dict[str, str]:
    """The text of every source file of the product, by its path from the root."""
    listed = subprocess.run(
        ["git", "ls-files", *TOPS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    there = [name for name in listed.stdout.splitlines() if Path(name).suffix in ENDS]
    return {name: (ROOT / name).read_text() for name in there if (ROOT / name).exists()}


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in product().items() if name.endswith(".py")}


def room_of(name: str) -> str:
    """The two first folders of a path, or the one there is."""
    return "/".join(name.split("/")[:-1][:2])


def room_lines() -> Counter[str]:
    """The lines of each room, the simulator's too."""
    found: Counter[str] = Counter()
    for name, text in product().items():
        found[room_of(name)] += text.count("\n")
    return found


def functions() -> Iterator[FunctionSize]:
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, _DEF) and not _is_command(node):
                a = node.args
                named = [each.arg for each in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
                count = len(named) - (named[:1] in (["self"], ["cls"]))
                count += (a.vararg is not None) + (a.kwarg is not None)
                yield FunctionSize(f"{name}:{node.name}", _length(node), count)


def classes() -> list[ClassSize]:
    """Every class at the top level of a file."""
    nodes: dict[str, tuple[str, ast.ClassDef]] = {}
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                nodes.setdefault(node.name, (name, node))
    found = []
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                line = [(name, node), *_ancestors(node, nodes, {node.name})]
                methods = {m.name for _, c in line for m in c.body if isinstance(m, _DEF)}
                total = sum(_length(c) for _, c in line)
                files = len({file for file, _ in line})
                found.append(ClassSize(node.name, _length(node), total, len(methods), files))
    return found


def circles() -> list[list[str]]:
    """Groups of files that import each other in a loop, for types and inside functions too."""
    files = {name.removesuffix(".py").replace("/", "."): name for name in trees()}
    edges: dict[str, set[str]] = {}
    for module, name in files.items():
        if not name.endswith("/__init__.py"):
            targets = (
                f"{node.module}{end}"
                for node in ast.walk(trees()[name])
                if isinstance(node, ast.ImportFrom) and node.module
                for end in ("", *(f".{alias.name}" for alias in node.names))
            )
            edges[module] = {target for target in targets if target in files} - {module}
    reach = {module: _reachable(module, edges) for module in edges}
    groups = {tuple(sorted(m for m in reach[a] if a in reach.get(m, ()))) for a in edges}
    return sorted(list(group) for group in groups if len(group) > 1)


def table() -> list[tuple[str, str]]:
    """The measurements, each with its name."""
    lines = room_lines()
    total = sum(lines.values())
    of_file = sorted(text.count("\n") for text in product().values())
    sizes = list(functions())
    of_function = sorted(size.lines for size in sizes)
    most = max(sizes, key=lambda size: size.arguments)
    longest = max(sizes, key=lambda size: size.lines)
    known = classes()
    own = max(known, key=lambda c: c.own_lines)
    heavy = max(known, key=lambda c: c.total_lines)
    wide = max(known, key=lambda c: c.methods)
    folders = Counter(name.rpartition("/")[0] for name in product())
    inits = [text for name, text in product().items() if name.endswith("/__init__.py")]
    by_end = Counter[str]()
    for name, text in product().items():
        by_end[Path(name).suffix] += text.count("\n")
    return [
        ("lines of the product", f"{total - lines[SIMULATOR]:,}"),
        ("lines of the simulator", f"{lines[SIMULATOR]:,}"),
        ("lines by language", ", ".join(f"{end} {n:,}" for end, n in by_end.most_common())),
        ("files; lines median / 95 % / most", f"{len(of_file)}; {_spread(of_file)}"),
        ("functions; lines median / 95 % / most", f"{len(sizes):,}; {_spread(of_function)}"),
        (
            "functions above 50 / 70 lines",
            " / ".join(str(_above(of_function, n)) for n in (50, 70)),
        ),
        ("the longest function", f"{longest.place}, {longest.lines}"),
        ("the most arguments", f"{most.place}, {most.arguments}"),
        ("classes", f"{len(known):,}"),
        ("the largest by own lines", f"{own.name}, {own.own_lines}"),
        ("the largest with what it inherits", f"{heavy.name}, {heavy.total_lines}"),
        ("the most methods with what it inherits", f"{wide.name}, {wide.methods}"),
        ("rooms; `__init__` files / lines", f"{len(lines)}; {len(inits)} / {_lines(inits):,}"),
        ("the largest folders", ", ".join(f"{d} {n}" for d, n in folders.most_common(3))),
        ("circles of files", str(len(circles()))),
        ("lines of tests", f"{_lines(_tests()):,}"),
    ]


def recorded() -> dict[str, int]:
    """The lines that each room may have."""
    return tomllib.loads(RATCHET.read_text())


def record(lines: dict[str, int]) -> None:
    text = "".join(f'"{room}" = {count}\n' for room, count in sorted(lines.items()))
    RATCHET.write_text(
        "# Lines a room may have. `python -m tests.architecture.measure lower` lowers them, and\n"
        f"# a commit that raises one says why in its body.\n{text}"
    )


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case []:
            print("| | |\n| --- | --- |")
            print("\n".join(f"| {name} | {value} |" for name, value in table()))
        case ["rooms"]:
            for room, count in room_lines().most_common():
                print(f"{count:7,} {room}")
        case ["lower"]:
            now, before = room_lines(), recorded() if RATCHET.exists() else {}
            record({room: min(n, before.get(room, n)) for room, n in now.items()})
        case ["raise", *rooms] if rooms:
            now = room_lines()
            record(recorded() | {room: now[room] for room in rooms})
        case _:
            sys.exit(__doc__)


def _is_command(node: _DEF) -> bool:
    """Whether it is of the command line: it has an argument for each option, and its help."""
    words = ("command(", "group(")
    return any(w in ast.unparse(each) for each in node.decorator_list for w in words)


def _ancestors(
    node: ast.ClassDef, nodes: dict[str, tuple[str, ast.ClassDef]], seen: set[str]
) -> Iterator[tuple[str, ast.ClassDef]]:
    for base in node.bases:
        root = base.value if isinstance(base, ast.Subscript) else base
        name = root.id if isinstance(root, ast.Name) else ""
        if name in nodes and name not in seen:
            seen.add(name)
            yield nodes[name]
            yield from _ancestors(nodes[name][1], nodes, seen)


def _reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in edges.get(waiting.pop(), ()):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


def _length(node: ast.AST) -> int:
    assert isinstance(node, ast.ClassDef | _DEF)
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _spread(numbers: list[int]) -> str:
    return f"{median(numbers):.0f} / {numbers[len(numbers) * 95 // 100]} / {numbers[-1]}"


def _above(numbers: list[int], limit: int) -> int:
    return sum(number > limit for number in numbers)


def _tests() -> Iterator[str]:
    return (path.read_text() for path in (ROOT / "tests").rglob("*.py"))


def _lines(texts: Iterator[str] | list[str]) -> int:
    return sum(text.count("\n") for text in texts)


if __name__ == "__main__":
    main(sys.argv[1:])
