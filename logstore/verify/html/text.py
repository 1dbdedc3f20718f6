"""Numbers, sizes and times for people, and text from outside made safe to show."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from logstore.verify.common.report import UNKNOWN

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


def visible(value: Any) -> Any:
    """Make a value safe to show. Every value that a template prints goes through this first.

    HTML is escaped after that. A topic, a path or a message may hold control characters, direction
    marks that turn a line around, or halves of surrogate pairs (file names that are not UTF-8),
    which cannot be written to a file: they are shown as escapes. The key of an object store, which
    a URI may carry as ``s3://key:secret@bucket``, is removed, since the file may be passed on.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if "://" in value:
        value = _USER_INFO.sub("…@", value)
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


def count(value: int) -> str:
    """Such as ``12,345``; "" for `UNKNOWN`."""
    return "" if value == UNKNOWN else f"{value:,}"


def size(value: int) -> str:
    """Such as ``1.50 GiB``: three significant digits, powers of 1,024."""
    scaled, power = float(value), 0
    while scaled >= 999.5 and power < len(_UNITS) - 1:
        scaled, power = scaled / 1024, power + 1
    digits = 0 if power == 0 or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{digits}f} {_UNITS[power]}"


def moment(milliseconds: int) -> str:
    """UTC to the second, the bare number beyond the years of a calendar, "" for `UNKNOWN`."""
    if milliseconds == UNKNOWN:
        return ""
    try:
        return f"{_EPOCH + timedelta(milliseconds=milliseconds):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{milliseconds} ms"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
