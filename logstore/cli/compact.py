"""``logstore compact``: one pass of the log cleaner by hand, for real or on an overlay."""

from __future__ import annotations

import os
from typing import Any

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import directory_argument, parse_pairs

_KIB = 1 << 10
_NAMED = 10  # topics that are left out


@click.command(short_help="Keep the newest record of each key.")
@directory_argument
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=completion.topics)
@click.option("--dry-run", is_flag=True, help="Report only: nothing on the disk is changed.")
@click.option(
    "--config",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A Kafka key for this pass, such as delete.retention.ms or "
    "log.cleaner.dedupe.buffer.size; may be repeated.",
)
@json_option
@click.pass_context
def compact(
    ctx: click.Context,
    directory: str,
    topics: tuple[str, ...],
    dry_run: bool,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Keep the newest record of each key, as Kafka's log cleaner does.

    DIR is a log directory, which must not be in use; it is opened as by ``logstore recover``.
    Without TOPIC all topics are compacted whose cleanup.policy has compact; a topic that is named
    is compacted whatever its policy is. The dirty ratio does not matter. What may not be cleaned
    stays: the active segment, what is younger than min.compaction.lag.ms, and all from the first
    transaction on that is not decided. A dry run keeps the rewritten segments in memory.

    The policy is that of topic.properties beside the records, which this store writes and Kafka
    does not. Where it is missing, as in a directory of Kafka, the topics to compact have to be
    named.

    Exit code 0: done. 1: a partition could not be cleaned, and is as it was; or nothing was
    compacted, and there are topics whose policy is not known. 2: an error, or a log cannot be
    opened.
    """
    from logstore.manager import compact_directory

    if not os.path.isdir(directory):
        fail(f"{printable(directory)}: not a directory")
    outcome = compact_directory(
        directory,
        topics=topics or None,
        dry_run=dry_run,
        config=parse_pairs(settings),
        progress=None if as_json else _print_progress,
    )
    if as_json:
        terminal.print_json({"dryRun": dry_run, **outcome.to_dict()}, indent=2)
    else:
        _print(outcome, dry_run)
    if outcome.unavailable:
        names = (f"{tp} cannot be opened: {why}" for tp, why in outcome.unavailable.items())
        fail(printable("; ".join(names)))
    failed = any(partition.error is not None for partition in outcome.partitions)
    unsure = bool(outcome.unknown) and not outcome.partitions
    ctx.exit(EXIT_FINDINGS if failed or unsure else 0)


def _print_progress(line: str) -> None:
    terminal.line(printable(line), err=True)


def _print(outcome: Any, dry_run: bool) -> None:
    if outcome.partitions:
        _print_partitions(outcome, dry_run)
    elif not outcome.unavailable:
        terminal.line("Nothing is compacted.")
    for topics, why in (
        (outcome.not_compacted, "without compact in their cleanup.policy"),
        (outcome.unknown, "left alone, because no configuration is stored beside them"),
    ):
        if topics:
            names = ", ".join(topics[:_NAMED]) + (", …" if len(topics) > _NAMED else "")
            terminal.line(f"{len(topics):,} topics {why}: {printable(names)}")
    if outcome.unknown:
        terminal.line("To compact one of those, name it: logstore compact DIR TOPIC")


def _print_partitions(outcome: Any, dry_run: bool) -> None:
    from logstore.terminal import tables

    table = tables.plain_table()
    table.add_column("partition", no_wrap=True)
    for name in ("segments", "KiB before", "KiB after", "records", "kept", "clean up to"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what stayed, and why")
    for partition in outcome.partitions:
        stats = partition.stats
        table.add_row(
            printable(str(partition.partition)),
            f"{stats.segments_before:,} > {stats.segments_after:,}",
            f"{partition.size_before / _KIB:,.1f}",
            f"{partition.size_after / _KIB:,.1f}",
            f"{stats.records_read:,}",
            f"{stats.records_kept:,}",
            f"{stats.end_offset}",
            printable(_why(partition)),
        )
    tables.print_tables(table, width=160)
    before = sum(partition.size_before for partition in outcome.partitions)
    after = sum(partition.size_after for partition in outcome.partitions)
    verb = "would free" if dry_run else "freed"
    terminal.line(f"{len(outcome.partitions):,} logs, {verb} {before - after:,} bytes")
    for partition in outcome.partitions:
        if partition.error is not None:
            name = printable(str(partition.partition))
            terminal.line(f"{name} was not cleaned: {printable(partition.error)}", err=True)


def _why(partition: Any) -> str:
    """Say why a pass left more in the log than the newest record of each key."""
    stats = partition.stats
    if partition.error is not None:
        return "not cleaned"
    parts = []
    for count, what in (
        (stats.tombstones_kept, "deletions of keys until their delete horizon"),
        (stats.markers_kept, "transaction markers"),
        (stats.batches_emptied, "empty batches for their producer or their last offset"),
    ):
        if count:
            parts.append(f"{count:,} {what}")
    if stats.end_offset < partition.log_end_offset and partition.stopped_by:
        parts.append(f"all from {stats.end_offset} on: {partition.stopped_by}")
    return "; ".join(parts) or "-"
