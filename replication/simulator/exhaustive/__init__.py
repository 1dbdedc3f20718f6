"""Every interleaving of a small partition, checked breadth first.

The replication rules themselves (``isr``, ``truncation``, ``election``, the epoch cache) decide;
``steps`` only carries their answers out on plain values. What a run proves holds for its bounds.

The way of looking at the protocol (which steps there are, what is asked of every state) follows the
public TLA+ models of Kafka's replication by J. Gustafson (hachikuji/kafka-specification).
"""

from __future__ import annotations

from replication.simulator.exhaustive.decisions import Decisions
from replication.simulator.exhaustive.model import Model
from replication.simulator.exhaustive.mutants import FENCED_RULE, MUTANTS, Mutant
from replication.simulator.exhaustive.properties import Property
from replication.simulator.exhaustive.report import to_dict, to_text
from replication.simulator.exhaustive.search import Outcome, Progress, Violation, search
from replication.simulator.exhaustive.state import Bounds

__all__ = [
    "FENCED_RULE",
    "MUTANTS",
    "Bounds",
    "Decisions",
    "Model",
    "Mutant",
    "Outcome",
    "Progress",
    "Property",
    "Violation",
    "search",
    "to_dict",
    "to_text",
]
