"""Counts what an operation does, and compares that over its sizes.

Work is counted, not timed: the bytecodes of the product's own code in all threads, so that a loop
counts that calls nothing; operations and bytes on the storage seam; requests on the transport. A
loop inside C, such as the copy of a dict, is not seen here: ``bench`` has its time.
"""

from __future__ import annotations

import enum
import gc
import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

from logstore.common.shield import unshielded
from logstore.storage import File, Storage
from logstore.storage.memory import MemoryStorage
from replication.simulator.world.network import SimTransport
from tests.support.controllers import Brokers
from tests.support.replication import RecordingTransport

GROWTH = 1.1
"""How much more a unit may cost at any size than at a smaller one. Counts have no noise, and a
square is small beside what a unit costs, at the sizes of a test."""
SLACK = 40
"""Bytecodes that do not count: a branch that a larger size takes, or a step more of a search. A
loop over the others has two for each of them, and there are 60 more."""

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(f"{ROOT}/{name}/" for name in ("checkpoints", "logstore", "replication"))
DISKS = tuple(f"{ROOT}/logstore/{name}/" for name in ("storage", "testing"))
OPERATIONS = frozenset(
    name for seam in (Storage, File) for name in dir(seam) if not name.startswith("_")
)
READ, WRITE = MemoryStorage.on_read.__code__, MemoryStorage.on_write.__code__
MESSAGES = frozenset(each.send.__code__ for each in (Brokers, RecordingTransport, SimTransport))

Act = Callable[[], object]
Trace = Callable[[FrameType, str, Any], Any]


class Work(NamedTuple):
    """What an operation cost. Bytes are those that were read or written through the storage."""

    bytecodes: int
    operations: int
    bytes: int
    messages: int


class Per(enum.Enum):
    """What may grow with the size."""

    EACH = "each"
    """The operation does something for each: a unit costs the same, however many there are."""
    ONE = "one"
    """It does one thing beside so many others, which cost it nothing."""


class Case(NamedTuple):
    """An operation at any size.

    Attributes:
        prepare: makes what there is before the operation, which it returns.
        smallest: the size that is 1x.
        known: why it grows nevertheless.
    """

    what: str
    prepare: Callable[[int], Act]
    per: Per = Per.EACH
    smallest: int = 4
    known: str = ""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.smallest * times for times in (1, 4, 16))


def counted(act: Act) -> Work:
    """Run ``act`` and count."""
    bytecodes, operations, messages = itertools.count(), itertools.count(), itertools.count()
    sizes: list[int] = []
    kinds: dict[CodeType, Trace | None] = {}

    def step(frame: FrameType, event: str, argument: Any) -> Trace:
        next(bytecodes)
        return step

    def entered(frame: FrameType, event: str, argument: Any) -> Trace | None:
        code = frame.f_code
        if code in kinds:
            traced = kinds[code]
        else:
            name = code.co_filename
            counts = name.startswith(OURS) and not name.startswith(DISKS)
            traced = kinds[code] = step if counts else None
        if traced is not None:
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        elif code is READ:
            sizes.append(frame.f_locals["size"])
        elif code is WRITE:
            sizes.append(len(frame.f_locals["data"]))
        elif code.co_name in OPERATIONS and code.co_filename.startswith(DISKS):
            caller = frame.f_back
            if caller is not None and not caller.f_code.co_filename.startswith(DISKS):
                next(operations)
        elif code in MESSAGES:
            next(messages)
        return traced

    gc.disable()  # what it would finalize may be of another test
    with unshielded():  # the thread of shielded calls is there before the trace, and stays
        threading.settrace(entered)
        sys.settrace(entered)
        try:
            act()
        finally:
            sys.settrace(None)
            threading.settrace(None)
    gc.enable()
    return Work(next(bytecodes), next(operations), sum(sizes), next(messages))


def growth(case: Case) -> list[str]:
    """What grows faster than the operation."""
    case.prepare(case.smallest)()  # what is made once and kept belongs to no size
    found = [counted(case.prepare(size)) for size in case.sizes]
    return [
        f"{name}: {', '.join(map(str, costs))} for {', '.join(map(str, case.sizes))}"
        for name, *costs in zip(Work._fields, *found, strict=True)
        if not _holds(case, costs)
    ]


def _holds(case: Case, costs: list[int]) -> bool:
    (small, middle, large), (few, more, many) = costs, case.sizes
    if case.per is Per.ONE:
        return max(middle, large) <= small + SLACK
    # What each size adds: a start that costs much would hide a square.
    first, then = (middle - small) / (more - few), (large - middle) / (many - more)
    return then <= GROWTH * max(first, 0) + SLACK / many and large / many <= GROWTH * small / few


def for_cases(*cases: Case) -> pytest.MarkDecorator:
    """A test of each case. One that is known to grow fails once it does not any more."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=case.what,
                marks=[pytest.mark.xfail(reason=case.known, strict=True)] if case.known else [],
            )
            for case in cases
        ],
    )


def check(case: Case) -> None:
    found = growth(case)
    assert not found, "; ".join(found)
