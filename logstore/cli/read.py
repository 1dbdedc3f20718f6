"""``logstore read``: the records of a topic, to stdout."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import click

from checkpoints.types import TopicPartition
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import EXIT_FINDINGS, fail, notes
from logstore.cli.common.options import COUNT, PARTITION, source_argument
from logstore.cli.records import positions as _positions
from logstore.cli.records.format import Encoding
from logstore.cli.records.output import output
from logstore.cli.records.reading import PartitionReader, readers_of
from logstore.common.errors import CorruptBatchError
from logstore.common.types import Record

POLL_SECONDS = 0.2


@click.command(short_help="Print the records of a topic.")
@source_argument
@click.argument("topic", shell_complete=completion.topics)
@click.option("--partition", type=PARTITION, metavar="N", help="Only this one; else all, in order.")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar=_positions.FORMS,
    help="Where to begin, in each partition. -N: its last N records; @TIME: the first record that "
    "is not older, in milliseconds or as 2026-11-01T12:00+01:00, without a zone in UTC.",
)
@click.option("--to", "end", metavar=_positions.FORMS, help="Stop before this place.")
@click.option("--max", "count", type=COUNT, metavar="N", help="At most N records in all.")
@click.option("--follow", is_flag=True, help="Wait for more at the end, until interrupted.")
@click.option(
    "--format",
    "form",
    default="lines",
    metavar="lines|json|raw|TEMPLATE",
    help="lines: a value a line, null when it is; json: as of dump; raw: the values, one by one; "
    "else as kcat's -f: %s value, %k key, %h headers, %t topic, %p partition, %o offset, "
    r"%T timestamp, %S and %K lengths; \n, \t, \xHH.",
)
@click.option("--json", "as_json", is_flag=True, help="As --format json.")
@click.option(
    "--encoding",
    type=click.Choice([*map(str, Encoding)]),
    help="Of keys, values and headers [json: base64, else raw].",
)
@click.option("--key-separator", metavar="S", help="Lines: print the key, S and the value.")
@click.option(
    "--committed", is_flag=True, help="Leave out what is not committed: aborted, still open."
)
@click.pass_context
def read(
    ctx: click.Context,
    directory: str,
    topic: str,
    partition: int | None,
    start: str,
    end: str | None,
    count: int | None,
    follow: bool,
    form: str,
    as_json: bool,
    encoding: str | None,
    key_separator: str | None,
    committed: bool,
) -> None:
    """Print the records of TOPIC in the log directory DIR.

    The directory may be in use, by logstore or by a Kafka broker: it is only read and its lock is
    left alone. So the end is that of the files, not the high watermark, and a record printed here
    may not be flushed yet. An index shows where to begin in the middle, if the batch that it leads
    to is sound. A deletion during the read is reported on stderr. Damage ends the output with exit
    code 1.

    On a terminal what is not printable appears as an escape, such as \\x1b or \\n, and a backslash
    as two; to a pipe or a file every byte goes as it is. With --encoding utf-8 these escapes go
    everywhere, and in JSON what is no UTF-8 is {"base64": "…"}.

    \b
    Example:
      logstore read DIR orders --from -10 --format '%T %p %o %k %s\\n'
    """
    if follow and committed:
        fail("--follow and --committed cannot be combined")
    for option, text in (("--from", start), ("--to", end)):
        _positions.check(text, option)
    chosen = None if encoding is None else Encoding(encoding)
    separator = None if key_separator is None else os.fsencode(key_separator)
    out = output("json" if as_json else form, chosen, separator, count)
    note = notes()
    readers = readers_of(directory, topic, [] if partition is None else [partition], note)
    try:
        for reader in readers:
            reader.end_offset = _positions.end(reader, end, "--to")
            if committed:
                reader.keep_to_committed()
            reader.offset = _positions.begin(reader, start, "--from", note)
        for chunk, tp in _records(readers, follow):
            if not out.write(chunk, tp):
                break
    except CorruptBatchError as error:
        terminal.flush()
        terminal.line(f"corrupt: {error}", err=True)
        ctx.exit(EXIT_FINDINGS)
    terminal.flush()


def _records(
    readers: list[PartitionReader], follow: bool
) -> Iterator[tuple[list[Record], TopicPartition]]:
    while True:
        for reader in readers:
            for chunk in reader.chunks():
                yield chunk, reader.topic_partition
        if not follow:
            return
        terminal.flush()
        time.sleep(POLL_SECONDS)
        readers[0].beside.read()  # of all of them
