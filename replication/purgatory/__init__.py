"""Requests that wait for an offset, for bytes, or for their deadline.

Begin with ``purgatory``; ``timer`` has the deadlines.
"""

from __future__ import annotations

from replication.purgatory.purgatory import DelayedOperation, Purgatory
from replication.purgatory.timer import Timer

__all__ = ["DelayedOperation", "Purgatory", "Timer", "purgatory", "timer"]
