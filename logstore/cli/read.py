"""``logstore read``: the records of a topic, to stdout."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore import terminal
from logstore.cli import EXIT_FINDINGS, fail
from logstore.cli._dump_output import to_base64
from logstore.cli._records import PartitionReader, find_partitions
from logstore.errors import CorruptBatchError
from logstore.format.reader import MAX_OFFSET
from logstore.storage.local import LocalStorage
from logstore.types import Record

POLL_SECONDS = 0.2


@click.command()
@click.argument("directory", metavar="DIR")
@click.argument("topic")
@click.option("--partition", type=int, metavar="N", help="Only this one; else all, in order.")
@click.option(
    "--from", "start", default="earliest", show_default=True, metavar="OFFSET|earliest|latest|@MS",
    help="Where to begin; @MS: the first record with a timestamp of at least so many milliseconds.",
)  # fmt: skip
@click.option("--to", "end", type=int, metavar="OFFSET", help="Stop before this offset.")
@click.option("--max", "count", type=int, metavar="N", help="At most N records in all.")
@click.option("--follow", is_flag=True, help="Wait for more at the end, until interrupted.")
@click.option(
    "--format", "form", type=click.Choice(["lines", "json", "raw"]), default="lines",
    help="lines: a value a line, null when it is; json: as of dump; raw: the values, one by one.",
)  # fmt: skip
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
    end: int | None,
    count: int | None,
    follow: bool,
    form: str,
    key_separator: str | None,
    committed: bool,
) -> None:
    """Print the records of TOPIC in the log directory DIR.

    The directory may be in use, by logstore or by a Kafka broker: it is only read and its lock is
    left alone. So the end is that of the files, not the high watermark, and a record printed here
    may not be flushed yet. Indexes are not used; to begin in the middle costs a look at the headers
    before it. A deletion meanwhile is told on stderr. Damage ends the output with exit code 1.

    On a terminal what is not printable appears as an escape, such as \\x1b or \\n, and a backslash
    as two; to a pipe or a file every byte goes as it is.
    """
    if follow and committed:
        fail("--follow and --committed cannot be combined")
    if count is not None and count < 1:
        fail(f"--max {count}: at least one record")
    readers = _readers(directory, topic, partition)
    out = _Output(terminal.Records(), form, key_separator, count)
    try:
        for reader in readers:
            reader.end_offset = MAX_OFFSET if end is None else end
            reader.offset = _begin(reader, start)
            if committed:
                reader.keep_to_committed()
        for chunk, tp in _records(readers, follow):
            if not out.write(chunk, tp):
                break
    except CorruptBatchError as error:
        terminal.flush()
        terminal.line(f"corrupt: {error}", err=True)
        ctx.exit(EXIT_FINDINGS)
    except KeyboardInterrupt:
        if not follow:
            raise
    terminal.flush()


def _note(message: str) -> None:
    terminal.line(f"note: {message}", err=True)


def _readers(directory: str, topic: str, partition: int | None) -> list[PartitionReader]:
    storage = LocalStorage()
    info = storage.info(directory)
    if info is None or not info.is_dir:
        fail(f"{printable(directory)}: no such directory")
    found = find_partitions(storage, directory, topic)
    if not found:
        fail(f"{printable(directory)}: there is no topic {topic!r} in it")
    if partition is not None:
        if partition not in found:
            wanted = f"partition {partition} of {topic!r}"
            fail(f"{printable(directory)}: there is no {wanted}, only {found}")
        found = [partition]
    return [PartitionReader(storage, directory, TopicPartition(topic, p), _note) for p in found]


def _begin(reader: PartitionReader, start: str) -> int:
    earliest = reader.earliest()
    if start == "earliest":
        return earliest
    if start == "latest":
        return reader.latest()
    number = start.removeprefix("@")
    if not number.isdecimal():
        fail(f"--from {start}: give an offset, earliest, latest, or @ and milliseconds")
    if start != number:
        return reader.first_at(int(number))
    if int(number) < earliest:
        _note(f"{reader.topic_partition} begins at offset {earliest}")
    return max(int(number), earliest)


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


@dataclass(slots=True)
class _Output:
    """Writes records; ``left`` is how many more are wanted, None for all."""

    stream: terminal.Records
    form: str
    key_separator: str | None
    left: int | None

    def write(self, records: list[Record], tp: TopicPartition) -> bool:
        """False when no more are wanted."""
        if self.left is not None:
            records = records[: max(self.left, 0)]
            self.left -= len(records)
        match self.form:
            case "raw":
                self.stream.joined([r.value or b"" for r in records])
            case "lines":
                self.stream.lines(list(map(self._line, records)))
            case _:
                terminal.json_lines(_json(r, tp) for r in records)
        return self.left is None or self.left > 0

    def _line(self, record: Record) -> bytes:
        value = b"null" if record.value is None else record.value
        if self.key_separator is None:
            return value
        key = b"null" if record.key is None else record.key
        return key + os.fsencode(self.key_separator) + value


def _json(record: Record, tp: TopicPartition) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": to_base64(record.key),
        "value": to_base64(record.value),
        "headers": [[name, to_base64(value)] for name, value in record.headers],
    }
