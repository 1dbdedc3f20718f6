"""The output of ``logstore dump``: lines on stdout, findings on stderr."""

from __future__ import annotations

import base64
from typing import Any

from checkpoints.printable import printable
from logstore import terminal
from logstore.common.errors import CorruptDataError
from logstore.format.filenames import MAX_DIR_NAME


class Output:
    """Prints, and keeps the exit code: 1 after corrupt data, 2 after an unusable path, else 0.

    stdout carries data only, so that ``--format json`` can be piped.
    """

    def __init__(self, form: str, deep: bool, from_offset: int, end_offset: int) -> None:
        self.form, self.deep = form, deep
        self.from_offset, self.end_offset = from_offset, end_offset
        self.exit_code = 0

    def lines(self, lines: list[str]) -> None:
        terminal.lines(lines)

    def json(self, entries: list[dict[str, Any]]) -> None:
        terminal.json_lines(entries)

    def entry(self, fields: dict[str, Any]) -> None:
        """Print one entry of a file other than a log, as JSON or ``name: value`` pairs."""
        if self.form == "json":
            self.json([fields])
        else:
            self.lines([" ".join(f"{name}: {shown(value)}" for name, value in fields.items())])

    def corrupt(self, error: CorruptDataError | Exception) -> None:
        self._report(f"corrupt: {type(error).__name__}: {error}")
        self.exit_code = max(self.exit_code, 1)

    def note(self, message: str) -> None:
        self._report(f"note: {message}")

    def unusable(self, message: str) -> None:
        self._report(f"error: {message}")
        self.exit_code = 2

    def _report(self, message: str) -> None:
        terminal.line(message, err=True)


def to_base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def shown(value: Any) -> str:
    """A value as Kafka's own tools print it.

    Text is escaped, and not shortened if it can be a name.
    """
    if value is None:
        return "null"
    if isinstance(value, str):
        return printable(value, MAX_DIR_NAME)
    return str(value).lower() if isinstance(value, bool) else str(value)


def readable(data: bytes | None) -> str:
    """The bytes as text if they are printable text, else as hex."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()
    return text if text.isprintable() else "0x" + data.hex()
