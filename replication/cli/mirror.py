"""``logstore mirror``: a log directory that follows a running cluster, and what is done with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_ERROR, EXIT_FINDINGS, fail, json_option
from logstore.cli.common.verify_output import progress_bar
from replication.cli.connection import source_options
from replication.cli.quantities import RATE

if TYPE_CHECKING:
    from replication.security.config import ClientProperties

topics_option = click.option(
    "--topics",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Topics whose whole name matches, a regular expression; may be repeated.  [default: all]",
)
rate_option = click.option(
    "--rate", type=RATE, metavar="RATE", help="Read at most so much a second, as 50MB."
)


@click.group(short_help="Follow a running Kafka in a log directory, byte for byte.")
def mirror() -> None:
    """A mirror of a running Kafka."""


@mirror.command(short_help="Compare a mirror with its source, byte for byte.")
@source_options
@click.argument("directory", metavar="DIR")
@topics_option
@rate_option
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    source: ClientProperties | None,
    directory: str,
    patterns: tuple[str, ...],
    rate: float | None,
    as_json: bool,
) -> None:
    """Compare what DIR has with what its source still has: every byte of every batch, and not only
    checksums. DIR is a mirror, which may be running, a copy of a broker's log directory, or a URI
    of either.

    Nothing is written. It reads the source as a consumer does, so --rate matters. What only one
    side has is named and not compared: records that the source has deleted, and those that the
    mirror does not have yet. Of a topic that the source compacts, each record that it still has
    must be here.

    Exit code 0: equal. 1: a difference was found. 2: something could not be compared.

    \b
    Example:
      logstore mirror check --from kafka:9092 /data/mirror --topics 'orders.*'
    """
    from replication.admin import AdminClient
    from replication.mirror.checking import CheckOptions
    from replication.mirror.checking import check as compare

    if source is None:
        raise click.UsageError("Missing option '--from'.")
    options = CheckOptions(wanted(patterns), rate)
    with AdminClient(source.config) as client, progress_bar(quiet=as_json) as progress:
        report = compare(client, directory, options, progress=progress)
    if not report.partitions:
        fail(f"{printable(directory)}: no topic matches, here or at the source")
    if as_json:
        terminal.print_json(report.to_dict(), indent=2)
    else:
        terminal.lines(report.lines())
        terminal.line(report.verdict)
    for line in report.unusable:
        terminal.line(f"error: {printable(line)}", err=True)
    if report.unusable:
        ctx.exit(EXIT_ERROR)
    ctx.exit(0 if report.is_equal else EXIT_FINDINGS)


def wanted(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether the name of a topic matches one of some patterns; without any, all do."""
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        fail(f"--topics {printable(str(error.pattern))} is no pattern: {error}")
    return lambda topic: not compiled or any(each.fullmatch(topic) for each in compiled)
