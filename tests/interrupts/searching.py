"""Each public call, and each start, interrupted at its places: all of them, or some."""

from __future__ import annotations

import gc
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.interrupts.judging import judge_place, judge_start
from tests.interrupts.points import Interruption
from tests.support.public_calls import CALLS, PublicCall

Judge = Callable[[Path, int, type[BaseException]], tuple[bool, int]]

NEVER = 10**9
ERRORS = (Interruption, KeyboardInterrupt)


class Interrupted(NamedTuple):
    """A call, and how to interrupt it at one place."""

    name: str
    judge: Judge


class Finding(NamedTuple):
    name: str
    place: int
    error: str


def _named(name: str) -> PublicCall:
    return next(call for call in CALLS if call.name == name)


def _starts() -> Iterator[Interrupted]:
    for call in ("PartitionLog.append", "LogManager.get"):
        for crashed in (False, True):
            owner = _named(call).owner.name.lower()
            judge = partial(_start, _named(call), crashed)
            yield Interrupted(f"open a {owner} after a {'crash' if crashed else 'stop'}", judge)


def _start(
    call: PublicCall, crashed: bool, directory: Path, at: int, error: type[BaseException]
) -> tuple[bool, int]:
    return judge_start(directory, call, at, error, crashed=crashed)


def _place(
    call: PublicCall, directory: Path, at: int, error: type[BaseException]
) -> tuple[bool, int]:
    return judge_place(directory, call, at, error)


ALL = (*(Interrupted(call.name, partial(_place, call)) for call in CALLS), *_starts())


@contextmanager
def _directory() -> Iterator[Path]:
    memory = "/dev/shm"  # syncs cost nothing there
    with tempfile.TemporaryDirectory(dir=memory if Path(memory).is_dir() else None) as made:
        yield Path(made)


@contextmanager
def quiet() -> Iterator[None]:
    """Files that only a finalizer closes, and interrupts within finalizers, are expected."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            yield
            gc.collect()
    finally:
        sys.unraisablehook = before


def search(found: Interrupted, most: int | None, seed: int = 0) -> list[Finding]:
    """Interrupt a call at ``most`` of its places, drawn by ``seed``; None: at each."""
    findings = []
    with quiet():
        with _directory() as directory:
            _, count = found.judge(directory, NEVER, Interruption)
        drawn = random.Random(seed)
        places = range(count)
        chosen = places if most is None or most >= count else sorted(drawn.sample(places, most))
        for place in chosen:
            with _directory() as directory:
                try:
                    found.judge(directory, place, ERRORS[place % 2])
                except Exception as error:
                    findings.append(Finding(found.name, place, f"{type(error).__name__}: {error}"))
    return findings


__all__ = ["ALL", "Finding", "Interrupted", "quiet", "search"]
