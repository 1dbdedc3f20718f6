"""Print foreign text from a disk or a network safely.

A name, a key or a message may hold escape sequences, line breaks, marks that turn a line around,
and bytes that are not text. Printed raw it could clear a terminal or forge a line of a report. So a
foreign *value* goes through `printable` where it becomes part of a text, and every text goes
through `one_line` where it leaves: an error's ``str``, a log line, a line or a cell on a terminal.

================================  ================================================================
in the text                       as printed
================================  ================================================================
printable (``str.isprintable``)   itself: also é and 日本
line break, return, tab           ``\\n``, ``\\r``, ``\\t``
other characters below U+0080     ``\\x1b``
unprintable ones from U+0080 on   ``\\u0085``, ``\\u202e``, ``\\U000e0001``
a byte that is not UTF-8          ``\\xff``
a backslash                       ``\\\\`` by `printable`, so that no two values look the same;
                                  itself by `one_line`, since it may begin an escape
================================  ================================================================
"""

from __future__ import annotations

import os
from typing import Any

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BYTES = range(0xDC80, 0xDD00)  # what "surrogateescape" makes of the bytes 0x80 to 0xff


def printable(value: str | bytes | os.PathLike[Any], limit: int | None = None) -> str:
    """``value`` as part of a line, cut at ``limit`` characters with an ellipsis."""
    path = os.fspath(value)
    text = decoded(path) if isinstance(path, bytes) else path
    if limit is not None and len(text) > limit:
        text = text[: limit - 3] + "..."
    return one_line(text.replace("\\", "\\\\"))


def one_line(text: str) -> str:
    """A text, which may have printed values already, with everything unprintable escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def decoded(data: bytes) -> str:
    """Foreign bytes as text, with lone surrogates for what is not UTF-8, as in file names."""
    return data.decode("utf-8", "surrogateescape")


def _escaped(character: str) -> str:
    code = ord(character)
    if code in _BYTES:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return _SHORT.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class PrintableError(Exception):
    """Base of the errors of all packages: ``str`` is one printable line, fields hold raw facts.

    A class with fields composes its text in ``_text``, with `printable` for each foreign value.
    """

    def __str__(self) -> str:
        return one_line(self._text())

    def _text(self) -> str:
        return super().__str__()
