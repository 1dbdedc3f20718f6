"""Scripted runs of the real cluster: the cost of each failure under each truncation rule.

A row is a failure known from Kafka's history (``scenarios``), a column a generation of the protocol
(``rules``). Each cell is a run on a ``Stage``. Its result comes from comparing the logs with the
answers to clients (``findings``).
"""

from __future__ import annotations

from replication.simulator.matrix.findings import Findings
from replication.simulator.matrix.picture import to_svg
from replication.simulator.matrix.report import reasons_of, to_json, to_markdown, to_table
from replication.simulator.matrix.rules import COLUMNS, DEFAULT, RuleColumn
from replication.simulator.matrix.run import Cell, run_cell, run_cells
from replication.simulator.matrix.scenarios import SCENARIOS, Scenario

__all__ = [
    "COLUMNS",
    "DEFAULT",
    "SCENARIOS",
    "Cell",
    "Findings",
    "RuleColumn",
    "Scenario",
    "reasons_of",
    "run_cell",
    "run_cells",
    "to_json",
    "to_markdown",
    "to_svg",
    "to_table",
]
