"""``logstore append``: records from stdin to a topic."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

import click

from checkpoints.partition_metadata import random_topic_id
from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import fail, json_option
from logstore.cli.common.interrupts import InterruptibleInput, Interrupts
from logstore.cli.common.options import (
    COUNT,
    PARTITION,
    PARTITIONS,
    config_option,
    counted,
    directory_argument,
    parse_config,
)
from logstore.cli.common.topics import topics_of
from logstore.cli.records.batching import (
    CODECS,
    Appended,
    Batcher,
    LinesBatch,
    header_option,
    parse_headers,
    report_appended,
)
from logstore.cli.records.input import BadInputError, LineForm, Parsed, input_records
from logstore.common.errors import LogstoreError
from logstore.common.types import Header
from logstore.format import filenames
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner


@click.command(short_help="Append lines of stdin to a topic.")
@directory_argument
@click.argument("topic", shell_complete=completion.topics)
@click.option("--partition", type=PARTITION, metavar="N", help="Append to this partition.")
@click.option(
    "--partitions",
    type=PARTITIONS,
    metavar="P",
    help="Partitions of a topic that is not there yet (1); the key decides between them.",
)
@config_option
@header_option("--header")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json"]),
    default="lines",
    help="lines: a value a line; json: an object a line, as read and dump print them.",
)
@click.option("--key-separator", metavar="S", help="Lines: the key comes first, up to S.")
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--flush", is_flag=True, help="Make each batch durable before the next is read.")
@click.option(
    "--batch",
    "batch_records",
    type=COUNT,
    default=1000,
    show_default=True,
    metavar="N",
    help="Records a batch, at most.",
)
@json_option
def append(
    directory: str,
    topic: str,
    partition: int | None,
    partitions: int | None,
    config: tuple[str, ...],
    headers: tuple[str, ...],
    form: str,
    key_separator: str | None,
    compression: str,
    flush: bool,
    batch_records: int,
    as_json: bool,
) -> None:
    """Append what stdin brings to TOPIC in the log directory DIR; both are made when missing.

    A batch is appended when it is full and when the input makes a pause. With several partitions
    the key decides, as in Kafka's producers; records without one stay together for a batch. At the
    end everything is flushed and the directory closed cleanly; what was appended is printed.

    A line that cannot be read ends it with exit code 2, after appending the lines before it. Ctrl-C
    ends it between two batches; what was appended until then is printed and stays. --config is for
    a topic that is not there yet. DIR is opened when the first record has come; without one it
    stays as it is. While it runs, TOPIC is kept small as its stored configuration
    says; other topics are left as they are.

    \b
    Example:
      printf 'a=1\\nb=2\\n' | logstore append /tmp/logs orders --key-separator =
    """
    if partition is not None and partitions is not None:
        fail("--partition and --partitions exclude each other")
    if form == "json" and key_separator is not None:
        fail("--key-separator is for lines only")
    lines = LineForm(None if key_separator is None else os.fsencode(key_separator))
    if lines.separator == b"":
        fail("--key-separator is empty")
    settings, common = parse_config(config), parse_headers(headers)
    filenames.validate_topic(topic)
    here = partial(_usable, directory, topic, partition, partitions, settings)
    here()
    with Interrupts() as interrupts:
        stream = InterruptibleInput(sys.stdin.buffer, interrupts)
        records = input_records(stream, lines if form == "lines" else None)
        first = _first(records)
        if first is None:  # to open the directory would recover it, for nothing
            terminal.line("note: stdin holds no records", err=True)
            return terminal.print_json([]) if as_json else None
        with LogManager(
            [directory], background=False, owner=ManagerOwner(keep_high_watermarks=True)
        ) as manager:
            logs = _open_topic(manager, topic, here(), partition, partitions, settings)
            # Whoever keeps other topics here may have set them to keep what the defaults delete.
            known = logs if manager.has_stored_config(topic) else []
            manager.start(configured=lambda: {log.topic_partition: log for log in known})
            appender = _Appender(logs, compression, flush, batch_records, common)
            try:
                _append_all(appender, chain([first], records), interrupts)
            except (BadInputError, LogstoreError) as error:
                fail(f"{error}; {counted(appender.count)} before it appended")
            finally:
                report_appended(appender.done, as_json)


def _usable(
    directory: str, topic: str, partition: int | None, count: int | None, settings: dict[str, str]
) -> list[int]:
    """The partitions of the topic that are there, if the options fit them; nothing is opened."""
    if os.path.lexists(directory) and not os.path.isdir(directory):
        fail(f"{printable(directory)}: not a directory")
    if os.path.isdir(directory) and not os.access(directory, os.W_OK):
        fail(f"{printable(directory)}: not writable")
    found = topics_of(directory).get(topic, []) if os.path.isdir(directory) else []
    name = printable(topic)
    if found and settings:
        fail(f"{name} is there already: logstore alter changes its configuration")
    if partition is not None:
        if partition > (found[-1] + 1 if found else 0):
            here = f"has partitions {found} here" if found else "is not here"
            fail(f"--partition {partition} would leave a hole: {name} {here}")
    elif found and count not in (None, len(found)):
        fail(f"{name} has {len(found)} partitions here, not {count}")
    elif found != list(range(len(found))):
        here = f"only partitions {found} of {name} are here"
        fail(f"{here}, so keys decide nothing: --partition N")
    return found


def _open_topic(
    manager: LogManager,
    topic: str,
    found: list[int],
    partition: int | None,
    count: int | None,
    settings: dict[str, str],
) -> list[PartitionLog]:
    if partition is not None:
        known = manager.get(topic, found[0]).topic_id if found else random_topic_id()
        config = settings or None
        return [manager.get_or_create(topic, partition, topic_id=known, config=config)]
    if not found:
        return manager.create_topic(topic, count or 1, settings or None)
    return [manager.get(topic, p) for p in found]


def _first(records: Iterator[tuple[Parsed | None, int]]) -> tuple[Parsed, int] | None:
    """The first record, when it has come; None if the input ends without one."""
    try:
        return next(((record, line) for record, line in records if record is not None), None)
    except BadInputError as error:
        fail(f"{error}; {counted(0)} before it appended")


def _append_all(
    appender: _Appender, records: Iterable[tuple[Parsed | None, int]], interrupts: Interrupts
) -> None:
    batcher = appender.batcher
    try:
        for record, line in records:
            if record is None:
                batcher.flush()
            else:
                batcher.add(record, line)
            interrupts.check()
    except BadInputError:
        batcher.flush()
        raise
    batcher.flush()


class RejectedInputError(LogstoreError):
    """The log refused records of the input."""


class _Appender:
    """Appends batches of records to the logs of their partitions."""

    def __init__(
        self,
        logs: list[PartitionLog],
        compression: str,
        flush: bool,
        batch_records: int,
        headers: tuple[Header, ...],
    ) -> None:
        self.done = [Appended(log) for log in logs]
        self.batcher = Batcher(len(logs), batch_records, headers, self._append)
        self._compression, self._flush = compression, flush

    @property
    def count(self) -> int:
        return sum(each.count for each in self.done)

    def _append(self, at: int, batch: LinesBatch) -> None:
        done, records, now = self.done[at], batch.records, int(time.time() * 1000)
        try:
            done.log.append_columns(
                [r.value for r in records],
                [r.key for r in records],
                [now if r.timestamp is None else r.timestamp for r in records],
                [r.headers for r in records] if any(r.headers for r in records) else None,
                compression=self._compression,
            )
            done.log.replica.update_high_watermark(
                done.log.log_end_offset
            )  # no other replica to wait for
        except LogstoreError as error:
            raise RejectedInputError(f"{batch.span}: {type(error).__name__}: {error}") from None
        if self._flush:
            done.log.flush()
