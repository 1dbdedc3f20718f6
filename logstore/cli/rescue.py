"""``logstore rescue``: one whole directory out of damaged ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import EXIT_FINDINGS, json_option
from logstore.cli.common.options import directories_argument
from logstore.cli.common.progress import progress_bar
from logstore.cli.recover import warnings_in_reports
from logstore.rescue import PartitionRescue, RescueReport
from logstore.rescue import rescue as rescue_directories


@click.command(short_help="Salvage damaged directories, or replicas, into a new one.")
@directories_argument("sources", "SRC…")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="DST",
    help="Missing, or empty.",
    shell_complete=completion.directories,
)
@click.option("--dry-run", is_flag=True, help="Report only: nothing is written.")
@click.option(
    "--topic-id",
    "topic_ids",
    multiple=True,
    metavar="TOPIC=ID",
    help="Which topic is meant, where the sources have several ids for a name.",
)
@click.option(
    "--broker",
    type=int,
    default=None,
    metavar="ID",
    help="Give the result the meta.properties of this broker; by default if there is only one.",
)
@json_option
@click.pass_context
def rescue(
    ctx: click.Context,
    sources: tuple[str, ...],
    target: str,
    dry_run: bool,
    topic_ids: tuple[str, ...],
    broker: int | None,
    as_json: bool,
) -> None:
    """Salvage what can be read of damaged log directories into a new one.

    Each SRC is a log directory or a partition directory that nobody uses; several are taken for
    replicas, and what one has lost is taken from another. They are only read. DST gets the good
    batches, with new indexes and checkpoints, and a broker starts on it. Batches that a later
    leader epoch replaced are kept beside the log, as *.cut files.

    Exit code 0: whole, as far as the sources show. 1: something is missing or in doubt; each
    place is reported with its offsets and the reason. 2: an error; then there is no DST.
    """
    with progress_bar(quiet=as_json) as progress, warnings_in_reports():
        report = rescue_directories(
            sources,
            target,
            topic_ids=_ids(topic_ids),
            broker=broker,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        terminal.print_json(report.to_dict(), indent=2)
    else:
        _print(report)
    ctx.exit(0 if report.whole else EXIT_FINDINGS)


def _ids(pairs: Sequence[str]) -> dict[str, uuid.UUID]:
    from checkpoints import topic_id_from_text

    found: dict[str, uuid.UUID] = {}
    for pair in pairs:
        topic, _, text = pair.partition("=")
        try:
            found[topic] = topic_id_from_text(text)
        except ValueError as error:
            raise click.UsageError(f"--topic-id {printable(pair)}: {error}") from None
    return found


def _print(report: RescueReport) -> None:
    from logstore.terminal import tables

    listing = tables.Listing(
        ["partition"],
        ["from", "start", "end", "records", "MB", "mended", "lost", "aside"],
    )
    for found in report.partitions:
        listing.add_row(
            _name(found),
            f"{len(found.sources)}",
            f"{found.start}",
            f"{found.end}",
            f"{found.records:,}",
            f"{found.bytes / 1e6:,.1f}",
            f"{found.mended:,}",
            f"{sum(gap.next - gap.first for gap in found.gaps):,}",
            f"{sum(aside.batches for aside in found.set_aside):,}",
        )
    listing.print()
    for found in report.partitions:
        for line in _lines(found):
            terminal.line(f"{_name(found)}: {line}")
    for note in report.notes:
        terminal.line(f"note: {note}")
    terminal.line(_verdict(report))


def _lines(found: PartitionRescue) -> Iterator[str]:
    yield from (f"lost: {gap}" for gap in found.gaps)
    yield from (f"in doubt: {doubt}" for doubt in found.doubts)
    yield from (
        f"set aside: {aside}" for aside in found.set_aside if str(aside) not in found.doubts
    )
    if found.history_gaps:
        yield (
            f"{found.history_gaps} offsets were missing before any damage, "
            "as compaction and truncation leave them"
        )
    yield from found.notes
    if found.dropped:
        yield f"and {found.dropped} more of these"


def _verdict(report: RescueReport) -> str:
    broken = sum(not found.whole for found in report.partitions)
    where = printable(report.target)
    done = f"{where} would be" if report.dry_run else f"{where} is"
    if not broken:
        return f"{done} whole: {len(report.partitions)} partitions"
    return f"{done} not whole: {broken} of {len(report.partitions)} partitions"


def _name(found: PartitionRescue) -> str:
    return printable(f"{found.topic}-{found.partition}")
