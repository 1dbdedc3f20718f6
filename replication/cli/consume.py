"""``logstore consume``: records of topics of a running cluster, to stdout."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import click

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, fail
from logstore.cli.common.options import COUNT, PARTITION
from logstore.cli.records import positions as _positions
from logstore.cli.records.format import Encoding
from logstore.cli.records.output import RecordOutput, output
from logstore.format.reader import MAX_OFFSET
from replication.cli.connection import client_options
from replication.cli.consume_group import Copying, RebalancedError, member_of
from replication.cli.produce import delimiter_of, partitions_of

if TYPE_CHECKING:
    from replication.client import Client, Consumer
    from replication.security.config import ClientProperties

_WORDS = {"beginning": "earliest", "end": "latest"}
_FORMS = "beginning|end|OFFSET|-N|s@TIME|e@TIME"
_LEVELS = ("read_uncommitted", "read_committed")


@click.command(short_help="Print the records of topics of a running cluster.")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC…")
@client_options
@click.option(
    "-G",
    "--group",
    metavar="GROUP",
    help="Share the partitions with the other members of a consumer group, go on where it has "
    "committed, and commit what was written out.",
)
@click.option("-p", "--partition", type=PARTITION, metavar="N", help="Only this one; else all.")
@click.option(
    "-o",
    "--offset",
    "places",
    multiple=True,
    metavar=_FORMS,
    help="Where to begin in each partition [beginning]. -N: its last N records; s@TIME: the first "
    "record that is not older, in ms or as 2026-11-01T12:00+01:00. e@TIME: where to stop. In a "
    "group: beginning or end, where nothing is committed.",
)
@click.option("--from-beginning", is_flag=True, help="As -o beginning.")
@click.option("-e", "--exit", "ends", is_flag=True, help="End where the partitions ended at first.")
@click.option("-c", "--count", type=COUNT, metavar="N", help="At most N records in all.")
@click.option(
    "-f",
    "--format",
    "form",
    default="lines",
    metavar="lines|json|raw|TEMPLATE",
    help=r"As of logstore read. A template is kcat's: %s value, %k key, %h headers, %t topic, "
    r"%p partition, %o offset, %T timestamp, %S and %K lengths; \n, \t, \xHH.",
)
@click.option("-J", "--json", "as_json", is_flag=True, help="As --format json.")
@click.option(
    "--encoding",
    type=click.Choice([*map(str, Encoding)]),
    help="Of keys, values and headers [json: base64, else raw].",
)
@click.option("-K", "--key-separator", metavar="S", help="Lines: print the key, S and the value.")
@click.option("-D", "--delimiter", default="\\n", metavar="S", help="Lines: what ends one [\\n].")
@click.option("-Z", "--null", is_flag=True, help="Print NULL for a null, not nothing.")
@click.option("--isolation", type=click.Choice(_LEVELS), help=f"[{_LEVELS[0]}]")
@click.option("-u", "--unbuffered", is_flag=True, help="Write each record as it comes.")
@click.option("-q", "--quiet", is_flag=True, help="Do not say where a partition ends.")
@click.pass_context
def consume(
    ctx: click.Context,
    topics: tuple[str, ...],
    client: ClientProperties,
    group: str | None,
    partition: int | None,
    places: tuple[str, ...],
    from_beginning: bool,
    ends: bool,
    count: int | None,
    form: str,
    as_json: bool,
    encoding: str | None,
    key_separator: str | None,
    delimiter: str,
    null: bool,
    isolation: str | None,
    unbuffered: bool,
    quiet: bool,
) -> None:
    """Print the records of each TOPIC of a running cluster, which may be a real Kafka. A TOPIC that
    begins with ^ is a pattern for the names of topics that are there. No topic is made.

    It goes on until interrupted, or with -e, -c or -o e@TIME to an end. Damage ends the output with
    exit code 1. Output is written when there is a pause. On a terminal what is not printable
    appears as an escape; to a pipe or a file every byte goes as it is.

    In a group, Ctrl-C ends it once what was read is written out and committed; a second one at
    once.

    \b
    Example:
      logstore consume orders -e -f '%p/%o %k: %s\\n'
    """
    start, end = _places(places, from_beginning, client, group is not None)
    if group is not None and partition is not None:
        fail("--group and --partition exclude each other: the group assigns partitions")
    level = isolation or client.others.get("isolation.level", _LEVELS[0]).strip().lower()
    if level not in _LEVELS:
        fail(f"isolation.level = {printable(level)}: give {' or '.join(_LEVELS)}")
    out = output(
        "json" if as_json else form,
        None if encoding is None else Encoding(encoding),
        None if key_separator is None else delimiter_of(key_separator, "--key-separator"),
        count,
        end=delimiter_of(delimiter, "--delimiter"),
        null=b"NULL" if null else b"",
    )

    from logstore.common.errors import CorruptBatchError
    from replication.client import Consumer
    from replication.wire.connecting import connect_by

    with connect_by(client) as connected, ExitStack() as stack:
        found = _found(connected, topics, partition)
        copying, reset = Copying(), "earliest"
        if group is not None:
            names = partial(_names, connected, topics, may_lack=True)
            copying = stack.enter_context(member_of(ctx, group, client, connected, names, quiet))
            reset = start
        is_whole = None
        while is_whole is None:
            begins = copying.begin(found)
            consumer = Consumer(
                connected,
                begins,
                isolation=level,
                reset=reset,
                rack=client.others.get("client.rack", ""),
                timeout_s=client.config.default_api_timeout_ms / 1000,
            )
            stops: dict[TopicPartition, int] = {}
            for tp, at in begins.items():
                reader = _Partition(consumer, tp)
                if end is not None or ends:
                    stops[tp] = _positions.end(reader, "latest" if end is None else end, "-o")
                    if ends:
                        stops[tp] = min(stops[tp], reader.latest())
                if at is not None:
                    consumer.seek(tp, at)
                    stops |= {tp: max(stops[tp], at)} if tp in stops else {}
                elif start != reset:
                    consumer.seek(tp, _begin(reader, start))
            try:
                is_whole = _copy(consumer, out, stops, ends, unbuffered, copying)
            except RebalancedError:
                continue
            except CorruptBatchError as error:
                terminal.flush()
                terminal.line(f"corrupt: {error}", err=True)
                ctx.exit(EXIT_FINDINGS)
        if ends and is_whole and not quiet:
            terminal.flush()
            for tp, offset in sorted(stops.items()):
                name = printable(tp.topic)
                text = f"% Reached end of topic {name} [{tp.partition}] at offset {offset}"
                terminal.line(text, err=True)
    terminal.flush()


def _begin(reader: _Partition, start: str) -> int:
    """As kcat, at the end if the place is behind it."""
    offset = _positions.begin(reader, start, "-o", _note)
    if not start.isdigit() or offset <= (latest := reader.latest()):
        return offset
    _note(f"{reader.topic_partition} ends at offset {latest}")
    return latest


def _note(message: str) -> None:
    terminal.line(f"note: {message}", err=True)


def _places(
    places: tuple[str, ...], from_beginning: bool, client: ClientProperties, in_group: bool
) -> tuple[str, str | None]:
    """The place to begin, and the one to stop, in the words of `logstore.cli.records.positions`."""
    start, end = None, None
    for place in places:
        if in_group and place == "stored":  # as it is
            continue
        if place.startswith("e@"):
            end = place[1:]
            continue
        if start is not None:
            fail("-o is given twice")
        start = _WORDS.get(place, place.removeprefix("s") if place.startswith("s@") else place)
    if start is not None and from_beginning:
        fail("-o and --from-beginning exclude each other")
    if start is None:
        reset = client.others.get("auto.offset.reset", "earliest").strip().lower()
        start = "earliest" if from_beginning else _WORDS.get(reset, reset)
    if in_group and start not in _WORDS.values():
        fail("in a group -o is beginning or end: where nothing is committed")
    for text in (start, end):
        _positions.check(text, "-o")
    return start, end


def _found(client: Client, topics: tuple[str, ...], partition: int | None) -> list[TopicPartition]:
    names = _names(client, topics)
    for name in names:  # all in one request
        client.metadata.want(name)
    return [
        TopicPartition(name, number)
        for name in names
        for number in partitions_of(client, name, partition)
    ]


def _names(client: Client, topics: tuple[str, ...], *, may_lack: bool = False) -> list[str]:
    names: dict[str, None] = {}
    for topic in topics:
        found = _matching(client, topic) if topic.startswith("^") else [topic]
        if not found and not may_lack:
            fail(f"no topic matches {printable(topic)}")
        names |= dict.fromkeys(found)
    return [*names]


def _matching(client: Client, pattern: str) -> list[str]:
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        fail(f"{printable(pattern)} is no pattern: {error}")
    return [name for name in client.topics() if wanted.match(name)]


class _Partition:
    """The ends of a partition, for positions."""

    def __init__(self, consumer: Consumer, tp: TopicPartition) -> None:
        self._consumer, self.topic_partition = consumer, tp

    def earliest(self) -> int:
        return self._consumer.offset_for(self.topic_partition, -2)

    def latest(self) -> int:
        return self._consumer.offset_for(self.topic_partition, -1)

    def first_at(self, timestamp: int) -> int:
        found = self._consumer.offset_for(self.topic_partition, timestamp)
        return self.latest() if found < 0 else found

    def last(self, count: int) -> int:
        """By offsets: those of markers, and of records that were compacted, count too."""
        return max(self.earliest(), self.latest() - count)


def _copy(
    consumer: Consumer,
    out: RecordOutput,
    stops: dict[TopicPartition, int],
    ends: bool,
    unbuffered: bool,
    copying: Copying,
) -> bool:
    """Write records, of each partition up to where it stops. False: there were enough before.

    Raises:
        RebalancedError: other partitions are to be read.
    """
    while True:
        positions = consumer.positions
        left = [tp for tp, stop in stops.items() if (positions[tp] or 0) < stop]
        if not left and (stops or (ends and not positions)):  # none, in a group of many members
            return True
        records = copying.poll(consumer)
        if not records:  # the log may have been cut since, or its topic recreated
            for tp in left:
                stops[tp] = min(stops[tp], _Partition(consumer, tp).latest())
        written: dict[TopicPartition, int] = {}
        for tp, pairs in groupby(records, itemgetter(0)):
            stop = stops.get(tp, MAX_OFFSET)
            wanted = [record for _, record in pairs if record.offset < stop]
            for chunk in [[each] for each in wanted] if unbuffered else [wanted]:
                taken = chunk[: out.left]
                goes_on = out.write(chunk, tp)
                written |= {tp: taken[-1].offset + 1} if taken else {}
                if unbuffered or not goes_on:
                    terminal.flush()
                    copying.wrote(written)
                if not goes_on:
                    return False
        terminal.flush()
        # Markers, and records that were left out, are behind us, too.
        copying.wrote(
            {
                tp: min(at, stops.get(tp, at))
                for tp, at in consumer.positions.items()
                if at is not None
            }
        )
