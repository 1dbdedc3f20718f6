"""Where CPython runs signal handlers, and a call that is interrupted at one of these places.

The interpreter looks for signals at the start of each Python function and after each call of a C
function. A profile function is called at the same places, and what it raises propagates from there
as a handler's exception would. So each place can be tried, one after the other.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

PLACES = ("call", "c_return")


class Interruption(Exception):
    """What the handler of a job's time limit raises. ``KeyboardInterrupt`` is no ``Exception``."""


def _in_finalizer(frame: FrameType | None) -> bool:
    """Python reports an exception there, and goes on: no caller sees it."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _of_a_condition(error: Exception) -> bool:
    """An interrupt between the release of its lock and its wait is raised as another error."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, RuntimeError) and frames[-1].filename == threading.__file__


def interrupted(
    call: Callable[[], object], at: int, error: type[BaseException] = Interruption
) -> tuple[bool, int]:
    """Run ``call`` and raise ``error`` at the place ``at``, counted from 0.

    Returns whether ``call`` ended by this error, and how many places it has passed.
    """
    passed = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal passed
        if event not in PLACES or arg is sys.setprofile or _in_finalizer(frame):
            return
        passed += 1
        if passed == at + 1:
            raise error(f"in {frame.f_code.co_qualname}, line {frame.f_lineno}")

    sys.setprofile(profile)
    try:
        call()
    except Exception as raised:
        wrapped = isinstance(raised, error) or isinstance(raised.__cause__, error)
        if not wrapped and not _of_a_condition(raised):
            raise
        return True, passed
    except error:
        return True, passed
    finally:
        sys.setprofile(None)
    return False, passed


def places(call: Callable[[], object]) -> int:
    """How many places ``call`` has."""
    return interrupted(call, -1)[1]
