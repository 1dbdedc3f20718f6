"""No test sleeps or looks at the clock of the machine: it would be red by luck.

A test waits with ``tests.support.until``; where time is the subject it has a ``ManualClock``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lanes import lane_of

TESTS = Path(__file__).resolve().parents[1]
CLOCKS = {"sleep", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time"}
CLOCKS |= {"time_ns", "process_time", "process_time_ns", "thread_time", "thread_time_ns"}
SEARCHES = ("differential", "fuzz", "interleavings")  # for as long as they are told
WATCHERS = {
    "support/until.py",
    "support/disturbance.py",
    "__main__.py",  # how long a lane took
    "support/times.py",
    # commands that search for as long as they are told, and tell how far they are
    "cluster/endurance.py",
    "mutants/__main__.py",
    # of the long lane: what many cost beside few, by the clock of the processor
    "unit/apis/test_growth.py",
    "unit/coordinators/test_group_growth.py",
}


def clocks_in(tree: ast.AST) -> Iterator[str]:
    """``time.sleep`` and the like, by whatever name, and ``asyncio.sleep`` for any time at all."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="time", names=names):
                yield from (f"line {node.lineno}: {name.name}" for name in names)
            case ast.Attribute(value=ast.Name("time"), attr=name) if name in CLOCKS:
                yield f"line {node.lineno}: time.{name}"
            case ast.Call(
                func=ast.Attribute(value=ast.Name("asyncio"), attr="sleep"), args=[time, *_]
            ) if not (isinstance(time, ast.Constant) and time.value == 0):
                yield f"line {node.lineno}: asyncio.sleep"


def files() -> list[str]:
    """Of the lane that needs nothing but Python; elsewhere programs of others set the pace."""
    quick = (path for path in TESTS.rglob("*.py") if lane_of(path) == "quick")
    found = (path.relative_to(TESTS) for path in quick)
    return sorted(str(path) for path in found if path.parts[0] not in SEARCHES)


@pytest.mark.slow
def test_no_test_watches_the_clock() -> None:
    found = {name: list(clocks_in(ast.parse((TESTS / name).read_text()))) for name in files()}
    assert {name for name in WATCHERS if not found.pop(name)} == set()
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(1)",
        "from time import sleep as rest",
        "wait = time.monotonic",
        "async def f(): await asyncio.sleep(0.1)",
    ],
)
def test_a_clock_is_seen(code: str) -> None:
    assert list(clocks_in(ast.parse(code)))
    assert not list(clocks_in(ast.parse("async def f(): await asyncio.sleep(0)")))
