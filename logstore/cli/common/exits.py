"""Exit codes, refusals, and the flag that all commands share."""

from __future__ import annotations

import signal
from typing import NoReturn

import click

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
