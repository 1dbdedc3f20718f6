"""``logstore restore``: a log directory out of a backup."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.backup import print_findings, topic_filter, topics_option
from logstore.cli.common import completion
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import Number
from logstore.cli.common.progress import progress_bar
from logstore.cli.records.positions import moment
from logstore.cli.recover import warnings_in_reports

Offsets = dict[str, dict[int, int]]
_FILE_SIZE_MAX = 64 << 20


@click.command(short_help="Make a log directory of a backup.")
@click.argument("uri", metavar="URI")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="DIR",
    help="Missing, or empty.",
    shell_complete=completion.directories,
)
@click.option(
    "--at",
    "at",
    metavar="TIME",
    help="Partitions end before their first batch with a later record: ISO 8601, or ms.",
)
@click.option(
    "--offsets",
    "offsets_file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help='Where partitions end, exclusive: JSON such as {"orders": {"0": 1200, "1": -1}}.',
)
@topics_option
@click.option(
    "--backup", "number", type=Number(1, 10**18), metavar="NUMBER", help="By default the newest."
)
@click.option("--lossy", is_flag=True, help="Leave damaged and missing objects out, and name them.")
@json_option
@click.pass_context
def restore(
    ctx: click.Context,
    uri: str,
    target: str,
    at: str | None,
    offsets_file: str | None,
    topics: tuple[str, ...],
    number: int | None,
    lossy: bool,
    as_json: bool,
) -> None:
    """Make a log directory of a backup: whole, or as it was at a time or at offsets.

    Every object is held against the checksum in its backup, and every batch is checked, before DIR
    gets its name: it is there whole, or not at all. Groups' offsets and transactions are topics
    like all others, and come along. `logstore promote DIR --for-kafka` makes a cluster of DIR.

    With --at, records that are earlier and lie behind a later one are left out, too.

    Exit code 0: all that was asked for is there. 1: the backup itself has holes, or --lossy left
    something out; both are named. 2: an error; then there is no DIR.

    \b
    Example:
      logstore restore s3://backups/prod --to /var/lib/kafka --at 2026-11-01T12:00
    """
    from logstore.backup import RestoreOptions
    from logstore.backup import restore as restore_backup
    from logstore.tiers import open_store

    options = RestoreOptions(
        number=number or 0,
        topics=topic_filter(topics),
        at_ms=None if at is None else moment(at, "--at"),
        offsets={} if offsets_file is None else _offsets(offsets_file),
        lossy=lossy,
    )
    with progress_bar(quiet=as_json) as progress, warnings_in_reports():
        report = restore_backup(open_store(uri), target, options, progress=progress)
    if as_json:
        terminal.print_json(report.to_dict(), indent=2)
    else:
        from logstore.terminal import tables

        listing = tables.Listing(["partition"], ["start", "end", "end in backup", "MB"])
        filled = [part for part in report.partitions if part.end_in_backup > part.log_start_offset]
        for part in filled:
            listing.add_row(
                printable(f"{part.topic}-{part.partition}"),
                f"{part.log_start_offset}",
                f"{part.end_offset}",
                f"{part.end_in_backup}",
                f"{part.bytes / 1e6:,.1f}",
            )
        if filled:
            listing.print()
        print_findings(report.findings, report.notes)
        cut = sum(part.end_offset < part.end_in_backup for part in report.partitions)
        of_all = f"of {len(report.partitions)} partitions {cut} end before the backup does"
        state = f"cut as asked: {of_all}" if cut else f"whole: {len(report.partitions)} partitions"
        if not report.whole:
            state = f"not whole: {len(report.findings)} findings"
        terminal.line(f"{printable(report.target)} is backup {report.number}, {state}")
    ctx.exit(0 if report.whole else EXIT_FINDINGS)


def _offsets(path: str) -> Offsets:
    """The offsets of a file, as those in Spark's options."""
    with open(path, "rb") as file:
        data = file.read(_FILE_SIZE_MAX)
    try:
        return dict(_topics(json.loads(data)))
    except (ValueError, RecursionError) as error:
        fail(f"--offsets {printable(path)}: {printable(str(error), 200)}")


def _topics(value: object) -> Iterator[tuple[str, dict[int, int]]]:
    if not isinstance(value, dict):
        raise ValueError('give {"topic": {"partition": offset}}')
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"{topic!r} has no partitions")
        found: dict[int, int] = {}
        for partition, offset in partitions.items():
            if not (partition.isascii() and partition.isdigit() and len(partition) <= 10):
                raise ValueError(f"{topic!r} has a partition {partition!r}")
            if type(offset) is not int or not -2 <= offset < 2**63:
                raise ValueError(f"{topic!r} {partition} has no offset")
            found[int(partition)] = offset
        yield topic, found


__all__ = ["restore"]
