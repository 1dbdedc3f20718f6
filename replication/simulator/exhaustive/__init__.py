"""Every interleaving of a small partition, checked breadth first.

The replication rules themselves decide (``isr``, ``truncation``, ``election``, the epoch cache).
``steps`` only applies their answers to plain values. A run proves its properties within its bounds.
The steps and the properties follow the public TLA+ models of Kafka's replication by J. Gustafson
(hachikuji/kafka-specification).
"""

from __future__ import annotations

from replication.simulator.exhaustive.decisions import ModelDecisions
from replication.simulator.exhaustive.model import Model
from replication.simulator.exhaustive.properties import Property
from replication.simulator.exhaustive.report import to_dict, to_text
from replication.simulator.exhaustive.search import SearchOutcome, SearchProgress, Violation, search
from replication.simulator.exhaustive.state import Bounds

__all__ = [
    "Bounds",
    "Model",
    "ModelDecisions",
    "Property",
    "SearchOutcome",
    "SearchProgress",
    "Violation",
    "search",
    "to_dict",
    "to_text",
]
