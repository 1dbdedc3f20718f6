"""Fakes that ship: a disk that crashes and fails on demand, and a clock that waits for you."""

from __future__ import annotations

from logstore.storage.memory import MemoryStorage
from logstore.testing.clock import ManualClock
from logstore.testing.faulty import Fault, FaultyStorage, SimulatedCrash

__all__ = ["Fault", "FaultyStorage", "ManualClock", "MemoryStorage", "SimulatedCrash"]
