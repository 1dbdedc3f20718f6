"""Which failure costs what under which truncation rule: scripted runs of the real cluster.

A row is a failure that history taught (``scenarios``), a column a generation of the protocol
(``rules``). Each cell is a run on a ``Stage``; what it says is found by comparing logs with what
clients were told (``findings``).
"""

from __future__ import annotations

from replication.simulator.matrix.findings import Findings
from replication.simulator.matrix.picture import to_svg
from replication.simulator.matrix.report import reasons_of, to_json, to_markdown, to_table
from replication.simulator.matrix.rules import COLUMNS, DEFAULT, Column
from replication.simulator.matrix.run import Cell, run_cell, run_cells
from replication.simulator.matrix.scenarios import SCENARIOS, Scenario

__all__ = [
    "COLUMNS",
    "DEFAULT",
    "SCENARIOS",
    "Cell",
    "Column",
    "Findings",
    "Scenario",
    "reasons_of",
    "run_cell",
    "run_cells",
    "to_json",
    "to_markdown",
    "to_svg",
    "to_table",
]
