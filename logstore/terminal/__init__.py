"""All output of commands, to a terminal or elsewhere.

No other module prints, and only ``tables`` uses rich. A line or a cell always stays one and is
printable: foreign text brings neither escape sequences nor line breaks. A foreign value with
backslashes can be distinguished from an escape only if `printable` made it part of the text.
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
    """Print one line, with ``err`` to stderr after the pending output of stdout.

    ``style`` is a colour.
    """
    if err:
        sys.stdout.flush()  # keeps the order of both streams in one terminal
    click.secho(one_line(text), err=err, fg=style)


def lines(texts: Iterable[str]) -> None:
    """Print lines to stdout; cheap for many."""
    found = list(texts)
    if not "".join(found).isprintable():  # checking all of them at once is enough
        found = [one_line(text) for text in found]
    _write(found)


def json_lines(values: Iterable[Any]) -> None:
    """Print each value as JSON in one line to stdout; cheap for many."""
    _write([_ascii(text) for text in map(_compact, values)])


def _write(printable_lines: list[str]) -> None:
    if printable_lines:
        sys.stdout.write("\n".join([*printable_lines, ""]))


def status(text: str, *, last: bool) -> None:
    """Show a status on stderr in place of the previous one."""
    click.echo(one_line(text) + ("\n" if last else "\r"), err=True, nl=False)


def print_json(value: Any, indent: int | None = None) -> None:
    """Print ``value`` as JSON to stdout; with ``indent`` in several lines."""
    click.echo(_ascii(json.dumps(value, indent=indent)))


def _ascii(text: str) -> str:
    """Replace everything except printable ASCII by JSON escapes, DEL included."""
    return text.replace("\x7f", "\\u007f")


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


class RecordLines:
    """Writes record content to stdout, unchanged for another program and escaped on a terminal."""

    def __init__(self) -> None:
        self._escapes = is_terminal()

    def lines(self, values: list[bytes]) -> None:
        if self._escapes:
            lines(map(printable, values))
        elif values:
            sys.stdout.buffer.write(b"\n".join(values) + b"\n")

    def joined(self, values: list[bytes]) -> None:
        """Write values without separators."""
        if self._escapes:
            sys.stdout.write(printable(b"".join(values)))
        else:
            sys.stdout.buffer.write(b"".join(values))

    def formatted(self, values: list[bytes]) -> None:
        """As ``joined``, but line breaks and tabs stay. Those of values are escaped already."""
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
    """Redirect stderr of this process and its children to a file."""
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
    """Drop all pending and later output of stdout, because its reader has closed it."""
    # A stream may have no file descriptor.
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def never_fail() -> None:
    """Escape characters that the encoding of a stream lacks, instead of failing, and write the
    whole of what is written: without a buffer (PYTHONUNBUFFERED) a pipe may take a part of it.
    """
    if isinstance(getattr(sys.stdout, "buffer", None), io.FileIO):
        whole = io.BufferedWriter(io.FileIO(sys.stdout.fileno(), "wb", closefd=False))
        is_tty = sys.stdout.isatty()
        sys.stdout = io.TextIOWrapper(whole, sys.stdout.encoding, line_buffering=is_tty)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


__all__ = [
    "RecordLines",
    "errors_to",
    "flush",
    "hang_up",
    "is_terminal",
    "json_lines",
    "line",
    "lines",
    "never_fail",
    "print_json",
    "status",
    "tables",
]
