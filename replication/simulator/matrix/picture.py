"""The matrix as an SVG.

The colours suit people who do not see red or green (the palette of Okabe and Ito), and only repeat
what the words in the cells say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from replication.simulator.matrix.report import (
    LEGEND,
    columns_of,
    reasons_of,
    rows_of,
    text_of,
)
from replication.simulator.matrix.run import Cell

NAME_WIDTH, TITLE_WIDTH, CELL_WIDTH = 92, 386, 196
ROW_HEIGHT, HEAD_HEIGHT, LINE_HEIGHT = 28, 76, 20
MARGIN = 16


class CellLook(NamedTuple):
    meaning: str
    fill: str
    ink: str
    border: str


OK = CellLook("nothing lost, replicas equal", "#e6f2f8", "#00496b", "#c6dfec")
LOST = CellLook("acknowledged records lost", "#d55e00", "#ffffff", "#d55e00")
DIVERGED = CellLook("replicas differ", "#f0c24b", "#000000", "#f0c24b")
OTHER = CellLook("another violation", "#cc79a7", "#000000", "#cc79a7")
ALLOWED = CellLook("lost, and allowed: see the notes", "#ffffff", "#8a3d00", "#d55e00")
LOOKS = (OK, LOST, DIVERGED, OTHER, ALLOWED)


def look_of(cell: Cell) -> CellLook:
    found = cell.findings
    if found.ok:
        return OK
    if cell.scenario.allowed and not found.diverged and not found.stuck:
        return ALLOWED
    if found.lost:
        return LOST
    return DIVERGED if found.diverged else OTHER


def to_svg(cells: Sequence[Cell]) -> str:
    return "\n".join(_lines(cells)) + "\n"


def _lines(cells: Sequence[Cell]) -> Iterator[str]:
    columns, rows, reasons = columns_of(cells), rows_of(cells), reasons_of(cells)
    left = MARGIN + NAME_WIDTH + TITLE_WIDTH
    width = left + CELL_WIDTH * len(columns) + MARGIN
    notes = [*(f"({n}) {reason}" for n, reason in enumerate(reasons, 1)), *LEGEND]
    foot = MARGIN + HEAD_HEIGHT + ROW_HEIGHT * len(rows) + 24
    height = foot + LINE_HEIGHT * (len(notes) + 2) + MARGIN
    used = [look for look in LOOKS if any(look_of(cell) is look for cell in cells)]
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif"'
        ' font-size="13" role="img">'
    )
    yield "<title>What each truncation rule loses in each scenario</title>"
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield _text(MARGIN, MARGIN + 14, "What each truncation rule loses", size=17, weight="bold")
    for number, column in enumerate(columns):
        middle = left + CELL_WIDTH * number + CELL_WIDTH // 2
        top = MARGIN + HEAD_HEIGHT
        yield _text(middle, top - 28, column.name, anchor="middle", weight="bold", size=14)
        yield _text(middle, top - 11, column.since, anchor="middle", ink="#444444", size=12)
    for line, (scenario, row) in enumerate(rows):
        top = MARGIN + HEAD_HEIGHT + ROW_HEIGHT * line
        yield _text(MARGIN, top + 18, scenario.name, weight="bold")
        yield _text(MARGIN + NAME_WIDTH, top + 18, scenario.title)
        for number, cell in enumerate(row):
            x = left + CELL_WIDTH * number
            yield _box(x + 2, top + 2, CELL_WIDTH - 4, ROW_HEIGHT - 4, look_of(cell))
            text, ink = text_of(cell, reasons), look_of(cell).ink
            yield _text(x + CELL_WIDTH // 2, top + 18, text, anchor="middle", ink=ink)
    x = MARGIN
    for look in used:
        yield _box(x, foot, 20, 14, look)
        yield _text(x + 26, foot + 12, look.meaning)
        x += 46 + 7 * len(look.meaning)
    for line, note in enumerate(notes, 2):
        yield _text(MARGIN, foot + LINE_HEIGHT * line, note, ink="#333333", size=12)
    yield "</svg>"


def _box(x: int, y: int, width: int, height: int, look: CellLook) -> str:
    dashes = ' stroke-dasharray="5 3"' if look is ALLOWED else ""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{look.fill}"'
        f' stroke="{look.border}"{dashes}/>'
    )


def _text(
    x: int,
    y: int,
    text: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    size: int = 13,
    ink: str = "#000000",
) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}"'
        f' fill="{ink}">{escape(text)}</text>'
    )
