"""``logstore produce``: records from stdin or a file to a topic of a running cluster."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, EXIT_INTERRUPTED, fail, json_option
from logstore.cli.common.interrupts import InterruptibleInput, Interrupts
from logstore.cli.common.options import COUNT, Number, counted
from logstore.cli.records.batching import (
    CODECS,
    Batcher,
    LinesBatch,
    header_option,
    parse_headers,
)
from logstore.cli.records.format import BadTemplateError, unescaped
from logstore.cli.records.input import BadInputError, LineForm, input_records
from logstore.common.errors import InvalidRecordError, LogstoreError
from logstore.common.suggestions import or_meant
from replication.cli.connection import client_options

if TYPE_CHECKING:
    from replication.client import Client, Producer, RecordMetadata
    from replication.security.config import ClientProperties

ANY = -1
PARTITION = Number(ANY, 2**31 - 1)
TOPIC_WAIT_S = 5.0  # until a topic is made for us, or known to be there
MAX_BATCHES, MAX_BYTES = 100, 32 << 20  # on their way: Kafka's buffer.memory
PROGRESS_S = 0.5
_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
_NO = ("false", "0", "no")


@click.command(short_help="Write lines of stdin to a topic of a running cluster.")
@click.argument("topic")
@client_options
@click.option("-p", "--partition", type=PARTITION, metavar="N", help="This one; -1: by the key.")
@click.option("-k", "--key", metavar="KEY", help="The key of records without their own.")
@click.option(
    "-K",
    "--key-separator",
    metavar="S",
    help="Lines: the key comes first, up to S. A line without S has no key.",
)
@click.option("-D", "--delimiter", default="\\n", metavar="S", help="Ends a line [\\n].")
@header_option("-H", "--header")
@click.option("-Z", "--null", is_flag=True, help="Empty values and keys are null.")
@click.option(
    "-l",
    "--lines",
    "file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read this file, not stdin.",
)
@click.option("-c", "--count", type=COUNT, metavar="N", help="End after N records.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json"]),
    default="lines",
    help="json: an object a line, as read, dump and consume print them.",
)
@click.option("-z", "--compression", type=click.Choice(CODECS), help="[none]")
@click.option("--acks", type=click.Choice([*_ACKS]), help="Who has to have it [all].")
@click.option(
    "--batch",
    "batch_records",
    type=COUNT,
    default=1000,
    metavar="N",
    help="Records a batch, at most [1000].",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print what was written.")
@json_option
def produce(
    topic: str,
    client: ClientProperties,
    partition: int | None,
    key: str | None,
    key_separator: str | None,
    delimiter: str,
    headers: tuple[str, ...],
    null: bool,
    file: Path | None,
    count: int | None,
    form: str,
    compression: str | None,
    acks: str | None,
    batch_records: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write what stdin brings to TOPIC of a running cluster, which may be a real Kafka. If the
    brokers make missing topics, this one is made.

    A batch leaves when it is full and when the input makes a pause. The key decides between
    partitions as in Kafka's producers; records without one stay together for a batch. With acks=all
    a batch is written once however often it has to be sent. What was acknowledged is printed at the
    end.

    If a batch is refused or not acknowledged in time, no more are read; it ends with 1 and says how
    many records are not acknowledged. A line that cannot be read ends it with 2, after those before
    it. Ctrl-C ends it once what was read is acknowledged; a second one at once.

    \b
    Example:
      printf 'a=1\\nb=2\\n' | logstore produce orders -K = -H source=example
    """
    lines = LineForm(
        None if key_separator is None else delimiter_of(key_separator, "--key-separator"),
        delimiter_of(delimiter, "--delimiter"),
        None if key is None else os.fsencode(key),
        may_lack_key=True,
        empty_is_null=null,
    )
    if form == "json" and key_separator is not None:
        fail("--key-separator is for lines only")
    common = parse_headers(headers)
    options = _producer_options(client, acks, compression)

    from replication.client import Producer
    from replication.wire.connecting import connect_by

    with ExitStack() as stack:
        source = sys.stdin.buffer if file is None else stack.enter_context(file.open("rb"))
        connected = stack.enter_context(connect_by(client, may_create=True))
        chosen = None if partition == ANY else partition
        reason = ", and the brokers make none"
        partitions = partitions_of(connected, topic, chosen, TOPIC_WAIT_S, reason)
        interrupts = stack.enter_context(Interrupts())
        producer = Producer(connected, **options)
        sender = _Sender(producer, topic, partitions, interrupts, connected.now_s)
        batcher = Batcher(len(partitions), batch_records, common, sender.send)
        try:
            stream = InterruptibleInput(source, interrupts)
            records = input_records(stream, lines if form == "lines" else None)
            bad = _feed(batcher, records, sender, interrupts, count)
            sender.finish()
        finally:
            sender.report(as_json, quiet=quiet)
        if bad is not None:
            fail(f"{bad}; {counted(sender.acknowledged)} before it written")
        if sender.was_interrupted:
            raise click.exceptions.Exit(EXIT_INTERRUPTED)
        if sender.lost:
            raise click.exceptions.Exit(EXIT_FINDINGS)


def delimiter_of(text: str, option: str) -> bytes:
    try:
        found = unescaped(text)
    except BadTemplateError as error:
        fail(f"{option}: {error}")
    if not found:
        fail(f"{option} is empty")
    return found


