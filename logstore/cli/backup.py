"""``logstore backup``: log directories into an object store, and a check of what is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import Number
from logstore.cli.common.progress import progress_bar
from logstore.cli.recover import warnings_in_reports

if TYPE_CHECKING:
    from logstore.backup import BackupFinding, BackupReport, PartitionResult, StoreCheckReport

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHOWN = 40


class Duration(click.ParamType):  # type: ignore[type-arg]  # of newer click only
    """A time span such as ``24h``, in milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        digits = text.rstrip("msdh")
        unit = _UNITS_MS.get(text[len(digits) :])
        if unit is None or not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
            option = param.opts[0] if param is not None else "a time"
            fail(f"{option} {printable(text, _SHOWN)}: give a time such as 30m, 24h or 7d")
        return int(digits) * unit


def topic_filter(patterns: tuple[str, ...]) -> Callable[[str], bool] | None:
    """Whether the name of a topic matches one of some patterns; None without any."""
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        fail(f"--topics {printable(str(error.pattern))} is no pattern: {error}")
    if not compiled:
        return None
    return lambda topic: any(each.fullmatch(topic) for each in compiled)


topics_option = click.option(
    "--topics",
    multiple=True,
    metavar="PATTERN",
    help="Only topics that match, such as 'orders.*'; may be repeated.",
)
"""The option of every command on some topics of a backup: parameter ``topics``."""


