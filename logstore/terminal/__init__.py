"""The one way from a command to a terminal, or to whatever stands in its place.

No other module prints, and none but ``tables`` uses rich. Whatever a line or a cell holds, it stays
one and is printable: text of strangers brings neither escape sequences nor line breaks. A foreign
value with backslashes is told apart from an escape only where `printable` made it part of the text.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from checkpoints.printable import decoded, one_line, printable

_compact = json.JSONEncoder(separators=(",", ":")).encode  # made once: half the time of json.dumps


def line(text: str = "", *, err: bool = False, style: str | None = None) -> None:
    """Print one line; ``err`` to stderr, after what stdout has so far. ``style``: a colour."""
    if err:
        sys.stdout.flush()  # what was found comes after what led to it, also in one terminal
    click.secho(one_line(text), err=err, fg=style)


def lines(texts: Iterable[str]) -> None:
    """Print lines to stdout; cheap for many."""
    found = list(texts)
    if not "".join(found).isprintable():  # one look at all of them is as good
        found = [one_line(text) for text in found]
    _write(found)


def json_lines(values: Iterable[Any]) -> None:
    """Print each value as JSON in one line to stdout; cheap for many."""
    _write([_ascii(text) for text in map(_compact, values)])


def _write(printable_lines: list[str]) -> None:
    if printable_lines:
        sys.stdout.write("\n".join([*printable_lines, ""]))


def status(text: str, *, last: bool) -> None:
    """Show how far something is, on stderr, in place of the status before."""
    click.echo(one_line(text) + ("\n" if last else "\r"), err=True, nl=False)


def print_json(value: Any, indent: int | None = None) -> None:
    """Print ``value`` as JSON to stdout; with ``indent`` in several lines."""
    click.echo(_ascii(json.dumps(value, indent=indent)))


def _ascii(text: str) -> str:
    """JSON has escapes for all but printable ASCII, and DEL."""
    return text.replace("\x7f", "\\u007f")


def is_terminal() -> bool:
    """Whether somebody looks at stdout."""
    return sys.stdout.isatty()


class Records:
    """Content of records to stdout: as it is for another program, escaped on a terminal."""

    def __init__(self) -> None:
        self._escapes = is_terminal()

    def lines(self, values: list[bytes]) -> None:
        if self._escapes:
            lines(map(printable, values))
        elif values:
            sys.stdout.buffer.write(b"\n".join(values) + b"\n")

    def joined(self, values: list[bytes]) -> None:
        """With nothing between them and nothing behind."""
        if self._escapes:
            sys.stdout.write(printable(b"".join(values)))
        else:
            sys.stdout.buffer.write(b"".join(values))

    def formatted(self, values: list[bytes]) -> None:
        """As ``joined``, but line breaks and tabs stay: those of the values are escaped already."""
        data = b"".join(values)
        if self._escapes:
            parts = re.split("([\n\t])", decoded(data))
            sys.stdout.write("".join(p if p in ("\n", "\t") else one_line(p) for p in parts))
        else:
            sys.stdout.buffer.write(data)


def flush() -> None:
    sys.stdout.flush()


@contextmanager
def errors_to(path: str) -> Iterator[None]:
    """Let a file have what this process writes to stderr, and whatever processes it starts."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with open(path, "wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def hang_up() -> None:
    """Drop what stdout still has, and all that comes: its reader went away."""
    # A stream may be no file of the system.
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def never_fail() -> None:
    """Escape what the encoding of a stream cannot express, which would end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
