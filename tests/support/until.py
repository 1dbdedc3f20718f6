"""Waiting for what another thread or process does: the only place where a test watches the clock.

A wait that succeeds costs what it takes. The budget is there so that a hang becomes a failure; no
test depends on how long anything takes on the machine at hand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05


def patience() -> float:
    """The seconds that a test waits for anything: ``LOGSTORE_PATIENCE``, by default 60."""
    return float(os.environ.get("LOGSTORE_PATIENCE", "60"))


def until(condition: Callable[[], T], what: str = "") -> T:
    """Ask again and again until the answer is true, and return it.

    Raises:
        AssertionError: the budget is used up; it says what did not happen.
    """
    end, pause = time.monotonic() + patience(), FIRST_PAUSE_S
    while not (answer := condition()):
        if time.monotonic() > end:
            name = getattr(condition, "__qualname__", "the condition")
            raise AssertionError(f"not within {patience():g} s: {what or name}")
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_S)
    return answer
