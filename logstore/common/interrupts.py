"""Ctrl-C ends a command at once.

It is a ``KeyboardInterrupt`` first, so that files are closed and a sum is printed. What then takes
longer than a moment, such as threads that read a large segment, is left: whatever a command writes
survives the end of its process at any time.
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
    """Take over Ctrl-C; again, after a library has taken it. In the main thread only."""
    signal.signal(signal.SIGINT, _interrupt)


def leave(*_: object) -> NoReturn:
    """End the process and its children; nothing is waited for."""
    for child in _children():
        with suppress(OSError):  # it has ended
            os.kill(child, signal.SIGTERM)
    os._exit(INTERRUPTED)


def _children() -> list[int]:
    """Processes that this one started. Not all end with it: a JVM that Spark was just starting, and
    whose start was interrupted, would wait for its driver for ever.
    """
    found: list[int] = []
    for path in glob("/proc/self/task/*/children"):  # of Linux; elsewhere there are none to end
        with suppress(OSError), open(path) as file:  # a thread has ended
            found += map(int, file.read().split())
    return found


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGINT, leave)  # the second time there is no mercy
    watchdog = threading.Timer(GRACE_SECONDS, leave)
    watchdog.daemon = True
    watchdog.start()
    raise KeyboardInterrupt


__all__ = ["INTERRUPTED", "guard", "leave"]
