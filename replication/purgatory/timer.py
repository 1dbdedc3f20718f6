"""Deadlines by the million: hierarchical timing wheels (R-91; Kafka's ``SystemTimer``).

There is no clock and no thread in here: the owner of a ``Timer`` calls ``advance``, and only
``advance`` runs tasks. ``_waiting.pyi`` explains how it works.
"""

from __future__ import annotations

from replication.kernels import Timer, TimerTask

__all__ = ["Timer", "TimerTask"]
