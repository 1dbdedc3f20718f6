"""Fakes for tests: a disk and an object store that fail on demand, and a clock that a test moves.

Begin with ``faulty``: `FaultyStorage` loses what was not synced. `FaultyObjectStore` lies, fails
and lists late. They are public; nothing here may import pytest.
"""

from __future__ import annotations

from logstore.storage.memory import MemoryStorage
from logstore.testing.clock import ManualClock
from logstore.testing.faulty import Fault, FaultyStorage, SimulatedCrash
from logstore.testing.faulty_store import FaultyObjectStore, StoreFault

__all__ = [
    "Fault",
    "FaultyObjectStore",
    "FaultyStorage",
    "ManualClock",
    "MemoryStorage",
    "SimulatedCrash",
    "StoreFault",
    "faulty",
    "faulty_nodes",
]
