"""The rules that keep the house in order: who may import whom, and who may touch the machine."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("checkpoints", "logstore", "replication")
SOURCES_MIN = 400  # fewer than that, and they were not found
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))

pytestmark = pytest.mark.slow  # whichever comes first parses all

# ``os`` calls that touch a disk; names and paths (os.path, os.fspath) are free.
DISK_CALLS = {
    "open",
    "write",
    "pwrite",
    "read",
    "pread",
    "fsync",
    "fdatasync",
    "rename",
    "replace",
    "remove",
    "unlink",
    "mkdir",
    "makedirs",
    "rmdir",
    "truncate",
    "ftruncate",
    "listdir",
    "scandir",
}
DISK_MODULES = {
    "checkpoints/files.py",
    "logstore/storage/file_slice.py",
    "logstore/storage/local.py",
}
CLOCK_MODULES = {"logstore/common/clock.py"}
# Beside the data's path: what a person starts, and what needs no seam because it only reports.
BESIDE = ("logstore/cli/", "logstore/demo/")
# The one way to a terminal, and the one way to a log line: they escape what strangers wrote.
TERMINAL = "logstore/terminal/"
LOGGERS = "checkpoints/loggers.py"
PRINTS = {"echo", "secho", "echo_via_pager", "confirm", "prompt", "progressbar"}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}


class Source:
    """A file of the product, parsed and walked once for all tests here."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(ROOT).as_posix()
        self.nodes = [*ast.walk(ast.parse(path.read_text()))]


Check = Callable[[Source], None]
CHECKS: list[Check] = []


@cache
def failures() -> dict[Check, list[str]]:
    """What each check says, file after file: no tree is kept."""
    found: dict[Check, list[str]] = {check: [] for check in CHECKS}
    for path in SOURCES:
        source = Source(path)
        for check in CHECKS:
            try:
                check(source)
            except AssertionError as error:
                found[check].append(f"{source.name}: {error}")
    return found


def imports_of(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def each_source(check: Check) -> Callable[[], None]:
    """One test for all files, which names each that fails."""
    CHECKS.append(check)

    @wraps(check)
    def test() -> None:
        assert len(SOURCES) > SOURCES_MIN
        assert not failures()[check], "\n".join(failures()[check])

    del test.__wrapped__  # type: ignore[attr-defined]  # pytest would see the parameter
    return test


def calls_of(source: Source, module: str) -> set[str]:
    return {
        node.func.attr
        for node in source.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == module
    }


@each_source
def test_only_the_storage_seam_touches_the_disk(source: Source) -> None:
    """A simulated disk sees everything: nothing goes around ``Storage`` and ``Files``."""
    name = source.name
    if name in DISK_MODULES or name.startswith(BESIDE):
        return
    assert not calls_of(source, "os") & DISK_CALLS


@each_source
def test_only_the_clock_seam_asks_for_the_time(source: Source) -> None:
    name = source.name
    if name in CLOCK_MODULES or name.startswith(BESIDE):
        return
    assert not calls_of(source, "time") & {"time", "time_ns", "monotonic", "monotonic_ns", "sleep"}


@each_source
def test_values_of_the_format_do_no_io(source: Source) -> None:
    """``format/`` turns bytes into values: no clock, and no storage but a `File` it is given."""
    if source.name.startswith("logstore/format/"):
        used = set(imports_of(source)) - {"logstore.storage.base", "logstore.storage.base.File"}
        assert not {n for n in used if n.startswith(("logstore.storage", "logstore.common.clock"))}


@each_source
def test_only_the_terminal_prints(source: Source) -> None:
    """A name that clears the screen or forges a line comes by no other way."""
    if source.name.startswith(TERMINAL):
        return
    names = {node.id for node in source.nodes if isinstance(node, ast.Name)}
    assert not names & {"print", *PRINTS}
    assert not calls_of(source, "click") & PRINTS
    imported = set(imports_of(source))
    assert not [name for name in imported if name.split(".")[0] == "rich"]
    assert not imported & {f"sys.{stream}" for stream in STREAMS}
    assert not list(uses_of_streams(source))


def uses_of_streams(source: Source) -> Iterator[str]:
    """What is done with ``sys.stdout`` and ``sys.stderr``; to ask what they are is free."""
    asked = {
        id(node.value)
        for node in source.nodes
        if isinstance(node, ast.Attribute) and node.attr == "isatty"
    }
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in STREAMS and id(node) not in asked:
            text = ast.unparse(node)
            if text.startswith("sys."):
                yield text


@each_source
def test_loggers_escape_what_they_are_given(source: Source) -> None:
    if source.name != LOGGERS:
        assert not calls_of(source, "logging") & {
            "getLogger",
            "debug",
            "info",
            "warning",
            "error",
            "critical",
            "exception",
            "log",
        }
        assert "logging.getLogger" not in set(imports_of(source))


@each_source
def test_log_messages_are_constant(source: Source) -> None:
    """Foreign text is an argument, which is escaped as a value; and never ``%r`` of it."""
    for node in source.nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "logger"):
            continue
        if node.args and node.func.attr in {"debug", "info", "warning", "error", "exception"}:
            text = node.args[0]
            assert not isinstance(text, ast.JoinedStr | ast.BinOp), ast.unparse(node)
            assert "%r" not in str(getattr(text, "value", "")), ast.unparse(node)


@each_source
def test_errors_leave_their_text_to_their_base(source: Source) -> None:
    """``PrintableError`` escapes what ``_text`` gives: no error defines ``__str__`` itself."""
    if source.name == "checkpoints/printable.py":
        return
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            assert not methods & {"__str__", "__repr__"}, node.name
