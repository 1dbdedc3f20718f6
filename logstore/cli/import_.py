"""``logstore import``: a file of ``logstore export`` becomes records of a topic."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import fail, json_option
from logstore.cli.common.interrupts import Interrupts
from logstore.cli.common.options import (
    PARTITIONS,
    config_option,
    directory_argument,
    parse_config,
)
from logstore.cli.export import FORMATS
from logstore.cli.records.batching import CODECS, Appended, report_appended
from logstore.common.errors import ConfigError, LogstoreError, TopicExistsError
from logstore.common.extras import Extra, load

if TYPE_CHECKING:
    from logstore.cli.records.files import Format
    from logstore.cli.records.loading import Content
    from logstore.log import PartitionLog
    from logstore.manager import LogManager


@click.command(name="import", short_help="Append the records of a file that export wrote.")
@directory_argument
@click.argument("file", metavar="FILE", shell_complete=completion.files)
@click.option("--format", "form", type=click.Choice(FORMATS), help="[by the name of the file]")
@click.option("--topic", metavar="T", help="Its name here [as in the file].")
@click.option(
    "--partitions",
    type=PARTITIONS,
    metavar="P",
    help="Partitions of the new topic [as many as the file has].",
)
@config_option
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--append", "to_existing", is_flag=True, help="Add to a topic that is there.")
@click.option("--unchecked", is_flag=True, help="Take a file without its .sha256 for whole.")
@json_option
def import_(
    directory: str,
    file: str,
    form: str | None,
    topic: str | None,
    partitions: int | None,
    config: tuple[str, ...],
    compression: str,
    to_existing: bool,
    unchecked: bool,
    as_json: bool,
) -> None:
    """Append the records of FILE, written by export, to the log directory DIR.

    Each record keeps its partition, key, value, timestamp and headers; it gets a new offset, and
    the timestamp type is that of the topic. The topic is created, with all records or, after an
    error, Ctrl-C or a kill, not at all. With --append it is there already: an error or Ctrl-C takes
    back what was appended, but a kill cannot.

    FILE is checked first, against FILE.sha256 and as a whole. DIR must not be in use.

    \b
    Example:
      logstore import /var/lib/kafka-logs orders.parquet --config retention.ms=-1
    """
    load("pyarrow", Extra.ARROW, "logstore import")
    from logstore.cli.common.topics import partitions_of
    from logstore.cli.records.files import Format, check_digest
    from logstore.cli.records.loading import survey
    from logstore.manager import LogManager, ManagerOwner

    settings = parse_config(config)
    form = form or next((each for each in FORMATS if file.endswith(f".{each}")), None)
    if form is None:
        fail(f"--format: {printable(file)} does not end in .parquet, .arrow or .jsonl")
    if to_existing and (settings or partitions is not None):
        fail("--config and --partitions are for a new topic, not for --append")
    if not os.path.isfile(file):
        fail(f"{printable(file)}: no such file")
    if not unchecked:
        check_digest(file)
    with Interrupts() as interrupts:
        content = survey(file, Format(form), interrupts)
        name = _topic_of(content, topic, file)
        source = _CheckedFile(file, Format(form), content, compression, interrupts)
        if not content.rows:
            terminal.line(f"note: {printable(file)} holds no records", err=True)
        elif to_existing and not os.path.isdir(directory):
            fail(f"{printable(directory)}: no such directory")
        else:
            if to_existing:
                partitions_of(directory, name)
            with LogManager(
                [directory], background=False, owner=ManagerOwner(keep_high_watermarks=True)
            ) as manager:
                if to_existing:
                    rows = source.append(manager, name)
                else:
                    rows = source.create(manager, name, partitions, settings)
            report_appended(rows, as_json, none_is_a_place=True)


def _topic_of(content: Content, topic: str | None, file: str) -> str:
    if len(content.topics) > 1:
        names = ", ".join(sorted(map(printable, content.topics)))
        fail(f"{printable(file)} holds several topics: {names}")
    return topic if topic is not None else next(iter(content.topics), "")


class _CheckedFile:
    """A checked file on its way into logs."""

    def __init__(
        self, file: str, form: Format, content: Content, compression: str, interrupts: Interrupts
    ) -> None:
        self._file, self._form, self._content = file, form, content
        self._compression, self._interrupts = compression, interrupts

    def create(
        self, manager: LogManager, topic: str, partitions: int | None, settings: dict[str, str]
    ) -> list[Appended]:
        count = max(self._content.rows) + 1
        if partitions is not None and partitions < count:
            fail(f"--partitions {partitions}: the file has records of partition {count - 1}")
        PARTITIONS.convert(partitions or count, None, None)
        rows: list[Appended] = []

        def fill(logs: list[PartitionLog]) -> None:
            rows.extend(self._load(dict(enumerate(logs))))

        try:
            manager.create_topic(topic, partitions or count, settings or None, fill=fill)
        except TopicExistsError as error:
            more = "; --append adds to it" if topic in manager.topics() else ""
            fail(f"{error}{more}")
        return rows

    def append(self, manager: LogManager, topic: str) -> list[Appended]:
        """Append all rows. After an error the appended ones are cut off again."""
        logs = {partition: manager.get(topic, partition) for partition in self._content.rows}
        begun = {log.topic_partition: log.log_end_offset for log in logs.values()}
        try:
            rows = self._load(logs)
            for log in logs.values():
                log.flush()
        except BaseException as error:
            try:
                manager.truncate_to(begun)
            except LogstoreError as failure:
                fail(f"{error}; and what was appended before could not be taken back: {failure}")
            raise
        return rows

    def _load(self, logs: dict[int, PartitionLog]) -> list[Appended]:
        from logstore.cli.records.loading import ImportFailedError, load_rows

        for log in logs.values():
            if log.config.message_timestamp_type != "CreateTime":
                raise ConfigError(
                    f"{log.name} has message.timestamp.type=LogAppendTime: the timestamps of the "
                    "file would be lost"
                )
        appended = {partition: Appended(log) for partition, log in sorted(logs.items())}
        load_rows(self._file, self._form, logs, self._compression, self._interrupts)
        for partition, done in appended.items():
            if done.count != self._content.rows[partition]:
                wanted = self._content.rows[partition]
                raise ImportFailedError(f"{done.log.name} took {done.count} of {wanted} records")
            done.log.replica.update_high_watermark(
                done.log.log_end_offset
            )  # no other replica to wait for
        return [*appended.values()]
