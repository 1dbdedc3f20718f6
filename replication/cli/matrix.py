"""``logstore simulate --matrix``: what each truncation rule loses in each scenario."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from logstore.cli import EXIT_FINDINGS
from replication.simulator.matrix import (
    reasons_of,
    run_cells,
    to_json,
    to_markdown,
    to_svg,
    to_table,
)


def run_matrix(out: Path | None = None, *, as_json: bool = False) -> int:
    """Run all cells and print them; the exit code is 1 when a cell of the default rule is not as
    it must be.

    Args:
        out: a directory for ``matrix.md``, ``matrix.svg`` and ``matrix.json``; made when missing.
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
        click.echo(to_json(cells), nl=False)
        return EXIT_FINDINGS if failed else 0
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 180, highlight=False).print(to_table(cells))
    for number, reason in enumerate(reasons_of(cells), 1):
        click.echo(f"({number}) {reason}")
    for cell in failed:
        found = cell.findings
        click.echo(f"{cell.scenario.name} under the default rule: {found.verdict} {found.stuck}")
    if out is not None:
        click.echo(f"written to {out}: matrix.md, matrix.svg, matrix.json")
    return EXIT_FINDINGS if failed else 0


def _show(done: int, total: int) -> None:
    click.echo(f"{done} of {total} runs", err=True, nl=False)
    click.echo("\r" if done < total else "\n", err=True, nl=False)
