"""Fakes for tests: a disk that crashes and fails on demand, and a clock that a test moves.

Begin with ``faulty``: `FaultyStorage` loses what was not synced. They are public; nothing here
may import pytest.
"""

from __future__ import annotations

from logstore.storage.memory import MemoryStorage
from logstore.testing.clock import ManualClock
from logstore.testing.faulty import Fault, FaultyStorage, SimulatedCrash

__all__ = [
    "Fault",
    "FaultyStorage",
    "ManualClock",
    "MemoryStorage",
    "SimulatedCrash",
    "faulty",
    "faulty_nodes",
]
