"""Loggers that escape foreign text in their arguments, so that a log line stays one line.

This holds for every handler, because the filter is on the logger that makes the records.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from checkpoints.printable import one_line, printable

PACKAGES = ("checkpoints", "logstore", "replication")


def get_logger(name: str) -> logging.Logger:
    """The logger of a module. Modules get loggers only from here."""
    logger = logging.getLogger(name)
    if _ESCAPE not in logger.filters:
        logger.addFilter(_ESCAPE)
    return logger


def package_loggers() -> list[logging.Logger]:
    """The parent loggers of all modules, for handlers and levels."""
    return [logging.getLogger(name) for name in PACKAGES]


class _Escape(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = one_line(str(record.msg))
        if isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        elif record.args:
            record.args = tuple(map(_shown, record.args))
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = traceback_text(record.exc_info[1])
        return True


_ESCAPE = _Escape()


def _shown(value: Any) -> Any:
    """An argument in a safe form. Numbers, for ``%d``, and None stay as they are."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str | bytes | os.PathLike):
        return printable(value)
    return one_line(str(value))


def traceback_text(error: BaseException) -> str:
    """The text of ``traceback``, with the message of each error of the chain on one line."""
    return "\n".join(_traceback_lines(error))


def _traceback_lines(error: BaseException) -> Iterator[str]:
    if error.__cause__ is not None:
        yield from _traceback_lines(error.__cause__)
        yield "\nThe above exception was the direct cause of the following exception:\n"
    elif error.__context__ is not None and not error.__suppress_context__:
        yield from _traceback_lines(error.__context__)
        yield "\nDuring handling of the above exception, another exception occurred:\n"
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):"
        yield "".join(traceback.format_tb(error.__traceback__)).rstrip("\n")
    yield one_line("".join(traceback.format_exception_only(error)).rstrip("\n"))
