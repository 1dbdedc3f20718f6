"""Tables and progress bars for people, with rich. 40 ms to import."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.cells import cell_len
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

_GAP = 2  # spaces between two columns of a listing
_PADDED_MAX = 48  # one longer name moves its own row, and not all rows


def cell(text: str, style: str = "") -> Text:
    """A cell in a style of its own. Never markup: ``[red]`` in it is text."""
    return Text(one_line(text), style)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise instead of ending the process as rich does: the command has its own exit code."""
        raise  # called inside ``except BrokenPipeError``


class Table(RichTable):
    """A table whose plain text cells become `cell`. Titles and headings are our own."""

    def add_row(self, *cells: str | Text) -> None:  # type: ignore[override]
        super().add_row(*(cell(each) if isinstance(each, str) else each for each in cells))


def plain_table() -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False)


def print_tables(*tables: Table, width: int) -> None:
    """Print to stdout, ``width`` columns wide unless it is a terminal."""
    terminal = sys.stdout.isatty()
    _Console(width=None if terminal else width, highlight=False).print(*tables)


class Listing:
    """A line for each named thing, such as a partition. Names and numbers are never cut off.

    If names and numbers do not fit side by side on a terminal, the names stand above the numbers,
    on one line or on one line each. Elsewhere each thing has one line.
    """

    def __init__(self, names: Sequence[str], numbers: Sequence[str]) -> None:
        self._names, self._numbers = len(names), len(numbers)
        self._rows: list[tuple[str, ...]] = []
        self.add_row(*names, *numbers)

    def add_row(self, *cells: str) -> None:
        """Names first."""
        if len(cells) != self._names + self._numbers:
            raise ValueError(f"{len(cells)} cells in a row of {self._names + self._numbers}")
        self._rows.append(tuple(map(one_line, cells)))

    def print(self) -> None:
        """Print to stdout. Without rows nothing is printed, not even a heading."""
        if len(self._rows) == 1:
            return
        console = _Console(highlight=False)
        for number, lines in enumerate(self._rendered(console)):
            for text in lines:
                console.print(Text(text, "" if number else "bold"), soft_wrap=True)

    def _rendered(self, console: Console) -> Iterator[list[str]]:
        """The lines of each row."""
        widths = [max(map(cell_len, column)) for column in zip(*self._rows, strict=True)]
        names = slice(0, self._names)
        if not console.is_terminal:
            widths[names] = [min(width, _PADDED_MAX) for width in widths[names]]
        numbers = slice(self._names, None)
        needed = sum(widths) + _GAP * (len(widths) - 1)
        beside = needed <= console.width or not console.is_terminal
        for row in self._rows:
            left = [_padded(text, size) for text, size in zip(row[names], widths, strict=False)]
            right = [
                _padded(text, size, right=True)
                for text, size in zip(row[numbers], widths[numbers], strict=True)
            ]
            if beside:
                parts = [[*left, *right]]
            elif sum(widths[names]) + _GAP * (self._names - 1) <= console.width:
                parts = [left, ["", *right]]
            else:
                parts = [*([text] for text in left), ["", *right]]
            yield [(" " * _GAP).join(part).rstrip() for part in parts]


def _padded(text: str, width: int, right: bool = False) -> str:
    room = " " * (width - cell_len(text))
    return room + text if right else text + room


def print_paragraph(text: str, style: str) -> None:
    """Print a text wrapped at words, indented after its first line, the first word styled."""
    console = _Console(highlight=False)
    wrapped = textwrap.wrap(
        one_line(text),
        console.width,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    for number, part in enumerate(wrapped):
        shown = Text(part)
        if number == 0:
            shown.stylize(style, 0, len(part.partition(" ")[0]))
        console.print(shown, soft_wrap=True)


def counted() -> tuple[ProgressColumn, ...]:
    """The columns of a progress bar that counts things."""
    return TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()


def transferred() -> tuple[ProgressColumn, ...]:
    """The columns of a progress bar that counts bytes."""
    return BarColumn(), DownloadColumn(), TransferSpeedColumn()


def described() -> tuple[ProgressColumn, ...]:
    """The columns of a progress bar that says the rest itself."""
    return BarColumn(20), TextColumn("{task.description}", markup=False)


@contextmanager
def progress(*columns: ProgressColumn, err: bool = True, hide: bool = False) -> Iterator[Progress]:
    """Progress bars that vanish when done, only on a terminal."""
    console = _Console(stderr=err)
    off = hide or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=off) as bars:
        yield bars
