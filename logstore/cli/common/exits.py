"""Exit codes, refusals, notes, and the flag that all commands share."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from checkpoints.loggers import get_logger
from logstore import terminal
from logstore.common.interrupts import INTERRUPTED

EXIT_FINDINGS = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = INTERRUPTED
EXIT_HUNG_UP = 128 + signal.SIGPIPE

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
"""The flag of every command that reports: parameter ``as_json``."""


def fail(message: str) -> NoReturn:
    """Print one line to stderr and end with ``EXIT_ERROR``."""
    terminal.line(f"error: {message}", err=True)
    raise click.exceptions.Exit(EXIT_ERROR)


class Notes(logging.Handler):
    """Prints notes to stderr, each once, because files are read several times.

    What the readers of directories warn of is a note, too.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self._printed:
            self._printed.add(text)
            terminal.line(f"note: {text}", err=True)

    def emit(self, record: logging.LogRecord) -> None:
        self(record.getMessage())


@contextmanager
def _noting() -> Iterator[Notes]:
    notes, logger = Notes(), get_logger("logstore.directory")
    logger.addHandler(notes)
    try:
        yield notes
    finally:
        logger.removeHandler(notes)


def notes() -> Notes:
    """The notes of the command that runs."""
    return click.get_current_context().with_resource(_noting())
