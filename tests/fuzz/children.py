"""Children under limits: a preloaded process forks one for each run, so none starts an interpreter.

What a child prints goes to files, or to a terminal of its own. A child that hangs is killed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import pkgutil
import pty
import resource
import select
import signal
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import logstore.cli
from tests.support.until import patience

MEMORY_MAX = 300 << 20  # bytes above what the preloaded process has
OUTPUT_MAX = 64 << 20
SHOWN_MAX = 4 << 20
_PRELOADED = (
    "logstore.log",
    "logstore.log.reading.directory_reader",
    "logstore.manager",
    "logstore.verify",
    "rich.console",
    "rich.markup",
    "rich.progress",
    "rich.table",
    "rich.text",
    "rich.measure",
    "numpy",
    "pyarrow",
    "logstore.format.arrow",
    "importlib.metadata",
    "decimal",
)
CRASHED = 70  # the exit code of a child whose body raised, after its traceback


@dataclass(slots=True)
class Limits:
    """What a child may take; the same for all that follow."""

    seconds: float = patience()


LIMITS = Limits()


@dataclass(slots=True)
class Outcome:
    """``code``: the exit code, −signal, or None where the child was killed for its time."""

    code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    grown: int
    """Bytes of memory at the most, above those of the preloaded process."""


def preload() -> None:
    """Import what the runs import, so that the children have it, without starting a thread."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for module in pkgutil.iter_modules(logstore.cli.__path__):
        importlib.import_module(f"logstore.cli.{module.name}")
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def run_child(body: Callable[[], int], scratch: str, *, terminal: bool = False) -> Outcome:
    """Fork, run ``body`` under the limits; its result is the exit code."""
    paths = [os.path.join(scratch, name) for name in ("stdout", "stderr")]
    targets = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600) for path in paths]
    master = -1
    if terminal:
        master, slave = pty.openpty()
        _make_raw(slave)
        os.dup2(slave, targets[0])
        os.dup2(slave, targets[1])
        os.close(slave)
    base, started = _resident(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        _live(body, targets)
    for target in targets:
        os.close(target)
    printed = bytearray()
    killed = _watch(pid, started + LIMITS.seconds, master, printed)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - started
    if terminal:
        os.close(master)
        outputs = [bytes(printed), b""]
    else:
        outputs = [_head(path) for path in paths]
    code = None if killed else os.waitstatus_to_exitcode(status)
    return Outcome(code, *outputs, seconds, max(usage.ru_maxrss * 1024 - base, 0))


def _make_raw(terminal: int) -> None:
    """Bytes arrive as they were printed: no carriage returns are added."""
    settings = termios.tcgetattr(terminal)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, settings)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(SHOWN_MAX)


def _watch(pid: int, deadline: float, master: int, printed: bytearray) -> bool:
    """Wait for the end, and drain the terminal; whether the child had to be killed."""
    ended = os.pidfd_open(pid)
    try:
        while True:
            left = deadline - time.monotonic()
            ready = select.select([ended] + [master] * (master >= 0), [], [], max(left, 0))[0]
            if master in ready:
                try:
                    printed += os.read(master, 1 << 16)
                except OSError:  # nobody has the other end any more
                    master = -1
            elif ended in ready:
                return False
            if not ready or left <= 0:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
                return True
    finally:
        os.close(ended)


def _live(body: Callable[[], int], targets: list[int]) -> NoReturn:
    """The whole life of a child."""
    code = CRASHED
    try:
        os.setpgid(0, 0)
        _limit()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, target in enumerate(targets, 1):
            os.dup2(target, number)
        # As the interpreter sets them up; under a terminal without colours.
        os.environ["TERM"] = "dumb"
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = _text(1, "strict")
        sys.stderr = _text(2, "backslashreplace")
        try:
            code = body()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException:
        traceback.print_exc()
        code = CRASHED
    finally:
        os._exit(code)


def _text(number: int, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        os.fdopen(number, "wb", closefd=False), "utf-8", errors, line_buffering=True
    )


def _limit() -> None:
    used = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_MAX,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(LIMITS.seconds) + 5,) * 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
