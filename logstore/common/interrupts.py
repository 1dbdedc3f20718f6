"""Ctrl-C ends a command at once.

It raises ``KeyboardInterrupt`` first, so that files are closed and a summary is printed. Work that
then takes longer than a moment, such as threads that read a large segment, is abandoned: all that a
command writes survives the end of its process at any time.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from glob import glob
from types import FrameType
from typing import NoReturn

INTERRUPTED = 128 + signal.SIGINT
GRACE_SECONDS = 2.0


def guard() -> None:
    """Take over Ctrl-C, also from a library that has taken it. Only in the main thread."""
    signal.signal(signal.SIGINT, _interrupt)


def leave(*_: object) -> NoReturn:
    """End the process and its children without waiting."""
    for child in _children():
        with suppress(OSError):  # it has ended
            os.kill(child, signal.SIGTERM)
    os._exit(INTERRUPTED)


def _children() -> list[int]:
    """The child processes.

    Not all would end with this one: a JVM whose start was interrupted would wait for its driver
    forever.
    """
    found: list[int] = []
    for path in glob("/proc/self/task/*/children"):  # Linux only; elsewhere no child needs an end
        with suppress(OSError), open(path) as file:  # a thread has ended
            found += map(int, file.read().split())
    return found


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGINT, leave)  # a second Ctrl-C ends the process at once
    watchdog = threading.Timer(GRACE_SECONDS, leave)
    watchdog.daemon = True
    watchdog.start()
    raise KeyboardInterrupt


__all__ = ["INTERRUPTED", "guard", "leave"]
