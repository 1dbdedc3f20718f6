"""Records collected by partition into batches, for what writes them, and what became of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import fail
from logstore.cli.common.options import counted
from logstore.cli.records.input import Parsed
from logstore.common.partitioner import partitioner
from logstore.common.types import Header
from logstore.log import PartitionLog

_Command = TypeVar("_Command", bound=Callable[..., Any])

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
BATCH_BYTES = 1_000_000  # below max.message.bytes, 1 MiB
_PENDING_BYTES = 32 * BATCH_BYTES  # of all partitions, as Kafka's buffer.memory
RECORD_OVERHEAD = 32  # an upper bound for the lengths and deltas of a record


def record_size(key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> int:
    """An upper bound for the bytes of a record."""
    size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    return size + sum(RECORD_OVERHEAD + 4 * len(n) + len(v or b"") for n, v in headers)


@dataclass(slots=True)
class LinesBatch:
    records: list[Parsed] = field(default_factory=list)
    size: int = 0
    first_line: int = 0
    last_line: int = 0

    @property
    def span(self) -> str:
        """The lines that it comes from."""
        if self.last_line > self.first_line:
            return f"lines {self.first_line} to {self.last_line}"
        return f"line {self.first_line}"


class Batcher:
    """Gives each record to a partition by its key, as Kafka's producers do. Those without one stay
    together for a batch. What waits for its batch to be full is bounded, however many partitions
    there are.

    Args:
        batch_records: records a batch, at most.
        headers: of every record, before its own.
        on_batch: called with the number of a partition and its batch when that is full, and at
            ``flush``.
    """

    def __init__(
        self,
        partition_count: int,
        batch_records: int,
        headers: tuple[Header, ...],
        on_batch: Callable[[int, LinesBatch], None],
    ) -> None:
        self._pending = [LinesBatch() for _ in range(partition_count)]
        self._spread = partitioner("murmur2")
        self._bytes = 0  # of what is pending
        self._headers, self._batch_records, self._on_batch = headers, batch_records, on_batch

    def add(self, record: Parsed, line: int) -> None:
        if self._headers:
            record = record._replace(headers=(*self._headers, *record.headers))
        at = self._spread.partition(record.key, len(self._pending))
        size = record_size(record.key, record.value, record.headers)
        if self._pending[at].records and self._pending[at].size + size > BATCH_BYTES:
            self._emit(at)
            at = self._spread.partition(record.key, len(self._pending))
        pending = self._pending[at]
        pending.records.append(record)
        pending.size += size
        self._bytes += size
        pending.first_line, pending.last_line = pending.first_line or line, line
        if len(pending.records) >= self._batch_records:
            self._emit(at)
        elif self._bytes > _PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Give away what is there."""
        for at, pending in enumerate(self._pending):
            if pending.records:
                self._emit(at)

    def _emit(self, at: int) -> None:
        batch, self._pending[at] = self._pending[at], LinesBatch()
        self._bytes -= batch.size
        self._on_batch(at, batch)
        if any(record.key is None for record in batch.records):
            self._spread.on_new_batch()


def header_option(*names: str) -> Callable[[_Command], _Command]:
    """The option of commands that write records: parameter ``headers``, for ``parse_headers``."""
    return click.option(
        *names,
        "headers",
        multiple=True,
        metavar="NAME=VALUE",
        help="A header of every record, before its own; without = it is null. May be repeated.",
    )


def parse_headers(texts: tuple[str, ...]) -> tuple[Header, ...]:
    """``NAME=VALUE`` as headers; without = the value is null."""
    headers: list[Header] = []
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            name.encode()
        except UnicodeEncodeError:
            fail(f"--header {printable(text)}: the name is not Unicode")
        headers.append((name, os.fsencode(value) if equals else None))
    return tuple(headers)


class Appended:
    """The appended records, derived from the log's offsets, so also right after an interrupt."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.first_offset = log.log_end_offset

    @property
    def count(self) -> int:
        return self.log.log_end_offset - self.first_offset

    def to_json(self, none_is_a_place: bool) -> dict[str, object]:
        """Without records the offsets are −1, or those around where they would be."""
        tp, some = self.log.topic_partition, self.count > 0 or none_is_a_place
        return {
            "topic": tp.topic,
            "partition": tp.partition,
            "records": self.count,
            "firstOffset": self.first_offset if some else -1,
            "lastOffset": self.first_offset + self.count - 1 if some else -1,
        }


def report_appended(
    done: Sequence[Appended], as_json: bool, *, none_is_a_place: bool = False
) -> None:
    if as_json:
        terminal.print_json([each.to_json(none_is_a_place) for each in done])
        return
    for each in done:
        if each.count:
            span = f"offsets {each.first_offset} to {each.first_offset + each.count - 1}"
            terminal.line(f"{printable(each.log.name)}: {counted(each.count)}, {span}")
