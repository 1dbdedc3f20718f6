"""Ctrl-C ends a command at once.

It is a ``KeyboardInterrupt`` first, so that files are closed and a sum is printed. What then takes
longer than a moment, such as threads that read a large segment, is left: whatever a command writes
survives the end of its process at any time.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import NoReturn

INTERRUPTED = 128 + signal.SIGINT
GRACE_SECONDS = 2.0


def guard() -> None:
    """Take over Ctrl-C; again, after a library has taken it. In the main thread only."""
    signal.signal(signal.SIGINT, _interrupt)


def leave(*_: object) -> NoReturn:
    """End the process; nothing is waited for."""
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGINT, leave)  # the second time there is no mercy
    watchdog = threading.Timer(GRACE_SECONDS, leave)
    watchdog.daemon = True
    watchdog.start()
    raise KeyboardInterrupt


__all__ = ["INTERRUPTED", "guard", "leave"]
