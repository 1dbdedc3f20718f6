"""Requests that wait and their deadlines, in native code. The stub has what each class promises."""

from __future__ import annotations

from replication.kernels._waiting import (
    DelayedOperation,
    Timer,
    TimerTask,
    TimingWheel,
    Watchers,
    raise_all,
)

__all__ = ["DelayedOperation", "Timer", "TimerTask", "TimingWheel", "Watchers", "raise_all"]
