"""``logstore export``: the records of a topic as a file for other tools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option, notes
from logstore.cli.common.options import PARTITION, counted, source_argument
from logstore.cli.records import positions as _positions
from logstore.cli.records.reading import PartitionReader, readers_of
from logstore.common.bounds import BATCH_MAX, UNPACKED_MAX
from logstore.common.errors import CorruptBatchError, LogstoreError
from logstore.common.extras import Extra, load
from logstore.directory.errors import DataLossError, ListingOutdatedError
from logstore.directory.splits import ReadSettings

if TYPE_CHECKING:
    from logstore.cli.records.files import Export

FORMATS = ("parquet", "arrow", "jsonl")
DELTA = "delta"


class LogChangedError(LogstoreError):
    """Records were deleted or cut off during their export."""


@click.command(short_help="Write a topic to a file or a Delta table.")
@source_argument
@click.argument("topic", shell_complete=completion.topics)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="FILE",
    shell_complete=completion.files,
    help="The file, in a directory it is named TOPIC.FORMAT; or the directory of the table.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([*FORMATS, DELTA]),
    help="[by the name of the file]",
)
@click.option(
    "--partition",
    "only",
    type=PARTITION,
    multiple=True,
    metavar="N",
    help="Only this one; may be repeated.",
)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar=_positions.FORMS,
    help="Where to begin, in each partition, as of read.",
)
@click.option("--until", "end", metavar=_positions.FORMS, help="Stop before this place [latest].")
@click.option(
    "--committed", is_flag=True, help="Leave out what is not committed: aborted, still open."
)
@click.option("--overwrite", is_flag=True, help="Replace the file if it is there.")
@click.option(
    "--from-offsets",
    "offsets",
    metavar="JSON",
    help='Where to begin a table, as \'{"0": 23, "1": -2}\'; -2 is the earliest.',
)
@click.option(
    "--allow-data-loss",
    "lossy",
    is_flag=True,
    help="Go on with a table where retention has deleted records that it does not have.",
)
@click.option(
    "--spark",
    "master",
    metavar="MASTER",
    help="Who writes a table: spark://host:port, yarn, … [local[*]]",
)
@click.option(
    "--conf", multiple=True, metavar="KEY=VALUE", help="Configuration for Spark; may be repeated."
)
@json_option
@click.pass_context
def export(
    ctx: click.Context,
    directory: str,
    topic: str,
    target: str,
    form: str | None,
    only: tuple[int, ...],
    start: str,
    end: str | None,
    committed: bool,
    overwrite: bool,
    offsets: str | None,
    lossy: bool,
    master: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the records of TOPIC in the log directory DIR to one file, or add them to a table.

    The columns are those of the Spark source: key, value, topic, partition, offset, timestamp,
    timestampType and headers. JSON Lines have keys and values in base64, as read --json.

    The directory may be in use, as for read. The file appears under its name when it is whole and
    on the disk; FILE.sha256 beside it proves that later. Damage, records that are deleted
    meanwhile, or Ctrl-C leave no file.

    With --format delta a Spark job adds to a Delta table what is new since the last run, each
    record once, even if a run was killed.

    \b
    Example:
      logstore export /var/lib/kafka-logs orders --to orders.parquet
      logstore export /var/lib/kafka-logs orders --to /tables/o --format delta
    """
    for option, text in (("--from", start), ("--until", end)):
        _positions.check(text, option)
    _fits(ctx, form == DELTA)
    if form == DELTA:
        from logstore.cli.records.table import TableTarget, export_table

        begin = start if ctx.get_parameter_source("start") is ParameterSource.COMMANDLINE else None
        to = TableTarget(target, topic, begin, offsets, committed, lossy)
        export_table(directory, to, master or "local[*]", conf, as_json)
        return
    load("pyarrow", Extra.ARROW, "logstore export")
    from logstore.cli.records.files import Format, exporting

    target, chosen = _file_of(target, topic, form)
    if not overwrite and os.path.lexists(target):
        fail(f"{printable(target)} is there already; --overwrite replaces it")
    readers = readers_of(directory, topic, only, notes())
    try:
        with exporting(target, Format(chosen)) as export:
            rows = [_export(export, reader, start, end, committed) for reader in readers]
            export.finish(overwrite=overwrite)
    except CorruptBatchError as error:
        terminal.line(f"corrupt: {error}; nothing was exported", err=True)
        ctx.exit(EXIT_FINDINGS)
    _report(target, rows, as_json)


def _fits(ctx: click.Context, table: bool) -> None:
    """Refuse an option that is for the other of a file and a table."""
    for name, kind in (
        ("only", False),
        ("end", False),
        ("overwrite", False),
        ("offsets", True),
        ("lossy", True),
        ("master", True),
        ("conf", True),
    ):
        if kind is not table and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(each for each in ctx.command.params if each.name == name).opts[0]
            fail(f"{option} is for {'--format delta' if kind else 'a file, and not for a table'}")


def _file_of(target: str, topic: str, form: str | None) -> tuple[str, str]:
    if form is None:
        form = next((each for each in FORMATS if target.endswith(f".{each}")), None)
        if form is None:
            fail(f"--format: {printable(target)} does not end in .parquet, .arrow or .jsonl")
    if os.path.isdir(target):
        target = os.path.join(target, f"{topic}.{form}")
    parent = os.path.dirname(target) or "."
    if not os.path.isdir(parent):
        fail(f"--to {printable(target)}: there is no directory {printable(parent)}")
    return target, form


def _export(
    export: Export, reader: PartitionReader, start: str, end: str | None, committed: bool
) -> dict[str, Any]:
    tp = reader.topic_partition
    reader.end_offset = min(reader.latest(), _positions.end(reader, end, "--until"))
    if committed:
        reader.keep_to_committed()
    reader.offset = first = _positions.begin(reader, start, "--from", reader.note)
    before = export.rows
    for rows in _rows(reader, first):
        export.write(rows)
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "records": export.rows - before,
        "startOffset": first,
        "endOffset": max(first, reader.end_offset),
    }


def _rows(reader: PartitionReader, first: int) -> Iterator[Any]:
    """The rows of a range that is fixed at the beginning, as a whole or not at all."""
    from logstore.cli.records.files import SCHEMA
    from logstore.directory.planning import OffsetRange, plan_splits
    from logstore.directory.split_reader import read_splits

    if first >= reader.end_offset:
        return
    wanted = OffsetRange(reader.layout, first, reader.end_offset, reader.aborted)
    settings = ReadSettings(max_batch_bytes=BATCH_MAX, max_unpacked_bytes=UNPACKED_MAX)
    try:
        yield from read_splits(plan_splits([wanted], BATCH_MAX), settings, SCHEMA)
    except DataLossError as loss:
        reason = f"{printable(loss.path)}: {loss.reason}; nothing was exported"
        raise LogChangedError(reason) from None
    except (FileNotFoundError, ListingOutdatedError) as error:
        reason = f"{reader.topic_partition}: a segment was deleted or replaced during the export"
        raise LogChangedError(f"{reason}: {error}") from None


def _report(target: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        terminal.print_json({"file": target, "size": os.path.getsize(target), "partitions": rows})
        return
    for each in rows:
        name = printable(f"{each['topic']}-{each['partition']}")
        first, last = each["startOffset"], each["endOffset"] - 1
        span = f"offsets {first} to {last}" if each["records"] else f"from offset {first} on"
        terminal.line(f"{name}: {counted(each['records'])}, {span}")
    terminal.line(f"{printable(target)}: {os.path.getsize(target)} bytes")