def _producer_options(
    client: ClientProperties, acks: str | None, compression: str | None
) -> dict[str, Any]:
    from logstore.format.codecs.compression import Compression

    others = client.others
    acks = acks or others.get("acks", "all").strip()
    codec = compression or others.get("compression.type", "none").strip()
    if acks not in _ACKS:
        fail(f"acks = {printable(acks)}: give all, 1 or 0")
    if codec not in CODECS:
        fail(f"compression.type = {printable(codec)}: give one of {', '.join(CODECS)}")
    once = others.get("enable.idempotence", "true").strip().lower() not in _NO
    return {
        "acks": _ACKS[acks],
        "idempotent": once and _ACKS[acks] == -1,
        "compression": Compression[codec.upper()],
        "delivery_timeout_s": client.milliseconds("delivery.timeout.ms", 120_000) / 1000,
        "request_timeout_ms": client.config.request_timeout_ms,
    }


def partitions_of(
    client: Client, topic: str, partition: int | None, wait_s: float = 0, reason: str = ""
) -> list[int]:
    """The partitions of a topic, or the one that is asked for; without it the command ends."""
    from replication.common.errors import UnknownPartitionError

    try:
        found = [tp.partition for tp in client.retry(lambda: client.partitions(topic), wait_s)]
    except UnknownPartitionError:
        fail(or_meant(f"there is no topic {topic!r}{reason}", topic, client.topics()))
    if partition is not None and partition not in found:
        fail(f"there is no partition {partition} of {topic!r}: it has {len(found)}, from 0 on")
    return found if partition is None else [partition]


def _feed(
    batcher: Batcher, records: Any, sender: _Sender, interrupts: Interrupts, count: int | None
) -> BadInputError | None:
    """Read until the end, Ctrl-C, a failed batch, or a line that is no record, which is returned.
    What was read is sent."""
    left, bad = count, None
    try:
        for record, line in records:
            if record is None:
                batcher.flush()
            else:
                batcher.add(record, line)
                if left is not None:
                    left -= 1
            sender.collect()
            if sender.error is not None or left == 0:
                break
            interrupts.check()
    except BadInputError as error:
        bad = error
    except KeyboardInterrupt:
        pass  # ``finish`` sees that it was pressed; a second one ends the wait there
    batcher.flush()
    return bad


class _Sender:
    """Sends batches and waits for them, many at a time, in order.

    Attributes:
        error: of the first batch that was not acknowledged.
        lost: records that are not acknowledged.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partitions: list[int],
        interrupts: Interrupts,
        now_s: Callable[[], float],
    ) -> None:
        self._producer, self._topic, self._partitions = producer, topic, partitions
        self._interrupts, self._now_s = interrupts, now_s
        self._open: deque[tuple[LinesBatch, Callable[[], RecordMetadata]]] = deque()
        self._bytes = 0
        self._done = dict.fromkeys(partitions, (0, -1, -1))  # count, first, last offset
        self._shows = sys.stderr.isatty() and not sys.stdin.isatty()
        self._shown = self._now_s()
        self.acknowledged = self.lost = 0
        self.error: Exception | None = None
        self.was_interrupted = False

    def send(self, at: int, batch: LinesBatch) -> None:
        if self.error is not None:
            self.lost += len(batch.records)
            return
        records = [(r.key, r.value, r.timestamp, r.headers) for r in batch.records]
        try:
            wait = self._producer.begin_batch(self._topic, self._partitions[at], records)
        except InvalidRecordError as error:
            self.error, self.lost = error, self.lost + len(batch.records)
            return
        self._open.append((batch, wait))
        self._bytes += batch.size
        # Once Ctrl-C was pressed no more is read: ``finish`` waits for the rest.
        while self._is_full and not self._interrupts.pending:
            with suppress(KeyboardInterrupt), self._interrupts.ending_waits():
                self._wait()

    @property
    def _is_full(self) -> bool:
        return len(self._open) > MAX_BATCHES or (self._bytes > MAX_BYTES and len(self._open) > 1)

    def collect(self) -> None:
        """Show how far it has come, from time to time."""
        if self._shows and self._now_s() - self._shown >= PROGRESS_S:
            self._shown = self._now_s()
            terminal.status(f"{counted(self.acknowledged)} written", last=False)

    def finish(self) -> None:
        """Wait for all that was sent."""
        if self._interrupts.pending:
            self._interrupts.pending, self.was_interrupted = False, True
        try:
            with self._interrupts.ending_waits():
                while self._open:
                    self._wait()
        except KeyboardInterrupt:
            self.was_interrupted = True
        self.lost += sum(len(batch.records) for batch, _ in self._open)
        if self._shows:
            terminal.status(f"{counted(self.acknowledged)} written", last=True)

    def _wait(self) -> None:
        batch, wait = self._open[0]
        try:
            written = wait()
        except LogstoreError as error:
            self.error = self.error or error
            self.lost += len(batch.records)
        else:
            self.acknowledged += written.record_count
            number, offset = written.tp.partition, written.base_offset
            count, first, last = self._done[number]
            if offset >= 0:
                first = offset if first < 0 else min(first, offset)
                last = max(last, offset + written.record_count - 1)
            self._done[number] = count + written.record_count, first, last
        self._open.popleft()
        self._bytes -= batch.size

    def report(self, as_json: bool, *, quiet: bool) -> None:
        """Print what was written, as `append` does. Records of others may be between the first
        offset and the last."""
        if self.lost:
            why = "" if self.error is None else f": {self.error}"
            terminal.line(f"{counted(self.lost)} not acknowledged{why}", err=True)
        if as_json:
            names = ("partition", "records", "firstOffset", "lastOffset")
            rows = [(number, *done) for number, done in self._done.items()]
            terminal.print_json(
                [{"topic": self._topic, **dict(zip(names, row, strict=True))} for row in rows]
            )
            return
        for number, (count, first, last) in self._done.items():
            if count and not quiet:
                where = f", offsets {first} to {last}" if first >= 0 else ""
                terminal.line(f"{printable(self._topic)}-{number}: {counted(count)}{where}")