class _BackupGroup(click.Group):
    """A command that runs by itself too: what is no name of a command is a directory."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in self.commands
        if not named and not {"-h", "--help"} & set(args):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_BackupGroup,
    short_help="Back up log directories into an object store.",
    subcommand_metavar="[DIR… --to URI | check URI]",
)
def backup() -> None:
    """Back up log directories into an object store, or check what is there.

    \b
      logstore backup DIR… --to URI     back up; `logstore backup run --help` has the options
      logstore backup check URI         compare a store with what its backups say

    URI is a local directory, file:///…, s3://bucket/prefix?region=…, or whatever else pyarrow
    reaches. `logstore restore URI --to DIR` brings a backup back.
    """


@backup.command("run", hidden=True)
@click.argument(
    "directories", nargs=-1, required=True, metavar="DIR…", shell_complete=completion.directories
)
@click.option("--to", "uri", required=True, metavar="URI", help="Where to.")
@topics_option
@click.option("--broker", default="", metavar="ID", help="Which broker's, if DIR has several.")
@click.option(
    "--verify",
    "read_back",
    type=click.Choice(["tail", "full", "none"]),
    default="tail",
    show_default=True,
    help="What is read back of each new segment before it counts; full: of all others, too.",
)
@click.option(
    "--keep",
    type=Number(1, 1_000_000),
    default=None,
    metavar="N",
    help="Drop all but the newest N backups, and the segments that only those had.",
)
@click.option(
    "--drop-deleted",
    is_flag=True,
    help="Drop also the last backup of what the source no longer has.",
)
@click.option("--threads", type=Number(1, 64), default=8, help="Segments that are put at once.")
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    directories: tuple[str, ...],
    uri: str,
    topics: tuple[str, ...],
    broker: str,
    read_back: str,
    keep: int | None,
    drop_deleted: bool,
    threads: int,
    as_json: bool,
) -> None:
    """Put what is new of the log directories of one broker into a store.

    A broker may be running on them. Every batch is checked before it is put; what is committed
    (up to the high watermark on file) counts. A backup is whole once its commit is there, which is
    put last. A run that was killed is taken up by the next. Without --keep all backups stay, with
    what the source has deleted since.

    Exit code 0: all is backed up. 1: something is damaged in the source, and named; the rest is
    backed up. 2: an error; earlier backups are as they were.
    """
    from logstore.backup import Backup, BackupOptions, ReadBack
    from logstore.tiers import open_store

    options = BackupOptions(
        read_back=ReadBack(read_back),
        keep=keep or 0,
        drop_deleted=drop_deleted,
        broker=broker,
        puts_at_once=threads,
    )
    with progress_bar(quiet=as_json) as progress, warnings_in_reports():
        report = Backup(
            directories,
            open_store(uri),
            topics=topic_filter(topics),
            options=options,
            progress=progress,
        ).run()
    if as_json:
        terminal.print_json(report.to_dict(), indent=2)
    else:
        _print(report)
    ctx.exit(0 if report.whole else EXIT_FINDINGS)


def _print(report: BackupReport) -> None:
    from logstore.terminal import tables

    listing = tables.Listing(
        ["partition"], ["start", "end", "segments", "put", "adopted", "kept", "MB put"]
    )
    new = [part for part in report.partitions if part.put_bytes or part.adopted]
    for part in new:
        listing.add_row(
            _name(part),
            f"{part.log_start_offset}",
            f"{part.end_offset}",
            f"{part.segments:,}",
            f"{part.put:,}",
            f"{part.adopted:,}",
            f"{part.kept:,}",
            f"{part.put_bytes / 1e6:,.1f}",
        )
    if new:
        listing.print()
    print_findings(report.findings, report.notes)
    if report.pruned:
        terminal.line(f"note: {report.pruned} objects of earlier backups were deleted")
    where = printable(report.uri)
    lacks = "" if report.whole else f", with {len(report.findings)} findings"
    if report.committed:
        count = f"{len(report.partitions)} partitions, {report.put_bytes / 1e6:,.1f} MB put"
        terminal.line(f"{where} has backup {report.number}: {count}{lacks}")
    else:
        terminal.line(f"{where}: nothing is new since backup {report.number}{lacks}")


def print_findings(findings: list[BackupFinding], notes: list[str]) -> None:
    terminal.lines(map(str, findings))
    for note in notes:
        terminal.line(f"note: {note}")


def _name(part: PartitionResult) -> str:
    return printable(f"{part.topic}-{part.partition}")


@backup.command("check")
@click.argument("uri", metavar="URI")
@click.option("--deep", is_flag=True, help="Read every byte, and hold it against its checksum.")
@click.option(
    "--older-than",
    type=Duration(),
    default="24h",
    show_default=True,
    help="From which age on an object that no backup names is an orphan.",
)
@click.option("--delete", is_flag=True, help="Delete the orphans.")
@json_option
@click.pass_context
def check(
    ctx: click.Context, uri: str, deep: bool, older_than: int, delete: bool, as_json: bool
) -> None:
    """Compare a store with what its backups say.

    Missing and torn objects are found, those of other clusters, those that no backup names, and
    offsets that no segment has. What a listing lacks is asked for before it counts as missing.
    Only orphans are ever deleted.

    Exit code 0: nothing is wrong. 1: something is. 2: there is no backup, or an error.
    """
    from logstore.backup import StoreCheckOptions, check_store
    from logstore.tiers import open_store

    options = StoreCheckOptions(deep=deep, older_than_ms=older_than, delete=delete)
    with progress_bar(quiet=as_json) as progress:
        report = check_store(open_store(uri), options, progress=progress)
    if as_json:
        terminal.print_json(report.to_dict(), indent=2)
    else:
        _print_check(report)
    ctx.exit(0 if report.whole else EXIT_FINDINGS)


def _print_check(report: StoreCheckReport) -> None:
    from logstore.terminal import tables

    listing = tables.Listing(["partition"], ["start", "end", "segments", "MB"])
    for part in report.partitions:
        listing.add_row(
            _name(part),
            f"{part.log_start_offset}",
            f"{part.end_offset}",
            f"{part.segments:,}",
            f"{part.put_bytes / 1e6:,.1f}",
        )
    listing.print()
    print_findings(report.findings, report.notes)
    if report.deleted:
        terminal.line(f"note: {len(report.deleted)} orphans were deleted")
    backups = f"{len(report.backups)} backups, the newest is {report.number}"
    state = "nothing is wrong" if report.whole else f"{len(report.findings)} findings"
    terminal.line(f"{printable(report.uri)}: {backups}, {report.segments:,} segments: {state}")


__all__ = ["backup", "check", "run"]
