"""What waits, twice: native, and in plain Python where ``logstore.kernels`` is plain too."""

from __future__ import annotations

from logstore.kernels import IMPLEMENTATION

if IMPLEMENTATION == "native":
    from replication.kernels._waiting import (
        DelayedOperation,
        Timer,
        TimerTask,
        TimingWheel,
        Watchers,
        raise_all,
    )
else:
    from replication.kernels._waiting_reference import (  # type: ignore[assignment]
        DelayedOperation,
        Timer,
        TimerTask,
        TimingWheel,
        Watchers,
        raise_all,
    )

__all__ = ["DelayedOperation", "Timer", "TimerTask", "TimingWheel", "Watchers", "raise_all"]
