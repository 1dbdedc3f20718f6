"""``logstore simulate --matrix``: what each truncation rule loses in each scenario."""

from __future__ import annotations

import sys
from pathlib import Path

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS
from replication.simulator.matrix import (
    reasons_of,
    run_cells,
    to_json,
    to_markdown,
    to_svg,
    to_table,
)


def run_matrix(out: Path | None = None, *, as_json: bool = False) -> int:
    """Run all cells and print them. The exit code is 1 if a cell of the default rule fails.

    Args:
        out: a directory for ``matrix.md``, ``matrix.svg`` and ``matrix.json``, created if missing.
    Raises:
        OSError: the files cannot be written.
    """
    cells = run_cells(progress=_show if sys.stderr.isatty() else lambda done, total: None)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in (
            ("matrix.md", to_markdown(cells)),
            ("matrix.svg", to_svg(cells)),
            ("matrix.json", to_json(cells)),
        ):
            (out / name).write_text(text, encoding="utf-8")
    failed = [cell for cell in cells if cell.failed]
    if as_json:
        terminal.lines(to_json(cells).removesuffix("\n").split("\n"))
        return EXIT_FINDINGS if failed else 0
    from logstore.terminal import tables

    tables.print_tables(to_table(cells), width=180)
    for number, reason in enumerate(reasons_of(cells), 1):
        terminal.line(f"({number}) {reason}")
    for cell in failed:
        found = cell.findings
        terminal.line(f"{cell.scenario.name} under the default rule: {found.verdict} {found.stuck}")
    if out is not None:
        terminal.line(f"written to {printable(out)}: matrix.md, matrix.svg, matrix.json")
    return EXIT_FINDINGS if failed else 0


def _show(done: int, total: int) -> None:
    terminal.status(f"{done} of {total} runs", last=done == total)
