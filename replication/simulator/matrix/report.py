"""The matrix as a table for a terminal, as Markdown, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from logstore.common.json_fields import json_fields
from replication.simulator.matrix.rules import DEFAULT, RuleColumn
from replication.simulator.matrix.run import Cell
from replication.simulator.matrix.scenarios import Scenario

if TYPE_CHECKING:
    from logstore.terminal.tables import Table

LEGEND = (
    "lost: records that were acknowledged with acks=all and are not in the leader's log at the end",
    "diverged: offsets at which two replicas differed, both below their high watermarks or at the"
    " end",
    "reread: offsets at which a consumer read one record and later another",
    "out of range: how often a consumer was told that its position does not exist",
    "stuck: a replica could not follow, or the script not go on",
)


def rows_of(cells: Sequence[Cell]) -> list[tuple[Scenario, list[Cell]]]:
    rows: dict[str, tuple[Scenario, list[Cell]]] = {}
    for cell in cells:
        rows.setdefault(cell.scenario.name, (cell.scenario, []))[1].append(cell)
    return list(rows.values())


def columns_of(cells: Sequence[Cell]) -> list[RuleColumn]:
    return list(dict.fromkeys(cell.column for cell in cells))


def reasons_of(cells: Sequence[Cell]) -> list[str]:
    """The reasons for default cells other than ``ok``. Their numbers are footnotes, from 1."""
    return list(dict.fromkeys(c.scenario.allowed for c in cells if _is_excused(c)))


def _is_excused(cell: Cell) -> bool:
    return cell.column == DEFAULT and not cell.findings.ok and not cell.failed


def text_of(cell: Cell, reasons: Sequence[str]) -> str:
    """The verdict, with the number of the reason if a loss is allowed."""
    if _is_excused(cell):
        return f"{cell.findings.verdict} ({reasons.index(cell.scenario.allowed) + 1})"
    return f"{cell.findings.verdict} FAILED" if cell.failed else cell.findings.verdict


def to_dict(cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "failed": sum(cell.failed for cell in cells),
        "columns": [json_fields(column) for column in columns_of(cells)],
        "rows": [
            {
                "scenario": scenario.name,
                "title": scenario.title,
                "flush": scenario.flush,
                "minIsr": scenario.min_isr,
                "eligibleLeaderReplicas": scenario.elr,
                "uncleanElection": scenario.unclean,
                "allowed": scenario.allowed,
                "cells": {cell.column.name: _cell_dict(cell) for cell in row},
            }
            for scenario, row in rows_of(cells)
        ],
    }


def _cell_dict(cell: Cell) -> dict[str, Any]:
    found = cell.findings
    return {
        "verdict": found.verdict,
        "failed": cell.failed,
        "acknowledged": found.acknowledged,
        "lost": list(found.lost),
        "diverged": list(found.diverged),
        "reread": list(found.reread),
        "outOfRange": found.out_of_range,
        "stuck": found.stuck,
    }


def to_json(cells: Sequence[Cell]) -> str:
    return json.dumps(to_dict(cells), indent=1, ensure_ascii=False) + "\n"


def to_markdown(cells: Sequence[Cell]) -> str:
    return "\n".join(_markdown_lines(cells)) + "\n"


def _markdown_lines(cells: Sequence[Cell]) -> Iterator[str]:
    columns, reasons = columns_of(cells), reasons_of(cells)
    heads = [f"`{column.name}`<br>{column.since}" for column in columns]
    yield f"| scenario | what happens | {' | '.join(heads)} |"
    yield f"| --- | --- |{' --- |' * len(columns)}"
    for scenario, row in rows_of(cells):
        verdicts = [_emphasised(cell, reasons) for cell in row]
        yield f"| {scenario.name} | {scenario.title} | {' | '.join(verdicts)} |"
    yield ""
    for number, reason in enumerate(reasons, 1):
        yield f"({number}) {reason}  "
    yield ""
    for line in LEGEND:
        yield f"- {line}"


def _emphasised(cell: Cell, reasons: Sequence[str]) -> str:
    text = text_of(cell, reasons)
    return text if cell.findings.ok else f"**{text}**"


def to_table(cells: Sequence[Cell]) -> Table:
    """The table, with failures in red and allowed losses in yellow."""
    from logstore.terminal import tables

    columns, reasons = columns_of(cells), reasons_of(cells)
    table = tables.plain_table()
    table.add_column("scenario", no_wrap=True)
    table.add_column("what happens")
    for column in columns:
        table.add_column(f"{column.name}\n{column.since}")
    for scenario, row in rows_of(cells):
        verdicts = []
        for cell in row:
            style = "red" if not cell.findings.ok else "green"
            style = "yellow" if _is_excused(cell) else style
            verdicts.append(tables.cell(text_of(cell, reasons), style))
        table.add_row(scenario.name, scenario.title, *verdicts)
    return table
