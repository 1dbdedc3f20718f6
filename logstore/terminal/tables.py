"""Tables and progress bars, by rich: for people only. 40 ms to import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TransferSpeedColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from checkpoints.printable import one_line


def cell(text: str, style: str = "") -> Text:
    """A cell in a style of its own. Never markup: ``[red]`` in it is text."""
    return Text(one_line(text), style)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process; the command does that, with its own exit code."""
        raise  # called where BrokenPipeError was caught


class Table(RichTable):
    """Cells that are plain text become `cell`; titles and headings are ours."""

    def add_row(self, *cells: str | Text) -> None:  # type: ignore[override]
        super().add_row(*(cell(each) if isinstance(each, str) else each for each in cells))


def plain_table() -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False)


def print_tables(*tables: Table, width: int) -> None:
    """Print to stdout, ``width`` columns wide where that is no terminal."""
    terminal = sys.stdout.isatty()
    _Console(width=None if terminal else width, highlight=False).print(*tables)


def counted() -> tuple[ProgressColumn, ...]:
    """What a bar of things shows."""
    return TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()


def transferred() -> tuple[ProgressColumn, ...]:
    """What a bar of bytes shows."""
    return BarColumn(), DownloadColumn(), TransferSpeedColumn()


@contextmanager
def progress(*columns: ProgressColumn, err: bool = True, hide: bool = False) -> Iterator[Progress]:
    """Bars that vanish when they are done; on a terminal only."""
    console = _Console(stderr=err)
    off = hide or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=off) as bars:
        yield bars
